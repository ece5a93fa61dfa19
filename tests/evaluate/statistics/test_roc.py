"""ROC numbers against scikit-learn and against counting, and intervals against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from flipbench.core.rates import MIN_CLUSTERS, Rate, wilson_interval
from flipbench.evaluate.statistics.roc import newcombe_interval, separation

MODELS = st.lists(
    st.tuples(st.integers(-4, 4).map(float), st.booleans(), st.sampled_from("abcde")),
    min_size=2,
    max_size=40,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(MODELS)
def test_the_roc_curve_equals_scikit_learn_s(models: list[tuple[float, bool, str]]) -> None:
    values, dirty, clusters = zip(*models, strict=True)
    found = separation(values, dirty, clusters, rng(), targets=(0, 0.01, 0.05, 0.3, 1))
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
    found = separation(*zip(*models, strict=True), rng())  # type: ignore[misc]
    assert found.auroc == pytest.approx(wins / len(dirty) / len(clean))
    assert (found.n_contaminated, found.n_clean) == (len(dirty), len(clean))


@pytest.mark.parametrize("n_clean, one, five", [(5, 0, 0), (20, 0, 1), (99, 0, 1), (100, 1, 1)])
def test_an_alarm_rate_below_one_clean_model_is_not_estimable(
    n_clean: int, one: int, five: int
) -> None:
    values = [*map(float, range(n_clean)), 1e6]
    dirty = [False] * n_clean + [True]
    found = separation(values, dirty, ["f"] * (n_clean + 1), rng())
    assert found is not None
    assert [p.estimable for p in found.points] == [True, bool(one), bool(five)]
    assert all(p.n_clean == n_clean for p in found.points)
    assert [p.alarms for p in found.points] == [0, n_clean // 100, n_clean // 20]


def test_few_clusters_are_enumerated_and_many_are_sampled() -> None:
    def made(n: int) -> object:
        generator = np.random.default_rng(1)
        clusters = [f"c{i}" for i in range(n) for _ in range(4)]
        dirty = [False, True, True, True] * n
        values = generator.normal(size=4 * n) + np.array(dirty)
        return separation(list(values), dirty, clusters, rng())

    few, many = made(MIN_CLUSTERS - 1), made(MIN_CLUSTERS)
    assert few is not None and few.method == "Newcombe"  # type: ignore[attr-defined]
    n = MIN_CLUSTERS - 1
    assert few.interval == newcombe_interval(few.auroc, n, n)  # type: ignore[attr-defined]
    assert many.method == "cluster bootstrap"  # type: ignore[attr-defined]
    again = made(MIN_CLUSTERS)
    assert many == again


def test_the_bootstrap_resamples_whole_clusters() -> None:
    """Twenty copies of each model change nothing, while counting models would shrink it."""
    generator = np.random.default_rng(2)
    n = 12
    values = generator.normal(size=2 * n) + np.repeat([0, 1], n)
    dirty = [False] * n + [True] * n
    clusters = [f"c{i}" for i in range(n)] * 2
    single = separation(list(values), dirty, clusters, rng())
    copied = separation(list(values) * 20, dirty * 20, clusters * 20, rng())
    alone = separation(
        list(values) * 20, dirty * 20, [f"{c}{i}" for i in range(20) for c in clusters], rng()
    )
    assert single and copied and alone
    assert copied.auroc == pytest.approx(single.auroc)
    width, same, narrow = (s.interval.high - s.interval.low for s in (single, copied, alone))
    assert same == pytest.approx(width, abs=1e-9) and narrow < 0.5 * width


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("method", ["Newcombe", "cluster bootstrap"])
def test_intervals_cover_the_truth(method: str, shift: float) -> None:
    truth, n = float(stats.norm.cdf(shift / np.sqrt(2))), 9 if method == "Newcombe" else 30
    hits, generator = 0, np.random.default_rng(3)
    for _ in range(300):
        values = [*generator.normal(size=n), *(generator.normal(size=n) + shift)]
        clusters = [f"c{i}" for i in range(n)] * 2
        found = separation(
            values, [False] * n + [True] * n, clusters, generator, targets=(), n_bootstrap=400
        )
        assert found is not None
        hits += found.interval.low <= truth <= found.interval.high
    assert hits >= (0.92 if method == "Newcombe" else 0.88) * 300


def test_perfect_separation_still_has_an_interval() -> None:
    for n, low in ((2, 0.39), (10, 0.79), (50, 0.95)):
        interval = newcombe_interval(1.0, n, n)
        assert interval.high == 1.0 and interval.low == pytest.approx(low, abs=0.03)
        mirrored = newcombe_interval(0.0, n, n)
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
        separation([float("nan"), 1.0], [True, False], ["a", "b"], rng())
    assert Rate.exact(0, 0, 0).interval is None and Rate.wilson(0, 0, 0).value is None
