"""Longest-option bias: whether the correct option is the longest too often; items to remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flipbench.core.randomness import generator
from flipbench.core.records import Item

from .finding import AuditFinding, FlaggedItem, flag, multiple_choice, n_items, not_run, rate

TITLE = "Length of the correct option"


@dataclass(frozen=True)
class Lengths:
    """How the correct option of an item compares with its longest (or shortest) options.

    Attributes
    ----------
    hit : bool
        Whether the correct option is among them.
    n_extreme, n_options : int
        Number of options with that length, and of all options.
    """

    hit: bool
    n_extreme: int
    n_options: int

    @property
    def score(self) -> float:
        """1/(number tied) if the correct option is among them, else 0; by chance 1/k."""
        return self.hit / self.n_extreme

    @property
    def strict(self) -> bool:
        """Whether the correct option is the only longest one."""
        return self.hit and self.n_extreme == 1

    @property
    def informative(self) -> bool:
        """Whether the options differ in length."""
        return self.n_extreme < self.n_options


def lengths(item: Item, *, shortest: bool = False) -> Lengths:
    """Compare the options' lengths, in characters, with whitespace normalised.

    Raises
    ------
    ValueError
        If the item has no options.
    """
    if item.options is None or item.answer is None:
        raise ValueError(f"{item.benchmark} {item.name} has no options to compare")
    sizes = [len(" ".join(option.split())) for option in item.options]
    extreme = min(sizes) if shortest else max(sizes)
    return Lengths(sizes[item.answer] == extreme, sizes.count(extreme), len(sizes))


def longest_option(items: Sequence[Item]) -> AuditFinding:
    """Test whether the correct option is among the longest, or the shortest, above chance.

    By chance, the correct option is among the t longest of k with probability t/k. The count over
    informative items (t < k) is Poisson-binomial, so ties need no approximation.

    References
    ----------
    MedThinkVQA, section 3.3 (57 % of its correct options were the longest; 664 items removed).
    Differs from the paper in the exact test, in how ties count, and in also testing the shortest
    option.
    """
    asked = multiple_choice(items)
    if not asked:
        return not_run("longest_option", TITLE)
    rates = []
    for shortest in (False, True):
        compared = [lengths(item, shortest=shortest) for item in asked]
        informative = [c for c in compared if c.informative]
        rates.append(
            rate(
                f"correct option among the {'shortest' if shortest else 'longest'}",
                sum(c.hit for c in informative),
                len(informative),
                [c.n_extreme / c.n_options for c in informative],
            )
        )
    n_strict = sum(lengths(item).strict for item in asked)
    n, chance = rates[0].n, rates[0].chance or 0
    return AuditFinding(
        check="longest_option",
        title=TITLE,
        status="ok",
        sentence=f"The correct option is among the longest in {rates[0].k} of {n_items(n)} with"
        " options of different lengths" + (f"; chance is {chance * n:.1f}." if n else "."),
        todo="Rewrite distractors until length is no cue. If that is too much work, leave out the"
        " items flagged here, a seeded sample that brings the share back to chance.",
        limits=f"{n_items(len(asked) - n)} with options of equal length are not informative."
        if n < len(asked)
        else "",
        rates=tuple(rates),
        details={"n_strictly_longest": n_strict, "n_left_out": len(items) - len(asked)},
    )


def balance_longest(items: Sequence[Item], seed: int) -> list[FlaggedItem]:
    """Return the items to remove so that the correct option is the longest as often as by chance.

    Items whose correct option is the only longest one are shuffled, and as many are removed as
    bring the sum of scores closest to the sum of 1/k over the remaining items. If all items have k
    options, R of N are such items and there are no ties, that is (R - N/k)/(1 - 1/k), rounded.

    References
    ----------
    MedThinkVQA, section 3.3. Differs from the paper in that the number follows from a rule.
    """
    compared = [(item, lengths(item)) for item in multiple_choice(items)]
    excess = sum(c.score - 1 / c.n_options for _, c in compared)
    strict = [(item, c) for item, c in compared if c.strict]
    why = "its correct option is the only longest one; sampled to bring the share back to chance"
    removed = []
    for index in generator(seed, "longest_option", "balance").permutation(len(strict)):
        item, c = strict[index]
        gain = 1 - 1 / c.n_options
        if excess - gain / 2 <= 0:  # removing one more would overshoot
            break
        excess -= gain
        removed.append(flag(item, "drop", why))
    return removed
