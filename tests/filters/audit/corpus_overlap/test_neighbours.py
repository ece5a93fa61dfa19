"""Nearest neighbours against brute force: blocks, shards, copies and ties change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.core.errors import DataError
from flipbench.filters.audit.corpus_overlap.neighbours import Array, Neighbours, Vectors, nearest


def unit(n: int, d: int, seed: int) -> Array:
    vectors = np.random.default_rng(seed).normal(size=(n, d))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def all_distances(queries: Array, corpus: Array, exclude: Array | None = None) -> Array:
    a, b = queries.astype(np.float64), corpus.astype(np.float64)
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    b /= np.linalg.norm(b, axis=1, keepdims=True)
    distances = ((a[:, None] - b[None]) ** 2).sum(-1) / 2
    if exclude is not None:
        own = exclude >= 0
        distances[np.flatnonzero(own), exclude[own]] = np.inf
    return distances


def check(found: Neighbours, expected: Array) -> None:
    """Compare with all distances; rows within 1e-6 of each other may stand for one another."""
    n, k = found.rows.shape
    least = np.sort(expected, axis=1)[:, :k]
    there = least.shape[1]
    np.testing.assert_allclose(found.distances[:, :there], least, rtol=0, atol=1e-6)
    named = found.rows[:, :there]
    finite = np.isfinite(least)
    given_distances = np.take_along_axis(expected, named, 1)
    np.testing.assert_allclose(found.distances[:, :there], given_distances, rtol=1e-9, atol=1e-15)
    assert (named[finite] >= 0).all()
    assert np.isinf(found.distances[:, there:]).all() and (found.rows[:, there:] == -1).all()
    assert all(len(set(rows[ok])) == ok.sum() for rows, ok in zip(named, finite, strict=True))
    assert (np.diff(found.distances[:, :there][finite.all(1)]) >= 0).all()


def test_distance_is_one_minus_the_cosine() -> None:
    corpus = Vectors(np.array([[-1, 0], [0.6, 0.8]], np.float32), "corpus")
    found = nearest(np.array([[1, 0]], np.float32), corpus, k=2)
    assert found.rows.tolist() == [[1, 0]]
    assert found.distances[0].tolist() == pytest.approx([0.4, 2.0], abs=1e-7)


@given(
    n=st.integers(1, 80),
    n_queries=st.integers(1, 40),
    k=st.integers(1, 4),
    n_copies=st.integers(0, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_blocks_and_shards_give_what_brute_force_gives(
    n: int, n_queries: int, k: int, n_copies: int, seed: int, data: Any
) -> None:
    d = 7
    corpus, queries = unit(n, d, seed), unit(n_queries, d, seed + 1)
    for at in range(min(n_copies, n - 1)):
        corpus[at + 1] = corpus[0]  # ties
    queries[0] = corpus[0]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    shards = np.split(corpus, cuts)  # some are empty
    n_rows = data.draw(st.integers(1, n + 5))
    found = nearest(queries, Vectors(shards, "corpus"), k=k, block_bytes=n_rows * d * 4)
    check(found, all_distances(queries, corpus))


def test_a_row_is_excluded_by_its_number_and_its_copies_are_not() -> None:
    corpus = unit(50, 6, 0)
    corpus[[20, 49]] = corpus[7]
    rows = np.array([7, 20, 31, -1])
    queries = corpus[rows]
    queries[3] = corpus[7]
    for block_bytes in (6 * 4, 6 * 4 * 13, 2**20):
        found = nearest(queries, Vectors(corpus, "corpus"), exclude=rows, block_bytes=block_bytes)
        check(found, all_distances(queries, corpus, rows))
        assert found.rows[0, 0] in (20, 49) and found.rows[1, 0] in (7, 49)
        assert found.distances[[0, 1, 3], 0].tolist() == [0, 0, 0]
        assert found.distances[2, 0] > 0.01
        assert found.rows[3, 0] in (7, 20, 49)


def test_the_only_row_has_no_neighbour() -> None:
    corpus = unit(1, 4, 0)
    found = nearest(corpus, Vectors(corpus, "corpus"), exclude=np.array([0]))
    assert (found.rows.tolist(), found.distances.tolist()) == ([[-1]], [[np.inf]])


def test_distances_near_zero_keep_their_digits() -> None:
    """1 - cosine in float32 cannot tell these from 0."""
    corpus = np.zeros((3, 8), np.float32)
    angles = (3e-4, 1e-4, 2e-4)
    corpus[:, 0], corpus[:, 1] = np.cos(angles), np.sin(angles)
    query = np.zeros((1, 8), np.float32)
    query[0, 0] = 1
    found = nearest(query, Vectors(corpus, "corpus"), k=3)
    assert found.rows.tolist() == [[1, 2, 0]]
    assert found.distances[0] == pytest.approx([5e-9, 2e-8, 4.5e-8], rel=1e-3)


def test_files_and_their_slices_are_compared_as_arrays_are(tmp_path: Path) -> None:
    corpus, queries = unit(1_000, 16, 0), unit(30, 16, 1)
    with_header, plain = tmp_path / "a.npy", tmp_path / "b.raw"
    np.save(with_header, corpus[:601])
    corpus[601:].tofile(plain)
    shards = [
        np.load(with_header, mmap_mode="r"),
        np.memmap(plain, np.float32, mode="r", shape=(399, 16)),
    ]
    store = Vectors(shards, "corpus")
    view = Vectors([shards[0][5:90][:50], shards[0][55:], shards[1].copy()], "corpus")
    for block_bytes in (64 * 100, 2**28):
        check(nearest(queries, store, k=2, block_bytes=block_bytes), all_distances(queries, corpus))
        found = nearest(queries, view, block_bytes=block_bytes)
        check(found, all_distances(queries, corpus[5:]))
    wanted = np.array([999, 0, 601, 600, 0])
    np.testing.assert_array_equal(store.take(wanted), corpus[wanted])
    np.testing.assert_array_equal(view.take(wanted[1:4]), corpus[5:][wanted[1:4]])


@given(n=st.integers(1, 60), k=st.integers(1, 3), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_hash_codes_are_compared_by_bits(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**63, n, dtype=np.uint64)
    asked = hashes[rng.integers(0, n, 9)] ^ np.uint64(0b1011)
    store = Vectors(hashes[:, None].view(np.uint8), "corpus")
    found = nearest(asked[:, None].view(np.uint8), store, k=k, block_bytes=8 * 7)
    bits = np.sort(np.bitwise_count(asked[:, None] ^ hashes[None]), axis=1)[:, :k]
    np.testing.assert_array_equal(found.distances[:, :n], bits / 64)
    for query, rows in zip(asked, found.rows[:, :n], strict=True):
        assert (np.bitwise_count(query ^ hashes[rows]) / 64).tolist() == sorted(
            np.bitwise_count(query ^ hashes[rows]) / 64
        )


@pytest.mark.parametrize(
    ("queries", "corpus", "message"),
    [
        (unit(3, 4, 0), [], "the corpus: there are no embeddings"),
        (unit(0, 4, 0), unit(3, 4, 0), "the queries: there are no embeddings"),
        (unit(3, 4, 0), unit(3, 5, 0), "the queries: 4 x float32, but the corpus: 5 x float32"),
        (unit(3, 4, 0), [unit(3, 4, 0), unit(3, 5, 0)], "4 x float32 and 5 x float32"),
        (unit(3, 4, 0).astype(np.float64), unit(3, 4, 0), "must be float32 or uint8, not float64"),
        (unit(3, 4, 0)[0], unit(3, 4, 0), "arrays of shape"),
        (2 * unit(3, 4, 0), unit(3, 4, 0), "the queries, row 0: its norm is 2; .*L2-normalised"),
        (
            unit(3, 4, 0),
            np.vstack([unit(5, 4, 0), np.full((1, 4), np.nan, np.float32)]),
            "the corpus, row 5: it is not finite",
        ),
        (unit(3, 4, 0), unit(5, 4, 0) * np.float32(1.003), r"row 0: its norm is 1\.003"),
    ],
)
def test_what_cannot_be_compared_is_refused(queries: Any, corpus: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        nearest(queries, Vectors(corpus, "the corpus"), block_bytes=32)


def test_norms_within_a_thousandth_are_taken() -> None:
    corpus = unit(5, 4, 0) * np.float32(1.0005)
    found = nearest(unit(5, 4, 0), Vectors(corpus, "corpus"))
    assert found.rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.distances.max() < 1e-12
