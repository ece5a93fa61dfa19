"""A check's result: rates with intervals, flagged items, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from scipy import stats
from statsmodels.stats.multitest import multipletests

from flipbench.core.rates import Rate
from flipbench.core.records import ImageRef, Item, JsonDict, Value
from flipbench.reporting.sections import Status

Action = Literal["drop", "person", "change", "look"]


class NamedRate(Rate):
    """k of n items, the Wilson interval of k/n, and the rate expected by chance.

    ``chance`` is a fraction; ``p_value`` is one-sided against "not above chance", and
    ``p_adjusted`` is its Holm correction over all tests of one audit.
    """

    name: str
    chance: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None


class FlaggedItem(Value):
    """An item that a check flags, the proposed action, and why.

    ``drop``: leave it out. ``person``: set it aside until a person has decided. ``change``: keep it
    in a changed form. ``look``: keep it, but check whether it is correct.
    """

    item_id: str
    name: str
    action: Action
    why: str
    pictures: tuple[ImageRef, ...] = ()
    details: JsonDict = {}


class AuditFinding(Value):
    """One check's result on one benchmark.

    Attributes
    ----------
    status : str
        ``ok`` (nothing found, which is no proof), ``look``, ``defect``, or ``not_run``.
    sentence, todo, limits : str
        The result, what to do about it, and what the check cannot detect.
    """

    check: str
    title: str
    status: Status
    sentence: str
    todo: str = ""
    limits: str = ""
    rates: tuple[NamedRate, ...] = ()
    items: tuple[FlaggedItem, ...] = ()
    details: JsonDict = {}

    def ids(self, action: Action) -> set[str]:
        """Return the ids of the items for which ``action`` is proposed."""
        return {flagged.item_id for flagged in self.items if flagged.action == action}


def rate(name: str, k: int, n: int, chances: Sequence[float] = ()) -> NamedRate:
    """Return k/n with its Wilson interval and, given chance levels, an exact p-value.

    Parameters
    ----------
    chances : sequence of float, shape (n,), optional
        Each item's probability of counting by chance. The p-value is from the Poisson-binomial
        distribution, which is exact for items with different numbers of options.

    Examples
    --------
    >>> longest = rate("gold is the longest", 5, 5, [0.25] * 5)
    >>> round(longest.p_value, 6), longest.chance
    (0.000977, 0.25)
    """
    chance = p_value = None
    if n and len(chances):
        if len(chances) != n:
            raise ValueError(f"{name}: {len(chances)} chances for {n} items")
        chance = sum(chances) / n
        p_value = min(1.0, max(0.0, float(stats.poisson_binom.sf(k - 1, list(chances)))))
    return NamedRate(**dict(Rate.wilson(k, n)), name=name, chance=chance, p_value=p_value)


def correct(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Return the findings with p-values Holm-corrected over all tests of the audit."""
    p_values = [r.p_value for f in findings for r in f.rates if r.p_value is not None]
    if not p_values:
        return list(findings)
    adjusted = iter(float(p) for p in multipletests(p_values, method="holm")[1])
    return [
        finding.model_copy(
            update={
                "rates": tuple(
                    r if r.p_value is None else r.model_copy(update={"p_adjusted": next(adjusted)})
                    for r in finding.rates
                )
            }
        )
        for finding in findings
    ]


def flag(item: Item, action: Action, why: str, **more: Any) -> FlaggedItem:
    """Flag an item; ``more`` are further fields of `FlaggedItem`."""
    return FlaggedItem(item_id=item.id, name=item.name, action=action, why=why, **more)


def multiple_choice(items: Sequence[Item]) -> list[Item]:
    """Return the multiple-choice items."""
    return [item for item in items if item.options is not None]


def not_run(
    check: str, title: str, why: str = "No item has options.", how: str = ""
) -> AuditFinding:
    """Return the finding of a check that could not run."""
    return AuditFinding(check=check, title=title, status="not_run", sentence=why, todo=how)


def chances_of(items: Sequence[Item]) -> list[float]:
    """Return 1/k for each multiple-choice item."""
    return [1 / len(item.options or "?") for item in items]


def n_items(count: int) -> str:
    """Return a count of items in words.

    >>> n_items(1), n_items(2_000)
    ('1 item', '2,000 items')
    """
    return f"{count:,} item" + ("" if count == 1 else "s")
