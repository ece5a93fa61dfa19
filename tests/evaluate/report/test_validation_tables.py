"""The blind baseline is shown beside scores that read likelihoods, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.evaluate.report import validation_tables as module
from flipbench.evaluate.report.validation_tables import blind_table
from flipbench.reporting import writers
from tests.fixtures.planted import Planted, planted_benchmark, scores_by_rule


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("planted"), 24, 0)


def test_the_table_shows_auroc_and_counts(benchmark: PairedBenchmark) -> None:
    model = Planted("clean", 0.6, 0.6)
    scores = list(scores_by_rule(make_detector("zlib_ratio"), benchmark, model, []).values())
    table = blind_table(benchmark, scores)
    assert table is not None and table == blind_table(benchmark, scores)
    auroc, counts, groups, differ = table.groups[0][1][0].cells
    assert 0 <= float(auroc.text) <= 1 and auroc.small.startswith("[")
    assert (counts.text, groups.text) == ("24 and 24", "24")
    assert differ.text in ("yes", "not found")
    assert "without any model" in writers.markdown(table)


def test_there_is_no_table_where_it_says_nothing(
    benchmark: PairedBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Planted("clean", 0.6, 0.6)
    gaps = list(scores_by_rule(make_detector("perturbation_gap"), benchmark, model, []).values())
    scores = list(scores_by_rule(make_detector("zlib_ratio"), benchmark, model, []).values())
    assert blind_table(benchmark, gaps) is None
    assert blind_table(replace(benchmark, pairs=benchmark.pairs[:4]), scores) is None
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert blind_table(benchmark, scores) is None
