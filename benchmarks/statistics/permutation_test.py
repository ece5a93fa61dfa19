"""Speed of the order-trend permutation test, compared with a loop over correlations.

    python benchmarks/statistics/permutation_test.py [--items 6719] [--permutations 10000]
        [--repeats 3]

Prints a Markdown table: CPU seconds (median), and the speed-up over the loops of the same repeat.
The loops run a fraction of the permutations, and their time is scaled up. Times are CPU time, which
other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from flipbench.evaluate.detectors.likelihood.shared_likelihood import shard_permutation_p
from flipbench.evaluate.statistics.order_trend import order_trend_test

SHARE = 20  # the loops run 1/20 of the permutations


def loop_spearman(values: np.ndarray, n: int) -> None:
    rng, position = np.random.default_rng(0), np.arange(len(values))
    for _ in range(n):
        stats.spearmanr(position, rng.permutation(values))


def loop_corrcoef(values: np.ndarray, n: int) -> None:
    rng, position = np.random.default_rng(0), np.arange(len(values))
    ranks = stats.rankdata(values)
    for _ in range(n):
        np.corrcoef(position, rng.permutation(ranks))


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=6_719)
    parser.add_argument("--permutations", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    draw = np.random.default_rng(1)
    values, n = draw.normal(size=args.items), args.permutations
    shards = list(draw.normal(size=(50, 21)))
    methods: dict[str, tuple[Callable[[], object], int]] = {
        "loop over scipy.stats.spearmanr": (lambda: loop_spearman(values, n // SHARE), SHARE),
        "loop over numpy.corrcoef of ranks": (lambda: loop_corrcoef(values, n // SHARE), SHARE),
        "order_trend_test": (lambda: order_trend_test(values, draw, n_permutations=n), 1),
        "shard_permutation_p, 50 shards of 20 orders": (
            lambda: shard_permutation_p(shards, draw, n),
            1,
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(args.repeats):
        for name, (work, scale) in methods.items():
            times[name].append(scale * seconds(work))
    names = list(methods)
    print(f"{args.permutations} permutations, {args.items} items, {args.repeats} repeats\n")
    print("| method | CPU seconds | speed-up over the first | over the second |\n|---|---|---|---|")
    for name in names:
        ratios = [
            statistics.median(a / b for a, b in zip(times[loop], times[name], strict=True))
            for loop in names[:2]
        ]
        cells = " | ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"| {name} | {statistics.median(times[name]):.3f} | {cells} |")


if __name__ == "__main__":
    main()
