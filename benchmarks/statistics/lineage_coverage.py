"""How often the intervals over models in lineages hold the true value.

    python benchmarks/statistics/lineage_coverage.py [--repeats 1000] [--seed 0]

A lineage is a clean model and its descendants. Prints three Markdown tables, each with coverage and
mean width of 95 % intervals: pooled (all models independent), by lineage (each lineage counts as
one model) and with the estimated design effect (the one in the tables of a validation).

Rates: each lineage has a rate of its own, from a beta distribution with the given correlation;
intervals are Wilson's, and those of low rates Clopper and Pearson's, as false alarms have them.
AUROC: a model's statistic is normal; its lineage shifts contaminated and clean models alike
("shared") or each by its own amount ("apart").
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.rates import Rate
from flipbench.core.records import Interval
from flipbench.evaluate.statistics.design_effect import clustered_rate
from flipbench.evaluate.statistics.roc import newcombe_interval, separation

LINEAGES = [(2, 9), (4, 6), (8, 6), (12, 12), (25, 11)]  # lineages, models of each kind in each
CORRELATIONS = [0.0, 0.1, 0.3, 0.7]
RATES = [0.2, 0.5, 0.8, 0.95]
LOW_RATES = [0.01, 0.02, 0.05]
SHIFTS = [0.0, 1.2, 3.0]  # true AUROC .50, .80, .98
KINDS = ("pooled", "by lineage", "design effect")


def of_rates(
    n_lineages: int,
    size: int,
    correlation: float,
    rates: Sequence[float],
    repeats: int,
    rng: np.random.Generator,
) -> list[str]:
    """Return the cells of one design: coverage (mean and least over the rates) and width."""
    hits, widths = np.zeros((len(rates), len(KINDS))), np.zeros(len(KINDS))
    exact = rates is LOW_RATES
    make = Rate.exact if exact else Rate.wilson
    for at, rate in enumerate(rates):
        for lineage_rates in _rates(rate, correlation, (repeats, n_lineages), rng):
            counts = [(int(k), size) for k in rng.binomial(size, lineage_rates)]
            clustered = clustered_rate(counts, exact=exact)
            by_lineage = make(clustered.k, clustered.n, n_lineages).interval
            intervals = (clustered.pooled, by_lineage, clustered.interval)
            hits[at] += [_holds(interval, rate) for interval in intervals]
            widths += [_width(interval) for interval in intervals]
    return _cells(hits / repeats, widths / repeats / len(rates))


def of_aurocs(
    n_lineages: int,
    size: int,
    correlation: float,
    apart: bool,
    repeats: int,
    rng: np.random.Generator,
) -> list[str]:
    """Return the cells of one design: coverage (mean and least over `SHIFTS`) and width."""
    hits, widths = np.zeros((len(SHIFTS), len(KINDS))), np.zeros(len(KINDS))
    dirty = np.tile(np.repeat([True, False], size), n_lineages)
    groups = np.repeat(np.arange(n_lineages), 2 * size)
    for at, shift in enumerate(SHIFTS):
        truth = float(stats.norm.cdf(shift / np.sqrt(2)))
        for _ in range(repeats):
            effects = rng.normal(size=(n_lineages, 2))
            shared = effects[groups, dirty.astype(int) if apart else 0]
            noise = rng.normal(size=len(groups))
            values = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * noise
            curve = separation(
                (values + shift * dirty).tolist(),
                dirty.tolist(),
                groups.astype(str).tolist(),
                targets=(),
            )
            assert curve is not None
            by_lineage = newcombe_interval(curve.auroc, [(n_lineages, n_lineages)])
            intervals = (curve.pooled, by_lineage, curve.interval)
            hits[at] += [_holds(interval, truth) for interval in intervals]
            widths += [_width(interval) for interval in intervals]
    return _cells(hits / repeats, widths / repeats / len(SHIFTS))


def _rates(
    rate: float, correlation: float, shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    if correlation == 0:
        return np.full(shape, rate)
    spread = (1 - correlation) / correlation
    return rng.beta(rate * spread, (1 - rate) * spread, shape)


def _holds(interval: Interval | None, truth: float) -> bool:
    return interval is not None and interval.low - 1e-9 <= truth <= interval.high + 1e-9


def _width(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.high - interval.low


def _cells(coverage: NDArray[np.float64], widths: NDArray[np.float64]) -> list[str]:
    means, least = coverage.mean(axis=0), coverage.min(axis=0)
    shown = [f"{mean:.2f} ({low:.2f})" for mean, low in zip(means, least, strict=True)]
    return shown + [f"{width:.2f}" for width in widths]


def _print(title: str, first: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    header = [
        *first,
        *(f"coverage, {kind}" for kind in KINDS),
        *(f"width, {kind}" for kind in KINDS),
    ]
    print(f"{title}\n")
    for cells in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, repeats = np.random.default_rng(options.seed), options.repeats
    first = ["lineages × models", "correlation"]
    for title, rates in (("Rates .01 to .05", LOW_RATES), ("Rates .2 to .95", RATES)):
        rows = [
            [f"{m} × {size}", f"{rho:g}", *of_rates(m, size, rho, rates, repeats, rng)]
            for m, size in LINEAGES
            for rho in CORRELATIONS
        ]
        _print(f"{title}, mean (and least) of {repeats:,} simulations each", first, rows)
    rows = [
        [f"{m} × 2 × {size}", f"{rho:g}", how, *of_aurocs(m, size, rho, apart, repeats, rng)]
        for m, size in LINEAGES
        for rho in CORRELATIONS
        for apart, how in ((False, "shared"), (True, "apart"))
    ]
    first = ["lineages × models", "correlation", "lineage effect"]
    _print(f"AUROC .50 to .98, mean (and least) of {repeats:,} simulations each", first, rows)


if __name__ == "__main__":
    main()
