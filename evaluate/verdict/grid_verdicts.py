"""The verdict on every model of a grid, as `flipbench detect` would give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.sections import Section

from ..protocol.grid import GridModel, reference_of
from ..report.titles import GAP, VERDICTS
from ..scoring.paired_replies import PairedReplies
from .verdict import ModelVerdict
from .verdict_tables import memory_of, verdicts_table


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
        if model.fingerprint in replies:
            clean = reference_of(model, grid)
            references = [clean] if clean is not None and clean.fingerprint in replies else []
            verdicts[model.fingerprint] = ModelVerdict(
                benchmark,
                model.name,
                by_model[model.fingerprint],
                {m.name: by_model[m.fingerprint] for m in references},
                replies[model.fingerprint],
                {m.name: replies[m.fingerprint] for m in references},
            )
    return verdicts


def verdicts_section(
    grid: Sequence[GridModel], verdicts: Mapping[str, ModelVerdict]
) -> Section | None:
    """Return the verdicts as a section of a report; None if there are none."""
    if not verdicts:
        return None
    counts = [finding.verdict for finding in verdicts.values()]
    summary = ", ".join(
        f"{counts.count(name)} {words}" for name, words in VERDICTS.items() if name in counts
    )
    return Section(
        key="verdicts",
        title="Verdicts",
        status="ok",
        sentence=f"Of {len(counts)} models, judged by the rules of flipbench detect: {summary}.",
        tables=(verdicts_table(grid, verdicts),),
        data={
            finding.model: {
                "verdict": finding.verdict,
                "decides": finding.decision.decides,
                "p_value": finding.decision.p_value,
                "memory": memory_of(finding.of_gap.attraction),
                "doubts": [asdict(doubt) for doubt in finding.decision.doubts],
                "sentence": finding.sentence,
            }
            for finding in verdicts.values()
        },
    )
