"""`flipbench.detect` and its result, on real tiny models and on objects of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.core.errors import ConfigError, FlipbenchError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.run import Run
from tests.fixtures.report_data import make_benchmark
from tests.pipelines.test_any_vlm import Knower, sides

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def pairs(tmp_path: Path) -> PairedBenchmark:
    return make_benchmark(tmp_path / "pairs", 20)


def parrot(pairs: PairedBenchmark, name: str = "parrot") -> Knower:
    """Return a model that gives the original's answer, whatever it is shown."""
    return Knower(name, {i.id: p.original.answer or 0 for p in pairs.pairs for i in sides(p)})


def seer(pairs: PairedBenchmark) -> Knower:
    return Knower("seer", {i.id: i.answer or 0 for p in pairs.pairs for i in sides(p)})


def test_a_result_is_a_verdict_a_frame_and_a_page(pairs: PairedBenchmark, tmp_path: Path) -> None:
    result = fb.detect(
        parrot(pairs), pairs, seer(pairs), "circular_eval", tmp_path / "run", progress=False
    )
    assert result.verdict == "contaminated" and result.gap.statistic == -1
    assert str(result) == result.sentence and result.sentence in repr(result)
    frame = result.to_frame()
    readings = {"old_answer_attraction", "confidence_gap"}
    assert set(frame["detector"]) == {"perturbation_gap", "circular_eval", *readings}
    row = frame.set_index(["detector", "rule"]).loc[("perturbation_gap", "mcnemar")]
    assert (row["statistic"], row["verdict"], row["n"]) == (-1, "contaminated", 20)
    assert (
        row["k/n"] == "original 20/20, perturbed 0/20"
        and row["low"] < -0.8
        and row["p_value"] < 1e-5
    )
    assert "min_k" not in result.not_run and len(frame) == len(result.scores) - 1
    assert "sign" not in set(frame["rule"]) and "sign" in set(result.to_frame(sign=True)["rule"])
    (deciding,) = frame[frame["decides"]].to_dict("records")
    assert (deciding["rule"], deciding["verdict"], deciding["reason"]) == (
        "relative",
        "contaminated",
        "",
    )

    assert not (tmp_path / "run" / "report").exists()
    assert result.page == tmp_path / "run" / "report" / "index.html" and result.page.exists()
    assert result.sentence in (tmp_path / "run" / "report" / "verdict.md").read_text()
    assert result.save(tmp_path / "elsewhere") == tmp_path / "elsewhere" / "index.html"


def test_html_is_escaped_and_leaves_the_rest_of_a_notebook_alone(
    pairs: PairedBenchmark, tmp_path: Path
) -> None:
    model = parrot(pairs, EVIL)
    result = fb.detect(model, pairs, (), "perturbation_gap", tmp_path / "run", progress=False)
    html = result._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html and "20/20" in html
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert ":root" not in style and "body" not in style and "* {" not in style


def test_the_default_run_is_that_of_the_command_line(
    pairs: PairedBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = fb.detect(parrot(pairs), pairs, (), ["perturbation_gap"], progress=False)
    assert result.run == Path("runs/detect-parrot-shapes-vqa")
    again = fb.detect(parrot(pairs), pairs, (), ["perturbation_gap"], progress=False)
    assert [report.n_done for report in again.reports] == [0]


def test_pairs_are_read_from_a_folder_and_limited(pairs: PairedBenchmark, tmp_path: Path) -> None:
    pairs.save(tmp_path / "mine" / "benchmark")
    assert fb.load_pairs(tmp_path / "mine").pairs == pairs.pairs
    assert len(fb.load_pairs(str(tmp_path / "mine"), 3).pairs) == 3
    given = {"detectors": "perturbation_gap", "run": tmp_path / "run", "progress": False}
    one = fb.detect(parrot(pairs), tmp_path / "mine", limit=12, **given)  # type: ignore[arg-type]
    two = fb.detect(parrot(pairs), pairs, limit=12, **given)  # type: ignore[arg-type]
    assert one.gap == two.gap and one.gap.n == 12


def test_a_real_checkpoint(
    pairs: PairedBenchmark, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    folder = tiny_folders["llava"]
    result = fb.detect(folder, pairs, (), "perturbation_gap", tmp_path, limit=2, progress=False)
    assert result.verdict == "inconclusive" and result.gap.model == folder.name
    assert Run(tmp_path).path == result.run


@pytest.mark.parametrize(
    ("model", "address", "message"),
    [
        ("no/such/model", "", "no/such/model"),
        ("http://localhost:1/v1", "", "a server; give it as base_url, and as model the name"),
        (object(), "http://localhost:1/v1", "for models given by their names"),
        ("my-vlm", "no address", "--base-url no address"),
    ],
)
def test_a_wrong_model_is_named(
    pairs: PairedBenchmark, tmp_path: Path, model: Any, address: str, message: str
) -> None:
    with pytest.raises(FlipbenchError, match=message):
        fb.detect(model, pairs, run=tmp_path / "run", base_url=address)


def test_a_wrong_detector_is_named(pairs: PairedBenchmark, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no detector 'perturbation_gab'.*perturbation_gap"):
        fb.detect(parrot(pairs), pairs, (), "perturbation_gab", tmp_path / "run")
