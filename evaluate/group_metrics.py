"""NaturalBench's group metrics: right on both images of a question, both questions of an image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flipbench.evaluate.detector import Answers, gold_of
from flipbench.evaluate.statistics import Outcome, wilson_interval
from flipbench.paired import PairedBenchmark
from flipbench.prompts import Asking
from flipbench.records import Interval

_WORDS = {"yes_no": re.compile(r"\b(yes|no)\b", re.IGNORECASE), "choice": re.compile(r"\b([AB])\b")}


@dataclass(frozen=True)
class Rate:
    """k of n, complete ones only."""

    k: int
    n: int

    @property
    def value(self) -> float | None:
        """The fraction k/n; None without any."""
        return self.k / self.n if self.n else None

    @property
    def interval(self) -> Interval | None:
        """Its Wilson interval, which takes the n for independent; None without any."""
        return wilson_interval(self.k, self.n) if self.n else None


@dataclass(frozen=True)
class GroupMetrics:
    """Accuracies of cells, questions, images and groups.

    Attributes
    ----------
    accuracy : Rate
        Cells (a question on an image) answered right.
    question : Rate
        Q-Acc: questions answered right on every image.
    image : Rate
        I-Acc: images on which every question is answered right.
    group : Rate
        G-Acc: groups with all cells right.
    n_missing : int
        Cells without an answer. They are wrong in no rate: what lacks a cell is not counted.
    """

    accuracy: Rate
    question: Rate
    image: Rate
    group: Rate
    n_missing: int


@dataclass(frozen=True)
class Cell:
    """One question on one image, and whether it was answered right."""

    group: str
    question: str
    image: str
    outcome: Outcome


def group_metrics(cells: Sequence[Cell]) -> GroupMetrics:
    """Return the metrics of cells; a group may have any number of questions and images.

    >>> replies = [("q0", "i0", True), ("q0", "i1", True), ("q1", "i0", False), ("q1", "i1", True)]
    >>> found = group_metrics([Cell("g", *reply) for reply in replies])
    >>> found.accuracy.value, found.question.value, found.image.value, found.group.value
    (0.75, 0.5, 0.5, 0.0)

    References
    ----------
    Li et al., NaturalBench, arXiv 2410.14669: two images x two questions each. Differs from the
    paper in missing answers, which the published scripts do not allow.
    """
    known = [cell.outcome for cell in cells if cell.outcome is not None]
    return GroupMetrics(
        accuracy=Rate(sum(known), len(known)),
        question=_all_right((f"{c.group}\0{c.question}", c.outcome) for c in cells),
        image=_all_right((f"{c.group}\0{c.image}", c.outcome) for c in cells),
        group=_all_right((c.group, c.outcome) for c in cells),
        n_missing=len(cells) - len(known),
    )


def group_metrics_of_models(
    benchmark: PairedBenchmark, asking: Asking, models: Sequence[Answers]
) -> dict[str, GroupMetrics]:
    """Return the metrics of several models, by name.

    A pair is a question on two images. Pairs on the same two images make one group, as in
    NaturalBench; a benchmark with one question an image has groups of one pair.
    """
    return {model.model: group_metrics(_cells(benchmark, asking, model)) for model in models}


def earliest_choice(reply: str, kind: str) -> int:
    """Return 0 for yes (A), 1 for no (B), whichever stands first in a reply; -1 for neither.

    Parameters
    ----------
    kind : {"yes_no", "choice"}

    Examples
    --------
    >>> earliest_choice("No, since yes is wrong", "yes_no"), earliest_choice("nobody", "yes_no")
    (1, -1)
    """
    found = _WORDS[kind].search(reply)
    if found is None:
        return -1
    return int(found.group(1).lower() in ("no", "b"))


def _cells(benchmark: PairedBenchmark, asking: Asking, answers: Answers) -> list[Cell]:
    cells = []
    for number, pair in enumerate(benchmark.pairs):
        if pair.original.options is None:
            continue
        both = (pair.original, pair.perturbed)
        images = [" ".join(image.sha256 for image in item.images) for item in both]
        probes = [asking.probe(item, "") for item in both]
        outcomes = answers.outcomes(probes, gold_of(both))
        group = " | ".join(sorted(images))
        cells += [
            Cell(group, str(number), image, outcome)
            for image, outcome in zip(images, outcomes, strict=True)
        ]
    return cells


def _all_right(members: Iterable[tuple[str, Outcome]]) -> Rate:
    """Count the sets whose members are all right, among those whose members are all answered."""
    sets: dict[str, list[Outcome]] = {}
    for name, outcome in members:
        sets.setdefault(name, []).append(outcome)
    whole = [outcomes for outcomes in sets.values() if None not in outcomes]
    return Rate(sum(all(outcomes) for outcomes in whole), len(whole))
