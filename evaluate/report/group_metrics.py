"""NaturalBench's group metrics: questions right on both images, images with all questions right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Table, build_table

from ..protocol.detector import Answers, gold_of
from ..protocol.grid import GridModel
from ..statistics.paired import Outcome
from ..statistics.resampling import bootstrap_interval
from .titles import CAPTIONS, by_family


@dataclass(frozen=True)
class GroupMetrics:
    """Accuracies of cells, questions, images and groups; incomplete ones are not counted.

    Intervals resample whole groups; they are Wilson's if every group counts once, or if all are
    right or all are wrong.

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
        Cells without an answer; whatever contains one is not counted, rather than counted wrong.
    """

    accuracy: Rate
    question: Rate
    image: Rate
    group: Rate
    n_missing: int


@dataclass(frozen=True)
class GroupCell:
    """One question on one image, and whether it was answered right."""

    group: str
    question: str
    image: str
    outcome: Outcome


def group_metrics(cells: Sequence[GroupCell]) -> GroupMetrics:
    """Return the metrics of cells; a group may have any number of questions and images.

    >>> replies = [("q0", "i0", True), ("q0", "i1", True), ("q1", "i0", False), ("q1", "i1", True)]
    >>> found = group_metrics([GroupCell("g", *reply) for reply in replies])
    >>> found.accuracy.value, found.question.value, found.image.value, found.group.value
    (0.75, 0.5, 0.5, 0.0)

    References
    ----------
    Li et al., NaturalBench, arXiv 2410.14669: two images x two questions each. Differs from the
    paper in allowing missing answers, which the published scripts do not, and in parsing replies
    with `flipbench.prompting.parsing`, where the authors take the earliest yes, no, A or B.
    """
    return GroupMetrics(
        accuracy=_rate([(c.group, c.outcome) for c in cells if c.outcome is not None]),
        question=_all_right((c.group, c.question, c.outcome) for c in cells),
        image=_all_right((c.group, c.image, c.outcome) for c in cells),
        group=_all_right((c.group, "", c.outcome) for c in cells),
        n_missing=sum(cell.outcome is None for cell in cells),
    )


def cells_of(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> list[GroupCell]:
    """Return a model's cells: each pair with options is a question on two images.

    Pairs on the same two images form a group, as in NaturalBench; with one question per image,
    each pair is its own group.
    """
    cells = []
    for number, pair in enumerate(benchmark.pairs):
        if pair.original.options is None:
            continue
        items, images = (pair.original, pair.perturbed), _images(pair)
        probes = [prompt_settings.probe(item, "") for item in items]
        outcomes = answers.outcomes(probes, gold_of(items))
        group = " | ".join(sorted(images))
        cells += [
            GroupCell(group, str(number), image, outcome)
            for image, outcome in zip(images, outcomes, strict=True)
        ]
    return cells


def has_groups(benchmark: PairedBenchmark) -> bool:
    """Return whether any two questions share their two images."""
    groups = [frozenset(_images(pair)) for pair in benchmark.pairs if pair.original.options]
    return len(set(groups)) < len(groups)


def group_table(grid: Sequence[GridModel], metrics: Mapping[str, GroupMetrics]) -> Table:
    """Return the metrics of several models, by fingerprint, as a table."""
    columns = (
        ("Accuracy, %", lambda m: m.accuracy),
        ("Q-Acc, %", lambda m: m.question),
        ("I-Acc, %", lambda m: m.image),
        ("G-Acc, %", lambda m: m.group),
        ("No answer", lambda m: m.n_missing),
    )
    return build_table("groups", CAPTIONS["groups"], "Model", columns, by_family(grid, metrics))


def _images(pair: Pair) -> list[str]:
    """Return each side's images, by content."""
    sides = (pair.original, pair.perturbed)
    return [" ".join(image.sha256 for image in item.images) for item in sides]


def _all_right(members: Iterable[tuple[str, str, Outcome]]) -> Rate:
    """Count the sets whose members are all right, among those whose members are all answered."""
    sets: dict[tuple[str, str], list[Outcome]] = {}
    for group, name, outcome in members:
        sets.setdefault((group, name), []).append(outcome)
    complete = {key: outcomes for key, outcomes in sets.items() if None not in outcomes}
    return _rate([(group, all(outcomes)) for (group, _), outcomes in complete.items()])


def _rate(members: Sequence[tuple[str, Outcome]]) -> Rate:
    """Return how many are right, with an interval over groups."""
    names, rights = [group for group, _ in members], [bool(is_right) for _, is_right in members]
    k, n, n_groups = sum(rights), len(rights), len(set(names))
    if n_groups == n or k in (0, n):
        return Rate.wilson(k, n, n_groups)
    rng = generator(0, "groups", "bootstrap")
    interval = bootstrap_interval(np.array(rights, dtype=float), rng, clusters=names)
    return Rate(k=k, n=n, interval=interval, n_clusters=n_groups)
