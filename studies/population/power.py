"""What subsets of the items show: power by number of pairs, and audits of membership."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.randomness import generator
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Interval
from flipbench.evaluate.statistics.counts import poisson_binomial_tail
from flipbench.reporting import figures, formats
from flipbench.reporting.tables import Cell, Column, Row, Table
from studies.population.results import (
    ALPHA,
    AS_MADE,
    CLEAN,
    CONTAMINATED,
    CONTROL,
    N_SUBSETS,
    SHUFFLED,
    Results,
    mean_share_cell,
    models_of,
)

SIZES = (25, 50, 75, 100, 120, 200, 400)
TESTS = ("McNemar", "loss", "old answers", "confidence gap", "option order")
TICKS = (25, 50, 100, 200, 400)
EASY = ("color", "shape")
_CLIP = float(np.log(1000))
_CRITICAL = float(stats.norm.ppf(ALPHA))


@dataclass(frozen=True)
class Curves:
    """How often each test flags the models of one arm, by the number of pairs.

    ``name`` is the kind of contamination, with the condition of the pairs. ``n_models`` counts, for
    each test, the models (for option order, those whose answers in another order were kept), and
    ``shares`` has, by number of pairs, their mean share of flagged subsets; NaN without models.
    """

    name: str
    arm: str
    n_models: tuple[int, ...]
    shares: dict[int, NDArray[np.float64]]

    @property
    def drawn(self) -> list[int]:
        """The tests that a figure shows: those with three models, or with all there are."""
        enough = min(3, max(self.n_models, default=0))
        return [place for place, n in enumerate(self.n_models) if n >= max(enough, 1)]

    def interval(self, size: int, test: int) -> Interval:
        """Return Wilson's interval of a share for as many cases as there are models.

        Shares lie between 0 and 1, so their mean varies no more than one case a model would.
        """
        n = self.n_models[test]
        return wilson_interval(n * float(self.shares[size][test]), n)


def power_curves(results: Results, kinds: Sequence[str]) -> list[Curves]:
    """Return curves by kind, condition and arm.

    The gap is tested by McNemar's test, the loss by the sign test of "the right letter is likelier
    on the original", old answers against chance, and the confidence gap by the normal
    approximation of its sign flips, one-sided at .05; all pairs of a model, once, if a size is that
    of the benchmark.
    """
    curves = []
    conditions = [AS_MADE, *sorted(set(results.items["condition"]) - {AS_MADE})]
    for kind, condition in product([kind for kind in kinds if kind in results.kinds], conditions):
        by_arm: dict[str, list[pd.DataFrame]] = {CONTAMINATED: [], CONTROL: []}
        for (_, of_kind, arm), rows in models_of(results.items, condition):
            if of_kind == kind and arm in by_arm:
                by_arm[arm].append(rows)
        for arm, models in by_arm.items():
            if models:
                sizes = [size for size in SIZES if size <= min(map(len, models))]
                flagged = {
                    size: np.ma.masked_invalid([_flags(model, size) for model in models])
                    for size in sizes
                }
                counts = flagged[sizes[0]].count(axis=0).tolist() if sizes else []
                shares = {
                    size: flags.mean(axis=0).filled(np.nan) for size, flags in flagged.items()
                }
                name = kind if condition == AS_MADE else f"{kind}, {condition}"
                curves.append(Curves(name, arm, tuple(counts), shares))
    return curves


def power_table(curves: Sequence[Curves]) -> Table | None:
    """Return the curves as a table."""
    sizes = sorted({size for curve in curves for size in curve.shares})
    if not sizes:
        return None
    groups: dict[str, list[Row]] = {}
    for curve in curves:
        for place, (test, n_models) in enumerate(zip(TESTS, curve.n_models, strict=False)):
            if not n_models:
                continue
            cells = tuple(
                _cell(curve, size, place) if size in curve.shares else Cell(formats.NOTHING)
                for size in sizes
            )
            header = f"{curve.arm} (n = {n_models}), {test}"
            groups.setdefault(curve.name, []).append(Row(header, cells))
    return Table(
        "power-by-items",
        f"Share of {N_SUBSETS} random subsets of the pairs in which a test flags a model, mean over"
        " models, in percent; one-sided at .05. Loss: of the letter among the"
        " options. Brackets: 95 % intervals that count each model once.",
        "Models and test",
        tuple(Column(f"{size} pairs") for size in sizes),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def _cell(curves: Curves, size: int, test: int) -> Cell:
    between = curves.interval(size, test)
    bounds = f"[{100 * between.low:.0f}, {100 * between.high:.0f}]"
    return Cell(formats.percent(float(curves.shares[size][test])), bounds)


def curves_figure(curves: Sequence[Curves]) -> Figure:
    """Draw the curves, one panel for each kind; controls are dotted."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    n_columns = min(4, max(len(names), 1))
    n_rows = max(1, -(-len(names) // n_columns))
    with figures.settings():
        canvas = Figure(figsize=(2.4 * n_columns, 2.2 * n_rows + 0.4))
        panels = canvas.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
        for panel, name in zip(panels, names, strict=False):
            group = [curve for curve in curves if curve.name == name]
            for curve in group:
                _draw(panel, curve)
            counts = sorted(
                {curve.n_models[i] for curve in group for i in curve.drawn}, reverse=True
            )
            title = f"{name} (n = {', '.join(map(str, counts))})"
            panel.set_title(textwrap.fill(title, 26), fontsize=8)
            panel.set_xscale("log")
            panel.set_xticks(TICKS, [str(tick) for tick in TICKS])
            panel.minorticks_off()
            panel.set_ylim(-3, 103)
            panel.grid(alpha=0.3)
            panel.set_xlabel("pairs", fontsize=8)
        for panel in panels[::n_columns]:
            panel.set_ylabel("flagged, %", fontsize=8)
        for panel in panels[len(names) :]:
            panel.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=len(TESTS), frameon=False)
        canvas.set_layout_engine("constrained")
    return canvas


def _draw(panel: Axes, curves: Curves) -> None:
    contaminated = curves.arm == CONTAMINATED
    for place in curves.drawn:
        panel.plot(
            list(curves.shares),
            [100 * float(shares[place]) for shares in curves.shares.values()],
            "-" if contaminated else ":",
            color=figures.LIGHT.lines[place],
            label=TESTS[place] if contaminated else None,
            marker=".",
        )


def _flags(rows: pd.DataFrame, size: int) -> NDArray[np.float64]:
    """Return the shares of subsets that the tests flag, shape (n_tests,)."""
    lineage, kind, arm = rows.iloc[0][["lineage", "kind", "arm"]]
    rng = generator(0, f"{lineage} {kind} {arm}", f"subsets of {size}")
    n_subsets = N_SUBSETS if size < len(rows) else 1
    subsets = np.array([rng.permutation(len(rows))[:size] for _ in range(n_subsets)])
    original_right = rows["original_right"].to_numpy()
    perturbed_right = rows["perturbed_right"].to_numpy()
    is_wrong, n_options = ~perturbed_right, rows["n_options"].to_numpy()
    change = (rows["perturbed_log_prob"] - rows["original_log_prob"]).clip(-_CLIP, _CLIP)
    values = change.fillna(0).to_numpy(dtype=float)[subsets]
    spread = np.sqrt((values**2).sum(axis=1))
    flagged = (
        _mcnemar(original_right[subsets], perturbed_right[subsets]),
        _exceed((values < 0).sum(axis=1), {0.5: (values != 0).sum(axis=1)}),
        _exceed(
            (rows["old_answer"].to_numpy() & is_wrong & (n_options > 2))[subsets].sum(axis=1),
            {
                1 / (n - 1): (is_wrong & (n_options == n))[subsets].sum(axis=1)
                for n in np.unique(n_options[n_options > 2])
            },
        ),
        (spread > 0) & (values.sum(axis=1) <= _CRITICAL * spread),
        _order(rows, original_right, subsets),
    )
    shares: NDArray[np.float64] = np.mean(flagged, axis=1)
    return shares


def _order(
    rows: pd.DataFrame, original_right: NDArray[np.bool_], subsets: NDArray[np.int64]
) -> NDArray[np.bool_] | NDArray[np.float64]:
    """Test the release's order of options against another; NaN if no other was asked."""
    answers = rows[SHUFFLED] if SHUFFLED in rows else pd.Series(pd.NA, rows.index)
    if not answers.notna().any():
        return np.full(len(subsets), np.nan)
    is_answered = answers.notna().to_numpy()
    shuffled_right = answers.fillna(False).to_numpy(dtype=bool)
    return _mcnemar(
        (original_right & is_answered)[subsets], (shuffled_right & is_answered)[subsets]
    )


def _mcnemar(baseline: NDArray[np.bool_], variant: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which subsets lose significantly more than they win, shape (n_subsets,)."""
    return _exceed((baseline & ~variant).sum(axis=1), {0.5: (baseline != variant).sum(axis=1)})


def _exceed(hits: NDArray[np.int64], events: dict[float, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Return in which subsets there are more hits than chance; events are by hit probability."""
    least = [
        _critical(tuple(zip(events, map(int, counts), strict=True)))
        for counts in zip(*events.values(), strict=True)
    ]
    return np.asarray(hits >= np.array(least))


@cache
def _critical(events: tuple[tuple[float, int], ...]) -> int:
    """Return the least number of hits that is significant, given (probability, number) of events.

    >>> _critical(((0.5, 5),)), _critical(((0.5, 4),))
    (5, 5)
    """
    tail = poisson_binomial_tail([p for p, n in events for _ in range(n)])
    return int((tail > ALPHA).sum())


def audits(results: Results) -> Table | None:
    """Return how often an audit of membership accuses: suspected items against other items.

    The log-probability of the right letter of suspected items is compared with that of other
    items (Mann-Whitney, one-sided at .05). On clean models no item is a member: halves drawn at
    random, and halves of other kinds of question. On models trained on a share of the items:
    members against non-members, all of them and few.

    References
    ----------
    arXiv 2606.03305 names these two failures of audits, shifted sets and few items.
    """
    tests: dict[str, list[float]] = {}
    for (_, kind, arm), rows in models_of(results.items):
        values = rows["original_log_prob"].to_numpy(dtype=float)
        if np.isnan(values).any():
            continue
        member = rows["member"].to_numpy()
        rng = generator(0, "-".join(map(str, rows.iloc[0][["lineage", "kind", "arm"]])), "audits")
        easy = rows["category"].isin(EASY).to_numpy()
        if arm == CLEAN:
            halves = np.arange(len(rows)) % 2 == 0
            shares = [_accuses(values, rng.permutation(halves)) for _ in range(N_SUBSETS)]
            tests.setdefault("no members, sets alike", []).append(float(np.mean(shares)))
            if easy.any() and not easy.all():
                shifted = float(_accuses(values, easy))
                tests.setdefault("no members, sets of other kinds of question", []).append(shifted)
        if arm == CONTAMINATED and member.any() and not member.all():
            tests.setdefault(f"{kind}: all items", []).append(float(_accuses(values, member)))
            rates = [_few(values, member, rng, 10) for _ in range(N_SUBSETS)]
            tests.setdefault(f"{kind}: 10 members, 10 others", []).append(float(np.mean(rates)))
    if not tests:
        return None
    rows_of = [
        Row(name, (mean_share_cell(shares), Cell(str(len(shares)))))
        for name, shares in tests.items()
    ]
    return Table(
        "audits",
        "How often an audit of membership accuses at .05 (Mann-Whitney of the right letters'"
        " log-probabilities), mean over models. Brackets: 95 % intervals that count each model"
        " once, in percent.",
        "Sets",
        (Column("Accused, %"), Column("Models")),
        (("", tuple(rows_of)),),
    )


def _accuses(values: NDArray[np.float64], suspected: NDArray[np.bool_]) -> bool:
    test = stats.mannwhitneyu(values[suspected], values[~suspected], alternative="greater")
    return bool(test.pvalue <= ALPHA)


def _few(
    values: NDArray[np.float64], member: NDArray[np.bool_], rng: np.random.Generator, n: int
) -> bool:
    rows = [rng.permutation(np.flatnonzero(side))[:n] for side in (member, ~member)]
    labels = np.repeat([True, False], [len(part) for part in rows])
    return _accuses(values[np.concatenate(rows)], labels)
