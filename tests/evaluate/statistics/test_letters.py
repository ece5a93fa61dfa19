"""A preference for a letter, where letters differ between the versions."""

from __future__ import annotations

import numpy as np
import pytest

from flipbench.evaluate.statistics.letters import LetterPairs, standardized_drop_p

ITEMS = [str(i) for i in range(400)]


def prefers_yes(
    rng: np.random.Generator, yes: float, memorised: float = 0.0, n: int = 400
) -> tuple[LetterPairs, tuple[np.ndarray, np.ndarray]]:
    """Return pairs with two options, and a model that sees half of them and else says yes."""
    old = (rng.random(n) > yes).astype(int)
    pairs = LetterPairs(old, 1 - old, np.full(n, 2))
    sees, guess = rng.random((2, n)) < 0.5, (rng.random((2, n)) > 0.9).astype(int)
    before, after = np.where(sees, [old, 1 - old], guess)
    by_heart = rng.random(n) < memorised
    before, after = np.where(by_heart, old, before), np.where(by_heart, old, after)
    return pairs, ((before == old).astype(float), (after == 1 - old).astype(float))


@pytest.mark.parametrize(("memorised", "low", "high"), [(0.0, 0.0, 0.09), (0.2, 0.9, 1.0)])
def test_at_equal_letters_only_memory_shows(memorised: float, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    gaps, p_values = [], []
    for _ in range(100):
        pairs, model = prefers_yes(rng, 0.6, memorised)
        gaps.append((model[1] - model[0]).mean())
        p_values.append(standardized_drop_p(pairs, model, ITEMS))
    assert np.mean(gaps) < -0.05, "the plain gap is that of the letters"
    assert low <= np.mean(np.array(p_values) <= 0.05) <= high


def test_a_reference_without_the_preference_is_compared_at_equal_letters() -> None:
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(100):
        pairs, model = prefers_yes(rng, 0.7)
        clean = [tuple((rng.random((2, 400)) < 0.7).astype(float)) for _ in range(3)]
        p_values.append(standardized_drop_p(pairs, model, ITEMS, clean))
    assert np.mean(np.array(p_values) <= 0.05) < 0.1


def test_margins_are_the_same_if_letters_are_permuted() -> None:
    rng = np.random.default_rng(0)
    old = rng.choice(4, 200, p=[0.4, 0.2, 0.2, 0.2])
    same = LetterPairs(old, old[::-1].copy(), np.full(200, 4))
    assert same.margins_p(rng) == 1
    uniform = LetterPairs(old, (old + rng.integers(1, 4, 200)) % 4, np.full(200, 4))
    assert uniform.margins_p(rng) <= 0.01


def test_equal_letters_change_nothing_where_they_are_equal() -> None:
    rng = np.random.default_rng(0)
    old = np.tile([0, 1, 2, 3], 25)
    pairs = LetterPairs(old, (old + 1) % 4, np.full(100, 4))
    before, after = (rng.random((2, 100)) < 0.6).astype(float)
    gap, influence = pairs.standardized(before, after)
    assert gap == pytest.approx((after - before).mean())
    assert influence.sum() == pytest.approx(0, abs=1e-9)
