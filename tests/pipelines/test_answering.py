"""What a model takes while it answers, without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from flipbench.api.stages import answering as answering_costs
from flipbench.api.stages.answering import Answering
from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.models.estimates import SHARE_OF_PEAK

TEXTS = ("What colour is the circle? " * 8, "Which?")
PICTURES = [[Image.new("RGB", (90, 64))], [Image.new("RGB", (64, 64))]]


def test_the_time_of_answers_is_that_of_all_models_with_weights_here(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering_costs, "measured_speed", lambda dtype: 1e6 / SHARE_OF_PEAK)
    monkeypatch.setattr(Answering, "flops", lambda *_: 18_000_000)
    here, gone = ModelConfig(path=str(tiny_folders["llava"])), ModelConfig(path="nobody/nothing")
    probes = [
        Probe(item_id=str(i), variant="v", prompt="Which?" * i, ask="choose") for i in range(100)
    ]
    lines = answering_costs.answering_time([(here, 2, probes), (gone, 1, probes), (here, 1, [])])
    assert lines[0].startswith("2 models with weights here: about 1.0 h on this device")
    assert lines[1].startswith("time not known: nobody/nothing") and len(lines) == 2
    assert answering_costs.answering_time([]) == []


def test_a_configuration_that_is_not_here_is_named() -> None:
    with pytest.raises(PrerequisiteError, match="nobody/nothing-7b"):
        Answering.of(ModelConfig(path="nobody/nothing-7b"))
