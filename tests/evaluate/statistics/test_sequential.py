"""Looking often: evidence that is valid at every look, where p-values are not."""

from __future__ import annotations

import numpy as np
import pytest

from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.evaluate.statistics.sequential import pairs_until, running_evidence


@pytest.mark.parametrize("kind", ["right or wrong", "log-probabilities"])
def test_ever_looking_at_a_clean_model_accuses_it_at_the_level(kind: str) -> None:
    rng = np.random.default_rng(0)
    stopped = []
    for _ in range(400):
        if kind == "right or wrong":
            differences = rng.choice([-1.0, 0.0, 1.0], 300, p=[0.15, 0.7, 0.15])
        else:
            differences = rng.standard_t(3, 300)
        stopped.append(pairs_until(running_evidence(differences), 0.05) is not None)
    assert np.mean(stopped) <= 0.07


def test_ten_looks_by_p_values_accuse_more() -> None:
    rng = np.random.default_rng(0)
    flagged = []
    for _ in range(300):
        d = rng.choice([-1, 0, 1], 300, p=[0.15, 0.7, 0.15])
        looks = range(30, 301, 30)
        p_values = [
            mcnemar_p(int((d[:n] < 0).sum()), int((d[:n] > 0).sum()), "drop") for n in looks
        ]
        flagged.append(min(p_values) <= 0.05)
    assert np.mean(flagged) > 0.09


def test_a_memory_is_seen_before_all_pairs_are_asked() -> None:
    rng = np.random.default_rng(0)
    asked = []
    for _ in range(200):
        d = rng.choice([-1.0, 0.0, 1.0], 120, p=[0.35, 0.6, 0.05])
        asked.append(pairs_until(running_evidence(d), 0.05))
    stopped = [n for n in asked if n is not None]
    assert len(stopped) > 180 and np.mean(stopped) < 60


def test_what_says_nothing_changes_nothing() -> None:
    values = np.array([-1.0, 0.0, np.nan, -1.0])
    assert running_evidence(values)[0] == running_evidence(values)[2] == pytest.approx(1.5)
    assert running_evidence(np.array([0.5, np.nan])).shape == (2,)
    assert pairs_until(running_evidence(np.array([1.0] * 50)), 0.05) is None


@pytest.mark.filterwarnings("error")
def test_evidence_of_thousands_of_pairs_stays_a_number() -> None:
    for sign in (-1.0, 1.0):
        for size in (1.0, 7.0):
            assert np.isfinite(running_evidence(np.full(3_000, sign * size))).all()
