"""``flipbench evaluate`` from a configuration to the tables, on a real tiny model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Wording
from flipbench.core.run import Run
from tests.fixtures.command_line import Flipbench
from tests.fixtures.markdown_tables import table
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow

N_PAIRS = 6
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, tiny_folders: dict[str, Path]) -> Write:
    """Return a function that writes a configuration whose pairs exist; they are no shapes items."""
    benchmark = make_benchmark(tmp_path / "r", N_PAIRS)
    benchmark.save(tmp_path / "r" / "benchmark")

    def write(models: dict[str, Any] | None = None, **evaluate: Any) -> Path:
        settings = {
            "run": "r",
            "benchmark": {"format": "shapes"},
            "models": models or {"tiny": {"path": str(tiny_folders["qwen2_vl"])}},
            "evaluate": evaluate,
        }
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    return write


def questions(folder: Path) -> dict[str, str]:
    originals = PairedBenchmark.load(folder / "r" / "benchmark").originals
    return {item.name: item.question for item in originals}


def test_the_page_names_models_that_mean_no_letter(
    flipbench: Flipbench, write: Write, tmp_path: Path
) -> None:
    config = write(detectors=["perturbation_gap"], prompt={"ask": "choose"})
    flipbench("evaluate", config, "-q")
    note = f"In {2 * N_PAIRS} of {2 * N_PAIRS} replies of tiny the option letters together hold"
    for name in ("index.html", "gap.md"):
        assert note in (tmp_path / "r" / "report" / name).read_text()


# ------------------------------------------------------------------------------- other wordings


def test_without_rewordings_the_table_names_the_setting(
    flipbench: Flipbench, write: Write, tmp_path: Path
) -> None:
    config = write(detectors=["perturbation_gap", "slot_guessing", "ngram_accuracy"])
    result = flipbench("evaluate", config, "-q")
    assert result.status == 0, result.err
    row = table(tmp_path / "r" / "report" / "table.md")
    for column in ("Slot guessing: McNemar test", "N-gram accuracy: Paraphrase"):
        assert row[column] == "not applicable (set evaluate.rewording)"


def test_wordings_are_read_from_a_file(flipbench: Flipbench, write: Write, tmp_path: Path) -> None:
    names = list(questions(tmp_path))
    lines = [
        {"name": name, "paraphrases": [f"Tell me: {q}", f"Say: {q}"]}
        for name, q in questions(tmp_path).items()
    ]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    rewording = {"by": "file", "path": str(tmp_path / "w.jsonl")}
    config = write(detectors=["slot_guessing", "ngram_accuracy"], rewording=rewording)
    result = flipbench("evaluate", config, "-q")
    assert result.status == 1 and f"no line named '{names[-1]}'" in result.err
    row = table(tmp_path / "r" / "report" / "table.md")
    assert row["Slot guessing: McNemar test"] != "not applicable"
    assert row["Slot guessing: Items dropped"] == "1"
    with Run(tmp_path / "r") as run:
        assert len(list(run.read(Wording))) == N_PAIRS - 1


def test_back_translations_are_requested_once(
    flipbench: Flipbench, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(body: dict[str, Any]) -> str:
        content = body["messages"][-1]["content"]
        text = str(content if isinstance(content, str) else content[-1]["text"])
        return f"Again: {text}" if "into English" in body["messages"][0]["content"] else text

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        server.reply = reply
        chat = {"model": "tiny-vlm", "base_url": server.base_url}
        rewording = {"how": "translate", "language": "German", "by": "api", "chat": chat}
        config = write(detectors=["slot_guessing", "ngram_accuracy"], rewording=rewording)
        counted = flipbench("evaluate", config, "--dry-run")
        assert f"{N_PAIRS}  texts to reword" in counted.out and not server.chats()
        first = flipbench("evaluate", config, "-q")
        assert first.status == 0, first.err
        assert f"translate into German and back: {N_PAIRS} done" in first.err
        assert len(server.chats()) == 2 * N_PAIRS
        second = flipbench("evaluate", config, "-q")
        assert second.status == 0 and "ask tiny: 0 done" in second.err
        assert len(server.chats()) == 2 * N_PAIRS
        row = table(tmp_path / "r" / "report" / "table.md")
        assert row["Slot guessing: McNemar test"].endswith(("not detected", "contaminated"))
        # no detector compares wordings, so none are requested
        no_wordings = write(detectors=["perturbation_gap"], rewording=rewording)
        assert flipbench("evaluate", no_wordings, "-q").status == 0
        assert len(server.chats()) == 2 * N_PAIRS


def test_impossible_rewordings_are_refused(flipbench: Flipbench, write: Write) -> None:
    wrong = {"how": "translate", "language": "German", "by": "file", "path": "w.jsonl"}
    result = flipbench("evaluate", write(rewording=wrong))
    assert result.status == 2 and "a file contains wordings in the same language" in result.err


def test_a_server_without_log_probabilities_is_refused_before_it_is_asked(
    flipbench: Flipbench, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        server.reply = lambda body: "A"
        api = {"model": "tiny-vlm", "base_url": server.base_url}
        detectors = ["perturbation_gap", "old_answer_attraction"]
        result = flipbench("evaluate", write({"mine": {"api": api}}, detectors=detectors), "-q")
        assert result.status == 2 and len(server.chats()) == 1, "only the trial question is asked"
        assert "models.mine: no detector can be run on it, since they need choose" in result.err
        assert "set evaluate.prompt.ask: generate" in result.err
        prompt = {"ask": "generate"}
        config = write({"mine": {"api": api}}, detectors=detectors, prompt=prompt)
        assert flipbench("evaluate", config, "-q").status == 0


# --------------------------------------------------------------------- a model among several others


def scores_in(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the scores of a run by detector and model, the last rule's."""
    lines = (folder / "r" / "report" / "scores.jsonl").read_text().splitlines()
    return {(s["detector"], s["model"]): s for s in map(json.loads, lines)}


def test_constat_compares_a_model_with_the_clean_ones_of_its_grid(
    flipbench: Flipbench, write: Write, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    paths = [*map(str, tiny_folders.values()), "shapes:qwen2_vl", "shapes:llava"]
    models = {f"m{number}": {"path": path} for number, path in enumerate(paths)}
    config = write(models, detectors=["perturbation_gap", "constat"])
    result = flipbench("evaluate", config, "-q")
    assert result.status == 0, result.err
    assert result.err.count(f"{2 * N_PAIRS} done") == 4, "nothing beside the gap's questions"
    score = scores_in(tmp_path)["constat", "m1"]
    assert score["details"]["references"] == ["m0", "m2", "m3"]
    assert score["statistic"] is not None
    row = table(tmp_path / "r" / "report" / "table.md", "m1")
    assert row["ConStat: Bootstrap"].endswith(("contaminated", "not detected"))


def test_kernel_divergence_compares_models_after_the_same_fine_tuning(
    flipbench: Flipbench, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    make_benchmark(tmp_path / "r", 18).save(tmp_path / "r" / "benchmark")
    folders = {"clean": tiny_folders["qwen2_vl"], "suspect": tmp_path / "suspect"}
    shutil.copytree(folders["clean"], folders["suspect"])
    weights = load_file(folders["suspect"] / "model.safetensors")
    changed = {name: 1.1 * tensor for name, tensor in weights.items()}
    save_file(changed, folders["suspect"] / "model.safetensors", {"format": "pt"})
    strategy = {"train": "lora", "learning_rate": 0.01, "batch_size": 18}
    settings = {
        "run": "r",
        "benchmark": {"format": "shapes", "n_items": 18},
        "models": {
            "clean": {"path": str(folders["clean"]), "family": "tiny"},
            "suspect": {"path": str(folders["suspect"]), "family": "tiny", "dose": None},
        },
        "contaminate": {"epochs": 1, "strategies": {"standard": strategy}},
        "evaluate": {"detectors": ["kernel_divergence"]},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    result = flipbench("evaluate", "c.yaml", "-q")
    assert result.status == 0, result.err
    found = scores_in(tmp_path)
    suspect = found["kernel_divergence", "suspect"]
    assert suspect["n"] == 18 and suspect["statistic"] is not None
    assert suspect["reference"]["model"] == "clean"
    after = found["kernel_divergence", "suspect standard e1"]
    assert (after["verdict"], after["reason"]) == ("not_applicable", "no standard fine-tune")
    text = (tmp_path / "r" / "report" / "table.md").read_text()
    assert "not applicable (no standard fine-tune)" in text and "Kernel divergence" in text
    again = flipbench("evaluate", "c.yaml", "-q")
    assert again.status == 0 and again.err.count(" 0 done") >= 4


# ----------------------------------------------------------------------------------- group metrics


def test_two_questions_on_two_images_are_shown_as_groups(
    flipbench: Flipbench, write: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "r" / "benchmark"
    made = PairedBenchmark.load(folder)
    twice = [Pair(*(asked_anew(item) for item in (p.perturbed, p.original))) for p in made.pairs]
    found = replace(made, pairs=(*made.pairs, *twice), exchangeable=False)
    config = write(detectors=["perturbation_gap"])
    assert "G-Acc" not in flipbench("evaluate", config, "-q").out
    found.save(folder)
    result = flipbench("evaluate", config, "-q")
    assert result.status == 0, result.err
    assert "G-Acc" in result.out
    row = table(tmp_path / "r" / "report" / "gap.md")
    counts = {
        name: row[name].split("(")[1].split(")")[0].split("/") for name in row if "Acc" in name
    }
    n = {name.split(",")[0]: int(count[1]) for name, count in counts.items()}
    assert n == {
        "Accuracy": 4 * N_PAIRS,
        "Q-Acc": 2 * N_PAIRS,
        "I-Acc": 2 * N_PAIRS,
        "G-Acc": N_PAIRS,
    }
    k = [int(counts[name][0]) for name in counts]
    assert k[0] >= k[1] >= k[3] and k[2] >= k[3] and row["No answer"] == "0"
    page = (tmp_path / "r" / "report" / "index.html").read_text()
    assert "G-Acc" in page and "G-Acc" in (tmp_path / "r" / "report" / "table.tex").read_text()


def asked_anew(item: Item) -> Item:
    """Return the item with another question, so that it is another item on the same picture."""
    return Item.model_validate(
        item.model_dump()
        | {"id": "", "name": f"{item.name}-2", "question": f"Again: {item.question}"}
    )


# ------------------------------------------------------------------------------- free-form pairs


def free(item: Item) -> Item:
    """Return the item without its options."""
    return Item.model_validate(item.model_dump() | {"id": "", "options": None, "answer": None})


def test_free_form_pairs_are_judged_once_and_the_cost_is_reported(
    flipbench: Flipbench, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = tmp_path / "r" / "benchmark", tmp_path / "r" / "report"
    made = PairedBenchmark.load(folder)
    pairs = tuple(Pair(free(p.original), free(p.perturbed)) for p in made.pairs)
    replace(made, pairs=pairs).save(folder)
    plain = write({"m": {"path": "shapes:llava"}}, detectors=["free_form_gap"])
    result = flipbench("evaluate", plain, "-q")
    assert result.status == 0, result.err
    row = table(report / "table.md", "m")
    assert f"/{N_PAIRS})" in row["Free-form gap: Original, exact match, %"]
    assert "no judge is configured (evaluate.judge)" in (report / "index.html").read_text()

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        server.reply = lambda body: '{"choice": "tie"}'
        chat = {"model": "tiny-vlm", "base_url": server.base_url, "price_in": 2.0, "price_out": 2.0}
        models = {"m": {"path": "shapes:llava"}, "n": {"path": "shapes:qwen2_vl"}}
        config = write(models, detectors=["free_form_gap"], judge={"chat": chat})
        result = flipbench("evaluate", config, "-q")
        assert result.status == 0, result.err
        n_asked = len(server.chats())
        assert f"judge replies: {n_asked} done" in result.err
        row = table(report / "table.md", "m")
        assert f"/{2 * N_PAIRS})" in row["Free-form gap: Original, judged, %"]
        text = (report / "table.md").read_text()
        assert "judged by tiny-vlm agreement-v2" in text and f"{n_asked} judgements" in text
        assert re.search(r"tokens in, [\d,]+ out; \$0\.0", text)
        assert flipbench("evaluate", config, "-q").status == 0 and len(server.chats()) == n_asked
        both = write(models, detectors=["free_form_gap"], judge={"chat": chat, "local": {}})
        assert flipbench("evaluate", both).status == 2


def test_a_judge_labels_completions_and_new_options_once(
    flipbench: Flipbench, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        server.reply = lambda body: '{"label": "none"}'
        chat = {"model": "tiny-vlm", "base_url": server.base_url}
        models = {"m": {"path": "shapes:llava"}}
        names = ["choice_confusion", "guided_prompting"]
        config = write(models, detectors=names, judge={"chat": chat})
        result = flipbench("evaluate", config, "-q")
        assert result.status == 0, result.err
        n_asked = len(server.chats())
        assert f"label texts: {n_asked} done" in result.err
        assert "judge replies" not in result.err
        text = (tmp_path / "r" / "report" / "table.md").read_text()
        assert "labelled by tiny-vlm: " in text and "by completion-v1, quoted, " in text
        assert f"{N_PAIRS} by donors-v1, quoted; 0 unreadable" in text
        assert flipbench("evaluate", config, "-q").status == 0 and len(server.chats()) == n_asked
