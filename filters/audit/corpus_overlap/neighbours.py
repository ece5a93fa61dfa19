"""Exact nearest neighbours in a corpus, with the corpus read block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import need
from flipbench.core.stage import progress_bar

from .vectors import Array, Vectors

BLOCK_BYTES = 2**28
_SPARE = 4  # candidates beyond k > 1, in case rounding to float32 changes the order
_N_REFINED = 512  # queries whose candidates are in memory together

_Search = Callable[[Array, Array, int], tuple[Array, Array]]


class Neighbours(NamedTuple):
    """The k nearest corpus rows of each query, the nearest first.

    Attributes
    ----------
    distances : float64 array, shape (n_queries, k)
        1 - cosine, in [0, 2]; the share of differing bits for hash codes. Infinite if the corpus
        has fewer than k other rows.
    rows : int64 array, shape (n_queries, k)
        Row in the corpus; -1 if there is none.
    """

    distances: NDArray[np.float64]
    rows: NDArray[np.int64]


def nearest(
    queries: Array,
    corpus: Vectors,
    k: int = 1,
    *,
    exclude: NDArray[np.int64] | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: bool = False,
) -> Neighbours:
    """Find the nearest corpus rows of each query by comparing all pairs.

    FAISS compares each block of the corpus with all queries in float32, on its GPUs if it has any.
    The distances of the best candidates are then computed in float64 as half the squared distance
    of the unit vectors, which is 1 - cosine but exact near 0. Rows whose distances differ by less
    than float32 can tell, about 1e-7, may stand for one another.

    Parameters
    ----------
    queries : array, shape (n_queries, d)
        Embeddings of the same kind as the corpus.
    corpus : Vectors
    k : int
        Number of neighbours.
    exclude : int64 array, shape (n_queries,), optional
        The query's own row in the corpus, which is no neighbour of itself, or -1. Other rows at
        distance 0 are.
    block_bytes : int
        Size of a block of the corpus; two are in memory.

    Raises
    ------
    DataError
        If there is no query, the dimensions differ, or a row is not finite or not normalised.
    PrerequisiteError
        If faiss is missing.

    References
    ----------
    Douze et al., The Faiss library, arXiv 2401.08281: flat index.
    """
    asked = Vectors(queries, "the queries")
    asked.check_like(corpus)
    queries = asked.checked(np.ascontiguousarray(queries), range(asked.n))
    search = _search(corpus)
    n_kept = k if k == 1 else k + _SPARE  # FAISS is fastest at 1
    best = np.full((len(queries), n_kept), np.inf)
    rows = np.full((len(queries), n_kept), -1, np.int64)
    own = np.full(len(queries), -1) if exclude is None else exclude
    with progress_bar("neighbours", corpus.n, unit="img", shown=progress) as bar:
        for first, block in corpus.blocks(block_bytes):
            inside = (own >= first) & (own < first + len(block))
            for part, n_sought in ((~inside, n_kept), (inside, n_kept + 1)):
                if not part.any():
                    continue
                asked_now = queries if part.all() else queries[part]
                keys, found = search(asked_now, block, min(n_sought, len(block)))
                keys, found = keys.astype(np.float64), found.astype(np.int64) + first
                keys[found == own[part, None]] = np.inf
                best[part], rows[part] = _least(
                    np.hstack([best[part], keys]), np.hstack([rows[part], found]), n_kept
                )
            bar.update(len(block))
    rows[np.isinf(best)] = -1
    if corpus.is_hash:
        return Neighbours(best[:, :k] / (8 * corpus.dimension), rows[:, :k])
    return _refined(queries, corpus, rows, k)


def _search(corpus: Vectors) -> _Search:
    """Return the function (queries, block, k) → keys, smaller is nearer, and rows in the block."""
    faiss: Any = need("faiss", "audit")
    if corpus.is_hash:
        return lambda queries, block, k: faiss.knn_hamming(queries, block, k)
    if faiss.get_num_gpus():
        index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(corpus.dimension))

        def on_gpus(queries: Array, block: Array, k: int) -> tuple[Array, Array]:
            index.reset()
            index.add(block)
            cosines, rows = index.search(queries, k)
            return -cosines, rows

        return on_gpus

    def on_cpu(queries: Array, block: Array, k: int) -> tuple[Array, Array]:
        cosines, rows = faiss.knn(queries, block, k, faiss.METRIC_INNER_PRODUCT)
        return -cosines, rows

    return on_cpu


def _least(keys: Array, rows: Array, k: int) -> tuple[Array, Array]:
    """Return the k smallest keys of each line and their rows, ties by row."""
    order = np.lexsort((rows, keys))[:, :k]
    return np.take_along_axis(keys, order, 1), np.take_along_axis(rows, order, 1)


def _refined(queries: Array, corpus: Vectors, candidates: NDArray[np.int64], k: int) -> Neighbours:
    """Return the k nearest of the candidates by distances in float64."""
    distances, rows = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), _N_REFINED):
        part = slice(start, start + _N_REFINED)
        distinct, inverse = np.unique(candidates[part], return_inverse=True)
        others = _unit(corpus.take(np.maximum(distinct, 0)))
        own = _unit(queries[part])
        each = inverse.reshape(candidates[part].shape).T
        exact = np.array([((own - others[column]) ** 2).sum(1) / 2 for column in each]).T
        exact[candidates[part] < 0] = np.inf
        distances[part], rows[part] = _least(exact, candidates[part], k)
    return Neighbours(distances, rows)


def _unit(vectors: Array) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    return exact
