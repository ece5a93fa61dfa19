"""The filter stage as a configuration asks for it: keys, costs, kept lists, recipes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip, Response, Verdict
from flipbench.core.run import Run
from flipbench.shapes.benchmark import scene_of, shapes_vqa
from flipbench.shapes.wording import describe
from tests.fixtures.command_line import Flipbench
from tests.fixtures.openai_server import KEY, OpenAIServer

pytestmark = pytest.mark.slow

N = 6


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, shapes_store: ImageStore) -> Iterator[OpenAIServer]:
    """Captions by one model, all the same; verdicts by another, every third a rejection."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    scene = describe(scene_of(Candidate(shapes_vqa(shapes_store, 60)[-1])))
    with OpenAIServer() as running:

        def reply(body: dict[str, object]) -> str:
            if body["model"] != "o3":
                return scene
            n_judged = sum(chat["model"] == "o3" for chat in running.chats())
            return f"Answer: {'KEEP' if n_judged % 3 else 'REJECT'}"

        running.reply = reply
        yield running


@pytest.fixture
def config(tmp_path: Path, server: OpenAIServer) -> Path:
    path = tmp_path / "c.yaml"
    chat = {"base_url": server.base_url, "max_retries": 0, "timeout": 5, "n_concurrent": 1}
    written = {"model": "gpt-4o-2024-08-06", **chat}
    judged = {"model": "o3", "price_in": 2, "price_out": 8, **chat}
    settings = {
        "run": "runs/x",
        "benchmark": {"format": "shapes", "n_items": N},
        "generate": {"captioner": {"kind": "api", "chat": written}},
        "filter": {"judges": [{"kind": "api", "chat": judged}], "policy": {"rules": []}},
    }
    path.write_text(json.dumps(settings))
    return path


def kept_list(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "filter" / "kept.csv").open(newline="")))


def write_list(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def names(folder: Path) -> list[str]:
    return [pair.original.name for pair in PairedBenchmark.load(folder / "benchmark").pairs]


def test_a_finished_run_needs_no_key(
    flipbench: Flipbench, config: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = flipbench("filter", config, "-q")
    assert first.status == 0, first.err
    assert flipbench("export", config, "out", "--format", "recipe").status == 0
    (recipe,) = (config.parent / "out").iterdir()
    n_asked = len(server.chats())
    assert n_asked == 2 * N
    monkeypatch.delenv("OPENAI_API_KEY")
    again = flipbench("filter", config, "-q")
    assert (again.status, again.out) == (0, first.out), again.err
    rebuilt = flipbench("rebuild", recipe, "-q", "--trust")
    assert rebuilt.status == 0, rebuilt.err
    assert f"{N}/{N} images are identical" in rebuilt.out
    assert names(recipe) == names(config.parent / "runs" / "x") and len(server.chats()) == n_asked


@pytest.mark.parametrize("lacking", ["captioner", "judge"])
def test_a_missing_key_stops_before_any_work(
    flipbench: Flipbench, config: Path, server: OpenAIServer, lacking: str
) -> None:
    settings = json.loads(config.read_text())
    part = settings["generate"]["captioner"]
    if lacking == "judge":
        (part,) = settings["filter"]["judges"]
    part["chat"]["api_key_env"] = "NOT_SET"
    config.write_text(json.dumps(settings))
    result = flipbench("filter", config, "-q")
    assert result.status == 2 and "NOT_SET is not set" in result.err
    run = Run(config.parent / "runs" / "x")
    assert not server.chats() and not run.ids(Flip) and not run.ids(Caption) and not run.ids(Edit)


def test_a_new_judge_needs_its_key_and_only_then(
    flipbench: Flipbench, config: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flipbench("filter", config, "-q").status == 0
    monkeypatch.delenv("OPENAI_API_KEY")
    twice = flipbench("filter", config, "filter.policy.n_runs=2", "-q")
    assert twice.status == 2 and "OPENAI_API_KEY is not set" in twice.err
    more = flipbench("generate", config, "benchmark.n_items=7", "-q")
    assert more.status == 2 and "OPENAI_API_KEY is not set" in more.err
    assert flipbench("generate", config, "-q").status == 0
    assert flipbench("filter", config, "-q").status == 0


def test_judging_costs_are_estimated_and_recorded(
    flipbench: Flipbench, config: Path, server: OpenAIServer
) -> None:
    before = flipbench("filter", config, "--dry-run")
    assert before.status == 0 and not server.chats()
    assert before.out.startswith(f"would flip, caption and edit {N} items\n")
    assert before.out == flipbench("generate", config, "--dry-run").out
    captions, verdicts = (line for line in before.out.splitlines() if " image tokens" in line)
    assert captions.startswith("captions: gpt-4o-2024-08-06: 6 requests")
    assert verdicts.startswith("verdicts: o3: 6 requests") and "1,350 image tokens" in verdicts
    done = flipbench("filter", config, "-q")
    assert f": {N} replies, 6,000 tokens in, 300 out; $0.01\n" in done.out, done.out
    after = flipbench("filter", config, "--dry-run").out.splitlines()
    assert after[0] == f"{N} of {N} items are edited" and after[1].endswith("for 0 verdicts")
    assert len(after) == 2 and len(server.chats()) == 2 * N
    thrice = "filter.policy.n_runs=3"
    left = flipbench("filter", config, thrice, "--dry-run").out
    assert "for 12 verdicts" in left and "verdicts: o3: 12 requests" in left
    assert flipbench("generate", config, thrice, "--dry-run").out == left
    usages = [v.usage for v in Run(config.parent / "runs" / "x").read(Verdict)]
    assert [u["cost_usd"] for u in usages] == [pytest.approx((1000 * 2 + 50 * 8) / 1e6)] * N


def test_a_kept_list_rebuilds_its_pairs_from_the_run(flipbench: Flipbench, config: Path) -> None:
    assert flipbench("filter", config, "-q").status == 0
    run = config.parent / "runs" / "x"
    every = kept_list(run)
    assert len(every) == 4
    listed = write_list(config.parent / "listed.csv", [every[2], every[0]])
    result = flipbench("filter", config, "--kept", listed, "-q")
    assert result.status == 0, result.err
    assert result.out.startswith(f"items {N}  kept 2\n")
    assert names(run) == [every[2]["item"], every[0]["item"]]
    benchmark = PairedBenchmark.load(run / "benchmark")
    assert benchmark.made_by["kept list"].startswith("listed.csv, sha256 ")
    assert kept_list(run) == every, "what the policy decided is left as it was"

    for change, message in (
        ({"image_sha256": "0" * 64}, "line 2: the run has a different image of shapes-vqa"),
        ({"item_id": "f" * 24}, f"line 2: {every[2]['item']} is not in this benchmark"),
    ):
        write_list(listed, [every[2] | change, every[0]])
        wrong = flipbench("filter", config, "--kept", listed, "-q")
        assert wrong.status == 2 and message in wrong.err
    assert len(names(run)) == 2, "a list that does not fit changes nothing"
    both = flipbench("filter", config, "--kept", listed, "--dry-run")
    assert both.status == 2 and "--kept judges nothing" in both.err


def test_a_kept_list_rebuilds_its_pairs_from_a_recipe(
    flipbench: Flipbench, config: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flipbench("filter", config, "-q").status == 0
    assert flipbench("export", config, "out", "--format", "recipe").status == 0
    (recipe,) = (config.parent / "out").iterdir()
    every = kept_list(config.parent / "runs" / "x")
    listed = write_list(config.parent / "listed.csv", every[1:3])
    monkeypatch.delenv("OPENAI_API_KEY")
    strange = write_list(config.parent / "strange.csv", [every[0] | {"item_id": "f" * 24}])
    wrong = flipbench("rebuild", recipe, "--kept", strange, "-q", "--trust")
    assert wrong.status == 2 and "is not in this benchmark" in wrong.err
    assert not Run(recipe).ids(Edit), "nothing is drawn for a list that does not fit"
    result = flipbench("rebuild", recipe, "--kept", listed, "-q", "--trust")
    assert result.status == 0, result.err
    assert names(recipe) == [row["item"] for row in every[1:3]]
    drawn = {edit.image.sha256 for edit in Run(recipe).read(Edit)}
    assert drawn == {row["image_sha256"] for row in every[1:3]}, "no other picture is drawn"


def test_cards_and_recipes_count_people_and_do_not_name_them(
    flipbench: Flipbench, config: Path, server: OpenAIServer
) -> None:
    assert flipbench("filter", config, "-q").status == 0
    folder = config.parent / "runs" / "x"
    with Run(folder) as run:
        by_judge = run.read(Verdict)
        run.append(
            [
                Verdict(**v.model_dump(exclude={"id"}) | {"rater": name, "rater_kind": "person"})
                for v in list(by_judge)
                for name in ("Ann Example", "Ben Example")
            ]
        )
    assert flipbench("filter", config, "-q").status == 0
    (name,) = verdicts(folder).keys() - {"Ann Example", "Ben Example"}
    assert PairedBenchmark.load(folder / "benchmark").judged_by in ("2 people", f"{name}, 2 people")
    for kind in ("recipe", "huggingface"):
        assert flipbench("export", config, "out", "--format", kind).status == 0
    cards = [path.read_text() for path in (config.parent / "out").rglob("README.md")]
    assert len(cards) == 2 and all("2 people" in card for card in cards)
    files = [path for path in (config.parent / "out").rglob("*") if path.is_file()]
    assert not any(b"Example" in path.read_bytes() for path in files)
    (recipe,) = (config.parent / "out").glob("*recipe*")
    assert verdicts(recipe).keys() == {name, "reviewer 1", "reviewer 2"}
    assert flipbench("rebuild", recipe, "-q", "--trust").status == 0
    assert names(recipe) == names(folder)


def verdicts(run: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for verdict in Run(run).read(Verdict):
        found.setdefault(verdict.rater, {})[verdict.edit_id] = verdict.decision
    return found


def test_the_report_shows_rater_agreement(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path]
) -> None:
    """A judge that rejects every third picture, whatever it shows, against the known truth."""
    judge = json.loads(config.read_text())["filter"]["judges"][0]
    config.write_text("run: runs/y\nbenchmark: {format: shapes, n_items: 24}\nseed: 3\n")
    drawn = ["generate.editor={kind: shapes, wrong: 0.4}", "filter.policy.rules=[unchanged]"]
    asked = [f"models.tiny.path={tiny_folders['llava']}", "evaluate.detectors=[perturbation_gap]"]
    folder = config.parent / "runs" / "y"
    alone = [*drawn, "filter.policy.unjudged=keep", "filter.judges=[]"]
    assert flipbench("filter", config, *alone, "-q").status == 0
    assert flipbench("evaluate", config, *alone, *asked, "-q").status == 0
    every = names(folder)
    assert "Who decided" not in (folder / "report" / "index.html").read_text()
    both = [*drawn, f"filter.judges={json.dumps([{'kind': 'shapes'}, judge])}"]
    assert flipbench("filter", config, *both, "-q").status == 0
    result = flipbench("evaluate", config, *both, *asked, "-q")
    assert result.status == 0, result.err

    given, kept = verdicts(folder), names(folder)
    (name,) = (rater for rater in given if rater.startswith("o3"))
    decisions = [(given[name][i], given["shapes oracle"][i]) for i in given[name]]
    n, n_both = len(decisions), decisions.count(("keep", "keep"))
    n_kept = sum(decision == "keep" for decision, _ in decisions)
    page, table = ((folder / "report" / f).read_text() for f in ("index.html", "table.md"))
    assert '<h2 id="raters-title">Who decided, and how well</h2>' in page
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {name} "))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[:2] == [f"{n_both}/{n}", f"{n_kept - n_both}/{n}"]
    assert f"({n_both}/{n_kept})" in cells[4]
    assert any(line.startswith("| rule unchanged 25 ") for line in table.splitlines())
    assert "Is the kept set representative?" in page and "| **Category** |" in table
    assert 0 < len(kept) < len(every) < 24
    (accuracy,) = (line for line in table.splitlines() if line.startswith("| tiny "))
    assert f"/{len(every)})" in accuracy and f"/{len(kept)})" in accuracy
    assert accuracy.endswith(f"| {24 - len(every)} |"), "items that were never asked are counted"


def test_clean_models_are_asked_all_originals(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path]
) -> None:
    config.write_text(
        "run: runs/w\nbenchmark: {format: shapes, n_items: 12}\nseed: 3\n"
        "generate: {editor: {kind: shapes, wrong: 0.4}}\n"
        "evaluate: {detectors: [perturbation_gap]}\n"
    )
    clean, other = (str(tiny_folders[family]) for family in ("llava", "qwen2_vl"))
    models = (
        f"models={json.dumps({'tiny': {'path': clean}, 'trained': {'path': other, 'dose': 1}})}"
    )
    folder = config.parent / "runs" / "w"
    assert flipbench("filter", config, "-q").status == 0
    kept = names(folder)
    n_dropped = 12 - len(kept)
    assert 0 < n_dropped < 12

    def row(*settings: str) -> tuple[list[str], str]:
        result = flipbench("evaluate", config, models, *settings, "-q")
        assert result.status == 0, result.err
        table = (folder / "report" / "table.md").read_text()
        (line,) = (line for line in table.splitlines() if line.startswith("| tiny |"))
        _, kept_table = table.split("| Model | All items |", 1)
        assert "| trained |" not in kept_table, "a contaminated model says nothing of the items"
        return [cell.strip() for cell in line.split("|")[2:-1]], table

    cells, table = row()
    assert cells[0] == "not asked" and f"/{len(kept)})" in cells[1] and set(cells[2:]) == {"–"}
    assert f"any of the {n_dropped} items that were not kept; evaluate.originals: all" in table
    before = Run(folder).ids(Response)
    planned = flipbench("run", config, models, "evaluate.originals=all", "--dry-run")
    assert f"{n_dropped:>9,}  answers about dropped items" in planned.out
    cells, table = row("evaluate.originals=all")
    assert "/12)" in cells[0] and f"/{len(kept)})" in cells[1] and cells[-1] == "0"
    assert "not asked" not in table
    asked = Run(folder).ids(Response) - before
    assert len(asked) == n_dropped, "one question per dropped item, to the clean model alone"
    assert row("evaluate.originals=all")[0] == cells and Run(folder).ids(Response) == before | asked


def test_a_single_rater_has_no_agreement_section(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path]
) -> None:
    config.write_text("run: runs/z\nbenchmark: {format: shapes, n_items: 6}\n")
    settings = ["filter.policy.rules=[]", f"models.tiny.path={tiny_folders['llava']}"]
    settings.append("evaluate.detectors=[perturbation_gap]")
    assert flipbench("filter", config, *settings, "-q").status == 0
    assert flipbench("evaluate", config, *settings, "-q").status == 0
    page = (config.parent / "runs" / "z" / "report" / "index.html").read_text()
    assert "Who decided" not in page and "like the whole" not in page
