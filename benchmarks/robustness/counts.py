"""What rounds of kills and other disturbances counted, as a table and a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import beta

from benchmarks.robustness.works import WAYS, WORKS

DISTURBANCES = (*WAYS, "one worker killed")
HARM = ("lost", "doubled", "different", "defects")
COLUMNS = ("rounds", *DISTURBANCES, *HARM)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts by work as Markdown."""
    lines = [f"| stage | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    names = {row["work"] for row in rows}
    for name in [*(work.name for work in WORKS if work.name in names), "all"]:
        counts = total(row for row in rows if name in (row["work"], "all"))
        lines.append(f"| {name} | {' | '.join(f'{counts[c]:,}' for c in COLUMNS)} |")
    return "\n".join(lines)


def total(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return the counts of some rounds together."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["counts"])
    return counts


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts of all rounds in a sentence, with the bound of what would do harm."""
    counts = total(rows)
    n = sum(counts[way] for way in DISTURBANCES)
    n_kills = counts["killed"] + counts["one worker killed"]
    n_harmed = sum(any(row["counts"].get(kind) for kind in HARM) for row in rows)
    bound = float(beta.ppf(0.975, n_harmed + 1, n - n_harmed))
    harm = ", ".join(f"{kind} {counts[kind]}" for kind in HARM)
    return (
        f"{n:,} disturbances, {n_kills:,} of them kills: {harm}. Rounds with harm: {n_harmed};"
        f" share of disturbances that do harm: at most {bound:.2%} (exact, one-sided 97.5 %)."
        f" Acknowledged verdicts: {counts['verdicts']:,}."
    )
