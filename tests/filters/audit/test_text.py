"""Text-solvable items and the stress test: planted shortcuts are found, shapes-vqa has none."""

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
from flipbench.filters.audit.stress_test import option_texts, stress_test
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


# ------------------------------------------------------------------------------ the stress test


@pytest.mark.slow
def test_shapes_vqa_gives_nothing_away(shapes_items: list[Item]) -> None:
    found = stress_test(shapes_items, QUICK).rates[0]
    assert found.n == 60 and found.p_value is not None and found.p_value > 0.01


def random_items(make_item: MakeItem, n: int, seed: int = 0) -> list[Item]:
    """Return items of four random words, the right one drawn by chance."""
    rng = np.random.default_rng(seed)
    words = np.array(["ash", "elm", "oak", "fir", "yew", "box", "bay", "fig"])
    return [
        make_item(f"{i}", rng.permutation(words)[:4].tolist(), int(rng.integers(4)))
        for i in range(n)
    ]


@pytest.mark.slow
def test_without_a_shortcut_the_stress_test_keeps_its_level(make_item: MakeItem) -> None:
    settings = AuditSettings(n_permutations=99)
    p_values = [
        stress_test(random_items(make_item, 60, seed), settings).rates[0].p_value
        for seed in range(20)
    ]
    assert sum(p is not None and p <= 0.05 for p in p_values) <= 4  # binomial(20, .05): p < .003
    assert np.std([p or 0 for p in p_values]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("shortcut", ["word", "length", "letter", "crossed"])
def test_each_planted_shortcut_is_found_and_named(make_item: MakeItem, shortcut: str) -> None:
    rng, items = np.random.default_rng(1), []
    for i, item in enumerate(random_items(make_item, 120)):
        options, answer, question = list(item.options or ()), item.answer or 0, "What is it?"
        if i % 3 == 0:
            pass  # two thirds of the items carry the shortcut
        elif shortcut == "word":
            options[answer] = f"roughly {options[answer]}"
        elif shortcut == "length":
            options[answer] += " " + "".join(rng.choice(list("abcdefgh"), 12))
        elif shortcut == "letter":
            answer = 3
        else:
            options[answer] = "ja" if i % 2 else "nein"
            options[(answer + 1) % 4] = "nein" if i % 2 else "ja"
            question = "odd?" if i % 2 else "even?"
        items.append(make_item(f"{i}", options, answer, question=question))
    found = stress_test(items, QUICK)
    (measured,) = found.rates
    assert measured.p_value == pytest.approx(1 / 200)
    assert measured.k > 60 and measured.chance == 0.25
    cue = {"word": "roughly", "length": "length rank 1", "letter": "letter D", "crossed": "asked:"}
    assert any(cue[shortcut] in c["cue"] for c in found.details["cues"][:4]), found.details["cues"]


@pytest.mark.slow
def test_copies_of_an_image_share_a_fold(make_item: MakeItem) -> None:
    items = random_items(make_item, 60)
    twice = [
        item.model_copy(update={"id": f"{n}{item.id}", "name": f"{n}{item.name}"})
        for n in range(2)
        for item in items
    ]
    apart = stress_test(twice, QUICK).rates[0]
    together = stress_test(twice, QUICK, groups=[item.name[1:] for item in twice]).rates[0]
    assert together.k < apart.k


def test_the_stress_test_needs_items_and_repeated_words(make_item: MakeItem) -> None:
    assert stress_test(random_items(make_item, 9), QUICK).status == "not_run"
    unique = [make_item(f"{i}", (f"a{i}", f"b{i}"), i % 2, question=f"q{i}") for i in range(30)]
    assert stress_test(unique, QUICK).rates[0].n == 30
    assert [t.rank for t in option_texts(make_item("r", ("aa", "b", "cc"), 0))] == [0, 2, 0]
