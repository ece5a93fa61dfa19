"""BGR shuffling and image masking: their pictures, what they leave out, and models of rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe
from flipbench.evaluate.detectors.grounding.image_masking import GREY, N_CELLS, ImageMasking, mask
from flipbench.evaluate.detectors.perturbation.bgr_shuffling import (
    BgrShuffling,
    mentions_color,
    swap_red_and_blue,
)
from flipbench.prompting.prompts import PromptSettings

BGR, MASKING = BgrShuffling(), ImageMasking()


def with_pictures(world: Any, folder: Path) -> Any:
    """Return a world of the same questions whose pictures are there."""
    store = ImageStore(folder / "images")

    def drawn(item: Item) -> Item:
        rng = generator(0, item.id, "picture")
        picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        ref = store.put_image(picture, item.name)
        return Item.model_validate(item.model_dump() | {"id": "", "images": (ref,)})

    pairs = [Pair(drawn(p.original), drawn(p.perturbed)) for p in world.benchmark.pairs]
    return type(world)(PairedBenchmark("simulated", tuple(pairs), store))


@pytest.fixture
def drawn(world: Any, tmp_path: Path) -> Any:
    return with_pictures(world, tmp_path)


def looks_at(world: Any, broken: str, share: float = 1.0) -> Any:
    """Return a model that sees, but guesses on a share of the pictures of variant ``broken``."""
    known = {i.id: i.answer_text for i in world.benchmark.originals}

    def policy(probe: Probe) -> int:
        rng = generator(0, probe.id, "looks")
        if probe.variant == broken and rng.random() < share:
            return int(rng.integers(probe.n_options))
        return probe.options.index(known[probe.item_id])

    return policy


def test_channel_swaps_match_the_worked_pixels() -> None:
    pixel = Image.new("RGB", (2, 2), (10, 20, 30))
    turned = swap_red_and_blue(pixel)
    assert turned is not None and turned.getpixel((1, 1)) == (30, 20, 10)
    again = swap_red_and_blue(turned)
    assert again is not None and again.tobytes() == pixel.tobytes()
    assert swap_red_and_blue(Image.new("RGB", (2, 2), (7, 7, 7))) is None


@pytest.mark.parametrize(
    ("question", "category", "speaks"),
    [
        ("What COLOUR is it?", "", True),
        ("Is the reddish one left?", "", True),
        ("How many greens are there?", "", True),
        ("Where is the bored redeemer?", "", False),
        ("Where is it?", "fine_color", True),
        ("Where is it?", "place", False),
    ],
)
def test_questions_about_color_are_recognised(
    make_item: Any, question: str, category: str, speaks: bool
) -> None:
    item = make_item("x", ["a", "b"], 0, category=category)
    assert mentions_color(item.model_copy(update={"question": question})) is speaks


def test_questions_about_color_are_left_out(shapes_benchmark: PairedBenchmark) -> None:
    probes = BGR.probes(shapes_benchmark, PromptSettings())
    kept = {p.item_id for p in probes}
    assert 0 < len(kept) < 30
    about_color = {i.id for i in shapes_benchmark.originals if i.category in ("color", "shape")}
    assert about_color and not about_color & kept
    for one, two in zip(probes[::2], probes[1::2], strict=True):
        assert (one.variant, two.variant, one.prompt) == ("original", "bgr", two.prompt)
        before, after = (np.asarray(shapes_benchmark.images.open(p.images[0])) for p in (one, two))
        assert np.array_equal(before[..., ::-1], after) and not np.array_equal(before, after)


@pytest.mark.parametrize("detector", [BGR, MASKING])
def test_probes_are_reproducible_and_images_encoded_once(
    detector: Any, shapes_benchmark: PairedBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [p.id for p in detector.probes(shapes_benchmark, PromptSettings())]
    files = sorted(path.name for path in shapes_benchmark.images.folder.iterdir())

    def refuse(*args: object) -> None:
        raise AssertionError("a picture is encoded again")

    monkeypatch.setattr(ImageStore, "put_image", refuse)
    monkeypatch.setattr(ImageStore, "open", refuse)
    assert [p.id for p in detector.probes(shapes_benchmark, PromptSettings())] == first
    assert sorted(path.name for path in shapes_benchmark.images.folder.iterdir()) == files


def test_grey_images_and_free_form_items_are_counted_as_dropped(
    drawn: Any, make_world: Any, make_item: Any, make_pair: Any
) -> None:
    store = drawn.benchmark.images
    grey = store.put_image(Image.new("RGB", (8, 8), (7, 7, 7)), "grey")
    item = make_item("grey", ["a", "b"], 0)
    item = Item.model_validate(item.model_dump() | {"id": "", "images": (grey,)})
    pairs = (*drawn.benchmark.pairs, make_pair(item, 1))
    world = make_world(PairedBenchmark("simulated", pairs, store))
    answers = world.ask(BGR, lambda p: 0)
    score = world.scores(BGR, answers)["mcnemar"]
    assert (score.n, score.n_dropped) == (40, 1) and "1 item is left out" in score.warnings[0]


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize(
    ("size", "tolerance"), [((64, 48), 0), ((9, 200), 0.05)], ids=["photo", "strip"]
)
def test_a_mask_covers_its_share_and_contains_smaller_masks(
    fraction: float, size: tuple[int, int], tolerance: float
) -> None:
    order = np.random.default_rng(0).permutation(N_CELLS**2)
    white = Image.new("RGB", size, "white")
    covered = np.asarray(mask(white, fraction, order))[..., 0] == GREY
    less = np.asarray(mask(white, fraction / 2, order))[..., 0] == GREY
    assert not (less & ~covered).any() and covered.sum() > less.sum() > 0
    assert covered.mean() == pytest.approx(fraction, abs=tolerance, rel=0)


@pytest.mark.slow
def test_masking_flags_a_model_that_falls_less_than_the_clean_one(drawn: Any) -> None:
    clean = drawn.ask(MASKING, looks_at(drawn, "masked 50 %"), "clean")
    memory = drawn.ask(MASKING, looks_at(drawn, "nothing"))
    (score,) = drawn.scores(MASKING, memory, clean).values()
    assert score.verdict == "contaminated" and score.direction == "rises"
    assert score.statistic is not None and score.statistic > 0.5 and score.interval.low > 0
    assert score.p_value < 0.01 and score.p_value > 0
    assert set(score.accuracies) == {
        "original", "masked 50 %", "masked 25 %", "masked 75 %",
    }  # fmt: skip
    (turned,) = drawn.scores(MASKING, clean, memory).values()
    assert turned.verdict == "not_detected" and turned.p_value > 0.9
    (alone,) = drawn.scores(MASKING, memory).values()
    assert alone.verdict == "not_applicable"
    with pytest.raises(ValueError, match="fractions"):
        ImageMasking(fractions=(0.5, 1.5))
