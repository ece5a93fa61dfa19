"""Training and asking prepare pictures alike: padded to a square, or cropped with a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.contamination import contaminate
from flipbench.benchmarks.own_format import write_jsonl
from flipbench.config.experiment import load_config
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.training.collate import Collator
from flipbench.contaminate.training.load import load_parent
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.models.vlm.checkpoints import fingerprint
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.photos import encoded, photo


@pytest.fixture
def opened_wide(tmp_path: Path, tiny_folders: dict[str, Path]) -> Any:
    """Open an experiment on four pictures that are twice as wide as high."""
    store, rng = ImageStore(tmp_path / "source"), np.random.default_rng(0)
    items = []
    for item in shapes_vqa(store, 4):
        ref = store.put(encoded(photo(rng, 128, 64)), item.name)
        items.append(Item.model_validate(item.model_dump() | {"id": "", "images": (ref,)}))
    source = write_jsonl(items, store, tmp_path / "wide")

    def opening(padding: str) -> Assembly:
        config = {
            "run": str(tmp_path / padding),
            "benchmark": {"format": "jsonl", "path": str(source)},
            "models": {"tiny": {"path": str(tiny_folders["llava"]), "image_padding": padding}},
            "contaminate": {
                "epochs": 1,
                "strategies": {
                    "LoRA": {"train": "lora", "learning_rate": 1e-3},
                    "LLM": {"train": "llm", "learning_rate": 1e-3},
                },
            },
        }
        return Assembly.open(load_config(config), progress=False)

    return opening


@pytest.mark.slow
def test_a_padded_model_is_trained_and_asked_on_whole_pictures(opened_wide: Any) -> None:
    assembly = opened_wide("square")
    trained = contaminate(assembly)
    picture = assembly.run.images.open(assembly.originals[0].images[0])
    for plan, (checkpoint,) in trained:
        _, processor, _ = load_parent(plan, assembly.run, "float32")
        row = {"images": [picture], "prompt": "<image>?", "completion": "A"}
        seen = Collator(processor)([row])["pixel_values"]
        folder = assembly.run.path / checkpoint.path
        vlm = HuggingFaceVLM(str(folder))
        asked = vlm.conversation.encode([vlm.conversation.render("?", 1)], [[picture]])[
            "pixel_values"
        ]
        assert torch.equal(seen, asked), plan.label
        assert vlm.fingerprint == checkpoint.fingerprint
        card = read_card(folder)
        assert card["training"]["pixel_budget"]["do_pad"] is True
        assert card["settings"]["image_padding"] == "square"
        assert not any("crops" in warning for warning in card["warnings"])
        saved = json.loads((folder / "processor_config.json").read_text())["image_processor"]
        assert (saved["image_processor_type"], saved["do_pad"]) == ("LlavaImageProcessor", True)
    for entry in assembly.grid(trained):
        assert entry.load().fingerprint == entry.model.fingerprint


@pytest.mark.slow
def test_a_crop_is_named_in_the_card_and_in_every_table(opened_wide: Any) -> None:
    assembly = opened_wide("none")
    trained = contaminate(assembly)
    warnings = {w for _, (checkpoint,) in trained for w in checkpoint.warnings if "crops" in w}
    (warning,) = warnings
    assert warning.startswith("tiny: its processor (CLIPImageProcessorPil) crops 4 of 4 pictures")
    assert ": 50.0% of all pixels are not seen" in warning
    ids = [{plan.id for plan in opened_wide(way).plans()} for way in ("none", "square")]
    assert not ids[0] & ids[1]


def test_padding_is_part_of_a_plan_only_where_it_is_set(opened_wide: Any) -> None:
    """Plans from before the setting keep their ids."""
    auto, none, square = (opened_wide(padding).plans() for padding in ("auto", "none", "square"))
    assert all("image_padding" not in plan.settings for plan in auto)
    parents = [plans[0].parent_fingerprint for plans in (auto, none, square)]
    assert parents[0] == parents[1] != parents[2]
    assert parents[0] == fingerprint(auto[0].parent, "float32")
