"""Who judged the pairs goes with an export through a kit's results to the verdict of gap."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import flipbench as fb
from flipbench.core.paired import UNJUDGED, PairedBenchmark
from flipbench.export.inspect_eval import write_inspect
from flipbench.export.lmms_eval import write_lmms_eval
from flipbench.export.vlmeval import write_vlmeval

Make = Callable[..., PairedBenchmark]
N = 12
RATERS = "o3 judge-v2 0123abcd, 1 person"


@pytest.fixture
def benchmark(make: Make) -> PairedBenchmark:
    """Twelve pairs of which nobody has judged the last two."""
    judged = make([("red", "blue", "green")] * N).as_judged_by(RATERS)
    pairs = (*judged.pairs[:-2], *(replace(p, verdict=UNJUDGED) for p in judged.pairs[-2:]))
    return replace(judged, pairs=pairs)


def results(paths: list[Path], folder: Path) -> list[Path]:
    """Write what VLMEvalKit makes of TSV files, every reply the original's answer."""
    written = []
    for side, path in zip(("original", "perturbed"), paths, strict=True):
        table = pd.read_csv(path, sep="\t").drop(columns="image").assign(prediction="A")
        written.append(folder / f"model_{side}.xlsx")
        table.to_excel(written[-1], index=False)
    return written


def test_a_kit_s_results_name_the_raters(benchmark: PairedBenchmark, tmp_path: Path) -> None:
    table = fb.gap(*results(write_vlmeval(benchmark, tmp_path), tmp_path), exchangeable=True)
    judged = table.content.evidence.judged
    assert (judged.n, judged.n_judged, judged.raters) == (N, N - 2, RATERS)


def test_without_raters_nothing_is_added(make: Make, tmp_path: Path) -> None:
    paths = write_vlmeval(make([("red", "blue", "green")] * N), tmp_path)
    assert "judged_by" not in pd.read_csv(paths[0], sep="\t").columns
    table = fb.gap(*results(paths, tmp_path), exchangeable=True)
    assert table.content.evidence.judged.n_judged == 0


def test_what_is_said_on_the_command_line_counts(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    files = results(write_vlmeval(benchmark, tmp_path), tmp_path)
    judged = fb.gap(*files, exchangeable=True, judged_by="me").content.evidence.judged
    assert (judged.n_judged, judged.raters) == (N, "me")


def test_lmms_eval_and_inspect_log_them(benchmark: PairedBenchmark, tmp_path: Path) -> None:
    folder = write_lmms_eval(benchmark, tmp_path)[0].parent
    rows = pd.read_parquet(folder / "perturbed.parquet").to_dict("records")
    assert [row["judged_by"] for row in rows] == [RATERS] * (N - 2) + ["", ""]
    doc = rows[0] | {"options": list(rows[0]["options"])}
    spec = importlib.util.spec_from_file_location("exported_utils", folder / "utils.py")
    assert spec and spec.loader
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    assert utils.process_results(doc, ["B"])["flipbench_judged_by"] == RATERS
    paths = write_inspect(benchmark, tmp_path / "inspect")
    (items,) = [p for p in paths[0].parent.rglob("perturbed*.jsonl")][:1]
    lines = [json.loads(line) for line in items.read_text().splitlines()]
    assert [line["judged_by"] for line in lines] == [RATERS] * (N - 2) + ["", ""]
