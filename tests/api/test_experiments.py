"""The stages from Python: from a file, a mapping or a Config, and what they return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.config.experiment import Config, load_config
from flipbench.core.errors import ConfigError
from flipbench.core.records import Edit, Flip
from flipbench.core.run import Run
from tests.fixtures.report_data import make_benchmark

TINY: dict[str, Any] = {
    "benchmark": {"format": "shapes", "n_items": 12},
    "models": {"tiny": {"path": "shapes:llava"}},
    "contaminate": {"strategies": {}},
    "evaluate": {"detectors": ["perturbation_gap"]},
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_generate_and_filter_from_a_mapping(tmp_path: Path) -> None:
    config = TINY | {"run": "runs/x"}
    experiment = fb.Experiment(config, limit=6, progress=False)
    made = experiment.generate()
    assert str(made) == "6 of 6 items edited, in runs/x"
    frame = made.to_frame()
    assert (
        len(frame) == 6 and frame["edited"].all() and (frame["answer"] != frame["new answer"]).all()
    )

    kept = experiment.filter()
    assert kept.pairs.pairs == fb.load_pairs(
        "runs/x"
    ).pairs and f"{len(kept.pairs.pairs)} pairs" in str(kept)
    funnel = dict(kept.to_frame().itertuples(index=False))
    assert funnel == kept.pairs.funnel and "funnel" in kept._repr_html_()
    again = fb.Experiment(config, limit=6, progress=False).filter()
    assert sum(report.n_done for report in again.reports) == 0
    assert TINY.keys() == config.keys() - {"run"}  # what was given is not changed


def test_a_file_a_mapping_and_a_config_are_the_same_experiment(config: Path) -> None:
    changes = {"benchmark.n_items": 3, "seed": 4}
    loaded = load_config(config)
    given: list[str | Config | dict[str, Any]] = [
        str(config), loaded, {"extends": str(config)}, loaded.model_dump(mode="json"),
    ]  # fmt: skip
    results = [fb.Experiment(one, changes, progress=False).generate() for one in given]
    assert len({repr([c.edit for c in r.candidates]) for r in results}) == 1
    assert len(results[0].candidates) == 3
    assert sum(report.n_done for r in results[1:] for report in r.reports) == 0
    assert load_config("runs/x/config.yaml").seed == 4


def test_errors_are_those_of_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: no such configuration"):
        fb.Experiment("none.yaml")
    with pytest.raises(ConfigError, match="configuration:\n  sead: unknown key.*seed"):
        fb.Experiment(TINY | {"run": "x", "sead": 1})
    experiment = fb.Experiment(TINY | {"run": "x"})
    with pytest.raises(ConfigError, match="show: no dry run; give a job that works long"):
        fb.dry_run(experiment.show, "a.png")
    with pytest.raises(ConfigError, match="nothing to train"):
        experiment.contaminate()


def test_pairs_are_a_sequence_and_a_frame(tmp_path: Path) -> None:
    pairs = make_benchmark(tmp_path / "pairs", 6)
    assert len(pairs) == 6 and list(pairs) == [*pairs.pairs] and pairs[1] == pairs.pairs[1]
    assert pairs[:2].pairs == pairs.pairs[:2] and pairs[:2].name == pairs.name
    assert len(pairs[:0]) == 0 and bool(pairs[:0]), "a benchmark without pairs is one"
    frame = pairs.to_frame()
    assert len(frame) == 6 and (frame["answer"] != frame["new answer"]).all()
    assert repr(pairs) == f"<PairedBenchmark {pairs.name}: 6 pairs, not judged>"
    assert "judged by Ann" in repr(pairs.as_judged_by("Ann"))


def test_a_dry_run_makes_nothing() -> None:
    config = TINY | {"run": "runs/x"}
    some = fb.Experiment(config, limit=8)
    assert repr(some) == "<Experiment: flipbench, in runs/x>"
    assert fb.dry_run(some.generate) == ["would flip, caption and edit 8 items"]
    assert fb.dry_run(fb.Experiment(config).run)[0] == "would flip, caption and edit 12 items"
    assert not Path("runs/x/config.yaml").exists()
    assert not Run(Path("runs/x")).count(Edit) and not Run(Path("runs/x")).count(Flip)


@pytest.mark.slow
def test_all_stages_and_the_report() -> None:
    config = TINY | {"run": "runs/x"}
    experiment = fb.Experiment(config, progress=False)
    result = experiment.run()
    assert result.page == Path("runs/x/report/index.html") and result.page.exists()
    frame = result.to_frame()
    assert set(frame["rule"]) == {"mcnemar", "relative"} and set(frame["model"]) == {"tiny"}
    assert "report/index.html" in result._repr_html_() and "1 model, 1 detector, 3 scores" in str(
        result
    )
    again = experiment.evaluate()
    assert again.to_frame().equals(frame) and sum(r.n_done for r in again.reports) == 0
    result.page.unlink()
    reported = experiment.report()
    assert reported.to_frame().equals(frame) and result.page.exists()
    assert any("distinct probes" in line for line in fb.dry_run(experiment.evaluate))
