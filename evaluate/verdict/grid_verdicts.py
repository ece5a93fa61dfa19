"""The verdict on every model of a grid, as `flipbench detect` would give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting import formats
from flipbench.reporting.sections import Section
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..protocol.grid import GridModel, reference_of
from ..report.titles import GAP, VERDICTS, families, label
from ..scoring.paired_replies import PairedReplies
from .basis import Evidence
from .decision import DECIDES
from .tables import memory_cell, memory_of
from .verdict import ModelVerdict


def grid_verdicts(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    prompt_settings: PromptSettings,
    answers_of: Callable[[GridModel], Answers],
) -> dict[str, ModelVerdict]:
    """Return the verdicts by the models' fingerprints; each against its own clean model, if any.

    Models without a score of the perturbation gap have none.
    """
    by_model: dict[str, list[Score]] = {}
    for score in scores:
        by_model.setdefault(score.model_fingerprint, []).append(score)
    replies = {
        model.fingerprint: PairedReplies.read(benchmark, prompt_settings, answers_of(model))
        for model in grid
        if any(score.detector == GAP for score in by_model.get(model.fingerprint, ()))
    }
    verdicts = {}
    for model in grid:
        if model.fingerprint not in replies:
            continue
        clean = reference_of(model, grid)
        known = clean is not None and clean.fingerprint in replies
        references = {clean.name: clean.fingerprint} if clean is not None and known else {}
        evidence = Evidence(
            benchmark,
            model.name,
            by_model[model.fingerprint],
            {name: by_model[fingerprint] for name, fingerprint in references.items()},
            replies[model.fingerprint],
            {name: replies[fingerprint] for name, fingerprint in references.items()},
        )
        verdicts[model.fingerprint] = ModelVerdict(evidence)
    return verdicts


def verdicts_section(
    grid: Sequence[GridModel], verdicts: Mapping[str, ModelVerdict]
) -> Section | None:
    """Return the verdicts as a section of a report; None if there are none."""
    groups = []
    for family, models in families(grid).items():
        rows = [
            _row(label(model, models), verdicts[model.fingerprint])
            for model in models
            if model.fingerprint in verdicts
        ]
        groups += [(family, tuple(rows))] if rows else []
    if not groups:
        return None
    counts = [verdict.verdict for verdict in verdicts.values()]
    told = ", ".join(
        f"{counts.count(name)} {words}" for name, words in VERDICTS.items() if name in counts
    )
    table = Table(
        "verdicts",
        "The verdict on each model, with its own clean model as the only reference where there is"
        " one, and what decided it. p: of the test that decides. From memory: at least this share"
        " of the items, by old answers beyond chance. Reason: why it is withheld.",
        "Model",
        (
            Column("Verdict", "", False),
            Column("Decided by", "", False),
            Column("p"),
            Column("From memory, %"),
            Column("Reason", "", False),
        ),
        tuple(groups),
    )
    return Section(
        key="verdicts",
        title="Verdicts",
        status="ok",
        sentence=f"Of {len(counts)} models, judged by the rules of flipbench detect: {told}.",
        tables=(table,),
        data={
            verdict.model: {
                "verdict": verdict.verdict,
                "decides": verdict.decision.decides,
                "p_value": verdict.decision.p_value,
                "memory": memory_of(verdict.of_gap.attraction),
                "doubts": [asdict(doubt) for doubt in verdict.decision.doubts],
                "sentence": verdict.sentence,
            }
            for verdict in verdicts.values()
        },
    )


def _row(name: str, verdict: ModelVerdict) -> Row:
    decision = verdict.decision
    texts = (
        VERDICTS[decision.verdict],
        DECIDES[decision.decides],
        formats.p_value(decision.p_value),
    )
    return Row(
        name,
        (
            *map(Cell, texts),
            memory_cell(verdict.of_gap.attraction),
            Cell(decision.reason or formats.NOTHING),
        ),
    )
