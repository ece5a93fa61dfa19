"""Agreement: published values, other packages, definitions by enumeration, and their limits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa

from flipbench.filters.agreement.agreement import KEPT, Agreement, agreement, krippendorff_alpha
from flipbench.models.protocols import Decision
from flipbench.reporting import formats

DECISIONS: tuple[Decision, ...] = ("keep", "unsure", "reject")
PAPER = [[253, 41], [187, 284]]


def agreement_of_counts(first: str, second: str, counts: list[list[int]]) -> Agreement:
    """Return the agreement of two raters whose decisions give this 2 x 2 table of counts."""
    decisions: tuple[Decision, Decision] = ("keep", "reject")
    cells = itertools.product(decisions, repeat=2)
    pairs = [cell for cell, n in zip(cells, np.ravel(counts), strict=True) for _ in range(n)]
    first_decisions = {f"e{i}": a for i, (a, _) in enumerate(pairs)}
    second_decisions = {f"e{i}": b for i, (_, b) in enumerate(pairs)}
    return agreement(first, second, {first: first_decisions, second: second_decisions})


def ratings(seed: int, n: int = 60, raters: int = 2) -> dict[str, dict[str, Decision]]:
    """Return raters who see the truth with errors, and leave some images out."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    found: dict[str, dict[str, Decision]] = {}
    for rater in range(raters):
        codes = np.where(rng.random(n) < 0.3, rng.integers(0, 3, n), truth)
        seen = rng.random(n) < 0.9
        found[f"r{rater}"] = {f"e{i}": DECISIONS[codes[i]] for i in range(n) if seen[i]}
    return found


def test_the_paper_s_agreement_is_reproduced() -> None:
    found = agreement_of_counts("o3", "people", PAPER)
    assert found.kappa.value == pytest.approx(0.424, abs=0.0005)
    assert (found.n, found.raw.k) == (765, 537)
    assert (found.precision.k, found.precision.n) == (253, 294)
    assert (found.recall.k, found.recall.n) == (253, 440)
    assert (found.rejection_precision.k, found.rejection_precision.n) == (284, 471)
    assert (found.rejection_recall.k, found.rejection_recall.n) == (284, 325)
    asymptotic = cohens_kappa(PAPER)
    assert found.kappa.interval
    assert found.kappa.interval.low == pytest.approx(asymptotic.kappa_low, abs=0.01)
    assert found.kappa.interval.high == pytest.approx(asymptotic.kappa_upp, abs=0.01)


def test_agreement_of_a_simple_table() -> None:
    assert agreement_of_counts("a", "b", [[20, 5], [10, 15]]).kappa.value == pytest.approx(0.4)


def test_gwet_s_example_of_high_agreement_with_low_kappa() -> None:
    found = agreement_of_counts("a", "b", [[118, 5], [2, 0]])
    assert found.kappa.value == pytest.approx(-0.0234, abs=5e-5)
    assert found.ac1.value == pytest.approx(0.9408, abs=5e-5)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_equals_statsmodels_and_scikit_learn(seed: int) -> None:
    given = ratings(seed)
    found = agreement("r0", "r1", given)
    both = sorted(set(given["r0"]) & set(given["r1"]))
    a, b = ([_label(given[r][i]) for i in both] for r in ("r0", "r1"))
    assert (found.n, found.n_one_only) == (len(both), len(set(given["r0"]) ^ set(given["r1"])))
    assert found.kappa.value == pytest.approx(cohen_kappa_score(a, b))
    assert found.kappa.value == pytest.approx(cohens_kappa(np.array(found.counts)).kappa)
    assert found.counts == tuple(
        tuple(sum((x, y) == (p, q) for x, y in zip(a, b, strict=True)) for q in KEPT) for p in KEPT
    )


def test_the_bootstrap_interval_equals_scipy_s() -> None:
    codes = np.array([(x, y) for x, y in itertools.product((0, 1), repeat=2)])
    a, b = np.repeat(codes, np.ravel(PAPER), axis=0).T

    def kappa(x: Any, y: Any, axis: int = -1) -> Any:
        p, q = x.mean(axis=axis), y.mean(axis=axis)
        expected = p * q + (1 - p) * (1 - q)
        return ((x == y).mean(axis=axis) - expected) / (1 - expected)

    assert kappa(a, b) == pytest.approx(cohen_kappa_score(a, b))
    peer = stats.bootstrap(
        (a, b),
        kappa,
        paired=True,
        vectorized=True,
        n_resamples=5_000,
        batch=500,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = agreement_of_counts("a", "b", PAPER).kappa.interval
    assert found
    assert found.low == pytest.approx(peer.low, abs=0.01)
    assert found.high == pytest.approx(peer.high, abs=0.01)


def test_images_of_one_original_are_resampled_together() -> None:
    """Every rating eight times over says no more than once."""
    once = ratings(3, n=40)
    copied = {
        rater: {f"{i} {copy}": d for i, d in given.items() for copy in range(8)}
        for rater, given in once.items()
    }
    clusters = {f"e{i} {copy}": f"e{i}" for i in range(40) for copy in range(8)}
    single = agreement("r0", "r1", once)
    free = agreement("r0", "r1", copied)
    tied = agreement("r0", "r1", copied, clusters=clusters)
    assert free.kappa.value == pytest.approx(single.kappa.value)
    assert _width(tied) == pytest.approx(_width(single), rel=0.1)
    assert _width(free) < 0.5 * _width(single)


def test_order_changes_nothing_and_the_seed_changes_only_the_interval() -> None:
    given = ratings(4)
    turned = {rater: dict(reversed(decisions.items())) for rater, decisions in given.items()}
    assert agreement("r0", "r1", given) == agreement("r0", "r1", turned)
    other = agreement("r0", "r1", given, seed=1)
    assert other.kappa.value == agreement("r0", "r1", given).kappa.value
    assert other.kappa.interval != agreement("r0", "r1", given).kappa.interval


def test_kappa_of_unanimous_raters_is_undefined_but_ac1_is_not() -> None:
    found = agreement_of_counts("a", "b", [[30, 0], [0, 0]])
    assert (found.kappa.value, found.ac1.value) == (None, 1.0)
    assert formats.rate(found.rejection_recall) == "– (0/0)"
    empty = agreement("a", "b", {"a": {"x": "keep"}, "b": {"y": "keep"}})
    assert (empty.n, empty.n_one_only, empty.kappa.value) == (0, 2, None)


def test_barely_defined_statistics_have_no_interval() -> None:
    found = agreement_of_counts("a", "b", [[3, 0], [0, 1]])
    assert found.kappa.value == 1.0 and found.kappa.interval is None


def test_krippendorff_s_example() -> None:
    """Two observers, ten binary units (Krippendorff, *Computing alpha-reliability*, 2011)."""
    observers = ("0100000010", "1110010000")
    given: dict[str, dict[str, Decision]] = {
        name: {str(i): "keep" if c == "1" else "reject" for i, c in enumerate(decisions)}
        for name, decisions in zip("AB", observers, strict=True)
    }
    alpha, n = krippendorff_alpha(given)
    assert (round(alpha.value or 0, 3), n) == (0.095, 10)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_equals_its_definition(seed: int) -> None:
    given = ratings(seed, n=30, raters=4)
    alpha, n = krippendorff_alpha(given)
    units = [
        [_label(decisions[f"e{i}"]) for decisions in given.values() if f"e{i}" in decisions]
        for i in range(30)
    ]
    units = [unit for unit in units if len(unit) > 1]
    pooled = [value for unit in units for value in unit]
    within = sum(
        (a != b) / (len(unit) - 1) for unit in units for a, b in itertools.permutations(unit, 2)
    ) / len(pooled)
    across = np.mean([a != b for a, b in itertools.permutations(pooled, 2)])
    assert n == len(units)
    assert alpha.value is not None
    assert alpha.value == pytest.approx(1 - within / across)
    assert alpha.interval and alpha.interval.low < alpha.value < alpha.interval.high


def test_alpha_needs_two_ratings_of_an_item() -> None:
    assert krippendorff_alpha({"a": {"x": "keep"}, "b": {"y": "keep"}})[0].value is None
    assert krippendorff_alpha({"a": {"x": "keep"}, "b": {"x": "keep"}})[0].value is None


def _label(decision: Decision) -> str:
    return "keep" if decision == "keep" else "not kept"


def _width(found: Agreement) -> float:
    assert found.kappa.interval
    return found.kappa.interval.high - found.kappa.interval.low
