"""Detectors with pictures and texts of their own on real tiny models, up to the written report."""

import csv
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.local_models import ModelConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Response, Score
from flipbench.core.run import Run
from flipbench.evaluate import pipeline
from flipbench.evaluate.detectors.registry import DETECTORS, default_rule, make_detector
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.protocol.detector import Helpers
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.titles import title
from flipbench.evaluate.validation.requirements import requirements
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import reword
from tests.fixtures.options import QUIET

pytestmark = pytest.mark.slow

NAMES = [
    "option_order", "slot_guessing", "bgr_shuffling", "image_masking",
    "guided_prompting", "missing_option", "ngram_accuracy",
]  # fmt: skip
FAMILY = "qwen2_vl"


@pytest.fixture(scope="module")
def scored(
    shapes_benchmark: PairedBenchmark,
    tiny_folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[GridModel], list[Score], Run, PairedBenchmark]:
    """Return what the shipped model and an untrained one, labelled contaminated, score."""
    few = PairedBenchmark("shapes-vqa", shapes_benchmark.pairs[:7], shapes_benchmark.images)
    subjects = []
    for dose, path in enumerate((f"shapes:{FAMILY}", str(tiny_folders[FAMILY]))):
        vlm = HuggingFaceVLM(path)
        model = GridModel(
            f"dose {dose}", vlm.fingerprint, FAMILY, "clean" if not dose else "full", dose, dose
        )
        subjects.append(pipeline.ModelUnderTest(model, ModelConfig(path=path)))
    run = Run(tmp_path_factory.mktemp("run"))
    detectors = [make_detector(name, Helpers(reword)) for name in NAMES]
    grid = [subject.model for subject in subjects]
    reports = pipeline.ask_all(few, subjects, detectors, PromptSettings(), run, options=QUIET)
    assert [r.n_failed for r in reports] == [0, 0]
    scores = pipeline.score(few, grid, detectors, PromptSettings(), run)
    reports = pipeline.ask_all(few, subjects, detectors, PromptSettings(), run, options=QUIET)
    assert [r.n_done for r in reports] == [0, 0]
    assert pipeline.score(few, grid, detectors, PromptSettings(), run) == scores
    return grid, scores, run, few


def test_every_detector_scores_every_model(scored: Any) -> None:
    grid, scores, run, benchmark = scored
    for model in grid:
        own = [s for s in scores if s.model_fingerprint == model.fingerprint]
        assert list(dict.fromkeys(s.detector for s in own)) == NAMES
        for name in NAMES:
            (score,) = [s for s in own if (s.detector, s.rule) == (name, default_rule(name))]
            assert 0 < score.n <= 7 and score.n + score.n_dropped == 7
            for count in score.accuracies.values():
                assert 0 <= count.k <= count.n
    assert any(r.text for r in run.read(Response))


def test_relative_rules_compare_the_other_model_with_the_clean_one(scored: Any) -> None:
    grid, scores, _, _ = scored
    clean, dosed = (m.fingerprint for m in grid)
    rules = {
        ("option_order", "relative"), ("image_masking", "relative"),
        ("missing_option", "paper"), ("ngram_accuracy", "paired"),
    }  # fmt: skip
    relative = [score for score in scores if (score.detector, score.rule) in rules]
    assert len(relative) == 2 * len(rules)
    for score in relative:
        applies = score.model_fingerprint == dosed
        assert (score.verdict != "not_applicable") is applies
        assert score.reference_fingerprint == (clean if applies else "")


def test_rules_of_tuned_bands_are_not_practical(scored: Any) -> None:
    grid, scores, _, _ = scored
    needed = {
        (name, rule): requirements(
            scores, grid, name, rule, not DETECTORS[name].about.needs_clean_model(rule)
        )
        for name in NAMES
        for rule in dict.fromkeys(s.rule for s in scores if s.detector == name)
    }
    practical = {key for key, found in needed.items() if found.practical}
    assert practical == {
        ("option_order", "mcnemar"), ("option_order", "shuffles"), ("slot_guessing", "mcnemar"),
        ("guided_prompting", "overlap"), ("guided_prompting", "paired"),
        ("bgr_shuffling", "mcnemar"), ("ngram_accuracy", "paraphrase"),
    }  # fmt: skip


def test_every_number_reaches_the_tables(scored: Any, tmp_path: Path) -> None:
    grid, scores, _, benchmark = scored
    write_report(ReportData("x", benchmark, grid, scores), tmp_path)
    text = (tmp_path / "table.md").read_text()
    for name in NAMES:
        assert title(name) in text and title(name) != name.replace("_", " ")
    assert "ROUGE-L" in text and "Masked 25 %, %" in text and "nan" not in text
    with (tmp_path / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = {(r["model"], r["detector"], r["rule"]): r for r in csv.DictReader(file)}
    assert len(rows) == len(scores)
    for score in scores:
        row = rows[score.model, score.detector, score.rule]
        assert row["statistic"] == ("" if score.statistic is None else str(score.statistic))
        for variant, count in score.accuracies.items():
            assert (row[f"k_{variant}"], row[f"n_{variant}"]) == (str(count.k), str(count.n))
