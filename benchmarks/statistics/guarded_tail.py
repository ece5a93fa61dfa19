"""Error rates of the tail rules of a cohort: false alarms and power on simulated models.

    python -m benchmarks.statistics.guarded_tail [--repeats 200]

Five models score items by easiness; they differ in gain, in the second and third row also in
offset and noise, and in the fourth in how hard each picture is to them. Without a boost, every flag
is a false alarm. With one, the first model has seen a share of the items, which raises their scores
by some standard deviations of its scores; the last model is external. Prints two Markdown tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from flipbench.core.rates import Rate
from flipbench.evaluate.cohort.cohort import Array, Cohort
from flipbench.evaluate.cohort.tail_enrichment import ALPHA, guarded_tails, tail_summaries
from flipbench.reporting.formats import percent
from flipbench.reporting.tables import rate_cell
from studies.confound.simulation import PARITY_GAINS, gain_cohort

N_MODELS = 5
Draw = Callable[[np.random.Generator], Array]


def gains_alone(draw: np.random.Generator) -> Array:
    return gain_cohort(draw, PARITY_GAINS).scores


def everything_differs(easiness: Array, draw: np.random.Generator) -> Array:
    gains, noise = (np.exp(draw.uniform(*limits, N_MODELS)) for limits in ((-4, 1), (0, 3)))
    offsets = draw.normal(0, 50, N_MODELS)
    size = (len(easiness), N_MODELS)
    return np.asarray(offsets + gains * easiness[:, None] + noise * draw.normal(size=size))


def by_picture(draw: np.random.Generator) -> Array:
    """Return scores in which each model finds each of 20 pictures easier or harder."""
    easiness, noise = draw.normal(size=(400, 1)), draw.normal(size=(400, N_MODELS))
    pictures = np.repeat(draw.normal(size=(20, N_MODELS)), 20, axis=0)
    return np.asarray(100 * (easiness + 0.3 * noise + pictures))


def boosted(
    draw: np.random.Generator, n_items: int, noise: float, share: float, boost: float
) -> Array:
    easiness = draw.normal(size=(n_items, 1))
    gains = np.exp(draw.uniform(-3, 1, N_MODELS))
    scores = gains * (easiness + noise * draw.normal(size=(n_items, N_MODELS)))
    seen = draw.choice(n_items, round(share * n_items), replace=False)
    scores[seen, 0] += boost * scores[:, 0].std()
    return np.asarray(scores)


def cohort_of(scores: Array) -> Cohort:
    items, models = [str(i) for i in range(len(scores))], [f"m{j}" for j in range(N_MODELS)]
    return Cohort("simulated", items, models, frozenset({models[-1]}), scores)


def shares(flags: list[bool]) -> str:
    return rate_cell(Rate.wilson(sum(flags), len(flags))).plain()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    nulls: dict[str, Draw] = {
        "gains of the parity run": gains_alone,
        "all differ, exponential easiness": lambda rng: everything_differs(
            rng.exponential(900, 1_000), rng
        ),
        "all differ, log-normal easiness": lambda rng: everything_differs(
            rng.lognormal(0, 2, 1_000), rng
        ),
        "20 pictures of 20 items each": by_picture,
    }
    print(f"Cohorts with any model flagged, none boosted, {repeats} repeats (%)\n")
    print("| models | published rule | swapped labels alone | guarded rule |\n|---|---|---|---|")
    for name, null in nulls.items():
        draw = np.random.default_rng(0)
        published, alone, guarded = [], [], []
        for _ in range(repeats):
            cohort = cohort_of(null(draw))
            tails = guarded_tails(cohort)
            published.append(tail_summaries(cohort)["flagged"].any())
            alone.append(tails["p_exchangeable"].min() * N_MODELS <= ALPHA)
            guarded.append((tails["p_holm"] <= ALPHA).any())
        print(f"| {name} | {shares(published)} | {shares(alone)} | {shares(guarded)} |")
    print(f"\nThe first model boosted on some items, guarded rule, {repeats} repeats (%)\n")
    print("| items | noise | boosted | by, SD | enriched | another model enriched |")
    print("|---|---|---|---|---|---|")
    for n_items in (400, 1_000):
        for noise, share, boost in ((0.2, 0.05, 1), (0.2, 0.05, 2), (0.2, 0.1, 2), (0.5, 0.05, 2)):
            draw = np.random.default_rng(0)
            hits, others = [], []
            for _ in range(repeats):
                tails = guarded_tails(cohort_of(boosted(draw, n_items, noise, share, boost)))
                hits.append(tails["verdict"][0] == "enriched")
                others.append((tails["verdict"][1:] == "enriched").any())
            about = f"{n_items} | {noise} | {percent(share)} % | {boost}"
            print(f"| {about} | {shares(hits)} | {shares(others)} |", flush=True)


if __name__ == "__main__":
    main()
