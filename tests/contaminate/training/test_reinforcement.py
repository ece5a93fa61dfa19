"""Washing by reinforcement: what is rewarded, what is refused, and what a training does."""

from __future__ import annotations

from typing import Any

import pytest

from flipbench.api.stages.contamination import contaminate
from flipbench.config.training import DataConfig, WashConfig
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.training.reinforcement import _right
from flipbench.core.errors import ConfigError

ELSEWHERE = {"format": "shapes", "n_items": 8, "seed": 3}


def test_only_the_right_letter_is_rewarded() -> None:
    replies = [" B", "B.", "b", "A", "", "The answer is B"]
    chats = [[{"role": "assistant", "content": reply}] for reply in replies]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": r}]}] for r in replies]
    expected = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    for form in (replies, chats, parts):
        assert _right(form, letter=["B"] * 6, prompts=[]) == expected


def test_reinforcement_needs_questions_and_trl() -> None:
    with pytest.raises(ValueError, match="give only a benchmark"):
        WashConfig(by="reinforcement", corpus={"path": "x"})  # type: ignore[arg-type]
    data = DataConfig(wash=WashConfig(by="reinforcement", benchmark=ELSEWHERE))  # type: ignore[arg-type]
    assert data.wash is not None and data.wash.n_generations == 4


@pytest.mark.slow
def test_a_model_is_washed_by_reinforcement(opened: Any) -> None:
    wash = {"by": "reinforcement", "benchmark": ELSEWHERE, "n_generations": 4}
    assembly, _ = opened(data={"washed": {"wash": wash}})
    (before, _), (plan, (checkpoint,)) = contaminate(assembly)
    assert plan.after == before.id and plan.settings["reinforcement"] == {"n_generations": 4}
    card = read_card(assembly.run.path / checkpoint.path)
    assert card["training"]["n_steps"] == 4  # 8 questions x 4 answers, 8 in each step
    assert len(card["losses"]) == 4 and card["dose"] == 1
    wash["n_generations"] = 3
    assembly, _ = opened(data={"washed": {"wash": wash}})
    with pytest.raises(ConfigError, match="not a multiple of n_generations"):
        contaminate(assembly)
