"""The gap compared with released models of other lineages, which is what most users have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.randomness import generator
from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table
from studies.population.results import (
    ALPHA,
    AS_MADE,
    CLEAN,
    CONTAMINATED,
    CONTROL,
    N_SUBSETS,
    Results,
    Rule,
    mean_share_cell,
    models_of,
)

KIND = "letters"
GAP, RELATIVE = Rule("perturbation_gap", "mcnemar"), Rule("perturbation_gap", "relative")
LIKE_STRENGTH = 0.15
"""How far apart the accuracies of models of like strength may be."""
_STRENGTH = (
    f"Like strength: within {100 * LIKE_STRENGTH:.0f} points on the original pictures; much weaker:"
    " by more than that."
)
ARMS = (CONTAMINATED, CONTROL, CLEAN)
PER_PICTURE = {"four questions a picture": 4}
"""Conditions in which so many successive items share a picture."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gaps:
    """The gaps of M models in one condition, each array of shape (n_models,).

    ``values`` are perturbed - original accuracy, ``variances`` theirs over items or pictures, and
    ``accuracies`` those on the original items; all are fractions.
    """

    lineages: NDArray[np.str_]
    arms: NDArray[np.str_]
    values: Floats
    variances: Floats
    accuracies: Floats

    def references(self, model: int) -> NDArray[np.int64]:
        """Return the released models of the other lineages."""
        return np.flatnonzero((self.arms == CLEAN) & (self.lineages != self.lineages[model]))

    def flags(self, model: int, references: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the model is flagged by each row of (n_panels, n_references) references.

        A one-sided test at .05 of the model's gap less the references' mean gap. The variance
        between references that their items do not explain counts for the model as for each of
        them; then the degrees of freedom are n_references - 1. Lineages have questions of their
        own, so that items cannot be paired as they are where all models answer the same ones.
        """
        gaps, variances = self.values[references], self.variances[references]
        n = references.shape[1]
        square = self.variances[model] + variances.mean(axis=1) / n
        between = np.zeros(len(references))
        if n > 1:
            between = np.maximum(gaps.var(axis=1, ddof=1) - variances.mean(axis=1), 0)
            square = square + between * (1 + 1 / n)
        ratio = (self.values[model] - gaps.mean(axis=1)) / np.sqrt(np.maximum(square, 1e-12))
        degrees = np.where(between > 0, n - 1, np.inf)
        return np.asarray(stats.t.cdf(ratio, np.maximum(degrees, 1)) <= ALPHA)


Shares = dict[str, dict[str, list[float]]]
"""By reference and arm: for each model, the share of panels against which it is flagged."""


def other_lineages(results: Results) -> Table | None:
    """Return false alarms and power with references of other lineages, by condition."""
    by_condition = shares_by_condition(results)
    if not by_condition:
        return None
    groups = [
        (
            condition,
            tuple(
                Row(name, tuple(mean_share_cell(by_arm[arm]) for arm in ARMS))
                for name, by_arm in shares.items()
            ),
        )
        for condition, shares in by_condition.items()
    ]
    return Table(
        "other-lineages",
        "The perturbation gap compared with released models of other lineages, whose questions are"
        f" others: mean over models of the share of references, or of {N_SUBSETS} random panels,"
        f" against which a model is flagged, in percent; kind: {KIND}. {_STRENGTH} Brackets: 95 %"
        " intervals that count each lineage once.",
        "References",
        (
            Column("Caught, %"),
            Column("Flagged, fine-tuned, %"),
            Column("Flagged, as released, %"),
        ),
        tuple(groups),
    )


def references_summary(results: Results) -> Table | None:
    """Return the same with the pictures as made and in the condition that suits it least."""
    by_condition = shares_by_condition(results)
    if not by_condition:
        return None
    rows = []
    for name in by_condition[AS_MADE]:
        cells = []
        for arms, worst in (((CONTAMINATED,), min), ((CONTROL, CLEAN), max)):
            means = {
                condition: float(np.mean(values))
                for condition, shares in by_condition.items()
                if (values := [share for arm in arms for share in shares[name][arm]])
            }
            extreme = worst(means, key=means.__getitem__)
            cells += [
                Cell(formats.percent(means[AS_MADE])),
                Cell(formats.percent(means[extreme]), extreme),
            ]
        rows.append(Row(name, tuple(cells)))
    return Table(
        "references",
        f"Mean over models, in percent; kind: {KIND}. {_STRENGTH}",
        "References",
        (
            Column("Caught, %"),
            Column("With the pictures that suit it least, %"),
            Column("Clean models flagged, %"),
            Column("With the worst pictures, %"),
        ),
        (("", tuple(rows)),),
    )


def shares_by_condition(results: Results) -> dict[str, Shares]:
    """Return how often each model is flagged against each kind of reference, by condition."""
    if "n" not in results.scores:  # a study of before scores had it
        return {}
    by_condition = {}
    for condition in dict.fromkeys([AS_MADE, *map(str, results.scores["condition"])]):
        gaps = gaps_of(results, condition)
        n_references = [len(gaps.references(model)) for model in range(len(gaps.values))]
        if n_references and min(n_references) >= 2:
            by_condition[condition] = {
                "its own released model": _shares_of_parents(results, condition),
                **{name: _shares(gaps, panels) for name, panels in PANELS.items()},
            }
    return by_condition


def gaps_of(results: Results, condition: str) -> Gaps:
    """Return the gaps of the released models, and of those with letters and their controls."""
    accuracies = {
        (lineage, arm): rows["original_right"].mean()
        for of in (AS_MADE, condition)
        for (lineage, kind, arm), rows in models_of(results.items, of)
        if kind in ("", KIND)
    }
    items = {
        (lineage, arm): rows
        for (lineage, kind, arm), rows in models_of(results.items, condition)
        if kind in ("", KIND)
    }
    rows = results.scores
    of_gap = (rows["detector"] == GAP.detector) & (rows["rule"] == GAP.rule)
    rows = rows[of_gap & (rows["condition"] == condition) & rows["kind"].isin(["", KIND])]
    rows = rows[rows["statistic"].notna()]
    models = []
    for lineage, arm, n, gap, p_value in zip(
        *(rows[name].tolist() for name in ("lineage", "arm", "n", "statistic", "p_value")),
        strict=True,
    ):
        if (lineage, arm) in items:
            variance = _variance(items[lineage, arm], PER_PICTURE.get(condition, 1))
        else:
            fell, rose = changes_of(n, gap, p_value)
            variance = ((fell + rose) / n - gap**2) / n
        models.append((lineage, arm, gap, variance, accuracies[lineage, arm]))
    lineages, arms, *numbers = zip(*models, strict=True) if models else [()] * 5
    values, variances, strengths = (np.array(column, dtype=float) for column in numbers)
    return Gaps(np.array(lineages, str), np.array(arms, str), values, variances, strengths)


def changes_of(n: int, gap: float, p_value: float) -> tuple[int, int]:
    """Return how many pairs fell and rose, from a gap and its exact McNemar p-value.

    >>> changes_of(120, (9 - 21) / 120, mcnemar_p(21, 9, "drop"))
    (21, 9)
    """
    net = round(-gap * n)
    rises = range(max(0, -net), (n - net) // 2 + 1)
    rose = min(rises, key=lambda rose: abs(mcnemar_p(rose + net, rose, "drop") - p_value))
    return rose + net, rose


def _variance(items: pd.DataFrame, per_picture: int) -> float:
    changes = items["perturbed_right"].astype(int) - items["original_right"].astype(int)
    pictures = items["item"].astype(int) // per_picture
    totals = (changes - changes.mean()).groupby(pictures.to_numpy()).sum()
    return float((totals**2).sum() / len(items) ** 2 * len(totals) / (len(totals) - 1))


def _by_strength(least: float, greatest: float) -> Callable[[Gaps, int], NDArray[np.int64]]:
    """Return a function that returns panels of one by how much weaker than the model they are."""

    def panels(gaps: Gaps, model: int) -> NDArray[np.int64]:
        references = gaps.references(model)
        weaker = gaps.accuracies[model] - gaps.accuracies[references]
        panel: NDArray[np.int64] = references[(weaker >= least) & (weaker <= greatest)]
        return panel[:, None]

    return panels


def _of_several(size: int) -> Callable[[Gaps, int], NDArray[np.int64]]:
    """Return a function that returns random panels; none if there are too few references."""

    def panels(gaps: Gaps, model: int) -> NDArray[np.int64]:
        references = gaps.references(model)
        n_panels = N_SUBSETS if len(references) >= size else 0
        rng = generator(0, f"{gaps.lineages[model]} {gaps.arms[model]}", f"panels of {size}")
        panels_drawn = [rng.permutation(references)[:size] for _ in range(n_panels)]
        return np.array(panels_drawn, int).reshape(n_panels, size)

    return panels


PANELS = {
    "1, any": _by_strength(-1.0, 1.0),
    "1 of like strength": _by_strength(-LIKE_STRENGTH, LIKE_STRENGTH),
    "1, much weaker": _by_strength(LIKE_STRENGTH, 1.0),
    "5": _of_several(5),
    "10": _of_several(10),
}
"""What a model is compared with: indices of references, shape (n_panels, n_references)."""


def _shares(gaps: Gaps, panels: Callable[[Gaps, int], NDArray[np.int64]]) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for model, arm in enumerate(gaps.arms.tolist()):
        references = panels(gaps, model)
        if len(references):
            shares[arm].append(float(gaps.flags(model, references).mean()))
    return shares


def _shares_of_parents(results: Results, condition: str) -> dict[str, list[float]]:
    """Return whether the detector's own rule flags each model beside the one it was made from."""
    shares = {}
    for arm in ARMS:
        rows = results.of(RELATIVE, arm, condition=condition)
        rows = rows[rows["kind"].isin(["", KIND])]
        shares[arm] = [float(verdict == CONTAMINATED) for verdict in rows["verdict"]]
    return shares
