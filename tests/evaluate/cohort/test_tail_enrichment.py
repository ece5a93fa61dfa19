"""Differences from the cohort's median: worked examples, brute force, guards, error rates."""

import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort import tail_enrichment
from flipbench.evaluate.cohort.cohort import Array, Cohort
from flipbench.evaluate.cohort.tail_enrichment import (
    cohort_deltas,
    guarded_tails,
    rank_scores,
    tail_summaries,
)
from tests.evaluate.cohort.conftest import rows_of, without


def cohort_of(scores: Array, external: tuple[str, ...] = ()) -> Cohort:
    items, models = [str(i) for i in range(len(scores))], [f"m{j}" for j in range(scores.shape[1])]
    return Cohort("b", items, models, frozenset(external), scores)


def noisy(draw: np.random.Generator, n_items: int = 400, n_models: int = 5) -> Array:
    """Return scores of models that agree on what is easy and differ in gain."""
    easiness = draw.normal(size=(n_items, 1))
    gains = np.exp(draw.uniform(-3, 1, n_models))
    return np.asarray(gains * (easiness + draw.normal(scale=0.3, size=(n_items, n_models))))


def boosted(
    draw: np.random.Generator, models: tuple[int, ...] = (0,), share: float = 0.05
) -> Array:
    """Return the same, with a share of the items far more familiar to some models."""
    scores = noisy(draw)
    hit = draw.choice(len(scores), round(share * len(scores)), replace=False)
    for model in models:
        scores[hit, model] += 2 * scores[:, model].std()
    return scores


def verdicts(tails: pd.DataFrame) -> list[str]:
    return tails["verdict"].tolist()


def test_the_worked_example() -> None:
    deltas = cohort_deltas(np.array([[10.0, 1, 2], [0, 1, 2], [5, 5, 5]]))
    assert deltas[:, 0].tolist() == [8.5, -1.5, 0]


@pytest.mark.parametrize("n_models", [2, 3, 4, 7])
def test_deltas_and_ranks_against_plain_python(n_models: int) -> None:
    scores = np.random.default_rng(n_models).integers(0, 9, (20, n_models)).astype(float)
    deltas, ranks = cohort_deltas(scores), rank_scores(scores)
    for i, m in itertools.product(range(20), range(n_models)):
        row, column = scores[i].tolist(), scores[:, m].tolist()
        assert deltas[i, m] == row[m] - statistics.median(row[:m] + row[m + 1 :])
        below, equal = sum(x < row[m] for x in column), sum(x == row[m] for x in column)
        assert ranks[i, m] == pytest.approx((below + equal / 2) / 20)


def test_the_published_rule_counts_above_100() -> None:
    scores = np.zeros((100, 3)) + np.arange(100)[:, None] / 1000
    scores[:5, 0] += 200
    scores[5:9, 0] += 60
    summary = rows_of(tail_summaries(cohort_of(scores)))[0]
    assert [(rate.k, rate.n) for rate in summary.above] == [(9, 100), (5, 100)]
    assert not summary.flagged  # 5 % is not more than 5 %
    scores[5, 0] += 100
    summary = rows_of(tail_summaries(cohort_of(scores)))[0]
    assert summary.flagged and summary.above[1].k == 6
    delta = scores[:, 0] - np.median(scores[:, 1:], axis=1)
    assert [summary.q95, summary.q99] == pytest.approx(np.quantile(delta, [0.95, 0.99]))
    assert summary.largest == pytest.approx(delta.max())


def test_items_without_all_scores_are_counted() -> None:
    scores = noisy(np.random.default_rng(0))
    scores[:7, 2] = np.nan
    cohort = cohort_of(scores)
    assert {(tail.n, tail.n_missing) for tail in rows_of(tail_summaries(cohort))} == {(393, 7)}
    assert {(tail.n, tail.n_missing) for tail in rows_of(guarded_tails(cohort))} == {(393, 7)}
    scores[7:, 1] = np.nan
    with pytest.raises(DataError, match="no item has the scores of all 5 models"):
        tail_summaries(cohort_of(scores))


def test_both_p_values_against_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every assignment of each tail item's differences to the models."""
    monkeypatch.setattr(tail_enrichment, "TAIL", 0.15)
    monkeypatch.setattr(tail_enrichment, "MIN_MODELS", 9)  # none is left out
    scores = np.random.default_rng(5).normal(size=(12, 3))
    scores[:3, 0] += 4
    deltas = cohort_deltas(rank_scores(scores))
    far = np.quantile(deltas, 0.85)
    is_upper = deltas > far
    rows = is_upper[is_upper.any(axis=1)].tolist()
    assert len(rows) >= 4
    every = list(itertools.product(*(list(itertools.permutations(row)) for row in rows)))
    totals = np.array([[row[0] for row in assignment] for assignment in every]).sum(axis=1)
    for tail, upper, column in zip(
        rows_of(guarded_tails(cohort_of(scores))), is_upper.T, deltas.T, strict=True
    ):
        lower = int((column < -far).sum())
        assert (tail.upper, tail.lower) == (upper.sum(), lower)
        assert tail.expected == pytest.approx(totals.mean())
        assert tail.p_exchangeable == pytest.approx((totals >= upper.sum()).mean())
        signs = list(itertools.product((0, 1), repeat=tail.upper + lower))
        assert tail.p_symmetric == pytest.approx(np.mean([sum(s) >= tail.upper for s in signs]))
        assert tail.p == max(tail.p_exchangeable, tail.p_symmetric)


def test_gains_and_offsets_change_nothing() -> None:
    scores = boosted(np.random.default_rng(1))
    changed = scores * [1, 20, 0.1, 3, 7] + [5, -100, 0, 3, 900]
    assert guarded_tails(cohort_of(scores)).equals(guarded_tails(cohort_of(changed)))


def test_a_boosted_model_is_enriched_unless_an_external_one_is_too() -> None:
    draw = np.random.default_rng(2)
    scores = boosted(draw)
    assert verdicts(guarded_tails(cohort_of(scores, ("m4",)))) == [
        "enriched",
        *["not_detected"] * 4,
    ]
    assert verdicts(guarded_tails(cohort_of(scores))) == ["unchecked", *["not_detected"] * 4]
    both = boosted(draw, models=(0, 4), share=0.1)
    assert verdicts(guarded_tails(cohort_of(both, ("m4",)))) == ["artefact_suspected"] * 5


def test_a_verdict_that_one_other_model_makes_does_not_hold() -> None:
    """Two models disagree about the same items: without the other one, nothing is left."""
    draw = np.random.default_rng(3)
    scores = noisy(draw, n_models=4)
    hit = draw.choice(400, 20, replace=False)
    scores[hit, 0] += 2 * scores[:, 0].std()
    held = rows_of(guarded_tails(cohort_of(scores)))[0]
    assert held.p >= max(held.p_exchangeable, held.p_symmetric)
    for other in range(1, 4):
        of_others = rows_of(guarded_tails(without(cohort_of(scores), f"m{other}")))[0]
        assert max(of_others.p_exchangeable, of_others.p_symmetric) <= held.p
    assert held.left_out in ("", "m1", "m2", "m3")


def test_three_models_are_too_few_for_a_verdict() -> None:
    scores = boosted(np.random.default_rng(4))[:, :3]
    assert set(verdicts(guarded_tails(cohort_of(scores)))) == {"inconclusive"}


def heavy_tailed(draw: np.random.Generator) -> Array:
    """Return scores of models of different gain, offset and noise, none of which was boosted."""
    easiness = draw.lognormal(0, 2, size=(300, 1))
    gains, noise = np.exp(draw.uniform(-4, 1, 5)), np.exp(draw.uniform(0, 3, 5))
    return np.asarray(gains * easiness + noise * draw.normal(size=(300, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("null", [noisy, heavy_tailed])
def test_false_alarms_of_models_that_differ_in_gain_are_rare(
    null: Callable[[np.random.Generator], Array],
) -> None:
    draw = np.random.default_rng(6)
    n_false = sum((guarded_tails(cohort_of(null(draw)))["p_holm"] <= 0.05).any() for _ in range(40))
    assert n_false <= 4  # P(> 4 of 40 at 0.05) = 0.05


@pytest.mark.slow
def test_a_boost_of_five_percent_of_the_items_is_found() -> None:
    draw = np.random.default_rng(7)
    found = [verdicts(guarded_tails(cohort_of(boosted(draw), ("m4",)))) for _ in range(12)]
    assert sum(first == "enriched" for first, *_ in found) >= 6
    assert {verdict for _, *others in found for verdict in others} == {"not_detected"}
