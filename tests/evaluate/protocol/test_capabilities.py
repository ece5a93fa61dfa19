"""What a model cannot be asked is not put to it, and the detector says so in the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flipbench.config.local_models import ModelConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Failure
from flipbench.core.run import Run
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.pipeline import ModelUnderTest, ask_all, n_unanswered, probes_for, score
from flipbench.evaluate.protocol.grid import UNTOUCHED, GridModel
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import other_table
from flipbench.models.vlm.checkpoints import fingerprint
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.options import QUIET
from tests.fixtures.tiny_families import save

NAMES = ("perturbation_gap", "text_only_leakage", "order_trend")


@pytest.mark.slow
def test_a_text_only_detector_does_not_apply_to_a_model_that_needs_an_image(
    shapes_benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    folder = save("blip-2", tmp_path / "blip-2")
    model = GridModel("BLIP-2", fingerprint(str(folder), "float32"), "blip", UNTOUCHED, 0, 0)
    subject = ModelUnderTest(model, ModelConfig(path=str(folder)))
    prompt_settings, run = PromptSettings(), Run(tmp_path / "run")
    benchmark = replace(shapes_benchmark, pairs=shapes_benchmark.pairs[:4])
    detectors = [DETECTORS[name] for name in NAMES]
    probes = probes_for(detectors, benchmark, prompt_settings)
    assert n_unanswered([subject], probes, (), run) == 2 * 4 + 4 < len(probes)
    (report,) = ask_all(benchmark, [subject], detectors, prompt_settings, run, options=QUIET)
    assert n_unanswered([subject], probes, (), run) == 0
    assert report.n_done == 2 * 4 + 4 and not report.failures and not list(run.read(Failure))

    can = {model.fingerprint: subject.can}
    scores = score(benchmark, [model], detectors, prompt_settings, run, can)
    by_rule = {(s.detector, s.rule): s for s in scores}
    assert {name for name, _ in by_rule} == set(NAMES)
    reason = "it needs text_only, which this model does not give"
    assert {name for (name, _), s in by_rule.items() if s.warnings == (reason,)} == {
        "text_only_leakage"
    }
    leakage = [score for (name, _), score in by_rule.items() if name == "text_only_leakage"]
    for found in leakage:
        assert found.warnings == (reason,)
        assert found.verdict == "not_applicable"
        assert found.statistic is found.p_value is found.interval is None
    table = other_table([model], score_frame(scores, [model]))
    assert table and "not applicable" in str(table)


def test_a_model_is_weights_or_an_object_and_not_both() -> None:
    model = GridModel("m", "w", "f", UNTOUCHED, 0, 0)
    with pytest.raises(ValueError, match="m: give either weights or a VLM"):
        ModelUnderTest(model)
