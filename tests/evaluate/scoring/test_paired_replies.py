"""What unreadable and missing replies could turn round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flipbench.core.records import Response
from flipbench.evaluate.protocol.detector import Answers
from flipbench.evaluate.scoring.paired_replies import PairedReplies, Replies
from tests.fixtures.policies import by_hand
from tests.fixtures.verdicts import PROMPT_SETTINGS, answers_of, judge

GOLD = np.array([0, 0, 0, 0])


def test_readings_bound_the_truth() -> None:
    original = Replies.of_choices([0, 0, -1, None], GOLD)
    perturbed = Replies.of_choices([-1, None, 0, None], GOLD)
    replies = PairedReplies("m", "f", original, perturbed)
    nan = np.nan
    np.testing.assert_equal(replies.changes(), [-1, nan, 1, nan])
    np.testing.assert_equal(replies.changes("kindest"), [0, 0, 1, nan])
    np.testing.assert_equal(replies.changes("harshest"), [-1, -1, 0, nan])
    assert replies.n_unknown == (2, 3) and replies.accuracy() == pytest.approx(2 / 3)


def test_models_that_are_right_alike_are_not_the_same_model() -> None:
    gold = np.zeros(100, dtype=int)

    def model(*wrong: int) -> PairedReplies:
        side = Replies.of_choices([i if i in wrong else 0 for i in range(100)], gold)
        return PairedReplies("m", "f", side, side)

    assert not model(5).is_same_as(model(5))
    many = range(1, 40)
    assert model(*many).is_same_as(model(*many)) and not model(*many).is_same_as(model(50, *many))


def spoilt(world: Any, policy: Any, spoil: dict[int, int | None]) -> Answers:
    """Return a policy's answers; those to some perturbed versions cannot be read, or are missing.

    ``spoil`` gives -1 or None by the pair's position.
    """
    answers = answers_of(world, policy, "suspect")
    responses = dict(answers.responses)
    for i, choice in spoil.items():
        item = world.benchmark.pairs[i].perturbed
        probe = PROMPT_SETTINGS.probe(item, "perturbed")
        response: Response = responses.pop(probe.id)
        if choice is not None:
            responses[probe.id] = response.model_copy(update={"choice": choice})
    return Answers("suspect", "f", responses)


@pytest.mark.slow
@pytest.mark.parametrize("choice", [-1, None])
def test_replies_that_decide_withhold_the_verdict(make_world: Any, choice: int | None) -> None:
    """Five of 150 unreadable replies give p = .031, though every readable one is right."""
    world = make_world.make(n=150)
    spoil = dict.fromkeys(range(5), choice)
    right = by_hand(world, [True] * 150, [True] * 150)
    finding = judge(world, spoilt(world, right, spoil), exchangeable=True)
    if choice is None:
        assert finding.gap.verdict == "not_detected" and finding.gap.n == 145
    else:
        assert finding.gap.verdict == "contaminated"
    assert finding.decision.reason == "unreadable replies"
    assert "5 replies that cannot be read or are missing decide" in finding.sentence
    fewer = judge(world, spoilt(world, right, dict.fromkeys(range(4), choice)), exchangeable=True)
    assert fewer.verdict == "not_detected", "four cannot make it significant"


@pytest.mark.slow
def test_a_clear_result_stands_whatever_the_unreadable_replies_would_say(make_world: Any) -> None:
    world = make_world.make(n=150)
    falls = by_hand(world, [True] * 150, [i % 3 > 0 for i in range(150)])
    finding = judge(world, spoilt(world, falls, dict.fromkeys(range(5), -1)), exchangeable=True)
    assert finding.verdict == "contaminated"
    assert "Replies: 5 of 150 to perturbed versions name no option" in " ".join(finding.qualifiers)


@pytest.mark.slow
def test_more_than_a_fifth_missing_is_no_evidence(make_world: Any) -> None:
    world = make_world.make(n=100)
    falls = by_hand(world, [True] * 100, [i % 3 > 0 for i in range(100)])
    answers = spoilt(world, falls, dict.fromkeys(range(21), None))
    finding = judge(world, answers, world.seer(0.9), exchangeable=True)
    assert "21 of the 100 replies of suspect to perturbed versions" in finding.sentence
    assert finding.decision.reason == "unreadable replies"


def test_the_mcnemar_test_is_the_one_of_the_replies(make_world: Any) -> None:
    world = make_world.make(n=30)
    finding = judge(world, by_hand(world, [True] * 30, [i % 4 > 0 for i in range(30)]))
    changes = finding.of_gap.replies.changes()
    assert dict(zip(finding.of_gap.pairs.ids, changes, strict=True)) == finding.gap.per_item
