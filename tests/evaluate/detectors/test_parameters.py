"""What a configuration sets of detectors: every parameter is listed, checked and taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flipbench.api.stages.detectors import ConfiguredDetectors
from flipbench.config.experiment import EvaluateConfig, load_config
from flipbench.core.errors import ConfigError
from flipbench.core.run import Run
from flipbench.evaluate.detectors.parameters import parameters_of, with_parameters
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.pipeline import probes_for
from flipbench.evaluate.protocol.detector import sampled_benchmark
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.report_data import make_benchmark


@pytest.mark.parametrize("name", DETECTORS)
def test_each_parameter_can_be_set_to_its_default(name: str) -> None:
    detector = DETECTORS[name]
    listed = parameters_of(detector)
    assert {"alpha", "n_bootstrap", "n_permutations"} <= listed.keys()
    assert with_parameters(detector, listed) == detector
    assert with_parameters(detector, {"alpha": 0.01}) != detector


def test_a_changed_parameter_changes_the_probes_and_is_recorded(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 12)
    given = {"shared_likelihood": {"n_orders": 2}, "image_masking": {"fractions": [0.5]}}
    names = list(given)

    def configured(parameters: dict[str, dict[str, Any]]) -> ConfiguredDetectors:
        config = EvaluateConfig(parameters=parameters)
        return ConfiguredDetectors.build(config, names, Run(tmp_path / "run"), 0)

    asked = [
        {
            d.about.name: len(d.probes(benchmark, PromptSettings()))
            for d in configured(p).detectors(benchmark)
        }
        for p in (given, {name: {} for name in names})
    ]
    assert asked == [
        {"shared_likelihood": 3 * 3, "image_masking": 2 * 12},
        {"shared_likelihood": 3 * 21, "image_masking": 2 * 3 * 12},
    ]
    (note,) = configured(given).notes()
    assert "shared_likelihood.n_orders = 2 (20)" in note and "fractions = [0.5]" in note
    assert configured({"codec": {}}).notes() == [] == configured({}).notes()


def test_a_sample_of_the_items_is_asked_and_scored_for_the_whole_benchmark(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 40)
    one, same, other = (
        with_parameters(DETECTORS[name], {"max_items": n})
        for name, n in (("codec", 10), ("slot_guessing", 10), ("codec", 20))
    )
    assert sampled_benchmark(DETECTORS["codec"], benchmark) is benchmark
    sample = sampled_benchmark(one, benchmark)
    assert len(sample.pairs) == 10 and sample.id == benchmark.id
    assert sampled_benchmark(same, benchmark) is sample
    assert [p for p in benchmark.pairs if p in sample.pairs] == list(sample.pairs)
    ids = {item.id for item in sample.originals}
    assert ids < {item.id for item in sampled_benchmark(other, benchmark).originals}
    assert {p.item_id for p in probes_for([one], benchmark, PromptSettings())} == ids


@pytest.mark.parametrize(
    ("detector", "given", "message"),
    [
        ("codec", {"n_draw": 1}, r"codec\.n_draw: .*n_context.*did you mean 'n_draws'\?"),
        ("codec", {"n_draws": "many"}, r"codec\.n_draws: 'many': .*integer"),
        ("codec", {"n_draws": 0}, r"codec\.n_draws: 0: must be above 0"),
        ("codec", {"seed": 1}, r"codec\.seed: .*no such parameter"),
        ("min_k", {"fraction": 1.5}, r"min_k: fraction 1\.5.*\(0, 1\]"),
        ("circular_eval", {"alpha": 2}, r"circular_eval: alpha 2\.0"),
        ("kernel_divergence", {"n_folds": 1}, r"n_folds 1.*at least 2"),
        ("image_masking", {"fractions": []}, r"fractions: \[\]: must be above 0"),
        (
            "image_masking",
            {"fractions": [0.25]},
            r"image_masking: .*include 0\.5, the one",
        ),
        ("codex", {}, r"evaluate\.parameters: no detector 'codex'.*'codec'"),
    ],
)
def test_bad_parameters_are_named(
    tmp_path: Path, detector: str, given: dict[str, Any], message: str
) -> None:
    config = EvaluateConfig(parameters={detector: given})
    with pytest.raises(ConfigError, match=message):
        ConfiguredDetectors.build(config, [], Run(tmp_path), 0)


def test_the_demo_runs_every_detector_that_is_not_costly() -> None:
    config = load_config(Path("configs/shapes.yaml"))
    usual = {name for name, detector in DETECTORS.items() if not detector.about.on_request}
    assert set(config.evaluate.detectors) == usual
