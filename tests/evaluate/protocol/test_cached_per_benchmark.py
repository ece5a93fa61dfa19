"""What a detector makes of a benchmark is made once for all models, and again for another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.evaluate.protocol.detector import cached_per_benchmark
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.report_data import make_benchmark


@dataclass
class Counting:
    size: int = 1
    n_made: int = 0

    @cached_per_benchmark
    def asked(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, part: float = 0.5
    ) -> list[str]:
        self.n_made += 1
        return [
            f"{pair.original.name} {prompt_settings.ask} {part}"
            for pair in benchmark.pairs[: self.size]
        ]


def test_probes_are_built_once_per_benchmark_and_prompt_settings(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 3)
    counting, prompt_settings = Counting(), PromptSettings()
    assert counting.asked(benchmark, prompt_settings) is counting.asked(benchmark, prompt_settings)
    assert counting.n_made == 1
    assert counting.asked(benchmark, prompt_settings, 0.25) != counting.asked(
        benchmark, prompt_settings
    )
    assert counting.asked(benchmark, PromptSettings(ask="generate")) != counting.asked(
        benchmark, prompt_settings
    )
    assert counting.n_made == 3
    fewer = replace(benchmark, pairs=benchmark.pairs[1:])
    assert counting.asked(fewer, prompt_settings) == [f"{fewer.pairs[0].original.name} choose 0.5"]
    counting.asked(benchmark, prompt_settings)
    assert counting.n_made == 5, "one benchmark at a time is kept"


def test_other_detector_parameters_are_cached_separately(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 3)
    counting = Counting()
    counting.asked(benchmark, PromptSettings())
    assert replace(counting, size=2) == Counting(2, 1)
    assert len(replace(counting, size=2).asked(benchmark, PromptSettings())) == 2


def test_caching_separates_benchmarks_with_different_image_stores(tmp_path: Path) -> None:
    """Derived pictures are made into the store of the benchmark that is asked about."""
    detector = make_detector("image_masking")
    for name in ("a", "b"):
        benchmark = make_benchmark(tmp_path / name, 3)
        for probe in detector.probes(benchmark, PromptSettings()):
            assert all(benchmark.images.path(image).exists() for image in probe.images)
