"""The gallery of pairs: thumbnails within a budget of bytes, and each pair's results."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Item, Score

from ..protocol.grid import GridModel
from ..scoring.suspicion import Suspicion, suspicions
from .tables import gap_score, scores_of

BUDGET = 3_500_000  # bytes of base64 text, so that a page of 500 pairs stays under 5 MB
_QUALITIES = ((200, 75), (200, 60), (200, 45), (168, 45), (136, 40), (104, 35))


@dataclass(frozen=True)
class Thumbnail:
    """A small WebP image; ``share`` is its width relative to the widest of its pair."""

    data: str
    width: int
    height: int
    share: float


@dataclass(frozen=True)
class Option:
    """An option and the version in which it is right: "original", "perturbed" or ""."""

    text: str
    right_in: str


@dataclass(frozen=True)
class Card:
    """A pair as displayed. ``fell`` names the contaminated models that went right → wrong.

    ``control`` is the ControlNet's control image, if the editor stored one.
    """

    name: str
    question: str
    options: tuple[Option, ...]
    category: str
    caption: str
    verdict: str
    original: tuple[Thumbnail, ...]
    perturbed: tuple[Thumbnail, ...]
    control: Thumbnail | None
    fell: tuple[str, ...]
    n_asked: int
    n_clean_fell: int
    n_clean_asked: int
    suspicion: Suspicion


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
        return sorted({card.category for card in self.cards if card.category})


def make_gallery(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    budget: int = BUDGET,
) -> Gallery:
    """Return the gallery of a benchmark.

    Thumbnails are shrunk until all fit into ``budget`` bytes; if even the smallest do not, the
    least suspicious pairs are left out.
    """
    scored = [(m, s) for m in grid if (s := gap_score(scores_of(m, grid, scores))) is not None]
    suspicion = suspicions(benchmark, grid, scores)
    ordered = sorted(
        benchmark.pairs, key=lambda pair: -round(suspicion[pair.original.id].value, 9)
    )  # stable: ties stay in release order
    thumbnails = _Thumbnails(benchmark.images)
    size, quality, n_shown = _fit(ordered, thumbnails, budget)
    cards = tuple(
        _card(pair, scored, thumbnails, size, quality, suspicion[pair.original.id])
        for pair in ordered[:n_shown]
    )
    return Gallery(cards, len(ordered), size, quality)


def thumbnail(image: Image.Image, scale: float, quality: int) -> tuple[str, int, int]:
    """Return (base64 of a WebP, width, height) of an image made smaller by ``scale``."""
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=quality)
    return base64.b64encode(buffer.getvalue()).decode(), *size


class _Thumbnails:
    """Makes each thumbnail once; an image may belong to many pairs."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self.cache: dict[tuple[str, float, int], tuple[str, int, int]] = {}

    def thumbnail(self, ref: ImageRef, scale: float, quality: int) -> tuple[str, int, int]:
        key = (ref.sha256, scale, quality)
        if key not in self.cache:
            self.cache[key] = thumbnail(self.store.open(ref), scale, quality)
        return self.cache[key]


def _fit(pairs: Sequence[Pair], thumbnails: _Thumbnails, budget: int) -> tuple[int, int, int]:
    """Return (size, quality, number of pairs) that fit, estimated from 16 pairs."""
    if not pairs:
        return *_QUALITIES[0], 0
    sample = pairs[:: max(1, len(pairs) // 16)]
    mean = 1.0
    for size, quality in _QUALITIES:
        mean = sum(_n_bytes(pair, thumbnails, size, quality) for pair in sample) / len(sample)
        if 1.1 * mean * len(pairs) <= budget:
            return size, quality, len(pairs)
    return size, quality, min(len(pairs), int(budget / (1.1 * mean)))


def _n_bytes(pair: Pair, thumbnails: _Thumbnails, size: int, quality: int) -> int:
    sides = _both_sides(pair, thumbnails, size, quality)
    control = _control(pair, thumbnails, size, quality)
    return sum(len(t.data) for side in (*sides, (control,) if control else ()) for t in side)


def _control(pair: Pair, thumbnails: _Thumbnails, size: int, quality: int) -> Thumbnail | None:
    """Return the control image at half the pair's size; None if it is not stored."""
    ref = pair.control
    if ref is None or not thumbnails.store.path(ref).exists():
        return None
    scale = min(1.0, size / (2 * max(ref.width, ref.height)))
    return Thumbnail(*thumbnails.thumbnail(ref, scale, quality), 0.5)


def _both_sides(
    pair: Pair, thumbnails: _Thumbnails, size: int, quality: int
) -> tuple[tuple[Thumbnail, ...], tuple[Thumbnail, ...]]:
    """Return both versions' thumbnails at the same scale."""
    refs = (*pair.original.images, *pair.perturbed.images)
    widest = max((ref.width for ref in refs), default=1)
    scale = min(1.0, size / max((max(ref.width, ref.height) for ref in refs), default=1))

    def make(ref: ImageRef) -> Thumbnail:
        return Thumbnail(*thumbnails.thumbnail(ref, scale, quality), ref.width / widest)

    return tuple(map(make, pair.original.images)), tuple(map(make, pair.perturbed.images))


def _card(
    pair: Pair,
    scored: list[tuple[GridModel, Score]],
    thumbnails: _Thumbnails,
    size: int,
    quality: int,
    suspicion: Suspicion,
) -> Card:
    original, perturbed = _both_sides(pair, thumbnails, size, quality)
    fell, n_asked = _fallen(pair, scored, clean=False)
    clean_fell, n_clean_asked = _fallen(pair, scored, clean=True)
    return Card(
        pair.original.name,
        pair.original.question,
        _options(pair.original, pair.perturbed),
        pair.original.category,
        pair.caption,
        pair.verdict,
        original,
        perturbed,
        _control(pair, thumbnails, size, quality),
        tuple(fell),
        n_asked,
        len(clean_fell),
        n_clean_asked,
        suspicion,
    )


def _fallen(
    pair: Pair, scored: list[tuple[GridModel, Score]], *, clean: bool
) -> tuple[list[str], int]:
    """Return the models that went right → wrong on a pair, and how many answered it."""
    item = pair.original.id
    answered = [(m, s.per_item[item]) for m, s in scored if m.clean == clean and item in s.per_item]
    return [m.name for m, change in answered if change < 0], len(answered)


def _options(original: Item, perturbed: Item) -> tuple[Option, ...]:
    texts = original.options
    if texts is None:
        return (
            Option(original.answer_text, "original"),
            Option(perturbed.answer_text, "perturbed"),
        )
    right = {original.answer: "original", perturbed.answer: "perturbed"}
    return tuple(Option(text, right.get(at, "")) for at, text in enumerate(texts))
