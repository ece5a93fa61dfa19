"""How often the paired tests raise a false alarm, and how often the intervals cover the truth.

    python benchmarks/statistics/interval_coverage.py [--repeats 2000] [--seed 0]

Answers are simulated: every item has a difficulty (normal, sd 1, in log-odds), and the original and
the perturbed image of a cluster each make all questions about it easier or harder (normal, sd 0.7,
in log-odds). Prints two Markdown tables: one model's gap, and the difference between the gaps of a
model and of a reference. False alarms are shares of simulations without a gap in which the
one-sided test gives p <= .05; coverage is the share of 95 % intervals that hold the true value.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from flipbench.core.rates import wilson_interval
from flipbench.core.records import Interval
from flipbench.evaluate.statistics.intervals import (
    clustered_interval,
    difference_interval,
    tango_interval,
)
from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.evaluate.statistics.resampling import bootstrap_interval, exact_label_swap_p

DESIGNS = [  # clusters, items in each, easiness of all items in log-odds
    (5, 1, 1.0),
    (10, 1, 1.0),
    (50, 1, 3.5),
    (50, 1, 1.0),
    (440, 1, 1.0),
    (50, 4, 1.0),
    (30, 10, 1.0),
    (19, 20, 1.0),
    (8, 20, 1.0),
]
EFFECTS = [0.0, -1.0]  # of the perturbation on the log-odds
Differences = NDArray[np.int64]


class World:
    """Items in clusters; draws paired differences (-1, 0, 1), shape (repeats, clusters, size)."""

    def __init__(self, shape: tuple[int, int, int], easiness: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape, self.repeats = shape, shape[0]
        self.sd = 0.7 if shape[2] > 1 else 0.0
        items = easiness + self.rng.normal(size=shape)
        self.sides = [items + self._shared(self.sd) for _ in range(2)]

    def differences(self, effect: float) -> Differences:
        """Return perturbed - original answers of a model of its own luck with each image."""
        original, perturbed = (
            self.rng.random(self.shape) < 1 / (1 + np.exp(-side - shift - self._shared(self.sd)))
            for side, shift in zip(self.sides, (0.0, effect), strict=True)
        )
        return perturbed.astype(np.int64) - original.astype(np.int64)

    def _shared(self, sd: float) -> NDArray[np.float64]:
        return self.rng.normal(0, sd, (*self.shape[:2], 1))


def wald(b: int, c: int, n: int) -> Interval:
    """Return gap ± 1.96 SE."""
    gap = (c - b) / n
    half = 1.96 * math.sqrt(max(0.0, (b + c) / n - gap**2) / n)
    return Interval(low=gap - half, high=gap + half)


def share(hits: list[bool]) -> str:
    """Return a share and its Wilson interval."""
    between = wilson_interval(sum(hits), len(hits))
    return f"{np.mean(hits):.3f} [{between.low:.3f}, {between.high:.3f}]"


def covers(interval: Interval | None, truth: float) -> bool:
    """Return whether an interval holds the truth."""
    return interval is not None and interval.low <= truth <= interval.high


def row_of(
    design: tuple[int, int, float], effect: float, repeats: int, seed: int, against: bool
) -> list[str]:
    """Simulate one design; ``against`` a reference without the effect, or alone."""

    def drawn(n_repeats: int, at: int) -> Differences:
        world = World((n_repeats, *design[:2]), design[2], at)
        model = world.differences(effect)
        return model - world.differences(0.0) if against else model

    n_clusters, size, _ = design
    clusters = [str(i) for i in range(n_clusters) for _ in range(size)]
    many = 2_000_000 // (n_clusters * size)
    truth = float(drawn(many, seed + 1).mean()) if effect else 0.0
    hits: dict[str, list[bool]] = {"plain": [], "clustered": [], "simple": [], "ours": []}
    simulated = drawn(repeats, seed)
    for index, by_cluster in enumerate(simulated):
        values = by_cluster.ravel()
        b, c, n = int((values < 0).sum()), int((values > 0).sum()), values.size
        floats = values.astype(float).tolist()
        hits["clustered"].append(exact_label_swap_p(by_cluster.sum(axis=1)) <= 0.05)
        if against:
            hits["plain"].append(exact_label_swap_p(values) <= 0.05)
            ours = difference_interval(floats, clusters)
            if index < 200:  # slow
                rng = np.random.default_rng(index)
                simple = bootstrap_interval(floats, rng, clusters=clusters, n_bootstrap=1_000)
                hits["simple"].append(covers(simple, truth))
        else:
            hits["plain"].append(mcnemar_p(b, c, "drop") <= 0.05)
            ours = tango_interval(b, c, n) if size == 1 else clustered_interval(floats, clusters)
            hits["simple"].append(covers(wald(b, c, n), truth))
        hits["ours"].append(covers(ours, truth))
    alarms = [share(hits[name]) if effect == 0 else "–" for name in ("plain", "clustered")]
    changing = f"{np.mean(simulated != 0):.2f}"
    cells = [f"{n_clusters} × {size}", changing, f"{100 * truth:+.1f}".replace("-", "−"), *alarms]
    return [*cells, share(hits["simple"]), share(hits["ours"])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    heads = {
        False: ("items as units (McNemar)", "images as units", "gap ± 1.96 SE", "ours"),
        True: ("items as units", "images as units", "percentile bootstrap (200 runs)", "ours"),
    }
    for against, (plain, clustered, simple, ours) in heads.items():
        title = "A model's gap less its reference's" if against else "A model's gap"
        print(f"{title}, {options.repeats:,} simulations\n")
        header = [
            "images × items",
            "share of items that change",
            "true value",
            f"false alarms, {plain}",
        ]
        header += [f"false alarms, {clustered}", f"coverage, {simple}", f"coverage, {ours}"]
        rows = [
            row_of(design, effect, options.repeats, options.seed, against)
            for design in DESIGNS
            for effect in EFFECTS
        ]
        for cells in (header, ["---"] * len(header), *rows):
            print(f"| {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
