"""The blind baseline finds shifted texts, and finds nothing in texts of one kind."""

from __future__ import annotations

import numpy as np
import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.validation.blind import blind_baseline

WORDS = [f"word{i}" for i in range(40)]


def texts_of(rng: np.random.Generator, n: int, length: int = 8) -> list[str]:
    return [" ".join(rng.choice(WORDS, length)) for _ in range(n)]


@pytest.mark.parametrize(
    "shift",
    [lambda text: f"{text} in 2024", lambda text: text.upper(), lambda text: f"{text} {text}"],
    ids=["words", "capitals", "length"],
)
def test_texts_that_differ_are_separated(shift: object) -> None:
    rng = np.random.default_rng(0)
    members, others = texts_of(rng, 60), texts_of(rng, 60)
    texts = [*(shift(text) for text in members), *others]  # type: ignore[operator]
    baseline = blind_baseline(texts, [True] * 60 + [False] * 60, [str(i) for i in range(120)])
    assert baseline.auroc > 0.95 and baseline.shifted
    assert (baseline.n_members, baseline.n_non_members, baseline.n_groups) == (60, 60, 120)


@pytest.mark.slow
def test_texts_of_one_kind_are_not_separated() -> None:
    aurocs, shifted = [], 0
    for seed in range(8):
        texts = texts_of(np.random.default_rng(seed), 100)
        baseline = blind_baseline(texts, [True, False] * 50, [str(i) for i in range(100)])
        aurocs.append(baseline.auroc)
        shifted += baseline.shifted
    assert 0.45 < np.mean(aurocs) < 0.55 and shifted <= 1


def test_a_group_is_never_on_both_sides_of_a_split() -> None:
    rng = np.random.default_rng(1)
    names = [f"item{i}" for i in range(30)]
    kinds = rng.random(30) < 0.5
    texts = [f"{name} {text}" for name in names for text in texts_of(rng, 6, 2)]
    member = np.repeat(kinds, 6).tolist()
    together = blind_baseline(texts, member, np.repeat(names, 6).tolist())
    apart = blind_baseline(texts, member, [str(i) for i in range(len(texts))])
    assert apart.auroc > 0.95 and together.auroc < 0.7 and not together.shifted


def test_a_pair_of_equal_texts_gives_one_half() -> None:
    texts = [text for text in texts_of(np.random.default_rng(2), 20) for _ in range(2)]
    groups = [str(i // 2) for i in range(40)]
    assert blind_baseline(texts, [True, False] * 20, groups).auroc == 0.5


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(DataError, match="at least 5 groups.*not 6 and 4"):
        blind_baseline(["a"] * 10, [True] * 6 + [False] * 4, [str(i) for i in range(10)])
