"""The shipped configurations of the tiny Flux: the same pictures however they come about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.core.records import Edit, Flip, Verdict
from flipbench.core.run import Run
from tests.fixtures.command_line import Flipbench
from tests.fixtures.openai_server import KEY, OpenAIServer

pytestmark = pytest.mark.slow
CONFIGS = Path(__file__).parents[2] / "configs"
N = 3


def drawn(folder: Path, *limits: int | None) -> dict[str, str]:
    """Generate into ``folder``, item by item up to each limit; return the pictures by edit."""
    short: dict[str, Any] = {"benchmark.n_items": N, "generate.editor.settings.steps": 2}
    config = CONFIGS / "generate" / "shapes-flux.yaml"
    for limit in limits:
        fb.Experiment(config, short | {"run": str(folder)}, limit=limit, progress=False).generate()
    return {edit.id: edit.image.sha256 for edit in Run(folder).read(Edit)}


def test_company_and_resuming_change_no_picture(tmp_path: Path) -> None:
    together = drawn(tmp_path / "together", None)
    assert len(set(together.values())) == N
    assert drawn(tmp_path / "resumed", 1, 2, None) == together


def test_a_judge_that_is_told_the_answer_is_held_against_the_pixels(
    tmp_path: Path, flipbench: Flipbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config, run = str(CONFIGS / "filter" / "shapes-flux.yaml"), tmp_path / "run"
    with OpenAIServer() as server:
        server.reply = lambda body: "The picture shows it.\nAnswer: KEEP"
        chat = f"{{model: o3, base_url: {server.base_url}, max_retries: 0}}"
        changes = (
            f"run={run}",
            f"benchmark.n_items={N}",
            "generate.editor.settings.steps=4",
            f"filter.judges=[{{kind: shapes}}, {{kind: api, chat: {chat}}}]",
            "filter.policy.rules=[]",
        )
        assert flipbench("filter", config, *changes).status == 0
        asked = [json.dumps(body, ensure_ascii=False) for body in server.chats()]
        result = flipbench("review", run, "--agreement", "--reference", "shapes oracle")
    verdicts: dict[str, list[Verdict]] = {"oracle": [], "judge": []}
    for verdict in Run(run).read(Verdict):
        verdicts[verdict.rater_kind].append(verdict)
    assert len(verdicts["oracle"]) == len(verdicts["judge"]) == len(asked) == N
    for flip in Run(run).read(Flip):
        told = f"<answer>\\n> {flip.new_text}"
        assert any(told in text for text in asked), asked[0]
    n_right = sum(verdict.decision == "keep" for verdict in verdicts["oracle"])
    assert result.status == 0
    assert f"({n_right}/{N})" in result.out, "precision: what the oracle keeps of all"
