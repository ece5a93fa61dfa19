"""The drawn picture has the source's size, and its pixels lie where the source's lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from flipbench.core.errors import DataError
from flipbench.generate.editors.sizes import Fit, SizeRule, fit, fit_mask, restore


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@given(
    st.integers(2, 90), st.integers(2, 90), st.sampled_from([1, 4, 8, 16, 28]), st.integers(1, 60)
)
def test_every_size_is_restored(width: int, height: int, factor: int, min_edge: int) -> None:
    source = noise(width, height)
    plan = SizeRule(min_edge=min_edge).plan(width, height, factor, "x")
    fitted = fit(source, plan)
    assert fitted.size == plan.run_size
    assert all(side % factor == 0 for side in plan.run_size)
    assert min(width, height) * plan.enlarged >= min_edge
    assert plan.enlarged == 1 or min(width, height) * (plan.enlarged - 1) < min_edge
    back = restore(fitted, plan)
    assert back.size == (width, height)
    assert plan.enlarged > 1 or back.tobytes() == source.tobytes()


def test_padding_repeats_the_edge_and_moves_nothing() -> None:
    plan = SizeRule(min_edge=16).plan(65, 47, 16, "x")
    assert plan == Fit((65, 47), (65, 47), (80, 48))
    source, fitted = np.asarray(noise(65, 47)), np.asarray(fit(noise(65, 47), plan))
    assert np.array_equal(fitted[:47, :65], source)
    assert (fitted[:47, 65:] == source[:, 64:]).all()
    assert (fitted[47, :65] == source[46]).all()


def test_a_size_that_fits_is_left_alone() -> None:
    plan = SizeRule().plan(1024, 768, 16, "x")
    assert plan == Fit((1024, 768), (1024, 768), (1024, 768))


def test_the_smallest_picture_of_mmstar() -> None:
    """114 x 66, which the reference draws at 112 x 64."""
    assert SizeRule().plan(114, 66, 16, "x") == Fit((114, 66), (456, 264), (464, 272))


def test_a_smooth_picture_survives_enlargement() -> None:
    ramp = np.linspace(0, 255, 40).astype(np.uint8)
    source = Image.fromarray(np.stack([np.tile(ramp, (30, 1))] * 3, axis=-1))
    plan = SizeRule(min_edge=100).plan(40, 30, 16, "x")
    assert plan.enlarged == 4
    back = restore(fit(source, plan), plan)
    assert np.abs(np.asarray(back).astype(int) - np.asarray(source)).max() <= 3


def test_masks_stay_hard() -> None:
    mask = Image.fromarray((np.asarray(noise(13, 9, "L")) > 127).astype(np.uint8) * 255)
    plan = SizeRule(min_edge=32).plan(13, 9, 8, "x")
    fitted = fit_mask(mask, plan)
    assert fitted.size == plan.run_size
    assert set(np.unique(np.asarray(fitted))) == {0, 255}
    assert np.array_equal(np.asarray(fitted)[: 9 * 4 : 4, : 13 * 4 : 4], np.asarray(mask))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (SizeRule(min_edge=70, small="refuse"), "item 7: the image is 114 x 66 pixels, and"),
        (SizeRule(min_edge=10, max_pixels=6000), "item 7: .* over the limit of 6,000 pixels"),
        (SizeRule(min_edge=660, max_pixels=700 * 700), "would be edited at 1152 x 672"),
    ],
)
def test_errors_name_the_item_and_the_remedy(rule: SizeRule, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rule.plan(114, 66, 16, "item 7")


@pytest.mark.parametrize(
    "wrong", [{"small": "shrink"}, {"min_edge": 0}, {"min_edge": 300, "max_pixels": 10_000}]
)
def test_impossible_size_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SizeRule(**wrong)  # type: ignore[arg-type]


def test_a_pipeline_that_returns_another_size_is_a_failure() -> None:
    plan = SizeRule(min_edge=1).plan(20, 20, 16, "x")
    with pytest.raises(DataError, match="drew 64 x 64 pixels instead of 32 x 32"):
        restore(noise(64, 64), plan)
