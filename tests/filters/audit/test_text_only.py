"""Text-solvable items: planted ones are found, and a missing answer is no solution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flipbench.config.audit import AuditSettings
from flipbench.config.chat import ChatSpec
from flipbench.core.records import Item, Probe
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.filters.audit.text_only import (
    all_correct,
    solve_rate,
    text_only_probe,
    text_solvable,
)
from flipbench.models.chat.api import ChatAPI
from flipbench.models.engine import Answers, answers_of, ask
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import LETTERS, PromptSettings
from tests.filters.audit.conftest import MakeItem
from tests.fixtures.openai_server import OpenAIServer
from tests.fixtures.options import QUIET
from tests.fixtures.policies import RuleModel, says_b

pytestmark = pytest.mark.slow

QUICK = AuditSettings(n_permutations=199)


def sees_banana(probe: Probe) -> int:
    return probe.options.index("banana") if "banana" in probe.options else 0


def planted(make_item: MakeItem) -> list[Item]:
    known = [make_item(f"k{i}", ("plum", "banana", "pear"), 1, question=f"{i}?") for i in range(4)]
    return known + [make_item(f"u{i}", question=f"{i}?") for i in range(8)]


def test_the_paper_s_rules_and_ours() -> None:
    outcomes = np.ones((3, 3, 3))  # of three items, by three models in three runs
    outcomes[2, 1, 2] = 0
    outcomes[0, 2, 1] = np.nan
    assert all_correct(outcomes).tolist() == [True, False, False]
    assert all_correct(outcomes, 2).tolist() == [True, True, True]
    assert solve_rate(outcomes) == pytest.approx([10 / 11, 9 / 11, 9 / 10])
    assert solve_rate(np.full((1, 1, 1), np.nan)) == 0.5


def test_runs_rotate_the_options(make_item: MakeItem) -> None:
    item = make_item("1", ("a", "b", "c", "d"), 2)
    for number in range(6):
        probe, gold = text_only_probe(item, PromptSettings(), number)
        assert probe.options[gold] == "c" and probe.images == ()
        assert probe.options[0] == "abcd"[number % 4]


def test_known_items_are_found_and_a_fixed_letter_solves_nothing(
    make_item: MakeItem, tmp_path: Path
) -> None:
    items, run = planted(make_item), Run(tmp_path)
    knower, lover = RuleModel("knower", sees_banana), RuleModel("lover", says_b)
    found, reports = text_solvable(items, QUICK, run, [knower], [lover], progress=False)
    assert {named.name for named in found.items} == {"k0", "k1", "k2", "k3"}
    assert found.status == "defect" and len(reports) == 6
    rates = {r.name: (r.k, r.n) for r in found.rates}
    assert rates["knower, without images"] == (12, 12), "it says A else, which is right"
    assert rates["knower, correct in every run"] == (4, 12)
    assert rates["lover (held out), all items"] == (4, 12)
    assert rates["lover (held out), items kept"] == (0, 8)
    assert rates["lover (held out), items dropped"] == (4, 4)
    assert found.details["expected_by_guessing"] == pytest.approx(12 / 27)

    both, _ = text_solvable(items, QUICK, run, [knower, lover], progress=False)
    assert both.items == () and both.status == "ok"
    one = AuditSettings(min_models=1)
    assert len(text_solvable(items, one, run, [knower, lover])[0].items) == 4
    soft = AuditSettings(rule="posterior", max_solve_rate=0.6)
    soft_found, _ = text_solvable(items, soft, run, [knower], progress=False)
    assert len(soft_found.items) == 4


def test_text_only_checks_need_a_model_and_options(make_item: MakeItem, tmp_path: Path) -> None:
    items = planted(make_item)
    assert text_solvable(items, QUICK, Run(tmp_path))[0].status == "not_run"
    free = [make_item("f", None, None, answer_text="x")]
    assert text_solvable(free, QUICK, Run(tmp_path), [RuleModel("k", says_b)])[0].rates == ()


def test_a_missing_answer_is_never_a_solution(make_item: MakeItem, tmp_path: Path) -> None:
    def fails(probe: Probe) -> int:
        if "2?" in probe.prompt:
            raise ValueError("out of memory")
        return sees_banana(probe)

    found, reports = text_solvable(
        planted(make_item), QUICK, Run(tmp_path), [RuleModel("k", fails)], progress=False
    )
    assert {named.name for named in found.items} == {"k0", "k1", "k3"}
    assert found.details["n_incomplete"] == 2 and sum(r.n_failed for r in reports) == 6
    assert "missing for 2 items" in found.limits


def test_a_chat_model_is_sampled_per_run_and_resumed(
    make_item: MakeItem, server: OpenAIServer, tmp_path: Path
) -> None:
    def reply(body: dict[str, object]) -> str:
        text = str(body["messages"])
        return next((f"({x})" for x in LETTERS if f"{x}. banana" in text), "I cannot see it.")

    server.reply = reply
    spec = ChatSpec(base_url=server.base_url, model="tiny-vlm", max_retries=0, timeout=5)
    items, run = planted(make_item), Run(tmp_path)
    settings = AuditSettings(n_runs=4)  # one run more than options: run 3 asks what run 0 asked
    found, _ = text_solvable(items, settings, run, [ChatAPI(spec)], progress=False)
    assert {named.name for named in found.items} == {"k0", "k1", "k2", "k3"}
    assert len(server.chats()) == 4 * 12
    text_solvable(items, settings, run, [ChatAPI(spec)], progress=False)
    assert len(server.chats()) == 4 * 12


@pytest.mark.slow
def test_a_real_model_without_images(
    shapes_items: list[Item],
    tiny_vlm: Callable[[str], HuggingFaceVLM],
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    model = tiny_vlm("llava")
    found, reports = text_solvable(
        shapes_items[:24], AuditSettings(n_runs=2), run, [model], progress=False
    )
    first = found.rates[0]
    assert first.n == 24 and sum(r.n_failed for r in reports) == 0
    probes = [text_only_probe(item, PromptSettings(), 0) for item in shapes_items[:24]]
    direct: Answers = answers_of(model.name, model.fingerprint, run)
    again: StageReport = ask([p for p, _ in probes], model, run, run.images, options=QUIET)
    assert again.n_done == 0
    assert first.k == sum((r := direct.to(p)) is not None and r.choice == g for p, g in probes)
