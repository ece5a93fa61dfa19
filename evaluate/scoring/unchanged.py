"""Whether a model's answer stays the same when the question or the picture changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item, Probe, Response
from flipbench.imaging.derived import DerivedImages
from flipbench.prompting.prompts import PromptSettings, right_option

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


def swapped_probes(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, n_swaps: int, seed: int
) -> Callable[[Item], list[Probe]]:
    """Return a function from an item to its question on other items' pictures.

    They are ``n_swaps`` sets of as many pictures as the item has, drawn from (seed, item id): those
    of items with as many, and if that is too few, the first pictures of items with more. There are
    no probes if there are fewer.
    """
    pool = sorted(
        {item.images for item in benchmark.originals if item.images},
        key=lambda images: [ref.sha256 for ref in images],
    )

    def probes(item: Item) -> list[Probe]:
        own = {ref.sha256 for ref in item.images}
        others: list[tuple[ImageRef, ...]] = [
            images
            for images in pool
            if len(images) == len(item.images) and own.isdisjoint(ref.sha256 for ref in images)
        ]
        if len(others) < n_swaps and len(item.images) > 1:
            others += [
                images[: len(item.images)]
                for images in pool
                if len(images) > len(item.images) and own.isdisjoint(r.sha256 for r in images)
            ]
        drawn = generator(seed, item.id, "image-swap").permutation(len(others))[:n_swaps]
        if len(drawn) < n_swaps:
            return []
        return [
            prompt_settings.closed_probe(item, f"swapped {number}", images=others[i])
            for number, i in enumerate(drawn, 1)
        ]

    return probes


def black_probes(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings
) -> Callable[[Item], list[Probe]]:
    """Return a function from an item to its question on black pictures of the same sizes."""
    black = DerivedImages(
        benchmark.images, "black", lambda _, picture: Image.new("RGB", picture.size)
    )

    def probes(item: Item) -> list[Probe]:
        images = [black.of(ref) or ref for ref in item.images]
        return [prompt_settings.closed_probe(item, "black", images=images)]

    return probes
