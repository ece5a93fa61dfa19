"""What a detector makes of a benchmark is made once for all models, and again for another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.evaluate.protocol.detector import kept
from flipbench.prompting.prompts import Asking
from tests.fixtures.report_data import make_benchmark


@dataclass
class Counting:
    size: int = 1
    n_made: int = 0

    @kept
    def asked(self, benchmark: PairedBenchmark, asking: Asking, part: float = 0.5) -> list[str]:
        self.n_made += 1
        return [
            f"{pair.original.name} {asking.ask} {part}" for pair in benchmark.pairs[: self.size]
        ]


def test_probes_are_built_once_per_benchmark_and_prompt_settings(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 3)
    counting, asking = Counting(), Asking()
    assert counting.asked(benchmark, asking) is counting.asked(benchmark, asking)
    assert counting.n_made == 1
    assert counting.asked(benchmark, asking, 0.25) != counting.asked(benchmark, asking)
    assert counting.asked(benchmark, Asking(ask="generate")) != counting.asked(benchmark, asking)
    assert counting.n_made == 3
    fewer = replace(benchmark, pairs=benchmark.pairs[1:])
    assert counting.asked(fewer, asking) == [f"{fewer.pairs[0].original.name} choose 0.5"]
    counting.asked(benchmark, asking)
    assert counting.n_made == 5, "one benchmark at a time is kept"


def test_other_detector_parameters_are_cached_separately(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 3)
    counting = Counting()
    counting.asked(benchmark, Asking())
    assert replace(counting, size=2) == Counting(2, 1)
    assert len(replace(counting, size=2).asked(benchmark, Asking())) == 2


def test_caching_separates_benchmarks_with_different_image_stores(tmp_path: Path) -> None:
    """Derived pictures are made into the store of the benchmark that is asked about."""
    detector = make_detector("image_masking")
    for name in ("a", "b"):
        benchmark = make_benchmark(tmp_path / name, 3)
        for probe in detector.probes(benchmark, Asking()):
            assert all(benchmark.images.path(image).exists() for image in probe.images)
