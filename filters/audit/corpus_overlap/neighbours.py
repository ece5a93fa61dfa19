"""Exact nearest neighbours in a corpus, whose embeddings are read block by block."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError, need
from flipbench.core.stage import progress_bar

Array = NDArray[Any]
Rows = NDArray[np.int64]
BLOCK_BYTES = 2**27
_TOLERANCE = 1e-3  # of a unit vector's norm
_N_REFINED = 512  # queries whose candidates are in memory together


class Vectors:
    """The rows of one or several arrays, as one.

    Parameters
    ----------
    arrays : array or sequence of arrays, each of shape (n, d)
        L2-normalised float32 embeddings, or uint8 hash codes of d bytes; may be memory-mapped.

    Raises
    ------
    DataError
        If there is no row, or the arrays differ in dimension or type.
    """

    def __init__(self, arrays: Array | Sequence[Array], name: str) -> None:
        parts = [arrays] if isinstance(arrays, np.ndarray) else list(arrays)
        if any(part.ndim != 2 for part in parts):
            raise DataError(f"{name}: embeddings must be arrays of shape (n, d)")
        parts = [part for part in parts if len(part)]
        if not parts:
            raise DataError(f"{name}: there are no embeddings; check its path and its failures")
        kinds = {(part.shape[1], part.dtype) for part in parts}
        if len(kinds) > 1:
            names = " and ".join(sorted(f"{d} x {dtype}" for d, dtype in kinds))
            raise DataError(f"{name}: its parts have {names}; embed all with one encoder")
        self.name, self._parts = name, parts
        self.dimension, self.dtype = next(iter(kinds))
        if self.dtype not in (np.float32, np.uint8):
            raise DataError(f"{name}: embeddings must be float32 or uint8, not {self.dtype}")
        self._stops = np.cumsum([len(part) for part in parts])
        self.n = int(self._stops[-1])

    @property
    def is_hash(self) -> bool:
        """Whether the rows are hash codes, compared by their bits."""
        return bool(self.dtype == np.uint8)

    def check_like(self, corpus: Vectors) -> None:
        """Raise a `DataError` if dimension or type differ: they are of different encoders."""
        if (self.dimension, self.dtype) != (corpus.dimension, corpus.dtype):
            raise DataError(
                f"{self.name}: {self.dimension} x {self.dtype}, but {corpus.name}:"
                f" {corpus.dimension} x {corpus.dtype}; embed both with the same encoder"
            )

    def take(self, rows: Rows) -> Array:
        """Return rows by number, in that order, shape (len(rows), d); raises as `check`."""
        result = np.empty((len(rows), self.dimension), self.dtype)
        parts = np.searchsorted(self._stops, rows, side="right")
        for number in np.unique(parts).tolist():
            start = self._stops[number] - len(self._parts[number])
            result[parts == number] = self._parts[number][rows[parts == number] - start]
            _forget(self._parts[number])
        return self.check(result, rows)

    def blocks(self, n_rows: int) -> Iterator[Array]:
        """Yield all rows in blocks of ``n_rows``, of which one is in memory; raises as `check`."""
        for start in range(0, self.n, n_rows):
            stop = min(start + n_rows, self.n)
            block = np.empty((stop - start, self.dimension), self.dtype)
            for part, end in zip(self._parts, self._stops.tolist(), strict=True):
                low, high = max(start, end - len(part)), min(stop, end)
                if low < high:
                    block[low - start : high - start] = part[low - end :][: high - low]
                    _forget(part)
            yield self.check(block, np.arange(start, stop))

    def check(self, block: Array, rows: Rows) -> Array:
        """Return a block, whose rows have these numbers.

        Raises
        ------
        DataError
            If a row has NaN, or a norm that differs from 1 by more than 0.001.
        """
        if self.is_hash:
            return block
        squares = np.einsum("ij,ij->i", block, block)
        problems = np.flatnonzero(~(np.abs(squares - 1) <= 2 * _TOLERANCE))
        if len(problems):
            norm = float(np.sqrt(squares[problems[0]]))
            problem = f"its norm is {norm:.4g}" if np.isfinite(norm) else "it is not finite"
            raise DataError(
                f"{self.name}, row {rows[problems[0]]:,}: {problem}; embeddings must be finite and"
                " L2-normalised: embed again, or divide each row by its norm"
            )
        return block


def _forget(array: Any) -> None:
    """Let pages of a memory-mapped array that were read no longer count towards the process."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


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
    rows: Rows


def nearest(
    queries: Array,
    corpus: Vectors,
    k: int = 1,
    *,
    exclude: Rows | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: bool = False,
) -> Neighbours:
    """Find the nearest corpus rows of each query by comparing all pairs.

    FAISS compares each block of the corpus with all queries in float32, on its GPUs if it has any;
    the bits of hash codes as ±1, which is exact. The distances of the candidates are then computed
    in float64 as half the squared distance of the unit vectors, which is 1 - cosine but exact near
    0. Rows whose distances differ by less than float32 can tell, about 1e-7, may stand for one
    another.

    Parameters
    ----------
    queries : array, shape (n_queries, d)
        Embeddings of the same kind as the corpus.
    exclude : int64 array, shape (n_queries,), optional
        The query's own row in the corpus, which is no neighbour of itself, or -1. Other rows at
        distance 0 are.
    block_bytes : int
        Size of a block of the corpus, as float32.

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
    query_vectors = Vectors(queries, "the queries")
    query_vectors.check_like(corpus)
    queries = query_vectors.take(np.arange(query_vectors.n))
    faiss: Any = need("faiss", "audit")
    search: Any = importlib.import_module("faiss.contrib.exhaustive_search")

    n_floats = corpus.dimension * (8 if corpus.is_hash else 1)

    def blocks() -> Iterator[Array]:
        with progress_bar("neighbours", corpus.n, unit="img", is_shown=progress) as bar:
            for block in corpus.blocks(max(1, block_bytes // (4 * n_floats))):
                yield _floats(block)
                bar.update(len(block))

    n_candidates = k if exclude is None else k + 1
    similarities, rows = search.knn_ground_truth(
        _floats(queries), blocks(), n_candidates, faiss.METRIC_INNER_PRODUCT
    )
    rows[similarities < -2 * n_floats] = -1  # there are no more
    if exclude is not None:
        rows[rows == exclude[:, None]] = -1
    distances = np.empty(rows.shape)
    for start in range(0, len(queries), _N_REFINED):
        part = slice(start, start + _N_REFINED)
        distances[part] = _exact_distances(queries[part], corpus, rows[part])
    order = np.lexsort((rows, distances))[:, :k]
    return Neighbours(np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1))


def _floats(vectors: Array) -> Array:
    """Return vectors whose inner products order them: hash codes as -1 and 1 for each bit."""
    if vectors.dtype == np.float32:
        return vectors
    return 2 * np.unpackbits(vectors, axis=1).astype(np.float32) - 1


def _exact_distances(queries: Array, corpus: Vectors, rows: Rows) -> NDArray[np.float64]:
    """Return the distances to candidate rows, shape (n_queries, k); infinite for row -1."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    candidates = corpus.take(np.maximum(distinct, 0))
    distances = np.empty(rows.shape)
    if not corpus.is_hash:
        queries, candidates = _unit(queries), _unit(candidates)
    for column, number in enumerate(inverse.reshape(rows.shape).T):
        if corpus.is_hash:
            bits = np.bitwise_count(queries ^ candidates[number]).sum(axis=1)
            distances[:, column] = bits / (8 * corpus.dimension)
        else:
            distances[:, column] = ((queries - candidates[number]) ** 2).sum(axis=1) / 2
    distances[rows < 0] = np.inf
    return distances


def _unit(vectors: Array) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    return exact
