"""Whether a model's answer stays the same when the question or the picture changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from PIL import Image

from flipbench.core.derived_images import DerivedImages
from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item, Probe, Response
from flipbench.prompting.prompts import PromptSettings, right_option

from .conditions import Query

Pictures = tuple[ImageRef, ...]
NOT_CLOSED = "they have no picture, or fewer than two options (yes and no count)"
"""Why items are left out that cannot be asked by choice."""


def is_closed(item: Item) -> bool:
    """Return whether an item has pictures, and at least two options or yes and no."""
    several = item.options is None or len(item.options) > 1
    return bool(item.images) and right_option(item) is not None and several


def closed_items(benchmark: PairedBenchmark) -> list[Item]:
    """Return the original items that are closed (see `is_closed`)."""
    return [item for item in benchmark.originals if is_closed(item)]


def picture_pool(items: Iterable[Item]) -> list[Pictures]:
    """Return the distinct sets of pictures of items, ordered by their hashes."""
    pictures = {item.images for item in items if item.images}
    return sorted(pictures, key=lambda images: [ref.sha256 for ref in images])


def other_pictures(item: Item, pool: Iterable[Pictures], *, wider: bool = False) -> list[Pictures]:
    """Return the sets of as many pictures as the item has (``wider``: of more), none its own."""
    own_pictures, n = {ref.sha256 for ref in item.images}, len(item.images)
    return [
        images
        for images in pool
        if (len(images) > n if wider else len(images) == n)
        and own_pictures.isdisjoint(ref.sha256 for ref in images)
    ]


def _readable(reply: Response) -> float | None:
    return reply.choice + 1.0 if reply.choice >= 0 else None


def share_unchanged(choices: Sequence[float]) -> float:
    """Return the share of choices after the first that equal it; 0 is an unreadable reply.

    An unreadable reply agrees with none.

    >>> share_unchanged([2, 2, 1, 2, 0]), share_unchanged([0, 0])
    (0.5, 0.0)
    """
    original, *repeats = choices
    return sum(original > 0 and choice == original for choice in repeats) / len(repeats)


def _is_unchanged(choices: Sequence[float]) -> bool:
    return share_unchanged(choices) == 1.0


def unchanged(original: Probe, variants: Sequence[Probe]) -> Query:
    """Return the query for the share of ``variants`` that are answered as ``original`` is.

    With one variant, the value is True or False.
    """
    combine = _is_unchanged if len(variants) == 1 else share_unchanged
    return Query(tuple((probe, _readable) for probe in (original, *variants)), combine)


def swapped_probes(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, n_swaps: int, seed: int
) -> Callable[[Item], list[Probe]]:
    """Return a function from an item to its question on other items' pictures.

    They are ``n_swaps`` sets of as many pictures as the item has, drawn from (seed, item id): those
    of items with as many, and if that is too few, the first pictures of items with more. There are
    no probes if there are fewer.
    """
    pool = picture_pool(benchmark.originals)

    def probes(item: Item) -> list[Probe]:
        pictures, n = other_pictures(item, pool), len(item.images)
        if len(pictures) < n_swaps and n > 1:
            pictures += [images[:n] for images in other_pictures(item, pool, wider=True)]
        order = generator(seed, item.id, "image-swap").permutation(len(pictures))[:n_swaps]
        if len(order) < n_swaps:
            return []
        return [
            prompt_settings.closed_probe(item, f"swapped {number}", images=pictures[i])
            for number, i in enumerate(order, 1)
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
