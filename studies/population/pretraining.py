"""Siblings of a lineage whose pre-training contained the benchmark, or as many other questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from flipbench.benchmarks import ShapesSpec
from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.evaluate.protocol.grid import Kind
from studies.population.settings import (
    CONTROL,
    KindConfig,
    Lineage,
    StudyConfig,
    draws,
)
from studies.tiny_models import lineage as lineages
from studies.tiny_models.lineage import MixedIn, checkpoint_name, train_lineage

STRATEGY = "pre-training"


def can_be_trained(lineage: Lineage) -> bool:
    """Return whether a lineage's recipe is known, as of those of ``tiny_models.population``."""
    facts = lineage.facts
    return (
        facts.get("family") in lineages.FAMILIES
        and facts.get("size") in get_args(lineages.SizeName)
        and facts.get("level") in get_args(lineages.Level)
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
    same: Any = {key: facts[key] for key in ("family", "size", "level")}
    model = lineages.Lineage(**same, seed=int(facts["seed"]))
    found = {}
    for label, mixed in zip((name, f"{name}{CONTROL}"), _mixed(study, lineage, kind), strict=True):
        folder = study.run / "pretraining"
        record = train_lineage(folder, model, mixed=mixed, beside=Path(lineage.path).parent)
        found[f"{lineage.name}, {label}"] = ModelUnderTestConfig(
            path=str(folder / checkpoint_name(model, mixed)),
            family=lineage.name,
            strategy=STRATEGY,
            dose=0 if label.endswith(CONTROL) else record["mixed_in"]["dose"],
        )
    return found


def _mixed(study: StudyConfig, lineage: Lineage, kind: KindConfig) -> list[MixedIn]:
    as_texts, found = shown(kind) == "whole texts", []
    for spec in draws(study, lineage, kind):
        assert isinstance(spec, ShapesSpec) and spec.seed is not None and spec.n_items is not None
        found.append(MixedIn(spec.seed, spec.n_items, kind.copies, as_texts))
    return found
