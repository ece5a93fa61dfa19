"""Any editing pipeline of diffusers by its class name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors import lazy_pipeline
from flipbench.generate.editors.diffusers_editor import (
    ADAPTERS,
    DiffusersEditor,
    DiffusersEditorSpec,
)
from flipbench.generate.editors.diffusers_loading import call_arguments, diffusers, find_class
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing
from tests.fixtures.drawings import furthest, pixels

Build = Callable[..., Candidate]
BOX = {"boxes": [[4, 2, 12, 10]]}


@pytest.fixture(scope="module")
def editor(diffusion_folder: Callable[[str], str]) -> Callable[..., DiffusersEditor]:
    """Return a function that makes an editor, Kontext unless told otherwise."""

    def make(kind: str = "kontext", **options: Any) -> DiffusersEditor:
        steps = {"num_inference_steps": 2, "max_sequence_length": 24}
        given: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
        given |= {"sizes": SizeRule(min_edge=8), "mask": "whole" if kind == "fill" else "none"}
        given["arguments"] = steps | options.pop("arguments", {})
        given["pipeline"] = diffusion_folder(kind)
        return DiffusersEditor(DiffusersEditorSpec(**(given | options)))

    return make


@pytest.mark.parametrize("kind", ["kontext", "fill"])
def test_edits_have_the_exact_size_and_repeat_in_any_batch(
    kind: str, editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate("a", (65, 47)), candidate("b", (65, 47), "a dog"), candidate("c")]
    single = editor(kind)(tasks, [1, 2, 3], pictures)
    assert [d.image.size for d in single if isinstance(d, Drawing)] == [
        (65, 47),
        (65, 47),
        (20, 16),
    ]
    assert furthest(single[0], single[1]) > 5
    backwards = editor(kind)(tasks[::-1], [3, 2, 1], pictures)[::-1]
    batched = editor(kind, batch_size=2)(tasks, [1, 2, 3], pictures)
    for one, again, together in zip(single, backwards, batched, strict=True):
        assert furthest(one, again) == 0
        assert furthest(one, together) <= 1


def test_kontext_keeps_the_requested_size(
    editor: Callable[..., DiffusersEditor],
    candidate: Build,
    pictures: ImageStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Left to itself it edits at about a megapixel, and moves the picture with it."""
    draws = editor()
    seen: list[tuple[int, ...]] = []
    encode = draws._pipeline.vae.encode
    draws._pipeline.vae.encode = lambda x: (seen.append(tuple(x.shape)), encode(x))[1]
    with caplog.at_level(logging.WARNING):
        (drawing,) = draws([candidate("a", (65, 47))], [1], pictures)
    assert seen == [(1, 3, 48, 68)]
    assert isinstance(drawing, Drawing)
    assert drawing.extra["sizes"]["run"] == [68, 48]
    assert "adjusted" not in caplog.text


@pytest.mark.parametrize(
    "other", [{"text": "a dog"}, {"name": "b"}, {"seed": 2}], ids=["caption", "picture", "seed"]
)
def test_caption_picture_and_seed_matter(
    other: dict[str, Any],
    editor: Callable[..., DiffusersEditor],
    candidate: Build,
    pictures: ImageStore,
) -> None:
    seed = other.pop("seed", 1)
    draws = editor()
    before, after = draws(
        [candidate("a"), candidate(**({"name": "a"} | other))], [1, seed], pictures
    )
    assert furthest(before, after) > 2


def test_nothing_changes_outside_the_mask(
    editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    ref = pictures.put_image(Image.new("L", (20, 16), 0), "black")
    half = Image.new("L", (20, 16), 0)
    half.paste(255, (0, 0, 10, 16))
    half_ref = pictures.put_image(half, "half").model_dump()
    tasks = [
        candidate("boxes", extra={"mask": BOX}),
        candidate("ref", extra={"mask": half_ref}),
        candidate("none"),
        candidate("black", extra={"mask": ref.model_dump()}),
        candidate("size", (10, 10), extra={"mask": half_ref}),
        candidate("wrong", extra={"mask": {"boxes": [[1, 2, 3]]}}),
    ]
    boxed, halved, *errors = editor("fill", mask="item")(tasks, [1, 2, 3, 4, 5, 6], pictures)
    for task, drawing, region in (
        (tasks[0], boxed, np.s_[2:10, 4:12]),
        (tasks[1], halved, np.s_[:, :10]),
    ):
        source = np.asarray(pictures.open(task.item.images[0])).astype(int)
        change = np.abs(pixels(drawing) - source).max(axis=-1)
        assert change[region].mean() > 2
        change[region] = 0
        assert change.max() == 0
    messages = ["neither boxes nor", "the mask is empty", "the mask has", "a box that is not"]
    for error, message in zip(errors, messages, strict=True):
        assert isinstance(error, DataError)
        assert message in str(error)


def test_the_instruction_is_a_template(
    editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(instruction="Change {old_answer} to {new_answer}. {question} {caption}")
    (drawing,) = draws([candidate("a", text="A {star}.")], [1], pictures)
    assert isinstance(drawing, Drawing)
    assert drawing.extra["prompt"] == "Change red to blue. Which color? A {star}."


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_true_guidance_is_never_silently_disabled(
    scale: float, editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(arguments={"true_cfg_scale": scale}, batch_size=2)
    assert ("negative_prompt" in draws.arguments) == (scale > 1)
    runs: list[int] = []
    draws._pipeline.transformer.register_forward_pre_hook(lambda *_: runs.append(1))
    drawn = draws([candidate("a"), candidate("b")], [1, 2], pictures)
    assert all(isinstance(drawing, Drawing) for drawing in drawn)
    assert len(runs) == (4 if scale > 1 else 2)


def test_loading_shows_no_bar_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(diffusers().utils.logging.tqdm([1, 2])) == [1, 2]
    assert capsys.readouterr().err == ""


def test_running_out_of_memory_halves_the_batch(
    editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate("a"), candidate("b")]
    expected = editor()(tasks, [1, 2], pictures)
    draws, tried = editor(batch_size=2), []
    real = draws._pipeline

    def once(**arguments: Any) -> Any:
        tried.append(len(arguments["generator"]))
        if len(tried) == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return real(**arguments)

    draws._pipeline = once
    for a, b in zip(expected, draws(tasks, [1, 2], pictures), strict=True):
        assert furthest(a, b) == 0
    assert tried == [2, 1, 1]


def test_a_refused_image_fails_alone(
    editor: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(batch_size=2)

    def flagged(**arguments: Any) -> Any:
        images = [Image.new("RGB", (arguments["width"], arguments["height"]))] * 2
        return SimpleNamespace(images=images, nsfw_content_detected=[False, True])

    draws._pipeline = flagged
    fine, refused = draws([candidate("a"), candidate("b")], [1, 2], pictures)
    assert isinstance(fine, Drawing)
    assert isinstance(refused, ServiceError)


def test_pipelines_that_read_lists_as_references_draw_one_at_a_time(
    editor: Callable[..., DiffusersEditor],
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    adapter = replace(ADAPTERS["FluxKontextPipeline"], batches=False)
    monkeypatch.setitem(ADAPTERS, "FluxKontextPipeline", adapter)
    draws, given = editor(batch_size=4), []
    real = draws._pipeline
    draws._pipeline = lambda **arguments: (given.append(arguments["image"]), real(**arguments))[1]
    drawn = draws([candidate("a"), candidate("b")], [1, 2], pictures)
    assert all(isinstance(drawing, Drawing) for drawing in drawn)
    assert all(isinstance(image, Image.Image) for image in given)
    assert len(given) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_the_table_matches_the_installed_diffusers(name: str) -> None:
    takes, adapter = call_arguments(find_class(name)), ADAPTERS[name]
    assert {"image", "prompt", "generator", *adapter.defaults} <= set(takes)
    assert ("mask_image" in takes) == adapter.mask
    assert ("_auto_resize" in takes) == adapter.exact_size
    assert ("height" in takes) == (name != "StableDiffusionInstructPix2PixPipeline")


@pytest.mark.parametrize(("distilled", "steps", "guidance"), [(True, 4, 1.0), (False, 50, 4.0)])
def test_a_distilled_checkpoint_gets_few_steps(
    distilled: bool,
    steps: int,
    guidance: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_pipeline, "check_pipeline", lambda *_: None)  # only an index
    index = {"_class_name": "Flux2KleinPipeline", "is_distilled": distilled}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    given: dict[str, Any] = {"pipeline": str(tmp_path), "device": "cpu"}
    draws = DiffusersEditor(DiffusersEditorSpec(**given))
    assert draws.arguments == {"num_inference_steps": steps, "guidance_scale": guidance}
    own = DiffusersEditorSpec(**given, arguments={"num_inference_steps": 8})
    assert DiffusersEditor(own).arguments["num_inference_steps"] == 8


def test_a_class_outside_the_table_is_called_by_its_signature(
    editor: Callable[..., DiffusersEditor],
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(ADAPTERS, "FluxImg2ImgPipeline")
    draws = editor("flux", pipeline_class="FluxImg2ImgPipeline")
    assert draws.name == "FluxImg2ImgPipeline"
    assert not draws.adapter.batches
    (drawing,) = draws([candidate("a", (65, 47))], [1], pictures)
    assert isinstance(drawing, Drawing)
    assert drawing.image.size == (65, 47)


def test_settings_cover_everything_that_affects_the_image(
    editor: Callable[..., DiffusersEditor],
) -> None:
    plain = editor().settings
    assert json.loads(json.dumps(plain)) == plain
    assert plain["arguments"]["guidance_scale"] == 3.5  # a default is written down too
    assert editor(batch_size=2).settings == plain
    assert editor(instruction="{new_answer}").settings != plain
    assert editor(arguments={"guidance_scale": 2.0}).settings != plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": {"guidence_scale": 2}}, "did you mean 'guidance_scale'"),
        *(
            ({"arguments": {name: 1}}, f"'{name}' is set by the editor; remove it")
            for name in ("width", "num_images_per_prompt", "output_type", "return_dict")
        ),
        ({"arguments": {"latents": 1}}, "'latents' is set by the editor; remove it"),
        ({"arguments": {"prompt_embeds": [1]}}, "'prompt_embeds' is set by the editor"),
        ({"arguments": {"callback_on_step_end": 1}}, "is set by the editor"),
        ({"instruction": "{capton}"}, "did you mean 'caption'"),
        ({"instruction": "redraw"}, "or every edit is the same"),
        ({"instruction": "{caption"}, "is not a template"),
        ({"mask": "item"}, "takes no mask"),
        ({"pipeline_class": "FluxFillPipeline"}, "set mask to 'whole' or 'item'"),
        ({"pipeline_class": "FluxKontextPipelin"}, "did you mean 'FluxKontextPipeline'"),
        ({"pipeline_class": "FluxPipeline"}, "takes no image, so it cannot edit an image"),
        ({"offload": "model"}, "there is no GPU"),
    ],
)
def test_contradictory_settings_are_refused(
    options: dict[str, Any],
    message: str,
    editor: Callable[..., DiffusersEditor],
) -> None:
    with pytest.raises(ConfigError, match=message):
        editor(**options)


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Any) -> None:
    with pytest.raises(PrerequisiteError, match="not a diffusers pipeline"):
        DiffusersEditor(DiffusersEditorSpec(pipeline=str(tmp_path), device="cpu"))
