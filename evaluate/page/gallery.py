"""The gallery of pairs: thumbnails within a budget of bytes, and each pair's results."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Score

from ..protocol.grid import GridModel
from ..report.score_tables import gap_scores
from ..scoring.suspicion import Suspicion, suspicions

BUDGET = 3_500_000  # bytes of base64 text, so that a page of 500 pairs stays under 5 MB
_Make = Callable[[ImageRef, float, int], tuple[str, int, int]]
_QUALITIES = ((200, 75), (200, 60), (200, 45), (168, 45), (136, 40), (104, 35))


@dataclass(frozen=True)
class Thumbnail:
    """A small WebP image; ``share`` is its width relative to the widest of its pair."""

    data: str
    width: int
    height: int
    share: float


@dataclass(frozen=True)
class Card:
    """A pair as displayed. ``fell`` names the contaminated models that went right → wrong.

    ``control`` is the ControlNet's control image, if the editor stored one. Of items with several
    images, ``original`` and ``perturbed`` are those that differ, ``others`` the rest.
    """

    pair: Pair
    original: Sequence[Thumbnail]
    perturbed: Sequence[Thumbnail]
    control: Thumbnail | None
    others: Sequence[Thumbnail]
    fell: tuple[str, ...]
    n_asked: int
    n_clean_fell: int
    n_clean_asked: int
    suspicion: Suspicion

    @property
    def name(self) -> str:
        """The item's name."""
        return self.pair.original.name

    @property
    def options(self) -> list[tuple[str, str]]:
        """Each option, and the version in which it is right: "original", "perturbed" or ""."""
        original, perturbed = self.pair.original, self.pair.perturbed
        if original.options is None:
            return [(original.answer_text, "original"), (perturbed.answer_text, "perturbed")]
        versions = {original.answer: "original", perturbed.answer: "perturbed"}
        return [(text, versions.get(at, "")) for at, text in enumerate(original.options)]

    @property
    def right(self) -> dict[str, str]:
        """The right option of each version."""
        return {version: text for text, version in self.options if version}

    @property
    def place(self) -> str:
        """Which of several images differ, for people; empty if there is one."""
        numbers = [str(at + 1) for at in self.pair.changed]
        sides = (self.pair.original, self.pair.perturbed)
        n_images = max(len(item.images) for item in sides)
        images = f"image{'s' * (len(numbers) > 1)} {', '.join(numbers)} of {n_images}"
        return images if self.others else ""


@dataclass(frozen=True)
class Gallery:
    """The cards, the most suspicious first, out of ``n_pairs``."""

    cards: tuple[Card, ...]
    n_pairs: int
    size: int
    quality: int

    @property
    def categories(self) -> list[str]:
        """The categories, sorted."""
        categories = {card.pair.original.category for card in self.cards}
        return sorted(categories - {""})


def make_gallery(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    budget: int = BUDGET,
    max_pairs: int | None = None,
) -> Gallery:
    """Return the gallery of a benchmark, or of its ``max_pairs`` most suspicious pairs.

    Thumbnails are shrunk until all fit into ``budget`` bytes; if even the smallest do not, the
    least suspicious pairs are left out.
    """

    @cache  # an image may belong to many pairs
    def make(ref: ImageRef, scale: float, quality: int) -> tuple[str, int, int]:
        """Return (base64 of a WebP, width, height) of an image made smaller by ``scale``."""
        image, buffer = benchmark.images.open(ref), io.BytesIO()
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=quality)
        return base64.b64encode(buffer.getvalue()).decode(), *size

    gaps = gap_scores(grid, scores)
    suspicion = suspicions(benchmark, grid, scores)
    pairs = sorted(benchmark.pairs, key=lambda pair: -round(suspicion[pair.original.id].value, 9))[
        :max_pairs
    ]  # stable: ties stay in release order
    size, quality, n_shown = _fit(pairs, benchmark.images, make, budget)
    cards = tuple(
        _card(pair, gaps, _thumbnails(pair, benchmark.images, make, size, quality), suspicion)
        for pair in pairs[:n_shown]
    )
    return Gallery(cards, len(pairs), size, quality)


def _fit(
    pairs: Sequence[Pair], store: ImageStore, make: _Make, budget: int
) -> tuple[int, int, int]:
    """Return (size, quality, number of pairs) that fit, estimated from 16 pairs."""
    if not pairs:
        return *_QUALITIES[0], 0
    sample = pairs[:: max(1, len(pairs) // 16)]
    mean = 1.0
    for size, quality in _QUALITIES:
        sides = [side for pair in sample for side in _thumbnails(pair, store, make, size, quality)]
        mean = sum(len(t.data) for side in sides for t in side) / len(sample)
        if 1.1 * mean * len(pairs) <= budget:
            return size, quality, len(pairs)
    return size, quality, min(len(pairs), int(budget / (1.1 * mean)))


def _thumbnails(
    pair: Pair, store: ImageStore, make: _Make, size: int, quality: int
) -> tuple[list[Thumbnail], ...]:
    """Return the images that differ, at the same scale; at half, the control image, the others."""
    versions = [
        [item.images[at] for at in pair.changed if at < len(item.images)]
        for item in (pair.original, pair.perturbed)
    ]
    refs = [ref for version in versions for ref in version]
    widest = max((ref.width for ref in refs), default=1)
    scale = min(1.0, size / max((max(ref.width, ref.height) for ref in refs), default=1))
    sides = [
        [Thumbnail(*make(ref, scale, quality), ref.width / widest) for ref in version]
        for version in versions
    ]
    control = pair.control
    controls = [control] if control and store.has(control) else []
    unchanged = [ref for at, ref in enumerate(pair.original.images) if at not in pair.changed]
    small = (
        [
            Thumbnail(*make(ref, min(1.0, size / (2 * max(ref.width, ref.height))), quality), 0.5)
            for ref in refs
        ]
        for refs in (controls, unchanged)
    )
    return *sides, *small


def _card(
    pair: Pair,
    gaps: list[tuple[GridModel, Score]],
    thumbnails: tuple[list[Thumbnail], ...],
    suspicion: dict[str, Suspicion],
) -> Card:
    item, (original, perturbed, controls, unchanged) = pair.original.id, thumbnails
    changes = [(m, s.per_item[item]) for m, s in gaps if item in s.per_item]
    fell = [model for model, change in changes if change < 0]
    n_clean = sum(model.clean for model, _ in changes)
    return Card(
        pair,
        original,
        perturbed,
        controls[0] if controls else None,
        unchanged,
        tuple(model.name for model in fell if not model.clean),
        len(changes) - n_clean,
        sum(model.clean for model in fell),
        n_clean,
        suspicion[item],
    )
