"""Old-answer attraction: exact counts against enumeration, level under preferences, memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.evaluate.statistics import attraction as module
from flipbench.evaluate.statistics.attraction import LetterAnswer, attraction, memory_share
from flipbench.evaluate.statistics.counts import poisson_binomial_p

UNIFORM = (0.25, 0.25, 0.25, 0.25)
MOSTLY_A = (0.45, 0.19, 0.18, 0.18)


def wrong_answers(
    rng: np.random.Generator,
    n: int,
    *,
    old: Sequence[float] = UNIFORM,
    guess: Sequence[float] = UNIFORM,
    seen: float = 0.5,
    memorised: float = 0.0,
) -> list[LetterAnswer]:
    """Return the wrong answers of a model that sees some items, remembers some and guesses."""
    olds = rng.choice(4, n, p=old)
    news = (olds + rng.integers(1, 4, n)) % 4
    chosen = np.where(rng.random(n) < seen, news, rng.choice(4, n, p=guess))
    chosen = np.where(rng.random(n) < memorised, olds, chosen)
    return [
        LetterAnswer(int(o), int(w), int(c), 4)
        for o, w, c in zip(olds, news, chosen, strict=True)
        if c != w
    ]


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_matches_of_all_permutations(cases: list[tuple[int, int, int]]) -> None:
    answers = [LetterAnswer(o, w, c, 4) for o, w, c in cases]
    for new in {answer.new for answer in answers}:
        group = [answer for answer in answers if answer.new == new]
        counts = np.zeros(len(group) + 1)
        for order in permutations(group):
            counts[sum(a.chosen == b.old for a, b in zip(group, order, strict=True))] += 1
        found = module._match_distribution(group)
        assert found == pytest.approx(counts[: len(found)] / factorial(len(group)))
        assert not counts[len(found) :].any()


def test_draws_agree_with_the_exact_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    answers = wrong_answers(rng, 200, memorised=0.06)
    exact = attraction(answers, rng)
    monkeypatch.setattr(module, "MAX_EXACT", 5)
    drawn = attraction(answers, rng)
    assert exact.by == drawn.by == "strata" and 0.0005 < exact.p_value < 0.5
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.02)


@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize(
    ("old", "guess"),
    [(UNIFORM, UNIFORM), (MOSTLY_A, (0.9, 0.04, 0.03, 0.03)), (MOSTLY_A, MOSTLY_A)],
)
@pytest.mark.parametrize("seen", [0.2, 0.6])
def test_clean_models_are_not_attracted_whatever_they_prefer(
    n: int, old: Sequence[float], guess: Sequence[float], seen: float
) -> None:
    rng = np.random.default_rng(0)
    worlds = [wrong_answers(rng, n, old=old, guess=guess, seen=seen) for _ in range(150)]
    alarms = sum(attraction(answers, rng).p_value <= 0.05 for answers in worlds)
    assert alarms <= 15  # P(X > 15) = .002 at 5 %
    by_options = [poisson_binomial_p(sum(a.is_old for a in w), [1 / 3] * len(w)) for w in worlds]
    prefers_a = guess[0] > 0.8 and n == 400  # the number of options alone accuses such a model
    assert sum(p <= 0.05 for p in by_options) > (140 if prefers_a else -1)


def test_one_in_ten_memorised_is_found_and_measured() -> None:
    rng = np.random.default_rng(1)
    n, flagged, shares, above = 400, 0, [], 0
    for _ in range(100):
        answers = wrong_answers(rng, n, old=MOSTLY_A, guess=(0.9, 0.04, 0.03, 0.03), memorised=0.1)
        test = attraction(answers, rng)
        memory = memory_share(test.excess, n - len(answers))
        flagged += test.p_value <= 0.05
        assert memory.share is not None
        shares.append(memory.share)
        assert memory.interval is not None
        above += memory.interval.low > 0.1
    assert flagged >= 95 and above <= 5
    assert np.mean(shares) == pytest.approx(0.1, abs=0.01)


def test_the_share_without_letters() -> None:
    """Vectors: m + w / (k - 1) old answers and w (k - 2) / (k - 1) others give m."""
    assert memory_share([1] * 3 + [-1 / 2] * 2, 5).share == pytest.approx(0.2)
    assert memory_share([1] * 10 + [-1 / 2] * 20, 70).share == 0
    memory = memory_share([1] * 4, 0, clusters=["a", "a", "b", "b"])
    assert memory.share == 1 and memory.interval is not None and memory.interval.high <= 1
    assert memory_share([1] * 4, 0, clusters=["a"] * 4).interval is None


def test_few_answers_are_compared_with_the_options_and_with_the_other_letters() -> None:
    rng = np.random.default_rng(0)
    spread = [LetterAnswer(old, (old + 1) % 4, old, 4) for old in (0, 1, 2, 3, 0, 1)]
    test = attraction(spread, rng)
    assert test.by in ("options", "letters") and test.p_value == pytest.approx(3.0**-6, rel=1)
    only_a = [LetterAnswer(0, new, 0, 4) for new in (1, 2, 3, 1, 2, 3)]
    assert attraction(only_a, rng).p_value > 0.1, "it may just prefer A"
    assert attraction([], rng).p_value == 1
