"""ROC numbers against scikit-learn and against counting, and intervals against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from flipbench.core.rates import Rate, wilson_interval
from flipbench.core.records import Interval
from flipbench.evaluate.statistics.roc import newcombe_interval, separation, variance_ratio

MODELS = st.lists(
    st.tuples(st.integers(-4, 4).map(float), st.booleans(), st.sampled_from("abcde")),
    min_size=2,
    max_size=40,
)


@given(MODELS)
def test_the_roc_curve_equals_scikit_learn_s(models: list[tuple[float, bool, str]]) -> None:
    values, dirty, clusters = zip(*models, strict=True)
    found = separation(values, dirty, clusters, targets=(0, 0.01, 0.05, 0.3, 1))
    if len(set(dirty)) < 2:
        assert found is None
        return
    assert found is not None
    assert found.auroc == pytest.approx(roc_auc_score(dirty, values))
    fpr, tpr, _ = roc_curve(dirty, values, drop_intermediate=False)
    assert found.fpr == pytest.approx(fpr) and found.tpr == pytest.approx(tpr)
    for point in found.points:
        best = max(t for f, t in zip(fpr, tpr, strict=True) if f <= point.target + 1e-9)
        assert point.detected.value == pytest.approx(best)
        assert point.alarms <= point.target * point.n_clean + 1e-9
        assert point.detected.interval is not None
        assert point.detected.interval.low - 1e-9 <= point.detected.value
        assert point.detected.value <= point.detected.interval.high + 1e-9
    assert found.interval.low <= found.auroc <= found.interval.high


@given(MODELS, st.randoms())
def test_the_auroc_counts_pairs_in_any_order(
    models: list[tuple[float, bool, str]], shuffler: object
) -> None:
    dirty = [v for v, d, _ in models if d]
    clean = [v for v, d, _ in models if not d]
    assume(dirty and clean)
    wins = sum((d > c) + (d == c) / 2 for d in dirty for c in clean)
    models = list(models)
    shuffler.shuffle(models)  # type: ignore[attr-defined]
    found = separation(*zip(*models, strict=True))  # type: ignore[misc]
    assert found.auroc == pytest.approx(wins / len(dirty) / len(clean))
    assert (found.n_contaminated, found.n_clean) == (len(dirty), len(clean))


@pytest.mark.parametrize("n_clean, one, five", [(5, 0, 0), (20, 0, 1), (99, 0, 1), (100, 1, 1)])
def test_an_alarm_rate_below_one_clean_model_is_not_estimable(
    n_clean: int, one: int, five: int
) -> None:
    values = [*map(float, range(n_clean)), 1e6]
    dirty = [False] * n_clean + [True]
    found = separation(values, dirty, ["f"] * (n_clean + 1))
    assert found is not None
    assert [p.estimable for p in found.points] == [True, bool(one), bool(five)]
    assert all(p.n_clean == n_clean for p in found.points)
    assert [p.alarms for p in found.points] == [0, n_clean // 100, n_clean // 20]


def copies(n: int, size: int, shift: float = 1.0) -> tuple[list[float], list[bool], list[str]]:
    """Return ``size`` equal clean and contaminated models in each of n lineages."""
    generator = np.random.default_rng(2)
    values = generator.normal(size=2 * n) + np.repeat([0, shift], n)
    dirty = [False] * n + [True] * n
    clusters = [f"c{i}" for i in range(n)] * 2
    return list(values) * size, dirty * size, clusters * size


def width(interval: Interval) -> float:
    return interval.high - interval.low


def test_copies_of_a_model_add_almost_nothing() -> None:
    """Twenty copies of each model hardly narrow the interval; as many unrelated models do."""
    values, dirty, clusters = copies(12, 20)
    single, copied = separation(*copies(12, 1)), separation(values, dirty, clusters)
    alone = separation(values, dirty, [f"{c} {i}" for i, c in enumerate(clusters)])
    assert single and copied and alone
    assert copied.auroc == alone.auroc == pytest.approx(single.auroc)
    assert 1 <= single.design_effect < 1.5 and copied.design_effect > 15
    assert alone.design_effect == 1 and alone.interval == alone.pooled == copied.pooled
    assert width(copied.interval) == pytest.approx(width(single.interval), rel=0.1)
    assert width(alone.interval) < 0.5 * width(single.interval)


def test_unlike_models_of_a_lineage_count_almost_fully() -> None:
    generator = np.random.default_rng(4)
    values, dirty = generator.normal(size=160).tolist(), [False, True] * 80
    found = separation(values, dirty, [f"c{i // 20}" for i in range(160)])
    assert found is not None and 1 <= found.design_effect < 2


def test_the_variance_is_that_of_a_bootstrap_over_lineages() -> None:
    """Lineages that shift all their models leave the AUROC alone; apart, they widen it."""
    generator, n, size = np.random.default_rng(5), 40, 5
    dirty, groups = np.tile([True, False], n * size), np.repeat(np.arange(n), 2 * size)
    ratios = {}
    for name, side in (("alike", np.zeros_like(dirty)), ("apart", dirty)):
        shift = 2 * generator.normal(size=(n, 2))[groups, side.astype(int)]
        values = shift + generator.normal(size=len(groups)) + dirty
        wins = values[dirty][:, None] > values[~dirty][None, :]
        by_lineage = wins.reshape(n, size, n, size).sum(axis=(1, 3))
        weights = generator.multinomial(n, [1 / n] * n, size=4_000)
        sampled = np.einsum("bi,ij,bj->b", weights, by_lineage, weights) / wins.size
        sides = ((wins.mean(axis=axis) - wins.mean()) for axis in (0, 1))
        independent = sum(part.var(ddof=1) / len(part) for part in sides)
        ratios[name] = variance_ratio(values, dirty, groups)
        student = (stats.t.ppf(0.975, n - 1) / stats.norm.ppf(0.975)) ** 2
        expected = max(sampled.var() / independent, 0.5) * student
        assert ratios[name] == pytest.approx(expected, rel=0.15)
    assert ratios["alike"] < 0.6 < 3 < ratios["apart"]


def test_a_lineage_s_own_level_does_not_count_within_it() -> None:
    """The pooled AUROC mixes in how clean models differ; within lineages it is perfect."""
    values, dirty = [0, 1, 2, 10, 11, 12], [False, True, True] * 2
    found = separation(list(map(float, values)), dirty, ["a"] * 3 + ["b"] * 3)
    assert found is not None and found.within is not None
    assert found.auroc == 6 / 8
    assert (found.within.auroc, found.within.wins, found.within.n_pairs) == (1.0, 4, 4)
    assert found.within.interval == newcombe_interval(1.0, [(2, 1), (2, 1)])
    apart = separation([1.0, 0.0], [True, False], ["a", "b"])
    assert apart is not None and apart.within is None


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_intervals_cover_the_truth(correlation: float, shift: float) -> None:
    truth, n, size = float(stats.norm.cdf(shift / np.sqrt(2))), 4, 5
    hits, generator = 0, np.random.default_rng(3)
    dirty, groups = np.arange(2 * n * size) % 2 == 1, np.repeat(np.arange(n), 2 * size)
    for _ in range(200):
        own = generator.normal(size=(n, 2))[groups, dirty.astype(int)]
        noise = generator.normal(size=len(groups))
        values = np.sqrt(correlation) * own + np.sqrt(1 - correlation) * noise + shift * dirty
        found = separation(values.tolist(), dirty.tolist(), groups.astype(str).tolist())
        assert found is not None
        hits += found.interval.low <= truth <= found.interval.high
    assert hits >= 0.9 * 200


def test_perfect_separation_still_has_an_interval() -> None:
    for n, low in ((2, 0.39), (10, 0.79), (50, 0.95)):
        interval = newcombe_interval(1.0, [(n, n)])
        assert interval.high == 1.0 and interval.low == pytest.approx(low, abs=0.03)
        mirrored = newcombe_interval(0.0, [(n, n)])
        assert mirrored.low == 0.0 and mirrored.high == pytest.approx(1 - interval.low)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_exact_interval_inverts_the_binomial(counts: tuple[int, int]) -> None:
    k, n = counts
    interval = Rate.exact(k, n, n).interval
    assert interval is not None
    below = stats.binom.sf(k - 1, n, interval.low)
    above = stats.binom.cdf(k, n, interval.high)
    assert interval.low == 0 if k == 0 else below == pytest.approx(0.025, abs=1e-6)
    assert interval.high == 1 if k == n else above == pytest.approx(0.025, abs=1e-6)
    assert Rate.wilson(k, n, n).interval == wilson_interval(k, n)


@given(st.integers(0, 20), st.integers(1, 20))
def test_clustered_rates_use_the_number_of_clusters(k: int, n_clusters: int) -> None:
    """The same share of as many models as there are clusters, where that share is a count."""
    for make in (Rate.exact, Rate.wilson):
        many, few = make(k * n_clusters, 20 * n_clusters, 20), make(k, 20, 20)
        assert many.interval is not None and few.interval is not None
        assert many.interval.low == pytest.approx(few.interval.low)
        assert many.interval.high == pytest.approx(few.interval.high)
        assert make(k, 20, 9).too_few and not make(k, 20, 10).too_few


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        separation([float("nan"), 1.0], [True, False], ["a", "b"])
    assert Rate.exact(0, 0, 0).interval is None and Rate.wilson(0, 0, 0).value is None
