"""Longest-option bias: is the right option the longest one too often, and which items to remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flipbench.core.randomness import generator
from flipbench.core.records import Item

from .finding import AuditFinding, Named, choices, n_items, not_run, rate

TITLE = "Length of the right option"


@dataclass(frozen=True)
class Lengths:
    """How the right option stands among the longest (or shortest) options of an item.

    Attributes
    ----------
    hit : bool
        The right option is among them.
    n_extreme, n_options : int
        How many share that length, of how many options.
    """

    hit: bool
    n_extreme: int
    n_options: int

    @property
    def score(self) -> float:
        """1/(number tied) where the right option is among them, else 0; by chance 1/k."""
        return self.hit / self.n_extreme

    @property
    def strict(self) -> bool:
        """The right option alone is the longest."""
        return self.hit and self.n_extreme == 1

    @property
    def informative(self) -> bool:
        """Not all options are equally long."""
        return self.n_extreme < self.n_options


def lengths(item: Item, *, shortest: bool = False) -> Lengths:
    """Compare the options' lengths, in characters without surrounding or repeated blanks.

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
    """Test whether the right option is among the longest (and, the shortest) above chance.

    By chance the right option is among t longest of k with probability t/k; the count over items
    that tell (t < k) is Poisson-binomial, so ties need no approximation.

    References
    ----------
    MedThinkVQA, section 3.3 (57 % of its right options were the longest; 664 items removed).
    Differs from the paper in the exact test, in how ties count, and in the shortest option beside
    the longest.
    """
    asked = choices(items)
    if not asked:
        return not_run("longest_option", TITLE, "No item has options.", "")
    rates = []
    for shortest in (False, True):
        told = [found for item in asked if (found := lengths(item, shortest=shortest)).informative]
        rates.append(
            rate(
                f"right option among the {'shortest' if shortest else 'longest'}",
                sum(found.hit for found in told),
                len(told),
                [found.n_extreme / found.n_options for found in told],
            )
        )
    n_strict = sum(lengths(item).strict for item in asked)
    n_told = rates[0].n
    return AuditFinding(
        check="longest_option",
        title=TITLE,
        status="ok",
        sentence=f"The right option is among the longest in {rates[0].k} of {n_items(n_told)}"
        + (f"; chance is {(rates[0].chance or 0) * n_told:.1f}." if n_told else " that tell."),
        todo="Rewrite distractors until lengths say nothing; where that is too much work, leave out"
        " the items named here, drawn by seed, which brings the share back to chance.",
        limits=f"{n_items(len(asked) - n_told)} with options of equal length say nothing here."
        if n_told < len(asked)
        else "",
        rates=tuple(rates),
        details={"n_strictly_longest": n_strict, "n_left_out": len(items) - len(asked)},
    )


def balance_longest(items: Sequence[Item], seed: int) -> list[Named]:
    """Return the items to remove so that the right option is the longest as often as chance says.

    Items whose right option alone is the longest are shuffled; as many are taken as bring the sum
    of scores nearest to the sum of 1/k over the items left. With k options throughout, R such
    items of N and no ties, that is the whole number nearest to (R - N/k)/(1 - 1/k).

    References
    ----------
    MedThinkVQA, section 3.3. Differs from the paper in that the number follows from a rule.
    """
    asked = choices(items)
    rows = [(item, lengths(item)) for item in asked]
    excess = sum(found.score - 1 / found.n_options for _, found in rows)
    strict = [(item, found) for item, found in rows if found.strict]
    order = generator(seed, "longest_option", "balance").permutation(len(strict))
    removed = []
    for place in order:
        item, found = strict[place]
        gain = 1 - 1 / found.n_options
        if excess - gain / 2 <= 0:  # one more would lead further away from chance
            break
        excess -= gain
        removed.append(item)
    why = "its right option alone is the longest; drawn by seed to bring the share back to chance"
    return [Named(item_id=i.id, name=i.name, action="drop", why=why) for i in removed]
