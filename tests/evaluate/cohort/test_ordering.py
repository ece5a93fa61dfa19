"""Orders, controls, refusals, and the family of tests."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from flipbench.evaluate.cohort.cohort import Cohort
from flipbench.evaluate.cohort.ordering import (
    correct_for_multiplicity,
    hash_key,
    in_family,
    order_grid,
    permutations_needed,
    sort_order,
)
from tests.evaluate.cohort.conftest import rows_of, without

N = 60
DRAW = np.random.default_rng(7)
TYPES = np.array(["closed"] * 25 + ["open"] * 35)
LENGTHS = np.where(TYPES == "closed", 1.0, 2.0 + DRAW.integers(5, size=N))
NOISE = DRAW.normal(size=(N, 3))


def cohort_of(scores: Any, **covariates: Any) -> Cohort:
    items, models = [f"q{i}" for i in range(len(scores))], ["target", "other", "baseline"]
    return Cohort("b", items, models, frozenset({"baseline"}), np.array(scores), covariates)


def cells_of(cohort: Cohort, **options: Any) -> dict[tuple[str, str, str], Any]:
    cells = rows_of(order_grid(cohort, n_permutations=999, **options))
    return {(cell.model, cell.order, cell.control): cell for cell in cells}


def test_every_order_is_a_correlation_with_its_own_positions() -> None:
    cohort = cohort_of(NOISE, answer_tokens=LENGTHS)
    found = cells_of(cohort)
    hashed = np.argsort(np.argsort(hash_key(cohort.item_ids)))
    key = LENGTHS + hashed / (2 * N)  # ties in order of the hash
    for column, model in enumerate(cohort.models):
        for order, positions in (
            ("release", np.arange(N)),
            ("reverse", -np.arange(N)),
            ("hash", hashed),
            ("answer length", key),
        ):
            expected = stats.spearmanr(positions, NOISE[:, column], alternative="less")
            cell = found[model, order, "none"]
            assert cell.trend is not None
            assert cell.trend.rho == pytest.approx(expected.statistic)
            assert cell.p == pytest.approx(expected.pvalue, abs=0.06)
    assert all(cell.external == (cell.model == "baseline") for cell in found.values())


def test_a_mirrored_file_has_the_mirrored_p() -> None:
    found = cells_of(cohort_of(NOISE), orders=("release", "reverse"))
    p, mirrored = (found["target", order, "none"].p for order in ("release", "reverse"))
    assert p + mirrored == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ([3.0] * N, "the same for all items"),
        ([0.0] * 20 + [1.0] * 40, "already sorted"),
        ([1.0] * 20 + [0.0] * 40, "downwards"),
        ([np.nan, *range(N - 1)], "1 of 60 items have no"),
    ],
)
def test_a_key_that_is_no_new_order_is_refused(key: list[float], reason: str) -> None:
    found = cells_of(cohort_of(NOISE, question_words=np.array(key)), orders=("question length",))
    for model in ("target", "other", "baseline"):
        cell = found[model, "question length", "none"]
        assert reason in cell.refused and np.isnan(cell.p) and cell.trend is None
    assert reason in sort_order(np.array(key), [f"q{i}" for i in range(N)], "it")[1]


def test_a_missing_covariate_is_refused_by_name() -> None:
    found = cells_of(cohort_of(NOISE), strata=("source",), covariates=("source",))
    assert "no covariate 'answer_tokens'" in found["target", "answer length", "none"].refused
    for control in ("within source", "residuals", "residuals on baseline"):
        assert "no covariate 'source'" in found["target", "release", control].refused


def test_sorting_by_the_tested_scores_is_refused_and_by_others_is_not() -> None:
    cohort = cohort_of(NOISE)
    assert "themselves" in cells_of(cohort)["target", "score", "none"].refused
    cell = cells_of(cohort, sort_scores=-NOISE)["target", "score", "none"]
    assert cell.trend is not None and cell.trend.rho == pytest.approx(-1) and cell.at_floor


def test_controls_remove_a_trend_that_covariates_explain() -> None:
    """Short answers come first and are more likely, in every model alike."""
    scores = NOISE - 4 * LENGTHS[:, None]
    cohort = cohort_of(scores, answer_type=TYPES, answer_tokens=LENGTHS)
    found = cells_of(
        cohort, strata=("answer_type", "answer_tokens"), covariates=("answer_type", "answer_tokens")
    )
    for model in cohort.models:
        p = {
            control: cell.p
            for (m, order, control), cell in found.items()
            if m == model and order == "release"
        }
        assert p.pop("none") == 0.001
        assert len(p) == (3 if model == "baseline" else 4)
        assert all(value > 0.01 for value in p.values()), p


def test_the_baseline_s_scores_remove_a_trend_that_it_shares() -> None:
    difficulty = np.arange(N) / 4
    found = cells_of(cohort_of(NOISE - difficulty[:, None]))
    plain, residual = (
        found["target", "release", control] for control in ("none", "residuals on baseline")
    )
    assert plain.at_floor and residual.p > 0.01
    assert ("baseline", "release", "residuals on baseline") not in found


def test_a_trend_of_the_target_alone_survives_the_controls() -> None:
    scores = NOISE.copy()
    scores[:, 0] -= np.arange(N) / 10
    found = cells_of(
        cohort_of(scores, answer_tokens=DRAW.permutation(LENGTHS)),
        strata=("answer_tokens",),
        covariates=("answer_tokens",),
    )
    for control in ("within answer_tokens", "residuals", "residuals on baseline"):
        p = found["target", "release", control].p
        assert p < 0.01, control


def test_questions_about_one_image_are_no_independent_evidence() -> None:
    """No trend, but the ten questions about an image are easy or hard together."""
    draw = np.random.default_rng(3)
    images = np.repeat([f"{i}.png" for i in range(6)], 10)
    rejected = {"none": 0, "whole images": 0}
    for seed in range(20):
        scores = np.repeat(draw.normal(size=(6, 3)), 10, axis=0) + 0.3 * NOISE
        cohort = cohort_of(scores, image=images)
        grid = order_grid(cohort, seed=seed, orders=("release",), n_permutations=199)
        for cell in [cell for cell in rows_of(grid) if cell.control in rejected]:
            rejected[cell.control] += cell.p <= 0.05
            n = {"none": N, "whole images": 6}[cell.control]
            assert cell.n == N and cell.trend is not None and cell.trend.n == n
    assert rejected["none"] >= 12  # of 60: 20 %
    assert rejected["whole images"] <= 8  # more has probability .003 at 5 %


def test_whole_images_are_tested_only_where_items_share_them() -> None:
    own = cells_of(cohort_of(NOISE, image=np.array([f"{i}.png" for i in range(N)])))
    assert ("target", "release", "whole images") not in own
    few = cells_of(cohort_of(NOISE, image=np.repeat(["a", "b", "c"], N // 3)))
    assert "3 images share the items" in few["target", "release", "whole images"].refused


def test_items_without_a_score_are_counted() -> None:
    scores = NOISE.copy()
    scores[:5, 0] = np.nan
    found = cells_of(cohort_of(scores))
    sizes = {key: (cell.n, cell.n_missing) for key, cell in found.items() if key[1] == "release"}
    assert sizes["target", "release", "none"] == (N - 5, 5)
    assert sizes["other", "release", "none"] == (N, 0)
    assert sizes["target", "release", "residuals on baseline"] == (N - 5, 5)
    few = np.full((N, 3), np.nan)
    few[:3] = NOISE[:3]
    assert "at least 4 items" in cells_of(cohort_of(few))["target", "release", "none"].refused


def test_the_family_holds_neither_refused_cells_nor_the_hash_order() -> None:
    cohort = cohort_of(NOISE, answer_tokens=LENGTHS, question_words=np.ones(N))
    cells = correct_for_multiplicity(order_grid(cohort, n_permutations=999))
    family, outside = cells[in_family(cells)], cells[~in_family(cells)]
    assert set(family["order"]) == {"release", "reverse", "answer length"}
    p = family["p"].to_numpy()
    assert family["bonferroni"].tolist() == pytest.approx(np.minimum(1, len(p) * p))
    assert family["q"].tolist() == pytest.approx(stats.false_discovery_control(p))
    assert (family["p"] <= family["holm"]).all()
    assert (family["holm"] <= family["bonferroni"]).all()
    assert len(outside) and outside[["bonferroni", "holm", "q"]].isna().all(axis=None)


def test_the_result_depends_on_the_seed_and_on_no_other_model() -> None:
    cohort = cohort_of(NOISE)
    (first,) = [
        c
        for c in rows_of(order_grid(cohort, orders=("release",), n_permutations=999))
        if (c.model, c.control) == ("other", "none")
    ]
    alone = order_grid(without(cohort, "target"), orders=("release",), n_permutations=999)
    assert first in rows_of(alone)
    again = order_grid(cohort, seed=1, orders=("release",), n_permutations=999)
    assert first not in rows_of(again)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order must be one of release"):
        order_grid(cohort_of(NOISE), orders=("alphabet",))


def test_permutations_that_a_family_needs() -> None:
    assert [permutations_needed(n) for n in (27, 12)] == [2_699, 1_199]


@pytest.mark.slow
def test_p_under_the_hash_order_is_uniform_even_with_a_trend() -> None:
    """Which is why its p-value carries no information."""
    p_values = []
    for i in range(150):
        draw = np.random.default_rng(i)
        scores = draw.normal(size=(40, 3)) - np.arange(40)[:, None]
        items = [f"{i}-{j}" for j in range(40)]
        cohort = Cohort("b", items, ["a", "b", "c"], frozenset(), scores)
        cells = order_grid(cohort, orders=("release", "hash"), n_permutations=199)
        assert cells["at_floor"][0]
        p_values.append(cells["p"][1])
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
