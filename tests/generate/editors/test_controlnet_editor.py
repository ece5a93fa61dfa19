"""Every structure-controlled pipeline of diffusers, through one editor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef
from flipbench.generate.editors.controlnet_editor import (
    CONTROLLED,
    FAMILIES,
    ControlNetEditor,
    ControlNetEditorSpec,
)
from flipbench.generate.editors.controls import Control
from flipbench.generate.editors.diffusers_loading import call_arguments, find_class
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing, release
from tests.fixtures.drawings import furthest, pixels

Build = Callable[..., Candidate]
Editor = Callable[..., ControlNetEditor]
LONG = {"max_sequence_length": 64}
# class: pipeline, ControlNet, more call arguments
CHECKPOINTS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "FluxControlNetPipeline": ("flux", "standard", LONG),
    "FluxControlNetInpaintPipeline": ("flux", "standard", LONG),
    "FluxControlPipeline": ("control", None, LONG),
    "FluxControlInpaintPipeline": ("control", None, LONG),
    "QwenImageControlNetPipeline": ("qwen", "qwen controlnet", {}),
    "QwenImageControlNetInpaintPipeline": ("qwen", "qwen controlnet for masks", {}),
    "ZImageControlNetPipeline": ("z-image", "z-image controlnet", LONG),
    "ZImageControlNetInpaintPipeline": ("z-image", "z-image controlnet 2", LONG),
}
INPAINTING = [name for name, adapter in CONTROLLED.items() if adapter.mask]
BOX = {"mask": {"boxes": [[4, 2, 12, 10]]}}


@pytest.fixture(scope="module")
def editor(diffusion_folder: Callable[[str], str]) -> Editor:
    """Return a function that makes an editor of a class."""

    def make(name: str, **options: Any) -> ControlNetEditor:
        pipeline, controlnet, more = CHECKPOINTS[name]
        adapter = CONTROLLED[name]
        given: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
        given |= {"sizes": SizeRule(min_edge=8), "mask": "whole" if adapter.mask else "none"}
        given["control"] = Control(kind="none") if adapter.fills else Control()
        given["arguments"] = {"num_inference_steps": 2} | more | options.pop("arguments", {})
        given["pipeline"] = diffusion_folder(pipeline)
        given["controlnet"] = controlnet and diffusion_folder(controlnet)
        return ControlNetEditor(ControlNetEditorSpec(**(given | options)))

    return make


def test_each_class_is_tested() -> None:
    assert sorted(CHECKPOINTS) == sorted(CONTROLLED)
    assert {name for pair in FAMILIES.values() for name in pair} == set(CONTROLLED)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_size_is_exact_and_only_the_item_s_own_seed_counts(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate("a", (65, 47)), candidate("b", (65, 47), "a dog"), candidate("c")]
    draws = editor(name)
    assert draws.name == name
    torch.manual_seed(1)
    single = draws(tasks, [1, 2, 3], pictures)
    sizes = [drawn.image.size for drawn in single if isinstance(drawn, Drawing)]
    assert sizes == [(65, 47), (65, 47), (20, 16)]
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    backwards = draws(tasks[::-1], [3, 2, 1], pictures)[::-1]
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator is left alone"
    batched = editor(name, batch_size=2)(tasks, [1, 2, 3], pictures)
    for one, again, together in zip(single, backwards, batched, strict=True):
        assert furthest(one, again) == 0
        assert furthest(one, together) <= 1
    (other,) = draws(tasks[:1], [7], pictures)
    assert furthest(single[0], other) > 2


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_caption_and_control_image_matter(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(name, **({"mask": "item"} if CONTROLLED[name].fills else {}))
    tasks = [
        candidate(picture, text=text, extra=BOX)
        for picture, text in (
            ("left", "a red square"),
            ("left", "a dog"),
            ("right", "a red square"),
        )
    ]
    drawn = draws(tasks, [1, 1, 1], pictures)
    assert furthest(drawn[0], drawn[1]) > 0  # one seed: nothing else can make a difference
    assert furthest(drawn[0], drawn[2]) > 0
    assert isinstance(drawn[0], Drawing)
    stored = pictures.open(ImageRef.model_validate(drawn[0].extra["control"]))
    assert stored.size == tuple(drawn[0].extra["sizes"]["run"])


@pytest.mark.parametrize(
    "name",
    [name for name, adapter in CONTROLLED.items() if adapter.controlnet and not adapter.mask],
)
def test_without_weight_the_control_image_is_not_seen(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    off = editor(name, arguments={"controlnet_conditioning_scale": 0.0})
    assert furthest(*off([candidate("left"), candidate("right")], [1, 1], pictures)) <= 1


@pytest.mark.parametrize("name", INPAINTING)
def test_nothing_changes_outside_the_mask(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    task = candidate("a", extra=BOX)
    (drawn,) = editor(name, mask="item")([task], [1], pictures)
    source = np.asarray(pictures.open(task.source)).astype(int)
    change = np.abs(pixels(drawn) - source).max(axis=-1)
    assert change[2:10, 4:12].mean() > 2
    change[2:10, 4:12] = 0
    assert change.max() == 0


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_true_guidance_runs_the_negative_prompt_too(
    scale: float, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor("QwenImageControlNetPipeline", arguments={"true_cfg_scale": scale})
    runs: list[int] = []
    draws._pipeline.transformer.register_forward_pre_hook(lambda *_: runs.append(1))
    draws([candidate("a")], [1], pictures)
    assert len(runs) == (4 if scale > 1 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONTROLLED))
def test_the_table_matches_the_installed_diffusers(name: str) -> None:
    takes, adapter = call_arguments(find_class(name)), CONTROLLED[name]
    needed = {"control_image", "prompt", "generator", "height", "width", *adapter.defaults}
    needed |= {"control_mask" if adapter.fills else "mask_image"} if adapter.mask else set()
    assert needed <= set(takes)
    assert ("image" in takes) == adapter.source


def test_settings_cover_everything_that_affects_the_image(editor: Editor) -> None:
    name = "FluxControlNetPipeline"
    plain = editor(name).settings
    assert json.loads(json.dumps(plain)) == plain
    assert plain["arguments"]["controlnet_conditioning_scale"] == 0.8
    assert "loras" not in plain
    assert editor(name, batch_size=2).settings == plain
    assert editor(name, control=Control(low=50)).settings != plain
    assert editor("ZImageControlNetPipeline").settings["controlnet"] != plain["controlnet"]


def test_freed_weights_are_loaded_again(
    editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor("ZImageControlNetPipeline")
    expected = draws([candidate("a")], [1], pictures)
    release(draws)
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) == 0


def test_a_controlnet_can_be_a_single_file(
    editor: Editor,
    diffusion_folder: Callable[[str], str],
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from diffusers import ZImageControlNetModel

    name, read = "ZImageControlNetPipeline", []
    folder = Path(diffusion_folder("z-image controlnet"))
    file = str(folder / "diffusion_pytorch_model.safetensors")

    def from_file(path: str, torch_dtype: torch.dtype) -> Any:
        read.append(path)
        return ZImageControlNetModel.from_pretrained(folder, dtype=torch_dtype)

    monkeypatch.setattr(ZImageControlNetModel, "from_single_file", from_file)
    expected = editor(name)([candidate("a")], [1], pictures)
    draws = editor(name, controlnet=file)
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) == 0
    assert read == [file]
    assert draws.spec.n_weights() is None
    with pytest.raises(PrerequisiteError, match="neither a file nor one that can be downloaded"):
        editor(name, controlnet="nobody/nothing/net.safetensors")


def test_the_weights_of_the_controlnet_are_counted(editor: Editor) -> None:
    draws = editor("FluxControlNetPipeline")
    counts = draws.spec.n_weights()
    assert counts is not None
    net = draws._source.loaded.controlnet
    assert counts["controlnet"] == sum(weight.numel() for weight in net.parameters())


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("FluxControlNetPipeline", {"controlnet": None}, PrerequisiteError, "does not include a"),
        ("FluxControlPipeline", {"controlnet": "x/y"}, ConfigError, "has no ControlNet"),
        (
            "QwenImageControlNetInpaintPipeline",
            {"control": Control()},
            ConfigError,
            "fills in the masked image itself",
        ),
        (
            "FluxControlNetPipeline",
            {"pipeline_class": "FluxFillPipeline"},
            ConfigError,
            "is none of the structure-controlled pipelines",
        ),
        (
            "FluxControlNetPipeline",
            {"arguments": {"control_image": 1}},
            ConfigError,
            "is set by the editor",
        ),
        (
            "FluxControlNetInpaintPipeline",
            {"pipeline_class": "FluxControlNetPipeline"},
            ConfigError,
            "takes no mask",
        ),
    ],
)
def test_contradictory_settings_are_refused(
    name: str, options: dict[str, Any], error: type[Exception], message: str, editor: Editor
) -> None:
    with pytest.raises(error, match=message):
        editor(name, **options)


def test_a_checkpoint_of_another_kind_is_refused(
    editor: Editor, diffusion_folder: Callable[[str], str]
) -> None:
    with pytest.raises(ConfigError, match="for which diffusers has no ControlNet"):
        editor("FluxControlNetPipeline", pipeline=diffusion_folder("kontext"))


# neither the class nor the autoencoder is that of the reference's editor
OTHERS = ("FluxControlPipeline", "QwenImageControlNetPipeline", "ZImageControlNetPipeline")


@pytest.mark.parametrize("name", OTHERS[1:])
def test_the_tokens_that_are_read_are_those_that_the_encoder_sees(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(name, arguments={"max_sequence_length": 24, "num_inference_steps": 1})
    pipeline, lengths = draws._source.loaded, []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        x = pipeline.tokenizer.convert_tokens_to_ids("x")
        lengths.append(int((kwargs["input_ids"] == x).sum()))

    handle = pipeline.text_encoder.register_forward_pre_hook(note, with_kwargs=True)
    (drawn,) = draws([candidate("long", text="x" * 40)], [1], pictures)
    handle.remove()
    assert isinstance(drawn, Drawing)
    (read,) = drawn.extra["text_read"].values()
    if name.startswith("Qwen"):  # cut behind the encoder; its tokenizer adds two of its own
        assert read == [24, 42]
    else:  # the words around the caption are in its limit
        assert read == [lengths[0], 40]
        assert lengths[0] < 24


@pytest.mark.parametrize("name", OTHERS)
def test_bad_input_fails_alone_and_is_named(
    name: str, editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(name, sizes=SizeRule(min_edge=8, max_pixels=4096))
    grey, wide = candidate("grey"), candidate("wide", (600, 3))
    ref = pictures.put_image(Image.new("RGB", (20, 16), "grey"), "grey")
    grey = Candidate(grey.item.model_copy(update={"images": (ref,)}), grey.flip, grey.caption)
    runs: list[int] = []

    def spoil(module: Any, args: Any, output: Any) -> Any:
        runs.append(1)
        if len(runs) > 2:  # two steps of the first picture
            return None
        first = output[0]
        if isinstance(first, list):
            return ([one * float("nan") for one in first], *output[1:])
        return (first * float("nan"), *output[1:])

    handle = draws._source.loaded.transformer.register_forward_hook(spoil)
    broken, blank, long, fine = draws(
        [candidate("a"), grey, wide, candidate("b")], [1, 2, 3, 4], pictures
    )
    handle.remove()
    assert "drew NaN instead of an image (in float32)" in str(broken)
    assert "made-up grey: the control image (canny) is blank; lower the thresholds" in str(blank)
    assert "made-up wide: the image of 600 x 3 pixels would be edited at" in str(long)
    assert "raise max_pixels, or lower min_edge" in str(long)
    assert isinstance(fine, Drawing)


@pytest.mark.parametrize("name", OTHERS)
def test_lora_weights_of_another_base_are_refused(
    name: str, editor: Editor, tmp_path: Path
) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(
        {
            "transformer.blocks.0.attn.other.lora_A.weight": torch.randn(2, 40),
            "transformer.blocks.0.attn.other.lora_B.weight": torch.randn(40, 2),
        },
        file,
    )
    with pytest.raises(PrerequisiteError, match="fit this .*; give weights made for this"):
        editor(name, loras=[{"path": str(file)}])._source.loaded  # noqa: B018
