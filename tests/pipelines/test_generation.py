"""Generation as a configuration asks for it: every real class, tiny, through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from flipbench import cli
from flipbench.config.experiment import load_config
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Caption, Edit, Failure, Flip
from flipbench.core.run import Run
from flipbench.evaluate.page.gallery import make_gallery
from flipbench.generate.editors.controls import Control
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.openai_server import CAPTION, OpenAIServer

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"
BASES = (
    "reference",
    "llava-defaults",
    "mixture-defaults",
    "qwen-vl-defaults",
)  # not run
COMPLETE = sorted(
    p
    for p in CONFIGS.rglob("*.yaml")
    if p.stem not in BASES and p.parent.name not in ("accelerate", "validation")
)
Flipbench = Callable[..., tuple[int, str, str]]


ROOT = Path(__file__).parents[2]


@pytest.fixture
def flipbench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Flipbench:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flipbench", *map(str, arguments)])
        capfd.readouterr()
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def tiny(checkpoints: Path, server: OpenAIServer, tmp_path: Path) -> list[str]:
    """Return ``configs/generate/tiny.yaml`` with captions from a server on this machine."""
    chat = {
        "model": "gpt-4o-2024-08-06",
        "base_url": server.base_url,
        "price_in": 2.5,
        "price_out": 10,
    }
    return [
        str(CONFIGS / "generate" / "tiny.yaml"),
        f"run={tmp_path / 'run'}",
        "benchmark.n_items=4",
        f"generate.captioner={json.dumps({'kind': 'api', 'chat': chat})}",
        f"generate.editor.pipeline={checkpoints / 'flux'}",
        f"generate.editor.controlnet={checkpoints / 'standard'}",
    ]


def pictures(folder: Path) -> dict[str, str]:
    return {edit.caption_id: edit.image.sha256 for edit in Run(folder).read(Edit)}


@pytest.mark.parametrize("path", COMPLETE, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_shipped_configuration_builds(path: Path) -> None:
    assert load_config(path).generate is not None


def test_a_backend_of_another_kind_replaces_the_inherited_one(tmp_path: Path) -> None:
    kontext = load_config(CONFIGS / "generate" / "kontext.yaml")
    assert kontext.generate.editor.kind == "diffusers"
    assert kontext.generate.captioner.kind == "api"
    assert kontext.generate.captioner.prompt == "instruction-v1"


def test_captions_by_a_server_and_pictures_by_flux(
    flipbench: Flipbench, tiny: list[str], server: OpenAIServer, tmp_path: Path
) -> None:
    status, _, err = flipbench("generate", *tiny)
    assert status == 0, err
    run = Run(tmp_path / "run")
    captions, edits = run.index(Caption), list(run.read(Edit))
    assert len(edits) == 4 and {c.text for c in captions.values()} == {CAPTION}
    assert all(c.usage["prompt_tokens"] for c in captions.values())
    for edit in edits:
        assert (edit.image.width, edit.image.height) == (224, 224)
        assert edit.extra["control"]["sha256"] and edit.extra["similarity"]["label"]
    asked = len(server.chats())
    assert flipbench("generate", *tiny)[0] == 0
    assert len(server.chats()) == asked, "stored captions are not requested again"

    assert flipbench("filter", *tiny)[0] == 0
    benchmark = PairedBenchmark.load(tmp_path / "run" / "benchmark")
    cards = make_gallery(benchmark, [], []).cards
    assert len(cards) == 4 and all(card.control for card in cards)
    pair = benchmark.pairs[0]
    assert pair.control is not None
    kept, source = (benchmark.images.open(r) for r in (pair.control, pair.original.images[0]))
    assert kept.tobytes() == Control()(source).tobytes(), "the edges of the original"


def test_two_workers_share_captions_and_pictures_of_models_on_this_machine(
    flipbench: Flipbench, tiny: list[str], tmp_path: Path
) -> None:
    local = [a for a in tiny if not a.startswith("generate.captioner")]
    status, out, _ = flipbench("generate", *local, "--dry-run")
    assert status == 0 and "memory, one phase at a time: at most" in out
    assert "  captions: " in out and "  images: " in out and "    denoising: " in out
    assert flipbench("generate", *local, "-q")[0] == 0
    status, _, err = flipbench("generate", *local, f"run={tmp_path / 'two'}", "--workers", "2")
    assert status == 0, err
    assert "caption: 0 done, 4 already there, 0 failed" in err
    assert pictures(tmp_path / "two") == pictures(tmp_path / "run")
    for kind in ("captions", "edits"):
        written = [p.read_text().count("\n") for p in (tmp_path / "two" / kind).glob("*.jsonl")]
        assert sum(written) == 4


def test_workers_share_pictures_and_ask_no_server(
    flipbench: Flipbench,
    tiny: list[str],
    server: OpenAIServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the workers' too: the plug-in is not installed
    editor = "generate.editor={kind: python, target: 'examples.plugins.editor:BannerEditor'}"
    quick = [*tiny, editor, "-q"]
    assert flipbench("generate", *quick, "--worker", "0/2")[0] == 0
    run = Run(tmp_path / "run")
    assert not server.chats() and not list(run.read(Flip)) and not list(run.read(Edit))
    status, _, err = flipbench("generate", *quick, "--workers", "2")
    assert status == 0 and "edit: 0 done, 4 already there, 0 failed" in err, err
    assert len(server.chats()) == 4, "one caption each, by the main process"
    written = [path.read_text().count("\n") for path in (run.path / "edits").glob("*.jsonl")]
    assert sum(written) == 4, "none is drawn twice"
    assert flipbench("generate", *quick, f"run={tmp_path / 'alone'}")[0] == 0
    assert pictures(tmp_path / "alone") == pictures(run.path) and len(pictures(run.path)) == 4


def test_the_price_is_printed_before_anything_is_sent(
    flipbench: Flipbench, tiny: list[str], server: OpenAIServer
) -> None:
    status, out, _ = flipbench("generate", *tiny, "--dry-run")
    assert status == 0 and not server.chats()
    assert "4 items" in out and "1,020 image tokens" in out and "about $0.0" in out, out


def test_a_wrong_key_stops_before_any_work(
    flipbench: Flipbench, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    status, _, err = flipbench("generate", *tiny)
    assert status == 2 and "OPENAI_API_KEY" in err
    assert not list(Run(tmp_path / "run").read(Flip))


def test_a_folder_that_is_no_pipeline_stops_before_captions_are_paid(
    flipbench: Flipbench, tiny: list[str], server: OpenAIServer, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    status, _, err = flipbench("generate", *tiny, f"generate.editor.pipeline={tmp_path / 'empty'}")
    assert status == 2 and "model_index.json" in err and not server.chats()


def test_a_user_gives_new_answers(
    flipbench: Flipbench, tiny: list[str], tmp_path: Path, shapes_store: ImageStore
) -> None:
    items = shapes_vqa(shapes_store, 4)
    new_answers = {
        item.name: next(i for i, text in enumerate(item.options or ()) if text != item.answer_text)
        for item in items[:2]
    }
    answers = tmp_path / "answers.csv"
    rows = [f"{name},{'ABCD'[option]}\n" for name, option in new_answers.items()]
    answers.write_text("name,new_answer\n" + "".join(rows))
    given = f"generate.new_answers={answers}"
    status, _, err = flipbench("generate", *tiny, given)
    assert status == 0, err
    flips = {f.item_id: f for f in Run(tmp_path / "run").read(Flip)}
    for item in items[:2]:
        assert flips[item.id].new_answer == new_answers[item.name]
        assert flips[item.id].method.startswith("given")
    assert flips[items[2].id].method.startswith("uniform")

    answers.write_text(f"name,new_answer\n{items[0].name},{'ABCD'[items[0].answer or 0]}\n")
    status, _, err = flipbench("generate", *tiny, given)
    assert status == 1 and "is empty or equals the old one" in err and items[0].name in err

    answers.write_text("name,new_answer\nnobody,A\n")
    status, _, err = flipbench("generate", *tiny, given)
    assert status == 2 and "answers.csv, line 2" in err and "nobody" in err


@pytest.fixture
def open_questions(tiny: list[str], tmp_path: Path, shapes_store: ImageStore) -> list[str]:
    """Return the arguments that generate from two free-form questions."""
    rows = []
    for item in shapes_vqa(shapes_store, 2):
        picture = shapes_store.path(item.images[0])
        (tmp_path / picture.name).write_bytes(picture.read_bytes())
        rows.append(
            {
                "name": item.name,
                "images": [picture.name],
                "question": item.question,
                "answer": item.answer_text,
            }
        )
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"format": "jsonl", "path": str(tmp_path / "open.jsonl")}
    opened = [a for a in tiny if not a.startswith("benchmark")]
    return [*opened, f"benchmark={json.dumps(spec)}"]


def test_proposals_by_the_batch_api_are_one_batch(
    flipbench: Flipbench,
    open_questions: list[str],
    server: OpenAIServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BatchAPI, "poll_seconds", 0.01)
    by_batch = ["generate.captioner.batch=true", "generate.batch_size=1"]
    status, _, err = flipbench("generate", *open_questions, *by_batch)
    assert status == 0, err
    assert len(list(Run(tmp_path / "run").read(Flip))) == 2 and not server.chats()
    assert len(server.batches) == 2, "the proposals, then the captions"


def test_open_questions_get_a_proposed_answer(
    flipbench: Flipbench, open_questions: list[str], server: OpenAIServer, tmp_path: Path
) -> None:
    status, _, err = flipbench("generate", *open_questions)
    run = Run(tmp_path / "run")
    assert status == 0, (err, list(run.read(Failure)))
    flips = list(run.read(Flip))
    assert len(flips) == 2 and all(f.new_text == CAPTION for f in flips)
    assert all(f.new_answer is None and "counterfactual-v1" in f.method for f in flips)
    asked = len(server.chats())
    assert flipbench("generate", *open_questions)[0] == 0
    assert len(server.chats()) == asked
