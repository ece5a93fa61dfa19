"""What a detector makes of a benchmark is made once for all models, and again for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flipbench.evaluate.detectors.registry import make_detector
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.report_data import make_benchmark


def test_caching_separates_benchmarks_with_different_image_stores(tmp_path: Path) -> None:
    """Derived pictures are made into the store of the benchmark that is asked about."""
    detector = make_detector("image_masking")
    for name in ("a", "b"):
        benchmark = make_benchmark(tmp_path / name, 3)
        for probe in detector.probes(benchmark, PromptSettings()):
            assert all(benchmark.images.path(image).exists() for image in probe.images)


def test_other_settings_and_fewer_pairs_are_not_taken_for_the_same(tmp_path: Path) -> None:
    detector, benchmark = make_detector("perturbation_gap"), make_benchmark(tmp_path, 3)
    probes = detector.probes(benchmark, PromptSettings())
    assert detector.probes(benchmark, PromptSettings(ask="generate")) != probes
    fewer = replace(benchmark, pairs=benchmark.pairs[1:])
    assert len(detector.probes(fewer, PromptSettings())) == 4
    assert detector.probes(benchmark, PromptSettings()) == probes
