"""One kind of contamination and its control on one lineage: trained, asked, scored."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.contamination import contaminate
from flipbench.api.stages.detectors import ConfiguredDetectors
from flipbench.api.stages.examination import Examination
from flipbench.api.stages.filtering import make_pairs
from flipbench.api.stages.grid import TrainedPlan
from flipbench.benchmarks import ShapesSpec
from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.core.errors import DataError
from flipbench.core.files import atomic_file, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.evaluate.detectors.perturbation.option_order import OptionOrder
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.protocol.grid import Kind
from flipbench.evaluate.scoring.conditions import Condition
from flipbench.models.engine import Answers, answers_of
from flipbench.prompting.prompts import PromptSettings
from studies.population.results import SHUFFLED
from studies.population.settings import (
    CONDITIONS,
    CONTROL,
    KindConfig,
    Lineage,
    StudyConfig,
    draws,
    edited,
    experiment,
    safe,
)
from studies.tiny_models import lineage as tiny
from studies.tiny_models.lineage import MixedIn, checkpoint_name, train_lineage

PAIRED = ("perturbation_gap", "old_answer_attraction", "confidence_gap")
"""The detectors that are repeated with other perturbed pictures."""
AS_MADE = "as made"
Row = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One kind of contamination, by name, on one lineage."""

    lineage: Lineage
    kind: str

    def folder(self, study: StudyConfig) -> Path:
        """Return where its results are."""
        return study.run / "units" / f"{self.lineage.name}--{safe(self.kind)}"

    def is_pretraining(self, study: StudyConfig) -> bool:
        """Return whether its models are trained anew instead of further."""
        return study.kinds[self.kind].pretraining

    def done(self, study: StudyConfig) -> bool:
        """Return whether its results are complete."""
        return (self.folder(study) / "unit.json").exists()


def run_unit(study: StudyConfig, unit: Unit) -> None:
    """Train, ask and score; write ``scores.parquet``, ``items.parquet`` and, last, ``unit.json``.

    A run that was killed continues with what its run directory has.
    """
    start, cpu = time.time(), time.process_time()
    kind = study.kinds[unit.kind]
    pretrained = siblings(study, unit.lineage, unit.kind) if unit.is_pretraining(study) else {}
    config = experiment(study, unit.lineage, unit.kind, pretrained)
    assembly = Assembly.open(config, progress=False)
    pairs, _ = make_pairs(assembly)
    plans = contaminate(assembly)
    lacking = [plan.label for plan, points in plans if len(points) < plan.epochs]
    if lacking:
        raise DataError(f"{unit.lineage.name}, {', '.join(lacking)}: the training diverged")
    models = _last(assembly, plans)
    prompt, run = study.evaluate.prompt, assembly.run
    paired = ConfiguredDetectors.build(study.evaluate, PAIRED, run, study.seed)
    detectors = paired if kind.pairs else assembly.detectors
    as_made = kind.pairs.condition if kind.pairs else AS_MADE
    options = assembly.options(256)
    scores, _ = Examination(pairs, models, detectors, prompt, run, options).score()
    arms = _arms(
        kind.pairs.kind if kind.pairs else unit.kind,
        unit.lineage,
        models,
        shown(kind) if pretrained else "",
    )
    rows = [_score_row(arms, as_made, score) for score in scores]
    for condition in kind.conditions:
        store = ImageStore(run.path / "conditions" / "".join(filter(str.isalnum, condition)))
        variant = edited(pairs, CONDITIONS[condition], store)
        variant_scores, _ = Examination(variant, models, paired, prompt, run, options).score()
        rows += [_score_row(arms, condition, score) for score in variant_scores]
    members = {item_id for plan, _ in plans if not plan.control for item_id in plan.item_ids}
    if pretrained:
        members = {pair.original.id for pair in pairs.pairs}
    order = next((d for d in detectors.detectors(pairs) if isinstance(d, OptionOrder)), None)
    items = [
        row
        for subject in models
        for row in _item_rows(
            {**arms[subject.model.fingerprint], "condition": as_made},
            pairs,
            prompt,
            answers_of(subject.model.name, subject.model.fingerprint, run),
            members,
            order,
        )
    ]
    folder = unit.folder(study)
    write_table(rows, folder / "scores.parquet")
    write_table(items, folder / "items.parquet")
    costs = {
        "seconds": round(time.time() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "models": len(models) - 1,
        "lineage": unit.lineage.facts,
        "kind": unit.kind,
    }
    write_atomically(folder / "unit.json", json.dumps(costs, indent=1) + "\n")


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write rows as parquet, with names as dictionaries."""
    frame = pd.DataFrame(rows)
    for column in frame.columns[frame.dtypes == "float64"]:
        frame[column] = frame[column].astype("float32")
    if SHUFFLED in frame:
        frame[SHUFFLED] = frame[SHUFFLED].astype("boolean")
    with atomic_file(path) as partial:
        frame.to_parquet(partial, compression="zstd", index=False)


def _last(assembly: Assembly, plans: Sequence[TrainedPlan]) -> list[ModelUnderTest]:
    """Return the clean model, and the last epoch of each plan that no washing follows."""
    washed = {plan.after for plan, _ in plans}
    ends = [(plan, points[-1:]) for plan, points in plans if plan.id not in washed]
    return assembly.grid(ends)


def _arms(
    kind: str, lineage: Lineage, models: Sequence[ModelUnderTest], shows: str
) -> dict[str, Row]:
    """Return kind, arm, dose, and what its training showed of each model, by fingerprint."""
    arms: dict[str, Row] = {}
    for subject in models:
        model = subject.model
        arm = "clean" if model.strategy == "clean" else "control" if model.clean else "contaminated"
        arms[model.fingerprint] = {
            "lineage": lineage.name,
            "kind": "" if arm == "clean" else kind,
            "arm": arm,
            "dose": model.dose or 0,
            "shows": model.kind or (shows if model.dose else ""),
        }
    return arms


def _score_row(arms: dict[str, Row], condition: str, score: Score) -> Row:
    return {
        **arms[score.model_fingerprint],
        "condition": condition,
        "detector": score.detector,
        "rule": score.rule,
        "statistic": score.statistic,
        "direction": score.direction,
        "p_value": score.p_value,
        "verdict": score.verdict,
        "n": score.n,
        "lacks_reference": score.lacks_reference,
    }


def _item_rows(
    arm: Row,
    pairs: PairedBenchmark,
    prompt: PromptSettings,
    answers: Answers,
    members: set[str],
    order: OptionOrder | None,
) -> Iterator[Row]:
    for number, pair in enumerate(pairs.pairs):
        row: Row = {**arm, "item": number, "category": pair.original.category}
        row["member"] = pair.original.id in members
        row["n_options"] = len(pair.original.options or ())
        for side, item in (("original", pair.original), ("perturbed", pair.perturbed)):
            response = answers.to(prompt.closed_probe(item, side))
            log_probs = np.array(
                response.option_log_probs if response and not response.is_unreadable else ()
            )
            has_p = len(log_probs) > 0 and item.answer is not None
            row[f"{side}_choice"] = response.choice if response else -1
            row[f"{side}_right"] = bool(response and response.choice == item.answer)
            row[f"{side}_log_prob"] = (
                float(log_probs[item.answer] - np.logaddexp.reduce(log_probs)) if has_p else None
            )
        shuffled = order.shuffled(pair.original, prompt) if order else None
        row[SHUFFLED] = Condition.read("", answers, [shuffled]).outcomes[0] if shuffled else None
        row["old_answer"] = row["perturbed_choice"] == pair.original.answer
        yield row


def can_be_trained(lineage: Lineage) -> bool:
    """Return whether a lineage's recipe is known, as of those of ``tiny_models.population``."""
    facts = lineage.facts
    return (
        facts.get("family") in tiny.FAMILIES
        and facts.get("size") in get_args(tiny.SizeName)
        and facts.get("level") in get_args(tiny.Level)
        and facts.get("seed", "").isdigit()
    )


def shown(kind: KindConfig) -> Kind:
    """Return what such a pre-training shows of the items."""
    return "whole texts" if kind.data.leak == "whole_texts" else "letters"


def siblings(study: StudyConfig, lineage: Lineage, name: str) -> dict[str, ModelUnderTestConfig]:
    """Train a lineage anew, twice, unless that is done; return the two models.

    Both start from the lineage's own random weights and see its own scenes and conversations, draw
    for draw. Among the questions, the first sees the lineage's benchmark and the second, the
    control, as many other questions (`studies.tiny_models.lineage.MixedIn`). Until the first
    questions all three are one model, which is taken from beside the lineage's checkpoint if it is
    there. Checkpoints are in ``RUN/pretraining``.
    """
    kind, facts = study.kinds[name], lineage.facts
    shared_facts: Any = {key: facts[key] for key in ("family", "size", "level")}
    model = tiny.Lineage(**shared_facts, seed=int(facts["seed"]))
    models = {}
    for label, mixed in zip((name, f"{name}{CONTROL}"), _mixed(study, lineage, kind), strict=True):
        folder = study.run / "pretraining"
        record = train_lineage(folder, model, mixed=mixed, beside=Path(lineage.path).parent)
        models[f"{lineage.name}, {label}"] = ModelUnderTestConfig(
            path=str(folder / checkpoint_name(model, mixed)),
            family=lineage.name,
            strategy="pre-training",
            dose=0 if label.endswith(CONTROL) else record["mixed_in"]["dose"],
        )
    return models


def _mixed(study: StudyConfig, lineage: Lineage, kind: KindConfig) -> list[MixedIn]:
    as_texts, lessons = shown(kind) == "whole texts", []
    for spec in draws(study, lineage, kind):
        assert isinstance(spec, ShapesSpec) and spec.seed is not None and spec.n_items is not None
        lessons.append(MixedIn(spec.seed, spec.n_items, kind.copies, as_texts))
    return lessons
