"""Whether a model's answer stays the same when the question or the picture changes."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe, Response
from flipbench.prompting.prompts import right_option

from .conditions import Query

NOT_CLOSED = "they have no picture, or fewer than two options (yes and no count)"
"""Why items are left out that cannot be asked by choice."""


def closed_items(benchmark: PairedBenchmark) -> list[Item]:
    """Return the original items with pictures, and with at least two options or yes and no."""
    return [
        item
        for item in benchmark.originals
        if item.images and right_option(item) is not None
        if item.options is None or len(item.options) > 1
    ]


def _picked(reply: Response) -> float:
    return reply.choice + 1.0 if reply.choice >= 0 else 0.0


def _readable(reply: Response) -> float | None:
    return _picked(reply) or None


def share_unchanged(picked: Sequence[float]) -> float:
    """Return the share of answers after the first that equal it; 0 is an unreadable reply.

    An unreadable reply agrees with none.

    >>> share_unchanged([2, 2, 1, 2, 0]), share_unchanged([0, 0])
    (0.5, 0.0)
    """
    first, *others = picked
    return sum(first > 0 and other == first for other in others) / len(others)


def _is_unchanged(picked: Sequence[float]) -> bool:
    return share_unchanged(picked) == 1.0


def unchanged(original: Probe, others: Sequence[Probe]) -> Query:
    """Return the query for the share of ``others`` that are answered as ``original`` is.

    With one other probe, the value is True or False.
    """
    combine = _is_unchanged if len(others) == 1 else share_unchanged
    return Query(tuple((probe, _readable) for probe in (original, *others)), combine)
