"""A configured experiment on a Ray cluster: what one process makes, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flipbench.api import Experiment, reasoning
from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.audit_cohort import cohorts_of
from flipbench.api.stages.audit_corpus import audit_corpus
from flipbench.api.stages.evaluation import evaluate
from flipbench.api.stages.filtering import make_pairs
from flipbench.config.corpus import CohortConfig
from flipbench.config.experiment import load_config
from flipbench.core.images import ImageStore
from flipbench.core.records import Caption, Edit, Record, Response, Verdict
from flipbench.core.run import Run
from flipbench.shapes.benchmark import shapes_vqa

KINDS: tuple[type[Record], ...] = (Caption, Edit, Verdict, Response)
RAY = {
    "kind": "ray",
    "stages": {stage: {"actors": 1} for stage in ("caption", "edit", "rules", "judge", "ask")},
}


def settings(run: Path, **more: Any) -> dict[str, Any]:
    return {"run": str(run), "benchmark": {"format": "shapes", "n_items": 6}, **more}


def made(run: Path) -> list[set[str]]:
    """Return the lines of each kind of record, without their order."""
    with Run(run) as stored:
        return [{record.model_dump_json() for record in stored.read(kind)} for kind in KINDS]


def whole_loop(run: Path, **more: Any) -> list[set[str]]:
    """Make pairs and ask a model about them; return the records."""
    models = {"llava": {"path": "shapes:llava"}}
    asking = {"detectors": ["perturbation_gap", "text_only_leakage"]}
    config = load_config(settings(run, models=models, evaluate=asking, **more))
    assembly = Assembly.open(config, progress=False)
    benchmark, reports = make_pairs(assembly)
    reports += evaluate(assembly, benchmark).reports
    assert sum(report.n_failed for report in reports) == 0
    return made(run)


@pytest.mark.slow
def test_captions_edits_verdicts_and_answers_are_those_of_one_process(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = whole_loop(tmp_path / "ray", executor=RAY)
    assert [len(records) > 0 for records in there] == [True] * len(KINDS)
    assert there == whole_loop(tmp_path / "here")
    assert "stays in this process" not in caplog.text


@pytest.mark.slow
def test_answers_with_hints_are_those_of_one_process(cluster: Any, tmp_path: Path) -> None:
    asking = {
        "models": {"m": {"path": "shapes:llava"}},
        "evaluate": {"hints": {"own": True, "max_new_tokens": 8}},
    }
    there, here = (
        reasoning(settings(tmp_path / run, **asking, **more), progress=False)
        for run, more in (("ray", {"executor": RAY}), ("here", {}))
    )
    (report,) = there.reports
    assert (report.n_done, report.n_failed) == (6 * 5, 0)
    assert there.page.read_text() == here.page.read_text()


@pytest.mark.slow
def test_a_cohort_is_asked_as_by_one_process(cluster: Any, tmp_path: Path) -> None:
    models = {name: {"path": f"shapes:{name}"} for name in ("llava", "qwen2_vl")}
    cohort = CohortConfig(models=tuple(models))
    there, here = (
        cohorts_of(Experiment(settings(tmp_path / run, models=models, **more)).parts, cohort)
        for run, more in (("ray", {"executor": RAY}), ("here", {}))
    )
    assert [(report.n_done > 0, report.n_failed) for report in there.reports] == [(True, 0)] * 2
    assert np.array_equal(there.trend.scores, here.trend.scores)


@pytest.mark.slow
def test_embeddings_are_those_of_one_process(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    store = ImageStore(tmp_path / "store")
    for number, item in enumerate(shapes_vqa(store, 40)):
        with Image.open(store.path(item.images[0])) as image:
            image.save(folder / f"{number:03d}.png")
    audit = {"corpus": {"pictures": str(folder), "encoders": ["phash"], "n_sample": 30}}
    found = []
    for run, more in (("ray", {"executor": "ray"}), ("here", {})):
        config = load_config(settings(tmp_path / run, audit=audit, **more))
        assert config.audit.corpus
        audited = audit_corpus(Assembly.open(config, progress=False), config.audit.corpus)
        shards = (tmp_path / run / "audit" / "embeddings").rglob("*.npy")
        manifests = (tmp_path / run / "audit" / "embeddings").rglob("*.json")
        (listed,) = [text for m in manifests if str(folder) in (text := m.read_text())]
        pairs = [result.pairs for result in audited.results]
        found.append((sorted(path.read_bytes() for path in shards), listed, pairs))
    assert len(found[0][0]) >= 1
    assert found[0] == found[1]
