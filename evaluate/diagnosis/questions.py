"""What is asked about a pair whose perturbed version a model answers wrongly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageEnhance, ImageFilter

from flipbench.core.derived_images import DerivedImages
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item, Probe
from flipbench.models.chat.rewording import Reword
from flipbench.prompting.prompts import PromptSettings, right_option

from ..scoring.paraphrases import paraphrases_of
from ..scoring.unchanged import Pictures, is_closed, other_pictures, picture_pool

_MOST_ORDERS = 3
_SHADE = 0.85
_BLUR = 1 / 250  # of the longer edge


@dataclass(frozen=True)
class Inquiry:
    """How the questions are made.

    Attributes
    ----------
    reword : callable, optional
        Maps an item and its question to other wordings. Wordings that rules doubt are left out
        (`flipbench.evaluate.scoring.paraphrases.doubt`).
    n_swaps, n_wordings : int
        Pictures of other items, and other wordings at most, for each pair.
    seed : int
        Of the pictures drawn; with 0, they are those of the detector ``image_swap`` where its
        pictures have other right answers.
    """

    reword: Reword | None = None
    n_swaps: int = 5
    n_wordings: int = 3
    seed: int = 0

    @property
    def n_most(self) -> int:
        """The largest number of questions about one fallen item."""
        return 1 + 2 * _MOST_ORDERS + self.n_swaps + len(RETOUCHES) + self.n_wordings


@dataclass(frozen=True)
class Questions:
    """The questions about one pair; those after the first two are asked only if it fell.

    Attributes
    ----------
    text_only : Probe
        The question without a picture.
    reordered : tuple of Probe
        The same with the options moved on by one, two and three places.
    swapped : tuple of Probe
        The question on pictures of other items, whose own right answer is another one.
    retouched : tuple of Probe
        The perturbed version on its picture made darker, paler and softer.
    reworded : tuple of Probe
        The perturbed version in other words.
    moved : tuple of Probe
        The perturbed version with the options moved on.
    """

    pair: Pair
    original: Probe
    perturbed: Probe
    text_only: Probe
    reordered: tuple[Probe, ...] = ()
    swapped: tuple[Probe, ...] = ()
    retouched: tuple[Probe, ...] = ()
    reworded: tuple[Probe, ...] = ()
    moved: tuple[Probe, ...] = ()

    @property
    def follow_ups(self) -> list[Probe]:
        """All questions but the first two."""
        several = (self.reordered, self.swapped, self.retouched, self.reworded, self.moved)
        return [self.text_only, *(probe for probes in several for probe in probes)]


def closed_pairs(benchmark: PairedBenchmark) -> list[Pair]:
    """Return the pairs with pictures, and with at least two options or yes and no."""
    return [
        pair
        for pair in benchmark.pairs
        if is_closed(pair.original) and right_option(pair.perturbed) is not None
    ]


def first_questions(pair: Pair, prompt_settings: PromptSettings) -> tuple[Probe, Probe]:
    """Return the probes of the original and of the perturbed version."""
    ask = prompt_settings.closed_probe
    return ask(pair.original, "original"), ask(pair.perturbed, "perturbed")


def questions_about(
    pairs: Sequence[Pair],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    inquiry: Inquiry,
) -> Iterator[Questions]:
    """Yield all questions about each of the ``pairs`` of a benchmark.

    Each retouched picture is written once, to the benchmark's image store.
    """
    ask, pool = prompt_settings.closed_probe, _pool(benchmark)
    retouched = {
        name: DerivedImages(benchmark.images, f"retouched-{name}", retouch)
        for name, retouch in RETOUCHES.items()
    }
    for pair in pairs:
        item, perturbed = pair.original, pair.perturbed
        orders = list(enumerate(reorderings(item.options or ()), 1))
        yield Questions(
            pair,
            *first_questions(pair, prompt_settings),
            ask(item, "text-only", images=()),
            tuple(
                prompt_settings.probe(item, f"text-only, moved {by}", options=moved, images=())
                for by, moved in orders
            ),
            tuple(
                ask(item, f"swapped {number}", images=images)
                for number, images in enumerate(_others(item, pool, inquiry), 1)
            ),
            tuple(
                ask(
                    perturbed,
                    f"perturbed, {name}",
                    images=[derived.of(ref) or ref for ref in perturbed.images],
                )
                for name, derived in retouched.items()
            ),
            tuple(
                ask(perturbed, "perturbed, reworded", question=text)
                for text in _wordings(item, inquiry)
            ),
            tuple(
                prompt_settings.probe(perturbed, f"perturbed, moved {by}", options=moved)
                for by, moved in orders
            ),
        )


def reorderings(options: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the options moved on by one, two and three places.

    >>> reorderings(["a", "b", "c"])
    [('c', 'a', 'b'), ('b', 'c', 'a')]
    """
    n = min(len(options) - 1, _MOST_ORDERS)
    return [(*options[-by:], *options[:-by]) for by in range(1, n + 1)]


def _wordings(item: Item, inquiry: Inquiry) -> list[str]:
    if inquiry.reword is None:
        return []
    paraphrases, _ = paraphrases_of(item, inquiry.reword, inquiry.n_wordings)
    return [paraphrase.text for paraphrase in paraphrases]


def _pool(benchmark: PairedBenchmark) -> Sequence[Mapping[Pictures, set[str]]]:
    """Return the pictures of all originals, then of all edits, each with its right answers."""
    sides = []
    for items in (benchmark.originals, benchmark.perturbed):
        answers: dict[Pictures, set[str]] = defaultdict(set)
        for item in items:
            answers[item.images].add(item.answer_text)
        sides.append({images: answers[images] for images in picture_pool(items)})
    return sides


def _others(
    item: Item, pool: Sequence[Mapping[Pictures, set[str]]], inquiry: Inquiry
) -> list[Pictures]:
    """Return ``n_swaps`` sets of pictures of other items, or none if there are fewer.

    Originals come before edits, since other detectors ask about them too.
    """
    pictures: dict[Pictures, None] = {}
    for side in pool:
        candidates = other_pictures(item, side)
        order = generator(inquiry.seed, item.id, "image-swap").permutation(len(candidates))
        pictures |= dict.fromkeys(
            candidates[i] for i in order if item.answer_text not in side[candidates[i]]
        )
    return list(pictures)[: inquiry.n_swaps] if len(pictures) >= inquiry.n_swaps else []


def _darker(_: ImageRef, picture: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(picture).enhance(_SHADE)


def _paler(_: ImageRef, picture: Image.Image) -> Image.Image:
    return ImageEnhance.Contrast(picture).enhance(_SHADE)


def _softer(_: ImageRef, picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(max(picture.size) * _BLUR))


RETOUCHES: Mapping[str, Callable[[ImageRef, Image.Image], Image.Image]] = {
    "darker": _darker,
    "paler": _paler,
    "softer": _softer,
}
"""Changes of a picture that leave its answer as it is."""
