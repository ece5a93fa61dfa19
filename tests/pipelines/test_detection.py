"""``flipbench detect`` on real tiny models: asked once, resumed, refused, and its page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from flipbench import cli
from flipbench.api import load_pairs
from flipbench.api.stages.detection import default_run, name_of
from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Probe, Response
from flipbench.core.run import Run
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.models.vlm.checkpoints import CARD, resolve_path
from flipbench.models.vlm.loading import load_model
from flipbench.models.vlm.served import APIVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa_families
from tests.fixtures.browser import OpenPage
from tests.fixtures.detection import examined, plan
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.report_data import EVIL, make_benchmark
from tests.pipelines.test_any_vlm import Knower

pytestmark = pytest.mark.slow

TWO = "perturbation_gap,choice_confusion"
CLEAN = "shapes:llava"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with 20 pairs of the embedded world; one question is a script."""
    folder: Path = tmp_path_factory.mktemp("pairs")
    benchmark = make_benchmark(folder, 20)
    benchmark.save(folder / "benchmark")
    return folder


@pytest.fixture
def flipbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["flipbench", "detect", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return status, printed.out, printed.err

    return run


def test_detect_writes_one_page_and_asks_nothing_twice(
    flipbench: Any, pairs: Path, tiny_folders: dict[str, Path]
) -> None:
    before = sorted(p.name for p in pairs.rglob("*"))
    three = f"{TWO},bgr_shuffling"  # one that makes pictures of its own
    given = ["--benchmark", pairs, "--out", "out", "-q", "--detectors", three]
    model = ["--model", tiny_folders["llava"]]
    status, planned, _ = flipbench(*model, *given, "--dry-run")
    counts = {line.split(None, 1)[1]: int(line.split()[0]) for line in planned.splitlines()}
    assert status == 0 and counts["pairs"] == 20 and counts["models to ask"] == 1
    assert not list(Run("out").read(Response))

    status, _, err = flipbench(*model, *given, "--limit", "7")
    assert status == 0
    first = int(re.findall(r"(\d+) done, 0 already there, 0 failed", err)[0])
    status, out, err = flipbench(*model, *given)
    done, there = map(int, re.findall(r"(\d+) done, (\d+) already there, 0 failed", err)[0])
    assert there <= first and done + there == counts["answers"] == counts["distinct probes"]
    assert there >= 14  # both versions of the first seven
    assert out.splitlines()[-1] == "out/report/index.html" and "of 20 originals" in out

    status, again, err = flipbench(*model, *given)
    assert (status, again) == (0, out) and f"0 done, {done + there} already there" in err
    assert sorted(p.name for p in pairs.rglob("*")) == before
    assert {p.name for p in Path("out/report").iterdir()} == {
        "index.html", "verdict.md", "verdict.json", "scores.jsonl",
    }  # fmt: skip


def test_a_reference_is_asked_the_same_probes_and_shown_beside_the_model(
    flipbench: Any, pairs: Path, tiny_folders: dict[str, Path]
) -> None:
    status, out, err = flipbench(
        "--model", tiny_folders["llava"], "--reference", CLEAN, "--benchmark", pairs / "benchmark",
        "--out", "out", "-q", "--detectors", TWO,
    )  # fmt: skip
    assert status == 0 and err.count("0 failed") == 2
    assert "The reference shapes:llava gets" in out
    verdict = json.loads(Path("out/report/verdict.json").read_text())
    scores = [json.loads(line) for line in Path("out/report/scores.jsonl").open()]
    main = next(s for s in scores if (s["detector"], s["rule"]) == ("perturbation_gap", "mcnemar"))
    assert verdict["rule"] == "relative" and verdict["gap"]["p_value"] == main["p_value"]
    assert {one["detector"] for one in verdict["readings"]} <= {
        "old_answer_attraction",
        "confidence_gap",
    }
    assert verdict["judged"]["n_judged"] == 0 and len(verdict["guessing"]) == 2
    assert verdict["gap"]["statistic"] == main["statistic"] == (
        (main["paired"]["c"] - main["paired"]["b"]) / 20
    )  # fmt: skip
    assert (
        verdict["references"] == [CLEAN] and verdict["against_references"][0]["reference"] == CLEAN
    )
    assert verdict["sentence"] == out.splitlines()[0]
    text = Path("out/report/verdict.md").read_text()
    assert verdict["sentence"] in text and "## What would change this verdict" in text
    assert len({s["id"] for s in scores}) == len(scores)


def test_every_detector_without_a_reference(
    pairs: Path, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    benchmark = load_pairs(pairs, 4)
    planned = plan(tiny_folders["qwen2_vl"], benchmark, run=tmp_path, progress=False)
    result = examined(planned)
    finding, page, reports = result.content.finding, result.page, result.reports
    assert sum(report.n_failed for report in reports) == 0
    heard = {one.detector: one for one in finding.other_detectors}
    assert {*heard, "perturbation_gap"} == set(DETECTORS)
    assert finding.verdict == "inconclusive"
    assert "name no option: original 4/4" in finding.sentence, "untrained, it means no letter"
    for name in ("circular_eval", "codec", "min_k", "text_only_leakage", "image_masking"):
        assert heard[name].verdict == "not_applicable" and "--reference" in heard[name].why
    assert "3 clean reference models" in heard["constat"].why
    assert {r.probe_id for r in planned.run.read(Response)} == planned.run.ids(Probe)
    assert "detect only asks" in page.read_text()


def test_a_detector_named_explicitly_always_runs(pairs: Path, tmp_path: Path) -> None:
    planned = plan(CLEAN, pairs, (), "circular_eval", tmp_path)
    readings = ["old_answer_attraction", "confidence_gap"]
    assert [d.about.name for d in planned.detectors] == [
        "perturbation_gap",
        *readings,
        "circular_eval",
    ]
    assert planned.not_run == {}


def test_rewordings_and_references_are_used_where_given(
    pairs: Path, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    benchmark = load_pairs(pairs, 6)
    named = ["slot_guessing", "constat"]
    references = [*map(str, tiny_folders.values()), "shapes:qwen2_vl"]
    alone = plan(CLEAN, benchmark, references[:2], named, tmp_path / "a", progress=False)
    heard = {one.detector: one for one in examined(alone).content.finding.other_detectors}
    assert heard["slot_guessing"].why.endswith("of the benchmark: set evaluate.rewording")
    assert "at least 3 clean reference models besides shapes:llava, and 2" in heard["constat"].why

    lines = [{"name": i.name, "paraphrases": [f"Say: {i.question}"]} for i in benchmark.originals]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = tmp_path / "c.yaml"
    rewording = {"by": "file", "path": str(tmp_path / "w.jsonl")}
    settings = {"run": str(pairs), "benchmark": {"format": "shapes"}}
    config.write_text(json.dumps(settings | {"evaluate": {"rewording": rewording}}))
    helped = examined(
        plan(CLEAN, config, references, named, tmp_path / "b", limit=6, progress=False)
    )
    heard = {one.detector: one for one in helped.content.finding.other_detectors}
    assert heard["slot_guessing"].score is not None and heard["slot_guessing"].score.n == 6
    constat = heard["constat"].score
    assert constat is not None and constat.statistic is not None
    assert len(constat.details["references"]) == 3 and not any(
        "descend" in text for text in constat.warnings
    )
    assert str(helped.reports[0]).startswith("paraphrase: 6 done")


def test_found_pairs_require_a_clean_model(flipbench: Any, pairs: Path, tmp_path: Path) -> None:
    found = replace(PairedBenchmark.load(pairs / "benchmark"), exchangeable=False)
    found.save(tmp_path / "found")
    given = ["--model", CLEAN, "--benchmark", "found", "-q", "--detectors", "perturbation_gap"]
    status, out, _ = flipbench(*given)
    assert status == 0 and out.startswith("There is no verdict on shapes:llava: the pairs of")
    folder = default_run(CLEAN, found) / "report"
    assert out.splitlines()[-1] == str(folder / "index.html")
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["rule"]) == ("not_applicable", "mcnemar")
    assert verdict["gap"]["p_value"] is None and verdict["pairs_needed"] == []


# ----------------------------------------------------------------------------- what is refused


def test_wrong_use_is_reported_in_one_message(flipbench: Any, pairs: Path, tmp_path: Path) -> None:
    given = ["--model", CLEAN, "--benchmark", pairs, "--out", "out"]
    for more, message in (
        (["--reference", CLEAN], "the same weights as shapes:llava"),
        (["--detectors", "circular_evil"], "did you mean 'circular_eval'?"),
        (["--benchmark", "nowhere"], "not a paired benchmark"),
        (["--model", "shapes:lava"], "no such packaged model"),
        (["--reference", "shapes:lava"], "no such packaged model"),
        (["--out", pairs], "choose another --out"),
    ):
        status, out, error = flipbench(*given, *more)
        assert (status, out) == (2, "") and message in error and len(error.splitlines()) <= 2, more
    assert flipbench(*given, "--ask", "nicely")[0] == 2
    assert not (tmp_path / "out" / "responses").exists()


def carded(folder: Path, source: Path, items: list[Item]) -> Path:
    shutil.copytree(source, folder)
    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    card = {"doses": {item.id: 6 for item in items}, "dose": 6, "strategy": "lora"}
    card |= {"architectures": architectures, "parent": CLEAN, "benchmark": "shapes-vqa"}
    (folder / CARD).write_text(json.dumps(card))
    return folder


def test_the_card_is_reported_and_a_contaminated_reference_refused(
    pairs: Path, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    benchmark = load_pairs(pairs, 6)
    epoch = carded(tmp_path / "run" / "epoch-2", tiny_folders["llava"], benchmark.originals[:4])
    with pytest.raises(ConfigError, match="trained on 4 items of shapes-vqa on purpose; give a"):
        plan(CLEAN, benchmark, epoch, run=tmp_path / "a")
    other = carded(tmp_path / "other", tiny_folders["llava"], load_pairs(pairs).originals[9:])
    assert plan(CLEAN, benchmark, other, run=tmp_path / "a").references
    planned = plan(epoch, benchmark, (), "perturbation_gap", tmp_path / "b", progress=False)
    result = examined(planned)
    assert result.content.finding.model == "run/epoch-2" == name_of(str(epoch))
    assert "on purpose on 4 of these 6 items, dose 6" in result.page.read_text()


def test_two_references_with_the_same_name_are_refused(
    pairs: Path, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    folders = []
    for parent, family in (("x", "llava"), ("y", "qwen2_vl")):
        folders.append(str(shutil.copytree(tiny_folders[family], tmp_path / parent / "same")))
    with pytest.raises(ConfigError, match="two models have this name"):
        plan(CLEAN, pairs, folders, run=tmp_path / "out")


def test_pairs_are_read_from_a_run_a_folder_or_a_configuration(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"run: {pairs}\nbenchmark: {{format: shapes}}\n")
    found = [load_pairs(where) for where in (pairs, pairs / "benchmark", path)]
    assert found[0].id == found[1].id == found[2].id and len(found[0].pairs) == 20
    assert len(load_pairs(path, 3).pairs) == 3
    PairedBenchmark("none", (), ImageStore(tmp_path)).save(tmp_path / "none")
    with pytest.raises(DataError, match="has no pairs"):
        load_pairs(tmp_path / "none")


def test_a_benchmark_without_its_images_is_refused(pairs: Path, tmp_path: Path) -> None:
    shutil.copytree(pairs, tmp_path / "copy")
    benchmark = load_pairs(tmp_path / "copy")
    gone = benchmark.images.path(benchmark.perturbed[3].images[0])
    gone.unlink()
    with pytest.raises(DataError, match=re.escape(str(gone))):
        examined(plan(CLEAN, benchmark, (), "perturbation_gap", tmp_path / "out"))


# --------------------------------------------------------------------------- behind a server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A server whose model always answers A, and the key to it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with OpenAIServer() as server:
        server.reply = lambda body: "A"
        yield server


def test_a_served_model_reports_what_it_cannot_do(
    pairs: Path, tmp_path: Path, server: OpenAIServer
) -> None:
    model = APIVLM(ServedModelConfig(base_url=server.base_url, model="tiny-vlm", timeout=5))
    with pytest.raises(
        ConfigError, match="tiny-vlm does not support --ask choose; it supports generate"
    ):
        plan(model, pairs, run=tmp_path)
    result = examined(plan(model, pairs, run=tmp_path, ask="generate", progress=False))
    finding, page = result.content.finding, result.page
    heard = {one.detector: one for one in finding.other_detectors}
    for name in ("shared_likelihood", "order_trend", "codec", "min_k"):
        assert heard[name].verdict == "not_applicable" and "token_logprobs" in heard[name].why
    assert finding.gap.n == 20 and "token_logprobs, which this model does not" in page.read_text()


def test_a_served_model_can_be_named_on_the_command_line(
    flipbench: Any, pairs: Path, server: OpenAIServer, tmp_path: Path
) -> None:
    # a folder of that name, as after "vllm serve tiny-vlm", changes nothing
    shutil.copytree(resolve_path(CLEAN), tmp_path / "tiny-vlm")
    given = ["--model", "tiny-vlm", "--base-url", server.base_url, "--benchmark", pairs]
    given += ["--ask", "generate", "--detectors", "perturbation_gap", "--limit", "4", "-q"]
    status, out, _ = flipbench(*given)
    asked = len(server.chats())
    assert status == 0 and f"- tiny-vlm was asked at {server.base_url}." in out
    assert asked > 4
    assert flipbench(*given)[0] == 0
    assert len(server.chats()) == asked + 1, "only the trial question is asked again"
    status, _, error = flipbench("--model", "x", "--base-url", "nonsense", "--benchmark", pairs)
    assert status == 2 and "--base-url nonsense" in error


def test_pages_say_where_models_were_asked_and_what_came_of_an_adapter(
    pairs: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    adapted = peft.PeftModel(load_model(resolve_path(CLEAN), "float32"), config)
    adapted.save_pretrained(adapter := tmp_path / "adapted")
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": CLEAN}))
    given: dict[str, Any] = {"run": tmp_path, "progress": False, "detectors": "perturbation_gap"}
    result = examined(plan(adapter, pairs, CLEAN, limit=2, **given))
    n = len(load_file(adapter / "adapter_model.safetensors"))
    came = f"adapted was asked at {adapter}. An adapter: {n} of {n} matrices have a place."
    where = [came, f"{CLEAN} was asked at {CLEAN}."]
    assert list(result.notes[:2]) == where
    page = result.page.read_text()
    assert all(note in page for note in where)
    weights = dict(list(load_file(adapter / "adapter_model.safetensors").items())[1:])
    save_file(weights, adapter / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=f"{n - 1} of {n - 1} matrices have a place; 1 tensor is"):
        plan(adapter, pairs, CLEAN, limit=2, **given)


def test_four_bit_weights_have_their_own_fingerprint(pairs: Path, tmp_path: Path) -> None:
    whole = plan(CLEAN, pairs, run=tmp_path)
    small = plan(CLEAN, pairs, run=tmp_path, quantization="4bit")
    assert small.subject.weights is not None and small.subject.weights.quantization == "4bit"
    assert small.subject.model.fingerprint != whole.subject.model.fingerprint


# ------------------------------------------------------------------------------- look by look


def test_pairs_are_asked_until_the_evidence_suffices(tmp_path: Path) -> None:
    benchmark = replace(make_benchmark(tmp_path, 60), exchangeable=True)
    by_heart = {p.original.id: p.original for p in benchmark.pairs}
    by_heart |= {p.perturbed.id: p.original for p in benchmark.pairs}

    def examined_by(known: dict[str, Item], run: str) -> Any:
        planned = plan(
            Knower(run, {i: item.answer or 0 for i, item in known.items()}),
            benchmark,
            run=tmp_path / run,
            sequential=True,
            progress=False,
        )
        return examined(planned)

    caught = examined_by(by_heart, "by heart")
    assert caught.content.finding.decision.reason == "", caught.sentence
    assert (caught.verdict, caught.content.finding.decision.decides) == (
        "contaminated",
        "sequential",
    )
    assert "valid at every look, reaches 20 after" in caught.sentence
    assert "16 of 60 pairs, 32 questions spent and 88 spared" in caught.page.read_text()
    again = examined_by(by_heart, "by heart")
    assert again.sentence == caught.sentence and sum(r.n_done for r in again.reports) == 0
    seen = {i.id: i for p in benchmark.pairs for i in (p.original, p.perturbed)}
    clean = examined_by(seen, "sees")
    assert clean.verdict == "not_detected" and clean.gap.n == 60
    assert "is at most" in clean.sentence and "120 questions spent and 0 spared" in (
        clean.page.read_text()
    )
    assert sum(report.n_done for report in clean.reports) >= 120


def test_looking_often_needs_pairs_of_which_a_gap_proves_something(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 4)
    with pytest.raises(ConfigError, match="not exchangeable by construction"):
        plan(CLEAN, benchmark, run=tmp_path / "run", sequential=True)
    exchangeable = replace(benchmark, exchangeable=True)
    with pytest.raises(ConfigError, match="leave --detectors and --diagnose out"):
        plan(CLEAN, exchangeable, (), "min_k", tmp_path / "run", sequential=True)


# -------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def report(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a model of rules: it knows the first nine originals by heart."""
    folder = tmp_path_factory.mktemp("page")
    benchmark = replace(load_pairs(pairs), exchangeable=True)
    planned = plan(CLEAN, benchmark, (), "perturbation_gap", folder, judged_by="an oracle")
    known = {p.original.id: p.original for p in benchmark.pairs}
    known |= {p.perturbed.id: _remembered(p, i) for i, p in enumerate(benchmark.pairs)}
    weights = planned.subject.model.fingerprint
    for detector in planned.detectors:
        for probe in detector.probes(benchmark, PromptSettings()):
            planned.run.append([
                Response(probe_id=probe.id, model_fingerprint=weights, model=CLEAN,
                         choice=known[probe.item_id].answer or 0)
            ])  # fmt: skip
    result = examined(planned)
    assert result.verdict == "contaminated" and result.reports[0].n_done == 0, result.sentence
    return result.page


def _remembered(pair: Pair, number: int) -> Item:
    return pair.original if number < 8 or number == 19 else pair.perturbed


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark"), (1280, "light")])
def test_the_page_in_a_browser(open_page: OpenPage, report: Path, width: int, scheme: str) -> None:
    viewport = {"width": width, "height": 800}
    page = open_page(report.as_uri(), viewport=viewport, color_scheme=scheme)
    assert page.title() == "Was shapes:llava trained on shapes-vqa?"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").count() == 1 and page.locator("script").count() == 0
    assert page.locator("article").count() == 9
    shown = page.locator("article img")
    assert shown.count() == 18
    for at in range(18):
        assert shown.nth(at).evaluate("image => image.decode().then(() => image.naturalWidth)") > 50
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert EVIL in page.locator("h3").all_text_contents()
    headline = page.locator(".headline").text_content()
    assert "20 of 20 originals (100.0 %) and 11 of 20 answer-flipped versions (55.0 %)" in headline
    first = page.locator("article").first
    old, new = (first.locator("figcaption").nth(i).text_content().split() for i in (0, 1))
    assert old[1] == old[-1] == new[-1] != new[1], (
        "the reply to the perturbed version is the original's answer"
    )
    assert page.locator(".verdict").text_content().startswith("Verdict: contaminated")


def test_the_fixture_s_pairs_are_those_of_the_embedded_world(pairs: Path) -> None:
    families = [f.question.text() for f in shapes_vqa_families(20)]
    asked = [item.question for item in load_pairs(pairs).originals]
    assert asked[:19] == families[:19] and asked[19] == EVIL
