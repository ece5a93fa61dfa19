"""Other perturbed pictures: harder, easier, and edits that failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.shapes.questions import QuestionFamily, answer
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, Scene

Edit = Callable[[Pair, Image.Image], Image.Image]


def as_made(pair: Pair, picture: Image.Image) -> Image.Image:
    """Return the perturbed picture itself."""
    return picture


def blurred(radius: float) -> Edit:
    """Return an edit that blurs the perturbed picture; ``radius`` is in pixels."""
    return lambda pair, picture: picture.filter(ImageFilter.GaussianBlur(radius))


def noisy(deviation: float) -> Edit:
    """Return an edit that adds Gaussian noise; ``deviation`` is in levels of 0 to 255."""

    def edit(pair: Pair, picture: Image.Image) -> Image.Image:
        rng = generator(0, pair.original.id, "noise")
        values = np.asarray(picture.convert("RGB"), dtype=float)
        values += rng.normal(0, deviation, values.shape)
        return Image.fromarray(values.clip(0, 255).astype(np.uint8))

    return edit


def faded(share: float) -> Edit:
    """Return an edit that keeps ``share`` of the contrast."""
    return lambda pair, picture: ImageEnhance.Contrast(picture).enhance(share)


def failed(share: float) -> Edit:
    """Return an edit that, for a share of the pairs, changes something else than it should.

    One thing of the original scene that the question does not depend on gets another colour.
    """

    def edit(pair: Pair, picture: Image.Image) -> Image.Image:
        rng = generator(0, pair.original.id, "failed edit")
        if rng.random() >= share:
            return picture
        family = QuestionFamily.from_json(pair.original.extra["family"])
        old = family.scenes[family.options.index(pair.original.answer_text)]
        others = [
            Scene.of(
                [replace(t, color=color) if t == thing else t for t in old.things], old.background
            )
            for thing in old.things
            for color in COLORS
            if color != thing.color
        ]
        same = [s for s in others if answer(s, family.question) == pair.original.answer_text]
        return render(same[rng.integers(len(same))], picture.width) if same else picture

    return edit


def emptied(pair: Pair, picture: Image.Image) -> Image.Image:
    """Draw the perturbed scene without the things that its answer does not depend on: easier."""
    family = QuestionFamily.from_json(pair.original.extra["family"])
    scene = family.scenes[family.options.index(pair.perturbed.answer_text)]
    for thing in scene.things:
        without = Scene.of([t for t in scene.things if t != thing], scene.background)
        if without.things and answer(without, family.question) == pair.perturbed.answer_text:
            scene = without
    return render(scene, picture.width)


CONDITIONS: dict[str, Edit] = {
    "as made": as_made,
    "blur 4": blurred(4),
    "blur 7": blurred(7),
    "noise 60": noisy(60),
    "contrast 25 %": faded(0.25),
    "fewer things": emptied,
    "10 % failed edits": failed(0.1),
}


def edited(benchmark: PairedBenchmark, edit: Edit, store: ImageStore) -> PairedBenchmark:
    """Return the benchmark with other perturbed pictures, in another store."""
    benchmark = benchmark.with_images_in(store)
    pairs = []
    for pair in benchmark.pairs:
        picture = edit(pair, store.open(pair.perturbed.images[0]))
        ref = store.put_image(picture, pair.perturbed.subject)
        pairs.append(replace(pair, perturbed=pair.perturbed.revised(images=(ref,))))
    return replace(benchmark, pairs=tuple(pairs))
