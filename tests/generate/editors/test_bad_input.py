"""Captions that are too long, control images without edges, NaN, and pictures too long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef
from flipbench.generate.editors.bad_input import check_control, finite, only_finite
from flipbench.generate.editors.controls import Control
from flipbench.generate.editors.diffusers_editor import DiffusersEditor, DiffusersEditorSpec
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing

pytestmark = pytest.mark.usefixtures("one_thread")
Build = Callable[..., Candidate]
Editor = Callable[..., FluxControlNetEditor]


@pytest.fixture
def kontext(diffusion_folder: Callable[[str], str]) -> DiffusersEditor:
    given: dict[str, Any] = {"pipeline": diffusion_folder("kontext"), "device": "cpu"}
    given |= {"dtype": "float32", "sizes": SizeRule(min_edge=8)}
    arguments = {"num_inference_steps": 1, "max_sequence_length": 24}
    return DiffusersEditor(DiffusersEditorSpec(**given, arguments=arguments))


@pytest.mark.parametrize("which", ["flux", "kontext"])
def test_a_caption_that_is_cut_is_named_with_what_is_lost(
    which: str,
    flux_editor: Editor,
    kontext: DiffusersEditor,
    candidate: Build,
    pictures: ImageStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    draws = flux_editor() if which == "flux" else kontext
    tasks = [candidate("long", text="x" * 100), candidate("short", text="x" * 20)]
    with caplog.at_level(logging.WARNING):
        long, short = draws(tasks, [1, 2], pictures)
    assert isinstance(long, Drawing)
    assert isinstance(short, Drawing)
    read = {"tokenizer": [77, 102], "tokenizer_2": [24, 101]}
    assert long.extra["text_read"] == read
    assert "text_read" not in short.extra
    told = [record.message for record in caplog.records if "caption" in record.message]
    assert told == ["made-up long: the second text encoder reads 24 of the caption's 101 tokens"]


def test_a_control_image_without_edges_fails_alone(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    task = candidate("grey")
    ref = pictures.put_image(Image.new("RGB", (20, 16), "grey"), "grey")
    grey = Candidate(task.item.model_copy(update={"images": (ref,)}), task.flip, task.caption)
    blank, fine = flux_editor()([grey, candidate("a")], [1, 2], pictures)
    assert isinstance(blank, DataError)
    assert "made-up grey: the control image (canny) is blank; lower the thresholds 100" in str(
        blank
    )
    assert isinstance(fine, Drawing)
    assert pictures.open(ImageRef.model_validate(fine.extra["control"])).getextrema()[0] != (0, 0)


def test_only_control_images_that_are_detected_can_be_blank() -> None:
    grey = Image.new("RGB", (8, 8), "grey")
    check_control(grey, Control(kind="none").settings, "x")
    with pytest.raises(DataError, match=r"x: the control image \(hed\) is blank; use another kind"):
        check_control(grey, Control(kind="hed").settings, "x")


@pytest.mark.parametrize("which", ["flux", "kontext"])
def test_nan_is_never_stored_as_a_black_image(
    which: str,
    flux_editor: Editor,
    kontext: DiffusersEditor,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    draws: Any = flux_editor() if which == "flux" else kontext
    tasks = [candidate("a"), candidate("b")]
    transformer, runs = draws._pipeline.transformer, []

    def spoil(module: Any, args: Any, output: Any) -> Any:
        runs.append(1)
        return (output[0] * float("nan"), *output[1:]) if len(runs) == 1 else None

    handle = transformer.register_forward_hook(spoil)
    broken, fine = draws(tasks, [1, 2], pictures)
    handle.remove()
    assert isinstance(broken, DataError)
    assert "drew NaN instead of an image (in float32)" in str(broken)
    assert isinstance(fine, Drawing)


def test_half_precision_has_its_own_remedy() -> None:
    image = Image.new("RGB", (8, 8))
    kept, lost = only_finite([image, image], [True, False], "float16")
    assert kept is image
    assert "set dtype to bfloat16 or float32" in str(lost)
    tiled = only_finite([image, image], [True, True, False], "float16")
    assert all(isinstance(one, DataError) for one in tiled)
    assert only_finite([image], [], "float32") == [image]
    with finite(object()) as flags:
        assert flags == []


def test_the_decoder_is_left_as_it_was(flux_editor: Editor) -> None:
    pipeline = flux_editor()._pipeline
    with finite(pipeline) as flags:
        pipeline.vae.decode(torch.zeros(2, 4, 4, 4))
    assert flags == [True, True]
    pipeline.vae.decode(torch.zeros(2, 4, 4, 4))
    assert flags == [True, True]


def test_a_picture_too_long_for_the_reference_s_edges_is_named() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 4000, 3), np.uint8))
    with pytest.raises(DataError, match="4000 x 16 pixels is too long for detect 'x-flux'"):
        Control()(picture)
    assert Control(detect="run size")(picture).size == (4000, 16)
