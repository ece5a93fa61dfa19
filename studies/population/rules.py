"""Rules fixed on one half of the lineages, and their error rates on the other half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.statistics.design_effect import ClusteredRate, clustered_rate
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from studies.population.results import AS_MADE, CONTAMINATED, Results, Rule, judged

LEVELS = (0.05, 0.02, 0.01, 0.005, 0.001)
MAX_ALARMS = 0.01
MAX_WORST = 0.1
"""Greatest share of clean models that a rule may flag in the condition that suits it least."""
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
    """The p-values of models by rule; rules that decide by anything else are left out.

    ``frames`` has, by condition, a row for each model (lineage, kind, arm) and a column for each
    rule; NaN where a rule cannot judge a model. Rules that do not look at perturbed pictures have
    the values of the condition "as made". ``measured`` names the columns scored in each condition.
    """

    frames: dict[str, pd.DataFrame]
    measured: dict[str, set[str]]

    @classmethod
    def of(cls, results: Results) -> PValues:
        """Return the p-values of all conditions, "as made" first."""
        tests = {_column(rule) for rule in results.rules if rule.is_test}
        rows = results.scores.assign(by=results.scores["detector"] + " " + results.scores["rule"])
        rows = rows[rows["by"].isin(tests)]
        frames, measured_rules = {}, {}
        for condition in dict.fromkeys([AS_MADE, *map(str, rows["condition"])]):
            scores = rows[rows["condition"] == condition]
            frames[condition] = judged(scores[scores["p_value"].notna()]).pivot_table(
                index=["lineage", "kind", "arm"], columns="by", values="p_value", aggfunc="first"
            )
            measured_rules[condition] = set(scores["by"])
        as_made = frames[AS_MADE]
        blind = [name for name in as_made.columns if str(name).split(" ")[0] not in PAIRED]
        for condition, frame in frames.items():
            if condition != AS_MADE:
                complete = frame.drop(columns=blind, errors="ignore").join(as_made[blind])
                frames[condition] = complete.reindex(columns=as_made.columns)
                measured_rules[condition] |= set(blind)
        return cls(frames, measured_rules)

    @property
    def frame(self) -> pd.DataFrame:
        """The p-values with the pictures as made."""
        return self.frames[AS_MADE]

    @property
    def rules(self) -> list[Rule]:
        """The rules, in the order of their names."""
        return [Rule(*str(name).split(" ", 1)) for name in sorted(self.frame.columns)]

    @cached_property
    def contaminated(self) -> NDArray[np.bool_]:
        """Which models are contaminated, with the pictures as made."""
        return np.asarray(_arms(self.frame) == CONTAMINATED)

    def least(self, choice: Choice, condition: str = AS_MADE) -> NDArray[np.float64]:
        """Return each model's least p-value times the number of rules; NaN if none can judge it."""
        columns = self._columns[condition]
        p_values = [columns[_column(rule)] for rule in choice.rules]
        return np.asarray(np.fmin.reduce(p_values) * len(choice.rules))

    def flagged(self, choice: Choice) -> NDArray[np.bool_]:
        """Return which models a choice flags with the pictures as made, shape (M,)."""
        return np.asarray(self.least(choice) <= choice.level + 1e-12)

    def alarms(self, choice: Choice, condition: str = AS_MADE) -> ClusteredRate:
        """Return how many of the clean models that a choice can judge it flags, by lineage."""
        return self._rate(choice, condition, contaminated=False)

    def caught(self, choice: Choice) -> ClusteredRate:
        """Return how many contaminated models a choice flags, by lineage."""
        return self._rate(choice, AS_MADE, contaminated=True)

    def worst(self, choice: Choice) -> tuple[str, float]:
        """Return the condition in which most clean models are flagged, and their share.

        Rules that do not look at perturbed pictures have the condition "as made" alone. The share
        is 1 where a rule that looks at them was not measured.
        """
        blind = all(rule.detector not in PAIRED for rule in choice.rules)
        shares = {}
        for condition in [AS_MADE] if blind else self.frames:
            if not {_column(rule) for rule in choice.rules} <= self.measured[condition]:
                return condition, 1.0
            shares[condition] = self.share_of_clean(choice, condition)
        condition = max(shares, key=lambda name: shares[name])
        return condition, shares[condition]

    def share_of_clean(self, choice: Choice, condition: str) -> float:
        """Return the share of the clean models that a choice can judge that it flags."""
        p_values = self.least(choice, condition)[self._clean[condition]]
        p_values = p_values[~np.isnan(p_values)]
        return float((p_values <= choice.level + 1e-12).mean()) if len(p_values) else 0.0

    def power(self, choice: Choice) -> float:
        """Return the mean over kinds of the share of contaminated models flagged."""
        kinds, n_models = self._kinds
        n_flagged = np.bincount(kinds, self.flagged(choice)[self.contaminated], len(n_models))
        return round(float((n_flagged / n_models).mean()), 12)

    def _rate(self, choice: Choice, condition: str, *, contaminated: bool) -> ClusteredRate:
        p_values = self.least(choice, condition)
        among = (~self._clean[condition] if contaminated else self._clean[condition]) & (
            contaminated | ~np.isnan(p_values)
        )
        flags = pd.Series((p_values <= choice.level + 1e-12)[among])
        lineages = self.frames[condition].index.get_level_values("lineage")[among]
        counts = flags.groupby(np.asarray(lineages)).agg(["sum", "size"]).to_numpy()
        return clustered_rate([(int(k), int(n)) for k, n in counts], exact=not contaminated)

    @cached_property
    def _columns(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        return {
            condition: {str(name): frame[name].to_numpy(dtype=float) for name in frame.columns}
            for condition, frame in self.frames.items()
        }

    @cached_property
    def _clean(self) -> dict[str, NDArray[np.bool_]]:
        return {name: _arms(frame) != CONTAMINATED for name, frame in self.frames.items()}

    @cached_property
    def _kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The kind of each contaminated model by number, and how many models a kind has."""
        kinds = self.frame.index.get_level_values("kind")[self.contaminated]
        _, numbers, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        return numbers, counts


def _column(rule: Rule) -> str:
    return f"{rule.detector} {rule.rule}"


def _arms(frame: pd.DataFrame) -> NDArray[np.str_]:
    return np.asarray(frame.index.get_level_values("arm"))


def best(values: PValues, rules: Sequence[Rule], n_rules: int) -> Choice | None:
    """Return the choice of at most ``n_rules`` with the best power that flags few clean models.

    At most `MAX_ALARMS` of them with the pictures as made, and at most `MAX_WORST` in any other
    condition. Of equals, the one with fewer rules, then without a clean model, then with the lower
    level; None if none flags a contaminated model.
    """
    dirty = values.contaminated
    if not dirty.any() or dirty.all():
        return None
    ranked: list[tuple[float, int, bool, float, int]] = []
    choices: list[Choice] = []
    for size in range(1, n_rules + 1):
        for subset in combinations(rules, size):
            for level in LEVELS:
                choice = Choice(subset, level)
                alarms = values.share_of_clean(choice, AS_MADE)
                if alarms > MAX_ALARMS or values.worst(choice)[1] > MAX_WORST:
                    continue
                clean = any(rule.needs_clean_model for rule in subset)
                ranked.append((-values.power(choice), size, clean, level, len(choices)))
                choices.append(choice)
    if not ranked or min(ranked)[0] == 0:
        return None
    return choices[min(ranked)[-1]]


@dataclass(frozen=True)
class Calibrated:
    """The best choice of several rules and of one, from half the lineages, on the other half.

    Rates are those of the combination, then of the single rule, with the pictures as made;
    ``worst`` is the condition in which each flags the greatest share of clean models. The p-value
    is of an exact one-sided sign test over lineages: does the combination flag more?
    """

    combination: Choice
    single: Choice
    power: tuple[ClusteredRate, ClusteredRate]
    alarms: tuple[ClusteredRate, ClusteredRate]
    worst: tuple[tuple[str, ClusteredRate], tuple[str, ClusteredRate]]
    p_value: float
    n_lineages: tuple[int, int]

    @property
    def better(self) -> bool:
        """Whether the combination is better than the single rule on the other half."""
        return self.p_value <= 0.05 and self.alarms[0].k <= self.alarms[1].k

    def sentence(self) -> str:
        """Return what was found, with error rates."""
        rates = [
            f"catches {formats.rate(power)} and flags {formats.rate(alarm)} clean models{worst}"
            for power, alarm, worst in zip(
                self.power, self.alarms, map(_in_words, self.worst), strict=True
            )
        ]
        fixed = f"Fixed on {self.n_lineages[0]} lineages, counted on {self.n_lineages[1]} others:"
        single = f"the best single rule ({self.single}) {rates[1]}"
        if self.combination == self.single:
            return f"{fixed} {single}; no combination of up to {MAX_RULES} rules is better."
        verdict = "It is better" if self.better else "It is not shown to be better"
        if self.p_value <= 0.05 and not self.better:
            verdict = "It catches more, and flags more clean models"
        return (
            f"{fixed} {single}; the best combination ({self.combination}) {rates[0]}. {verdict}"
            f" (sign test over lineages, {formats.p_equation(self.p_value)})."
        )


def calibrate(results: Results) -> Calibrated | None:
    """Fix rules on the first half of the lineages, and count on the second; None if too few."""
    halves = _halves(results)
    if halves is None:
        return None
    fitted, test_half = halves
    rules = [rule for rule in fitted.rules if rule in test_half.rules]
    single = best(fitted, rules, 1)
    combination = best(fitted, rules, MAX_RULES)
    if single is None or combination is None:
        return None
    wins = _by_lineage(test_half, combination) - _by_lineage(test_half, single)
    n_won, n_lost = int((wins > 0).sum()), int((wins < 0).sum())
    p = stats.binom.sf(n_won - 1, n_won + n_lost, 0.5) if n_won + n_lost else 1.0
    return Calibrated(
        combination=combination,
        single=single,
        power=(test_half.caught(combination), test_half.caught(single)),
        alarms=(test_half.alarms(combination), test_half.alarms(single)),
        worst=(_worst(test_half, combination), _worst(test_half, single)),
        p_value=float(p),
        n_lineages=(_n_lineages(fitted), _n_lineages(test_half)),
    )


def _halves(results: Results) -> tuple[PValues, PValues] | None:
    """Return both halves; None if a half has too few lineages, or only one kind of model."""
    first_half, second_half = (PValues.of(results.half(number)) for number in (0, 1))
    for half in (first_half, second_half):
        dirty = half.contaminated
        if _n_lineages(half) < MIN_LINEAGES or not dirty.any() or dirty.all():
            return None
    return first_half, second_half


def _worst(values: PValues, choice: Choice) -> tuple[str, ClusteredRate]:
    condition, _ = values.worst(choice)
    return condition, values.alarms(choice, condition)


def _in_words(worst: tuple[str, ClusteredRate]) -> str:
    condition, rate = worst
    return f" ({formats.rate(rate)} with {condition})" if condition != AS_MADE else ""


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
    fitted, test_half = halves
    rules = [rule for rule in fitted.rules if rule in test_half.rules]
    rows: list[Row] = []
    for pairs, log_probs, clean in product((True, False), repeat=3):
        usable = [
            rule
            for rule in rules
            if (pairs or rule.detector not in PAIRED)
            and (log_probs or _answers_only(rule))
            and (clean or not rule.needs_clean_model)
        ]
        choice = best(fitted, usable, 1)
        have = [Cell("yes" if has else "no") for has in (pairs, log_probs, clean)]
        advice = [Cell("nothing"), *[Cell(formats.NOTHING)] * 4]
        if choice:
            condition, worst = _worst(test_half, choice)
            rates = (test_half.caught(choice), test_half.alarms(choice), worst)
            advice = [Cell(str(choice)), *map(rate_cell, rates), Cell(condition)]
        rows.append(Row(str(len(rows) + 1), (*have, *advice)))
    n_fitted, n_counted = _n_lineages(fitted), _n_lineages(test_half)
    return Table(
        "decision-tree",
        "What to run with what you have: the rule with the best power that flags no more than"
        f" {100 * MAX_ALARMS:.0f} % of the clean models of {n_fitted} lineages with the pictures as"
        f" made, and no more than {100 * MAX_WORST:.0f} % with any others; its error rates on the"
        f" other {n_counted}. The clean model is the released one that a model was made from.",
        "Case",
        (
            Column("Perturbed pictures", numeric=False),
            Column("Log-probabilities", numeric=False),
            Column("Clean model", numeric=False),
            Column("Run", numeric=False),
            Column("Caught, %"),
            Column("Clean models flagged, %"),
            Column("At worst, %"),
            Column("Worst pictures", numeric=False),
        ),
        (("", tuple(rows)),),
    )


def _answers_only(rule: Rule) -> bool:
    return rule.detector in DETECTORS and DETECTORS[rule.detector].about.needs <= ANSWERS
