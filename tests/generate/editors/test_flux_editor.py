"""What the reference's editor draws, on tiny checkpoints of the real classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, ImageRef
from flipbench.core.run import Run
from flipbench.core.stage import run_stage
from flipbench.generate.edit import EditStage
from flipbench.generate.editors.controls import Control
from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxSettings, x_flux_shift
from flipbench.generate.editors.sizes import SizeRule, fit
from flipbench.models.protocols import Drawing
from tests.fixtures.drawings import furthest, pixels
from tests.fixtures.options import QUIET

Build = Callable[..., Candidate]
Editor = Callable[..., FluxControlNetEditor]
LAYOUTS = ("standard", "xlabs")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_drawing_has_exactly_the_source_s_size(
    layout: str, flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor(layout)
    (drawing,) = draws([candidate("odd", (65, 47))], [1], pictures)
    assert isinstance(drawing, Drawing)
    assert drawing.image.size == (65, 47)
    assert drawing.image.mode == "RGB"
    run = {"standard": [68, 48], "xlabs": [80, 48]}[layout]
    assert drawing.extra["sizes"] == {"source": [65, 47], "run": run, "enlarged": 1}
    control = pictures.open(ImageRef.model_validate(drawing.extra["control"]))
    plan = SizeRule(min_edge=8).plan(65, 47, draws.factor, "")
    source = pictures.open(candidate("odd", (65, 47)).item.images[0])
    assert np.array_equal(np.asarray(control), np.asarray(draws.spec.control(fit(source, plan))))


def test_small_images_are_drawn_larger_and_scaled_back(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    (drawing,) = flux_editor(sizes=SizeRule(min_edge=32))([candidate("s", (13, 21))], [1], pictures)
    assert isinstance(drawing, Drawing)
    assert drawing.image.size == (13, 21)
    assert drawing.extra["sizes"] == {"source": [13, 21], "run": [40, 64], "enlarged": 3}


def test_the_other_items_change_no_bit_at_batch_size_1(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate("a"), candidate("b", text="a dog"), candidate("c", (18, 30))]
    seeds = [3, 2**63 - 1, 5]
    together = flux_editor()(tasks, seeds, pictures)
    backwards = flux_editor()(tasks[::-1], seeds[::-1], pictures)[::-1]
    draws = flux_editor()
    alone = [draws([task], [seed], pictures)[0] for task, seed in zip(tasks, seeds, strict=True)]
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert furthest(a, b) == furthest(a, c) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_draws_what_single_calls_draw(
    layout: str, flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate(n, text=f"picture {n}") for n in "abc"] + [candidate("d", (18, 30))]
    seeds = [1, 2, 3, 4]
    single = flux_editor(layout)(tasks, seeds, pictures)
    batched = flux_editor(layout, batch_size=3)(tasks, seeds, pictures)
    assert max(furthest(a, b) for a, b in zip(single, batched, strict=True)) <= 1
    assert furthest(single[0], single[1]) > 5  # and not because all pictures are alike


def test_resume_makes_the_same_records(
    tmp_path: Path,
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    tasks = [candidate("a"), candidate("b", (17, 15)), candidate("c")]

    def run(folder: str, *parts: Sequence[Candidate]) -> dict[str, Edit]:
        with Run(tmp_path / folder) as made:
            for part in parts:
                stage = EditStage(flux_editor(), pictures, seed=9)
                run_stage(stage, part, made, options=QUIET)
            return dict(made.index(Edit))

    assert run("whole", tasks) == run("parts", tasks[1:2], tasks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_control_image_matters(
    layout: str, flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    size = (48, 32)
    tasks = [candidate("left", size), candidate("right", size)]
    seen = flux_editor(layout)(tasks, [1, 1], pictures)
    unseen = flux_editor(layout, flux={"control_weight": 0.0})(tasks, [1, 1], pictures)
    assert furthest(*seen) > 5
    assert furthest(*unseen) <= 1  # two pictures, one caption, one seed: nothing else is seen


@pytest.mark.parametrize(
    "other", [{"text": "a blue circle on a table"}, {"seed": 2}], ids=["caption", "seed"]
)
def test_caption_and_seed_matter(
    other: dict[str, Any],
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    seed = other.pop("seed", 1)
    draws = flux_editor()
    before, after = draws([candidate("a"), candidate("a", **other)], [1, seed], pictures)
    assert furthest(before, after) > 2


@pytest.mark.parametrize("start", [0, 2, 3])
def test_true_guidance_runs_from_its_step_on_and_not_before(
    start: int,
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    draws = flux_editor(flux={"true_cfg_start": start})
    parts = draws._pipeline.transformer, draws._pipeline.controlnet
    texts: list[list[torch.Tensor]] = [[], []]
    for part, seen in zip(parts, texts, strict=True):
        forward = part.forward

        def count(*args: Any, _f: Any = forward, _seen: Any = seen, **kwargs: Any) -> Any:
            _seen.append(kwargs["encoder_hidden_states"])
            return _f(*args, **kwargs)

        part.forward = count
    draws([candidate("a")], [1], pictures)
    away, _ = draws._texts[""]
    expected = [False, False, False]  # is it the negative prompt?
    for step in reversed(range(start, 3)):
        expected.insert(step + 1, True)
    for seen in texts:
        assert [torch.equal(text, away) for text in seen] == expected


@pytest.mark.parametrize("scale", [1.0, 3.5])
def test_guided_from_the_first_step_equals_diffusers_own(
    scale: float,
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    flux = {
        "true_cfg": scale,
        "true_cfg_start": 0,
        "negative_control": False,
        "schedule": "pipeline",
    }
    draws, task = flux_editor(flux=flux), candidate("a", (20, 16))
    (ours,) = draws([task], [4], pictures)
    text, pooled = draws._texts["a red square"]
    away, pooled_away = draws._texts[""]
    theirs = draws._pipeline(
        prompt_embeds=text,
        pooled_prompt_embeds=pooled,
        negative_prompt_embeds=away,
        negative_pooled_prompt_embeds=pooled_away,
        true_cfg_scale=scale,
        control_image=[draws.spec.control(pictures.open(task.item.images[0]))],
        controlnet_conditioning_scale=0.8,
        num_inference_steps=3,
        guidance_scale=4.0,
        width=20,
        height=16,
        generator=torch.Generator().manual_seed(4),
    ).images[0]
    assert np.array_equal(pixels(ours), np.asarray(theirs))


def test_the_image_equals_the_reference_s(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    """Against the loop of the reference's script, written out on the same weights."""
    draws, task = flux_editor("xlabs"), candidate("a", (48, 32))
    (ours,) = draws([task], [11], pictures)
    net, flux, vae = (getattr(draws._pipeline, p) for p in ("controlnet", "transformer", "vae"))
    control = np.asarray(draws.spec.control(pictures.open(task.item.images[0])))
    hint = torch.from_numpy(control / 127.5 - 1).permute(2, 0, 1)[None].float()
    noise = torch.randn((1, 4, 4, 6), generator=torch.Generator().manual_seed(11))
    x = noise.view(1, 4, 2, 2, 3, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, 6, 16)
    image_ids = torch.tensor([[0.0, row, column] for row in range(2) for column in range(3)])
    t = torch.linspace(1, 0, 4)
    mu = 0.5 + ((48 // 8) * (32 // 8) // 256 - 256) * 0.65 / 3840
    levels = np.exp(mu) / (np.exp(mu) + (1 / t - 1))

    def predict(text: torch.Tensor, pooled: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        shared = {
            "hidden_states": x,
            "encoder_hidden_states": text,
            "pooled_projections": pooled,
            "timestep": level[None],
            "guidance": torch.tensor([4.0]),
            "img_ids": image_ids,
            "txt_ids": torch.zeros(24, 3),
            "return_dict": False,
        }
        added, _ = net(controlnet_cond=hint, **shared)
        added = [0.8 * block for block in added]
        return flux(controlnet_block_samples=added, controlnet_blocks_repeat=True, **shared)[0]

    with torch.no_grad():
        for i, (level, following) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
            step = predict(*draws._texts["a red square"], level)
            if i >= 2:
                away = predict(*draws._texts[""], level)
                step = away + 3.5 * (step - away)
            x = x + (following - level) * step
        latent = x.view(1, 2, 3, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 4, 4, 6)
        drawn = vae.decode(latent / 0.3611 + 0.1159).sample[0].permute(1, 2, 0)
    theirs = ((drawn.clamp(-1, 1) + 1) * 127.5).round().numpy()
    assert np.abs(pixels(ours) - theirs).max() <= 1
    assert pixels(ours).std() > 5


def test_the_schedules_differ() -> None:
    assert x_flux_shift(1024, 1024) == pytest.approx(0.4675)
    assert x_flux_shift(2048, 2048) == pytest.approx(0.5)  # Flux itself: 1.15 at 1024 x 1024


def test_settings_cover_everything_that_affects_the_image(
    flux_editor: Editor,
) -> None:
    plain = flux_editor().settings
    assert json.loads(json.dumps(plain)) == plain
    assert plain["true_cfg"] == 3.5
    assert flux_editor(batch_size=3).settings == plain
    for other in (
        flux_editor(flux={"guidance": 5.0}),
        flux_editor(control=Control(low=50)),
        flux_editor(sizes=SizeRule(min_edge=16)),
        flux_editor(dtype="bfloat16"),
        flux_editor("xlabs"),
    ):
        assert other.settings != plain


def test_the_defaults_equal_the_reference_s() -> None:
    flux, control = FluxSettings(), Control().settings
    assert (flux.steps, flux.guidance, flux.control_weight) == (25, 4.0, 0.8)
    assert (flux.true_cfg, flux.true_cfg_start, flux.negative_prompt) == (3.5, 5, "")
    assert control == {"kind": "canny", "detect": "x-flux", "low": 100, "high": 200}
