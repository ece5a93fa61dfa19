"""Three lessons of a few steps each: what is trained, exported, resumed, and drawn with."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Flip, Item
from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxEditorSpec
from flipbench.models.protocols import Drawing
from flipbench.shapes.reading import Reading
from flipbench.shapes.scene import COLORS, SHAPES, Scene, Thing
from flipbench.shapes.wording import describe
from studies.tiny_models.flux import autoencoder
from studies.tiny_models.flux.exam import Exam, grades
from studies.tiny_models.flux.examples import Examples, pack
from studies.tiny_models.flux.pictures import benchmark_hashes, few_things, new_family
from studies.tiny_models.flux.text_encoder import (
    MAX_TOKENS,
    contents,
    new_tokenizer,
    silent_clip,
    token_ids,
)
from studies.tiny_models.flux.train import train


def test_a_caption_is_three_tokens_per_thing_and_any_scene_fits() -> None:
    tokenizer = new_tokenizer()
    scene = Scene.of([Thing((0, 3), "star", "orange"), Thing((1, 0), "ring", "red")], 0)
    ids = token_ids(tokenizer, [describe(scene), "A mauve ring, in the dark."])
    assert ids.shape == (2, MAX_TOKENS)
    words = [tokenizer.convert_ids_to_tokens(row) for row in ids]
    first = ["2", "orange", "star", "row 1 column 4", "red", "ring", "row 2 column 1", "</s>"]
    assert words[0][:9] == [*first, "<pad>"]
    assert words[1][:5] == ["<unk>", "ring", "<unk>", "</s>", "<pad>"]
    full = Scene.of([Thing((i // 4, i % 4), "ring", "red") for i in range(10)], 0)
    (row,) = token_ids(tokenizer, [describe(full)])
    assert tokenizer.eos_token_id in row


def test_clip_says_nothing() -> None:
    tokenizer = new_tokenizer(77, start=True)
    ids = tokenizer(["a red star in row 1 column 1"], return_tensors="pt").input_ids
    assert silent_clip(tokenizer)(ids).pooler_output.abs().max() == 0


def test_contents_tell_all_things_apart() -> None:
    seen = {
        tuple(contents(Scene.of([Thing((2, 1), shape, color)], 0)))
        for shape in SHAPES
        for color in COLORS
    }
    assert len(seen) == len(SHAPES) * len(COLORS)
    assert {row[9] for row in seen} == set(range(1, 49))
    assert all(sum(map(bool, row)) == 1 for row in seen)


def test_no_training_scene_is_in_the_benchmark() -> None:
    rng = np.random.default_rng(0)
    scenes = [s for _ in range(30) for s in new_family(rng).scenes]
    scenes += [few_things(rng, 4) for _ in range(30)]
    assert benchmark_hashes().isdisjoint(scene.content_hash() for scene in scenes)
    assert len(benchmark_hashes()) > 1_000


def test_pairs_are_two_members_of_one_group() -> None:
    sizes = torch.tensor([1, 3, 2])
    held = torch.arange(6)[:, None].expand(6, 16)
    empty = torch.zeros(6, 1)
    examples = Examples(empty, empty, empty, held, sizes.cumsum(0) - sizes, sizes)
    rows, others = examples.draw(np.random.default_rng(0), 300)
    groups = torch.tensor([0, 1, 1, 1, 2, 2])
    assert (groups[rows] == groups[others]).all()
    assert ((rows != others) | (rows == 0)).all()
    assert set(rows.tolist()) == set(others.tolist()) == set(range(6))


def test_tokens_lie_in_their_cells() -> None:
    none = torch.zeros(1)
    examples = Examples(none, none, none, torch.arange(16)[None], none, none)
    cells = examples.of_tokens(torch.tensor([0])).view(14, 14)
    assert cells[0].tolist() == [0] * 3 + [1] * 4 + [2] * 3 + [3] * 4
    assert cells[:, 0].tolist() == [0] * 3 + [4] * 4 + [8] * 3 + [12] * 4


def test_latents_are_packed_as_the_pipeline_packs_them() -> None:
    from diffusers import FluxControlNetPipeline

    latents = torch.randn(2, 8, 28, 28)
    assert torch.equal(pack(latents), FluxControlNetPipeline._pack_latents(latents, 2, 8, 28, 28))


def test_an_exam_counts_answers_and_cells() -> None:
    exam = Exam.draw(np.random.default_rng(0), 2)
    wanted = [Reading(e.family.scenes[e.wanted].things) for e in exam.exercises]
    perfect = grades(exam.exercises, wanted)
    assert perfect["all"] == "10/10" and perfect["color"] == "2/2"
    assert perfect["old answer"] == "0/10" and perfect["cells unreadable"] == "0/160"
    right, total = map(int, perfect["cells changed"].split("/"))
    assert right == total >= 10
    unchanged = [Reading(e.family.scenes[e.original].things) for e in exam.exercises]
    idle = grades(exam.exercises, unchanged)
    assert idle["all"] == "0/10" and idle["old answer"] == "10/10"
    assert idle["cells changed"].startswith("0/")
    assert idle["cells as before"] == perfect["cells as before"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train in two goes: the first is stopped before its exam, and the second continues."""
    folder = tmp_path_factory.mktemp("flux")
    settings: dict[str, Any] = {
        "autoencoder": 2,
        "text_encoder": 2,
        "decoder": 1,
        "families": 3,
        "few": 3,
    }
    settings |= {"batch_size": 4, "exam_each": 1, "exam_minutes": 10, "seed": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoencoder, "_POOL", 20)
        with patch.context() as stopping, pytest.raises(KeyboardInterrupt):
            stopping.setattr(Exam, "grade", stop)
            train(argparse.Namespace(folder=folder, denoiser=1, **settings))
        train(argparse.Namespace(folder=folder, denoiser=3, **settings))
    return folder


def stop(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_training_changes_no_attention_that_is_used_later() -> None:
    name, _ = _AttentionBackendRegistry.get_active_backend()
    assert name == AttentionBackendName.NATIVE
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_training_continues_where_it_was(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    lessons = [line["lesson"] for line in lines]
    assert lessons.count("autoencoder") == lessons.count("text encoder") == 1
    assert [line["step"] for line in lines if line["lesson"] == "denoiser"] == [1, 3]
    assert lines[-1]["lesson"] == "exam" and lines[-1]["all"].endswith("/5")


@pytest.mark.slow
def test_the_editor_draws_with_what_was_exported(
    trained: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    weights = [*(trained / "final").rglob("*.safetensors")]
    assert sum(file.stat().st_size for file in weights) < 16e6
    item = shapes_items[0]
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=0, new_text="x")
    caption = Caption(
        flip_id=flip.id,
        captioner="c",
        prompt="p",
        text="A picture of 1 objects: a red star in row 1 column 1.",
    )
    spec = FluxEditorSpec.model_validate(
        {
            "pipeline": str(trained / "final"),
            "settings": {"steps": 2, "true_cfg_start": 1},
            "sizes": {"min_edge": 224},
            "dtype": "float32",
        }
    )
    editor = FluxControlNetEditor(spec)
    (drawing,) = editor([Candidate(item, flip, caption)], [1], shapes_store)
    assert isinstance(drawing, Drawing)
    assert drawing.image.size == (224, 224)
    other = replace(Candidate(item, flip, caption.model_copy(update={"text": "Nothing."})))
    (changed,) = editor([other], [1], shapes_store)
    assert isinstance(changed, Drawing)
    assert changed.image.tobytes() != drawing.image.tobytes()
