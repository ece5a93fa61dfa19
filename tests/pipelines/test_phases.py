"""Captioner, editor and judges in turn: one's memory is freed before the next is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.generation import generate
from flipbench.api.stages.phases import memory_plan
from flipbench.config.experiment import Config, load_config
from flipbench.core.locks import Share
from flipbench.core.records import Caption, Edit, Flip
from flipbench.core.run import Run
from flipbench.generate.captioners.api import APICaptioner
from flipbench.models.vlm.local_chat import LocalChat
from tests.fixtures.command_line import Flipbench

PARTS = '''
from pathlib import Path
from flipbench.models.protocols import CaptionText, Drawing, JudgeDecision


class Part:
    """Notes when it loads, works and is freed."""

    settings, prompt, rater_kind = {}, "p-v1", "judge"

    def __init__(self, name):
        self.name, self.loaded = name, False

    def note(self, event):
        with open("events.txt", "a") as file:
            print(self.name, event, file=file)

    def work(self):
        if not self.loaded:
            self.note("loaded")
        self.loaded = True

    def release(self):
        if self.loaded:
            self.note("freed")
        self.loaded = False


class Captioner(Part):
    def __call__(self, candidates, images):
        self.work()
        return [CaptionText("a scene") for _ in candidates]


class Editor(Part):
    def __call__(self, candidates, seeds, images):
        self.work()
        pictures = (images.open(c.item.images[0]) for c in candidates)
        return [Drawing(p.transpose(0)) for p in pictures]


class Judge(Part):
    def __call__(self, candidates, images):
        self.work()
        return [JudgeDecision("keep") for _ in candidates]
'''


def plug_in(kind: str, name: str) -> dict[str, Any]:
    return {"kind": "python", "target": f"parts_in_turn:{kind}", "arguments": {"name": name}}


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_in_turn.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_each_is_freed_before_the_next_is_loaded(flipbench: Flipbench, tmp_path: Path) -> None:
    settings = {
        "run": str(tmp_path / "run"),
        "benchmark": {"format": "shapes", "n_items": 5},
        "generate": {
            "batch_size": 2,
            "captioner": plug_in("Captioner", "captioner"),
            "editor": plug_in("Editor", "editor"),
        },
        "filter": {
            "judges": [plug_in("Judge", "first"), plug_in("Judge", "second")],
            "policy": {"rules": []},
        },
    }
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    result = flipbench("filter", tmp_path / "c.yaml", "-q")
    assert result.status == 0, result.err
    events = (tmp_path / "events.txt").read_text().splitlines()
    names = ("captioner", "editor", "first", "second")
    assert events == [f"{name} {event}" for name in names for event in ("loaded", "freed")]


def local(tmp_path: Path, path: str, name: str = "run") -> Config:
    return Config.model_validate(
        {
            "run": tmp_path / name,
            "benchmark": {"format": "shapes", "n_items": 6},
            "generate": {
                "captioner": {
                    "kind": "local",
                    "chat": {"model": {"path": path}, "max_tokens": 30},
                },
                "editor": {"kind": "python", "target": "parts_in_turn:Editor",
                           "arguments": {"name": "editor"}},
            },
            "filter": {"judges": [{"kind": "vlm", "model": {"path": path}}]},
        }
    )  # fmt: skip


@pytest.mark.slow
def test_workers_share_the_captions_of_a_local_model(tmp_path: Path) -> None:
    alone = Assembly.open(local(tmp_path, "shapes:qwen2_vl"), progress=False)
    generate(alone)
    expected = {c.id: c.text for c in alone.run.read(Caption)}
    assert len(expected) == 6
    assert isinstance(alone.captioner, APICaptioner)
    assert isinstance(alone.captioner.chat, LocalChat)
    assert "_loaded" not in vars(alone.captioner.chat.vlm), "its weights are freed"
    config, done = local(tmp_path, "shapes:qwen2_vl", "shared"), set[str]()
    for number in range(2):
        share = Share(number, 2)
        worker = Assembly.open(config, progress=False, share=share)
        _, reports = generate(worker)
        n_mine = sum(share.owns(item.id) for item in worker.items)
        assert 0 < n_mine < 6 and [r.n_done + r.n_failed for r in reports[:2]] == [n_mine] * 2
        flips = {f.id: f.item_id for f in worker.run.read(Flip)}
        captions = {c.id: flips[c.flip_id] for c in worker.run.read(Caption)}
        assert all(share.owns(captions[i]) for i in captions.keys() - done)
        done |= captions.keys()
        worker.run.close()
    shared = Run(tmp_path / "shared")
    assert {c.id: c.text for c in shared.read(Caption)} == expected
    assert shared.ids(Edit) == alone.run.ids(Edit)


def test_a_rebuild_requests_no_captions(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    config = local(tmp_path, str(tiny_folders["qwen2_vl"]))
    rebuild = Assembly.open(config, progress=False, share=Share(0, 1))
    generate(rebuild)
    assert not rebuild.run.ids(Flip) and not rebuild.run.ids(Caption)


def test_the_memory_of_each_phase_is_planned(
    tmp_path: Path, tiny_folders: dict[str, Path], tiny_vlm: Callable[[str], Any]
) -> None:
    config = local(tmp_path, str(tiny_folders["qwen2_vl"]))
    items = Assembly.open(config, progress=False).items
    first, *phases = memory_plan(config, items)
    model = tiny_vlm("qwen2_vl").model
    n_bytes = sum(w.numel() * w.element_size() for w in [*model.parameters(), *model.buffers()])
    assert first.startswith("memory, one phase at a time: at most")
    assert [line.split(":")[0] for line in phases] == ["  captions", "  verdicts"]
    for line in phases:
        assert f", {n_bytes / 1e6:.3g} MB of it weights" in line
        assert "6 at a time, 224 x 224 pixels" in line
    assert "replies of 30 tokens" in phases[0] and "replies of 1 token," in phases[1]

    away = config.model_dump(mode="json")
    away["generate"]["captioner"]["chat"]["model"]["path"] = "nobody/nothing-7b"
    first, *phases = memory_plan(Config.model_validate(away), items)
    assert "at most" not in first
    assert "captions: size not known until it is downloaded (nobody/nothing-7b" in phases[0]
    nothing = Config.model_validate({"run": "r", "benchmark": {"format": "shapes"}})
    assert memory_plan(nothing, items) == []


def test_longer_replies_and_larger_batches_take_more(
    tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    config = local(tmp_path, str(tiny_folders["llava"]))
    items = Assembly.open(config, progress=False).items

    def peak(n_tokens: int, n_at_once: int) -> str:
        changed = config.model_dump(mode="json")
        changed["generate"]["captioner"]["chat"]["max_tokens"] = n_tokens
        changed["generate"]["batch_size"] = n_at_once
        changed["filter"]["judges"] = []  # the captions alone are compared
        return memory_plan(Config.model_validate(changed), items)[1].split()[1]

    sizes = [float(peak(*settings)) for settings in ((30, 1), (3000, 1), (3000, 4))]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


@pytest.mark.slow
def test_an_editor_of_the_reference_is_planned_without_its_files(tmp_path: Path) -> None:
    config = load_config("configs/generate/realworldqa.yaml", [f"run={tmp_path}"])
    _, editor, *phases = memory_plan(config, [])
    assert "images: 36.8 GB, 35.2 GB of it weights (black-forest-labs/FLUX.1-dev" in editor
    assert [line.split(":")[0] for line in phases] == [
        "    caption as embeddings",
        "    denoising",
        "    decoding",
    ]
    assert "3.46e+03 TFLOP an image" in phases[1]
