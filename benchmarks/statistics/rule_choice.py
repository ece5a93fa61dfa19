"""How stable the rule is that "what to run" (docs/validation.md) names first.

    python benchmarks/statistics/rule_choice.py [--splits 200] [--seed 0]

Chooses the best single rule on a random half of the lineages in docs/results/population, again and
again; prints how often each rule is chosen, and its false alarms on the other half: with the
pictures as made, and in the condition with most.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from studies.population.results import AS_MADE, Results, read_results
from studies.population.rules import PValues, best

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "population"


def part(results: Results, lineages: np.ndarray) -> PValues:
    """Return the p-values of some lineages."""
    scores = results.scores[results.scores["lineage"].isin(lineages)]
    return PValues.of(Results(scores, results.items, results.lineages))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results, rng = read_results(RESULTS), np.random.default_rng(options.seed)
    names = sorted(results.scores["lineage"].unique())
    shares: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.splits):
        order = rng.permutation(names)
        fitted, counted = (part(results, half) for half in np.array_split(order, 2))
        choice = best(fitted, [rule for rule in fitted.rules if rule in counted.rules], 1)
        alarms = (0.0, 0.0)
        if choice is not None:
            alarms = counted.share_of_clean(choice, AS_MADE), counted.worst(choice)[1]
        rule = choice.rules[0].title if choice else "nothing"
        shares.setdefault(rule, []).append(alarms)
    print("| rule | chosen | flagged, as made, % | flagged, worst condition, % |")
    print("|---|---:|---:|---:|")
    for rule, pairs in sorted(shares.items(), key=lambda item: -len(item[1])):
        made, worst = 100 * np.mean(pairs, axis=0)
        print(f"| {rule} | {len(pairs)}/{options.splits} | {made:.1f} | {worst:.1f} |")


if __name__ == "__main__":
    main()
