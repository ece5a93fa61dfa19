"""Are the kept items representative: model accuracy, categories and answers, kept against all.

The kept items are part of all items, so the two accuracies are not independent. But accuracy(kept)
- accuracy(all) = (share dropped) x (accuracy(kept) - accuracy(dropped)), so the tests compare kept
with dropped items, which are disjoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import itemgetter

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep

from flipbench.core.randomness import generator
from flipbench.core.rates import LEVEL, Rate
from flipbench.core.records import Interval, Item
from flipbench.prompting.prompts import LETTERS
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Content, Row, Table, build_table

Outcomes = Mapping[str, bool | None]
N_SIMULATIONS = 9_999


@dataclass(frozen=True)
class AccuracyShift:
    """One model's accuracy on all items and on the kept ones.

    Attributes
    ----------
    interval : Interval or None
        Of ``difference``: Newcombe's for kept - dropped, times the share dropped. None if nothing
        was kept or nothing was dropped.
    p_value, p_adjusted : float
        Fisher's exact test of kept against dropped, two-sided: the probability of a difference as
        large if the kept items were a random sample; and Holm-corrected over the models.
    n_unanswered : int
        Items without an answer; excluded from all other numbers.
    """

    model: str
    everything: Rate
    kept: Rate
    interval: Interval | None
    p_value: float
    p_adjusted: float
    n_unanswered: int = 0

    @property
    def difference(self) -> float | None:
        """Accuracy on kept - accuracy on all items, a fraction."""
        if self.kept.value is None or self.everything.value is None:
            return None
        return self.kept.value - self.everything.value


@dataclass(frozen=True)
class DistributionShift:
    """Counts of each label among all and among the kept items.

    ``distance`` is their total variation distance (0 equal, 1 disjoint); ``p_value`` is the
    probability of as large a chi-square between kept and dropped if items were kept at random.
    """

    what: str
    labels: tuple[str, ...]
    everything: tuple[int, ...]
    kept: tuple[int, ...]
    distance: float
    p_value: float


@dataclass(frozen=True)
class Representativeness:
    """All comparisons of the kept with all items.

    ``kept_only`` are the accuracies, by name, of models that were not asked about any of the
    ``n_dropped`` items that were not kept.
    """

    accuracies: tuple[AccuracyShift, ...]
    distributions: tuple[DistributionShift, ...]
    kept_only: Mapping[str, Rate] = field(default_factory=dict)
    n_dropped: int = 0


def compare_kept(
    items: Sequence[Item],
    kept_ids: set[str],
    outcomes: Mapping[str, Outcomes],
    *,
    seed: int = 0,
) -> Representativeness:
    """Compare the kept items with all items.

    Parameters
    ----------
    items : sequence of Item, shape (N,)
        All items, in their original version.
    kept_ids : set of str
        Ids of the kept ones.
    outcomes : mapping of str to mapping
        By model name and item id, whether the answer is correct; None if there is none.
    """
    shifts, kept_only = [], {}
    is_kept = [item.id in kept_ids for item in items]
    n_dropped = is_kept.count(False)
    for model, is_right in outcomes.items():
        answered_items = [item for item in items if is_right.get(item.id) is not None]
        kept_items = [item for item in answered_items if item.id in kept_ids]
        k_all, k_kept = (
            sum(bool(is_right[i.id]) for i in part) for part in (answered_items, kept_items)
        )
        if n_dropped and len(kept_items) == len(answered_items):
            kept_only[model] = Rate.wilson(k_kept, len(kept_items))
            continue
        shift = accuracy_shift(
            model, Rate.wilson(k_all, len(answered_items)), Rate.wilson(k_kept, len(kept_items))
        )
        shifts.append(replace(shift, n_unanswered=len(items) - len(answered_items)))
    distributions = [
        distribution_shift(what, [label(item) for item in items], is_kept, seed=seed)
        for what, label in LABELS.items()
    ]
    return Representativeness(
        tuple(correct_for_models(shifts)),
        tuple(distributions),
        kept_only,
        n_dropped,
    )


def accuracy_shift(model: str, everything: Rate, kept: Rate) -> AccuracyShift:
    """Compare accuracy on the kept items with that on all items, which include them.

    Raises
    ------
    ValueError
        If the kept counts cannot be part of all counts.

    References
    ----------
    Park et al., arXiv 2511.03774, table 3, which prints both accuracies and calls them closely
    aligned; differs in testing that.
    """
    k_dropped, n_dropped = everything.k - kept.k, everything.n - kept.n
    if n_dropped < 0 or not 0 <= k_dropped <= n_dropped:
        raise ValueError(
            f"{model}: {formats.rate(kept)} cannot be part of {formats.rate(everything)}"
        )
    if not n_dropped or not kept.n:
        return AccuracyShift(model, everything, kept, None, 1.0, 1.0)
    table = [[kept.k, kept.n - kept.k], [k_dropped, n_dropped - k_dropped]]
    p = float(stats.fisher_exact(np.array(table)).pvalue)
    low, high = confint_proportions_2indep(
        kept.k, kept.n, k_dropped, n_dropped, method="newcomb", compare="diff", alpha=1 - LEVEL
    )
    share = n_dropped / everything.n
    interval = Interval(low=share * float(low), high=share * float(high), level=LEVEL)
    return AccuracyShift(model, everything, kept, interval, p, p)


def correct_for_models(shifts: Sequence[AccuracyShift]) -> list[AccuracyShift]:
    """Return the shifts with p-values Holm-corrected over the models."""
    if not shifts:
        return []
    adjusted = multipletests([shift.p_value for shift in shifts], method="holm")[1]
    return [replace(s, p_adjusted=float(p)) for s, p in zip(shifts, adjusted, strict=True)]


def distribution_shift(
    what: str, labels: Sequence[str], is_kept: Sequence[bool], *, seed: int = 0
) -> DistributionShift:
    """Compare the distribution of labels among all and among the kept items.

    The p-value is simulated (9,999 tables with the same margins), since categories can be rare.

    Parameters
    ----------
    labels : sequence of str, shape (N,)
        One label for each item.
    kept : sequence of bool, shape (N,)
        Whether the item is kept.
    """
    everything = Counter(labels)
    kept_counts = Counter(compress(labels, is_kept))
    names = tuple(sorted(everything))
    n_all, n_kept = np.array([[c[name] for name in names] for c in (everything, kept_counts)])
    n = (int(n_all.sum()), int(n_kept.sum()))
    distance = 0.5 * float(np.abs(n_all / n[0] - n_kept / n[1]).sum()) if all(n) else 0.0
    p = 1.0
    if 0 < n[1] < n[0] and len(names) > 1:
        method = stats.MonteCarloMethod(
            n_resamples=N_SIMULATIONS, rng=generator(seed, what, "distribution")
        )
        table = np.array([n_kept, n_all - n_kept])
        p = float(stats.chi2_contingency(table, correction=False, method=method).pvalue)
    counts = (tuple(map(int, n_all)), tuple(map(int, n_kept)))
    return DistributionShift(what, names, *counts, distance, p)


def representativeness_tables(comparison: Representativeness) -> list[Table]:
    """Return the distributions and the accuracies as tables; captions name what is missing."""
    has_models = bool(comparison.accuracies or comparison.kept_only)
    distributions = build_table(
        "kept_distributions",
        "Labels among all and among the kept items; total variation distance between the two, and"
        " the simulated chi-square p-value of kept against dropped items."
        + ("" if has_models else " Accuracies are missing: no clean model was asked."),
        "Label",
        [(name, itemgetter(i)) for i, name in enumerate(("All items", "Kept items", *_TESTS))],
        {d.what.capitalize(): _distribution_rows(d) for d in comparison.distributions},
    )
    if not has_models:
        return [distributions]
    not_asked = (
        " Not asked: the model has no answer to any of the"
        f" {comparison.n_dropped:,} items that were not kept; evaluate.originals: all asks about"
        " them."
    )
    columns: list[tuple[str, Callable[[AccuracyShift], Content]]] = [
        ("All items", lambda shift: formats.rate(shift.everything)),
        ("Kept items", lambda shift: formats.rate(shift.kept)),
        ("Kept − all", _difference),
        ("p", lambda shift: _p(shift.p_value)),
        ("p (Holm)", lambda shift: _p(shift.p_adjusted)),
        ("Unanswered", lambda shift: shift.n_unanswered),
    ]
    accuracies = build_table(
        "kept_accuracy",
        "Accuracy on all and on the kept items, and the difference in percentage points with its"
        " 95 % interval. p: Fisher's exact test of kept against dropped items; p (Holm): the same,"
        " corrected over the models." + (not_asked if comparison.kept_only else ""),
        "Model",
        columns,
        {"Models": [(shift.model, shift) for shift in comparison.accuracies]},
    )
    kept_only = [
        Row(model, tuple(map(Cell, ("not asked", formats.rate(rate), *[formats.NOTHING] * 4))))
        for model, rate in comparison.kept_only.items()
    ]
    rows = ("Models", (*accuracies.rows, *kept_only))
    return [distributions, replace(accuracies, groups=(rows,))]


_TESTS = ("Distance", "p")
LABELS: dict[str, Callable[[Item], str]] = {
    "category": lambda item: item.category,
    "answer": lambda i: "free-form" if i.answer is None else LETTERS[i.answer],
    "number of options": lambda i: "free-form" if i.options is None else str(len(i.options)),
}


def _distribution_rows(shift: DistributionShift) -> list[tuple[str, tuple[Content, ...]]]:
    n_all, n_kept = sum(shift.everything), sum(shift.kept)
    counts = zip(shift.labels, shift.everything, shift.kept, strict=True)
    rows: list[tuple[str, tuple[Content, ...]]] = [
        (label or "(none)", (_share(k_all, n_all), _share(k_kept, n_kept), Cell(""), Cell("")))
        for label, k_all, k_kept in counts
    ]
    return [*rows, ("total", (n_all, n_kept, f"{shift.distance:.3f}", _p(shift.p_value)))]


def _difference(shift: AccuracyShift) -> Content:
    if shift.difference is None:
        return None
    interval = formats.interval(shift.interval, lambda end: formats.signed(100 * end))
    return Cell(formats.signed(100 * shift.difference), interval)


def _share(k: int, n: int) -> str:
    return formats.rate(Rate(k=k, n=n))


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.0001 else "< 0.0001"
