"""Captions that are too long, control images without edges, NaN, and pictures too long."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef
from flipbench.generate.editors.bad_input import (
    check_control,
    nan_as_errors,
    unread_text,
    watch_for_nan,
)
from flipbench.generate.editors.controls import Control
from flipbench.generate.editors.diffusers_editor import DiffusersEditor, DiffusersEditorSpec
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing

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
    with caplog.at_level(logging.INFO):
        long, short = draws(tasks, [1, 2], pictures)
    assert isinstance(long, Drawing)
    assert isinstance(short, Drawing)
    read = {"tokenizer": [77, 102], "tokenizer_2": [24, 101]}
    assert long.extra["text_read"] == read
    assert "text_read" not in short.extra
    told = [(r.levelname, r.message) for r in caplog.records if "made-up" in r.message]
    assert told == [
        ("INFO", "made-up long: the first text encoder reads 77 of the caption's 102 tokens"),
        (
            "WARNING",
            "made-up long: the second text encoder reads 24 of the caption's 101 tokens;"
            " ask the captioner for shorter captions",
        ),
    ]


_CHAT = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
_PARTS = _CHAT.replace("m['content']", "m['content'][0]['text']")


class Processor:
    """A processor around a tokenizer, as Flux 2's."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def apply_chat_template(self, messages: Any, tokenize: bool) -> Any:
        return self.tokenizer.apply_chat_template(messages, tokenize=tokenize, chat_template=_PARTS)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("QwenImageEditPipeline", None),
        ("QwenImageEditPlusPipeline", None),
        ("Flux2KleinPipeline", [100 - len("[user]") - 1, 150]),
        ("Flux2Pipeline", [100 - len("[system]go[user]") - 1, 150]),
    ],
)
def test_words_around_the_caption_take_their_place(name: str, read: list[int] | None) -> None:
    """Less one for the end of the text, which a tokenizer never cuts."""
    diffusers = pytest.importorskip("diffusers")
    from tests.fixtures.tiny_flux import tokenizer

    words = tokenizer(None, "</s>", 4096)
    words.chat_template = _CHAT
    cls = getattr(diffusers, name)
    needed = dict.fromkeys(inspect.signature(cls).parameters)
    needed["tokenizer"] = words
    pipeline = cls(**{k: v for k, v in needed.items() if k != "is_distilled"})
    if name == "Flux2Pipeline":
        pipeline.tokenizer, pipeline.system_message = Processor(words), "go"
    assert unread_text(pipeline, "x" * 90, 200, "a") == {}
    assert unread_text(pipeline, "x" * 150, 100, "a") == (
        {"text_read": {"tokenizer": read}} if read else {}
    )


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        ("qwenimage.pipeline_qwenimage_edit", False),
        ("qwenimage.pipeline_qwenimage_edit_plus", False),
        ("qwenimage.pipeline_qwenimage_edit_inpaint", False),
        ("qwenimage.pipeline_qwenimage_controlnet", True),
        ("qwenimage.pipeline_qwenimage_controlnet_inpaint", True),
    ],
)
def test_which_pipelines_cut_captions(module: str, reads: bool) -> None:
    """What `unread_text` assumes of the installed diffusers."""
    code = inspect.getsource(import_module(f"diffusers.pipelines.{module}"))
    assert ("[:, :max_sequence_length]" in code) == reads


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


def test_an_overflow_of_half_precision_is_named(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor(dtype="float16", flux={"steps": 1, "true_cfg": 1})
    with torch.no_grad():  # over 65,504, the largest number in float16
        draws._source.loaded.transformer.proj_out.bias.fill_(6e4)
        draws._source.loaded.vae.decoder.conv_in.weight.fill_(1e3)
    (broken,) = draws([candidate("a")], [1], pictures)
    assert isinstance(broken, DataError)
    assert "NaN instead of an image (in float16); set dtype to bfloat16 or float32" in str(broken)


def test_half_precision_has_its_own_remedy() -> None:
    image = Image.new("RGB", (8, 8))
    kept, lost = nan_as_errors([image, image], [True, False], "float16")
    assert kept is image
    assert "set dtype to bfloat16 or float32" in str(lost)
    tiled = nan_as_errors([image, image], [True, True, False], "float16")
    assert all(isinstance(one, DataError) for one in tiled)
    assert nan_as_errors([image], [], "float32") == [image]
    with watch_for_nan(object()) as flags:
        assert flags == []


def test_the_decoder_is_left_as_it_was(flux_editor: Editor) -> None:
    pipeline = flux_editor()._pipeline
    with watch_for_nan(pipeline) as flags:
        pipeline.vae.decode(torch.zeros(2, 4, 4, 4))
    assert flags == [True, True]
    pipeline.vae.decode(torch.zeros(2, 4, 4, 4))
    assert flags == [True, True]


def test_a_picture_too_long_for_the_reference_s_edges_is_named() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 4000, 3), np.uint8))
    with pytest.raises(DataError, match="4000 x 16 pixels is too long for detect 'x-flux'"):
        Control()(picture)
    assert Control(detect="run size")(picture).size == (4000, 16)
