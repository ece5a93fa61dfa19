"""Why items fell, by ``flipbench detect`` and ``flipbench evaluate``: page, Markdown and JSON."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import flipbench as fb
from flipbench.api.stages.examination import objections
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Verdict
from flipbench.core.run import Run
from flipbench.models.protocols import Decision
from tests.fixtures.command_line import Flipbench
from tests.fixtures.policies import RuleModel
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow

N_PAIRS = 20
GAP = "perturbation_gap"


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    folder: Path = tmp_path_factory.mktemp("pairs")
    made = make_benchmark(folder, N_PAIRS)
    made.save(folder / "benchmark")
    return fb.load_pairs(folder)


class Seer(RuleModel):
    """A model of rules that can be asked without a picture, too."""

    can = frozenset({"choose", "text_only"})


def expects(benchmark: PairedBenchmark) -> Callable[[Probe], int]:
    """Return a policy that gives the original's answer, whatever the picture and the order."""
    old = {i.id: p.original.answer_text for p in benchmark.pairs for i in (p.original, p.perturbed)}
    return lambda probe: probe.options.index(old[probe.item_id])


def remembers(benchmark: PairedBenchmark) -> Callable[[Probe], int]:
    """Return a policy that gives the original's answer on its two pictures, in its own order."""
    pairs = {i.id: p for p in benchmark.pairs for i in (p.original, p.perturbed)}

    def policy(probe: Probe) -> int:
        pair = pairs[probe.item_id]
        old, new = (probe.options.index(i.answer_text) for i in (pair.original, pair.perturbed))
        if not probe.images or "swapped" in probe.variant:
            return next((i for i in range(probe.n_options) if i not in (old, new)), new)
        return new if "moved" in probe.variant else old

    return policy


def detect(benchmark: PairedBenchmark, model: Any, run: Path, **given: Any) -> fb.DetectionResult:
    return fb.detect(model, benchmark, (), GAP, run, judged_by="an oracle", progress=False, **given)


def test_a_memory_of_pictures_stays_a_verdict_and_is_explained(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    model = Seer("memory", remembers(benchmark))
    result = detect(benchmark, model, tmp_path / "r", diagnose=True)
    assert result.verdict == "contaminated"
    assert result.diagnosis is not None and result.diagnosis.n_fell == N_PAIRS
    assert result.diagnosis.counts["image-keyed memory"] == N_PAIRS
    explained = "fallen ones look like: image-keyed memory 100.0 % (20/20) [83.9, 100.0]."
    assert any(text.endswith(explained) for text in result.qualifiers)
    page = result.page.read_text()
    assert 'id="why"' in page and "Why items fell" in page
    assert "## Why items fell" in (result.page.parent / "verdict.md").read_text()
    data = json.loads((result.page.parent / "verdict.json").read_text())["diagnosis"]
    assert data["shares"]["image-keyed memory"]["k"] == N_PAIRS
    assert {item["category"] for item in data["items"]} == {"image-keyed memory"}


def test_what_no_picture_changes_is_not_called_contamination(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    policy = expects(benchmark)
    without = detect(benchmark, Seer("prior", policy), tmp_path / "without")
    assert without.verdict == "contaminated" and without.diagnosis is None
    assert "Why items fell" not in without.page.read_text()
    result = detect(benchmark, Seer("prior", policy), tmp_path / "r", diagnose=True)
    assert result.diagnosis is not None and result.diagnosis.counts["text prior"] == N_PAIRS
    assert result.verdict == "inconclusive"
    assert result.sentence.startswith("There is no verdict on whether prior was trained on")
    assert "20 of the 20 fallen items need no memory of the item (text prior" in result.sentence
    assert "without them the gap has p > .999" in result.sentence
    assert "text prior 100.0 % (20/20)" in result.sentence
    needy = detect(benchmark, RuleModel("needy", policy), tmp_path / "needy", diagnose=True)
    assert needy.diagnosis is not None and needy.diagnosis.counts["text alone"] == N_PAIRS
    assert needy.verdict == "inconclusive"


def write_protected(path: Path) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_a_rater_s_objection_is_read_where_the_pictures_are(
    benchmark: PairedBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert objections(benchmark) == {}
    benchmark.save(tmp_path / "made" / "benchmark")
    with Run(tmp_path / "made") as run:
        copied = fb.load_pairs(tmp_path / "made").with_images_in(run.images)
        decisions: tuple[Decision, ...] = ("keep", "unsure", "reject")
        for pair, decision in zip(copied.pairs[:3], decisions, strict=True):
            image = pair.perturbed.images[0].sha256
            run.append([
                Verdict(edit_id=image, image_sha256=image, rater="r", rater_kind="judge",
                        decision=decision)
            ])  # fmt: skip
    with monkeypatch.context() as protected:
        protected.setattr(Path, "touch", write_protected)
        assert list(objections(copied).values()) == [False, True, True]
    result = detect(copied, Seer("m", remembers(copied)), tmp_path / "r", diagnose=True)
    assert result.diagnosis is not None and result.diagnosis.counts["bad edit"] == 2


def test_evaluate_asks_if_so_configured_and_writes_a_section(
    flipbench: Flipbench, benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    benchmark.save(tmp_path / "r" / "benchmark")
    settings: dict[str, Any] = {
        "run": "r",
        "benchmark": {"format": "shapes"},
        "models": {"tiny": {"path": "shapes:qwen2_vl"}},
        "evaluate": {"detectors": [GAP]},
    }
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(settings))
    report = tmp_path / "r" / "report"
    assert flipbench("evaluate", config, "-q").status == 0
    assert not list(report.glob("diagnosis*"))
    planned = flipbench("evaluate", config, "evaluate.diagnose=true", "--dry-run")
    assert "18  further questions, at most, about each item that falls" in planned.out
    done = flipbench("evaluate", config, "evaluate.diagnose=true", "-q")
    assert done.status == 0, done.err
    data = json.loads((report / "diagnosis.json").read_text())
    (found,) = data.values()
    assert found["n"] == N_PAIRS and 0 < found["n_fell"] == len(found["items"])
    assert sum(share["k"] for share in found["shares"].values()) == found["n_fell"]
    assert all(item["swapped"]["n"] == 5 for item in found["items"])
    assert 'id="diagnosis"' in (report / "index.html").read_text()
    assert (report / "diagnosis.svg").exists() and (report / "diagnosis.md").exists()
    again = flipbench("evaluate", config, "evaluate.diagnose=true", "-q")
    assert again.status == 0 and " 0 done" in again.err
