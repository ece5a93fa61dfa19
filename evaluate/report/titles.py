"""What detectors, rules, verdicts and models are called on every page, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

from flipbench.reporting.pages import texts_in

from ..detectors.registry import DETECTORS
from ..protocol.grid import UNTOUCHED, GridModel
from ..protocol.rules import Verdict

T = TypeVar("T")

GAP = "perturbation_gap"
TEST = "mcnemar"
RELATIVE = "relative"
_RULES = {
    "sign": "sign rule (paper)",
    TEST: "McNemar test",
    RELATIVE: "vs clean",
    "paper": "paper’s rule",
    "bands": "paper’s bands",
    "paired": "permutation test",
}
"""Titles of the rules that several detectors share."""
VERDICTS = {verdict: verdict.replace("_", " ") for verdict in get_args(Verdict)}
SUSPECTED = "false alarm suspected"
CAPTIONS: dict[str, str] = texts_in(Path(__file__).with_name("captions.yaml"))
"""What stands below each table and figure, by its key."""


def title(detector: str) -> str:
    """Return a detector's display name."""
    implementation = DETECTORS.get(detector)
    return implementation.about.title if implementation else detector.replace("_", " ")


def rule_title(detector: str, rule: str) -> str:
    """Return the display name of a detector's rule."""
    implementation = DETECTORS.get(detector)
    special = implementation.about.rule_titles.get(rule) if implementation else None
    return special or _RULES.get(rule, rule.replace("_", " "))


def as_header(variant: str) -> str:
    """Return a name as a header: spaces for underscores, first letter capitalised."""
    text = variant.replace("_", " ")
    return text[:1].upper() + text[1:]


def families(grid: Sequence[GridModel]) -> dict[str, list[GridModel]]:
    """Return each family's models: clean, then by strategy and dose, then of unknown dose."""
    strategies = list(dict.fromkeys(model.strategy for model in grid))
    by_family: dict[str, list[GridModel]] = {}
    for model in grid:
        by_family.setdefault(model.family, []).append(model)
    for models in by_family.values():
        models.sort(
            key=lambda m: (
                (not m.clean, m.clean_finetune or m.dose is None),
                (strategies.index(m.strategy), m.dose or 0, m.epoch),
            )
        )
    return by_family


def label(model: GridModel, models: Sequence[GridModel]) -> str:
    """Return a model's short name within its family; its full name if that is not unique."""

    def short(m: GridModel) -> str:
        if m.strategy == UNTOUCHED:
            return "clean"
        if not m.epoch:  # trained elsewhere, in unknown steps
            return m.name
        return f"{m.strategy}, epoch {m.epoch}" + (" (other data)" if m.clean else "")

    names = [short(m) for m in models]
    return short(model) if names.count(short(model)) == 1 else model.name


def by_family(grid: Sequence[GridModel], values: Mapping[str, T]) -> dict[str, list[tuple[str, T]]]:
    """Return labels and values of each family's models, given the values by fingerprint."""
    rows = {
        family: [(label(m, models), values[m.fingerprint]) for m in models
                 if m.fingerprint in values]
        for family, models in families(grid).items()
    }  # fmt: skip
    return {family: labelled for family, labelled in rows.items() if labelled}
