"""Rules fixed on one half of the lineages, and their error rates on the other half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from ..detectors.registry import DETECTORS
from ..statistics.design_effect import ClusteredRate, clustered_rate
from .results import AS_MADE, CONTAMINATED, Results, Rule

LEVELS = (0.05, 0.02, 0.01, 0.005, 0.001)
MAX_ALARMS = 0.01
MAX_RULES = 3
MIN_LINEAGES = 4
"""Fewest lineages in a half from which rules are chosen, or on which they are counted."""
PAIRED = (
    "perturbation_gap",
    "old_answer_attraction",
    "confidence_gap",
    "loss",
    "min_k",
    "zlib_ratio",
)
"""Detectors that need perturbed pictures."""
ANSWERS = {"choose or generate", "text_only"}
"""What a model can do that gives answers only."""


@dataclass(frozen=True)
class Choice:
    """Some rules and a level: a model is flagged if Holm's correction leaves any p below it."""

    rules: tuple[Rule, ...]
    level: float

    def __str__(self) -> str:
        names = " + ".join(rule.title for rule in self.rules)
        return f"{names}, p ≤ {formats.number(self.level)}"


@dataclass(frozen=True)
class PValues:
    """The p-values of models by rule; 1 where a rule does not apply.

    Rules that decide by anything else, such as a sign or a published band, are left out.

    ``frame`` has one row for each model, with lineage, kind and arm as index.
    """

    frame: pd.DataFrame

    @classmethod
    def of(cls, results: Results) -> PValues:
        """Return the p-values with the pictures as made."""
        rows = results.scores[
            (results.scores["condition"] == AS_MADE) & results.scores["p_value"].notna()
        ]
        by = rows["detector"] + " " + rows["rule"]
        tests = {f"{rule.detector} {rule.rule}" for rule in results.rules if rule.is_test}
        frame = rows.assign(by=by)[by.isin(tests)].pivot_table(
            index=["lineage", "kind", "arm"], columns="by", values="p_value", aggfunc="first"
        )
        return cls(frame.fillna(1.0))

    @property
    def rules(self) -> list[Rule]:
        """The rules, in the order of their names."""
        return [Rule(*str(name).split(" ", 1)) for name in sorted(self.frame.columns)]

    @cached_property
    def contaminated(self) -> NDArray[np.bool_]:
        """Which models are contaminated."""
        arms = self.frame.index.get_level_values("arm")
        return np.asarray(arms == CONTAMINATED)

    def flagged(self, choice: Choice) -> NDArray[np.bool_]:
        """Return which models a choice flags, shape (M,)."""
        p = np.min([self._of_rule[rule.detector, rule.rule] for rule in choice.rules], axis=0)
        return np.asarray(p * len(choice.rules) <= choice.level + 1e-12)

    def rate(self, choice: Choice, among: NDArray[np.bool_], *, exact: bool) -> ClusteredRate:
        """Return how many of some models a choice flags, by lineage."""
        flags = pd.Series(self.flagged(choice)[among])
        lineages = self.frame.index.get_level_values("lineage")[among]
        counts = flags.groupby(np.asarray(lineages)).agg(["sum", "size"]).to_numpy()
        return clustered_rate([(int(k), int(n)) for k, n in counts], exact=exact)

    def power(self, choice: Choice) -> float:
        """Return the mean over kinds of the share of contaminated models flagged."""
        kinds, n_models = self._kinds
        n_flagged = np.bincount(kinds, self.flagged(choice)[self.contaminated], len(n_models))
        return round(float((n_flagged / n_models).mean()), 12)

    @cached_property
    def _of_rule(self) -> dict[tuple[str, str], NDArray[np.float64]]:
        return {
            (rule.detector, rule.rule): self.frame[f"{rule.detector} {rule.rule}"].to_numpy()
            for rule in self.rules
        }

    @cached_property
    def _kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The kind of each contaminated model by number, and how many models a kind has."""
        kinds = self.frame.index.get_level_values("kind")[self.contaminated]
        _, numbers, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        return numbers, counts


def best(values: PValues, rules: Sequence[Rule], n_rules: int) -> Choice | None:
    """Return the choice of at most ``n_rules`` with the best power and at most 1 % false alarms.

    Of equals, the one with fewer rules, then without a clean model, then with the lower level;
    None if none flags a contaminated model.
    """
    dirty = values.contaminated
    if not dirty.any() or dirty.all():
        return None
    found: list[tuple[float, int, bool, float, int]] = []
    choices: list[Choice] = []
    for size in range(1, n_rules + 1):
        for chosen in combinations(rules, size):
            for level in LEVELS:
                choice = Choice(chosen, level)
                if values.flagged(choice)[~dirty].mean() > MAX_ALARMS:
                    continue
                clean = any(rule.needs_clean_model for rule in chosen)
                found.append((-values.power(choice), size, clean, level, len(choices)))
                choices.append(choice)
    if not found or min(found)[0] == 0:
        return None
    return choices[min(found)[-1]]


@dataclass(frozen=True)
class Calibrated:
    """The best choice of several rules and of one, from half the lineages, on the other half.

    Attributes
    ----------
    better : bool
        Whether the combination flags more contaminated models of the other half than the single
        rule: an exact one-sided sign test over lineages, at .05.
    """

    combination: Choice
    single: Choice
    power: tuple[ClusteredRate, ClusteredRate]
    alarms: tuple[ClusteredRate, ClusteredRate]
    p_value: float
    n_lineages: tuple[int, int]

    @property
    def better(self) -> bool:
        """Whether the combination is better than the single rule on the other half."""
        return self.p_value <= 0.05 and self.alarms[0].k <= self.alarms[1].k

    def sentence(self) -> str:
        """Return what was found, with error rates."""
        rates = [
            f"catches {formats.rate(power)} and flags {formats.rate(alarm)} clean ones"
            for power, alarm in zip(self.power, self.alarms, strict=True)
        ]
        fixed = f"Fixed on {self.n_lineages[0]} lineages, counted on {self.n_lineages[1]} others:"
        single = f"the best single rule ({self.single}) {rates[1]}"
        if self.combination == self.single:
            return f"{fixed} {single}; no combination of up to {MAX_RULES} rules is better."
        verdict = "better" if self.better else "not shown to be better"
        return (
            f"{fixed} {single}; the best combination ({self.combination}) {rates[0]}, which is"
            f" {verdict} (sign test over lineages, {formats.p_equation(self.p_value)})."
        )


def calibrate(results: Results) -> Calibrated | None:
    """Fix rules on the first half of the lineages, and count on the second; None if too few."""
    halves = _halves(results)
    if halves is None:
        return None
    fitted, counted = halves
    rules = [rule for rule in fitted.rules if rule in counted.rules]
    single = best(fitted, rules, 1)
    combination = best(fitted, rules, MAX_RULES)
    if single is None or combination is None:
        return None
    dirty = counted.contaminated
    wins = _by_lineage(counted, combination) - _by_lineage(counted, single)
    n_won, n_lost = int((wins > 0).sum()), int((wins < 0).sum())
    p = stats.binom.sf(n_won - 1, n_won + n_lost, 0.5) if n_won + n_lost else 1.0
    both = (combination, single)
    return Calibrated(
        combination=combination,
        single=single,
        power=_pair([counted.rate(choice, dirty, exact=False) for choice in both]),
        alarms=_pair([counted.rate(choice, ~dirty, exact=True) for choice in both]),
        p_value=float(p),
        n_lineages=(_n_lineages(fitted), _n_lineages(counted)),
    )


def _halves(results: Results) -> tuple[PValues, PValues] | None:
    """Return both halves; None if a half has too few lineages, or only one kind of model."""
    first, second = (PValues.of(results.half(number)) for number in (0, 1))
    for half in (first, second):
        dirty = half.contaminated
        if _n_lineages(half) < MIN_LINEAGES or not dirty.any() or dirty.all():
            return None
    return first, second


def _pair(rates: list[ClusteredRate]) -> tuple[ClusteredRate, ClusteredRate]:
    first, second = rates
    return first, second


def _n_lineages(values: PValues) -> int:
    return int(values.frame.index.get_level_values("lineage").nunique())


def _by_lineage(values: PValues, choice: Choice) -> NDArray[np.float64]:
    dirty = values.contaminated
    lineages = np.asarray(values.frame.index.get_level_values("lineage"))[dirty]
    shares = pd.Series(values.flagged(choice)[dirty].astype(float)).groupby(lineages).mean()
    return np.asarray(shares.to_numpy())


def decision_tree(results: Results) -> Table | None:
    """Return what to run with what one has, with error rates on the other half of the lineages."""
    halves = _halves(results)
    if halves is None:
        return None
    fitted, counted = halves
    rules = [rule for rule in fitted.rules if rule in counted.rules]
    rows: list[Row] = []
    dirty = counted.contaminated
    for pairs in (True, False):
        for log_probs in (True, False):
            for clean in (True, False):
                usable = [
                    rule
                    for rule in rules
                    if (pairs or rule.detector not in PAIRED)
                    and (log_probs or _answers_only(rule))
                    and (clean or not rule.needs_clean_model)
                ]
                choice = best(fitted, usable, 1)
                have = [Cell("yes" if has else "no") for has in (pairs, log_probs, clean)]
                found = (
                    (
                        Cell(str(choice)),
                        rate_cell(counted.rate(choice, dirty, exact=False)),
                        rate_cell(counted.rate(choice, ~dirty, exact=True)),
                    )
                    if choice
                    else (Cell("nothing"), Cell(formats.NOTHING), Cell(formats.NOTHING))
                )
                rows.append(Row(str(len(rows) + 1), (*have, *found)))
    n_fitted, n_counted = _n_lineages(fitted), _n_lineages(counted)
    return Table(
        "decision-tree",
        "What to run with what you have: the rule with the best power at no more than 1 % false"
        f" alarms on {n_fitted} lineages, with its error rates on the other {n_counted}.",
        "Case",
        (
            Column("Perturbed pictures", numeric=False),
            Column("Log-probabilities", numeric=False),
            Column("Clean model", numeric=False),
            Column("Run", numeric=False),
            Column("Caught, %"),
            Column("Clean models flagged, %"),
        ),
        (("", tuple(rows)),),
    )


def _answers_only(rule: Rule) -> bool:
    return rule.detector in DETECTORS and DETECTORS[rule.detector].about.needs <= ANSWERS
