"""Embeddings in several arrays, read block by block: files larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError

Array = NDArray[Any]
_TOLERANCE = 1e-3  # of a unit vector's norm


class _Shard(NamedTuple):
    array: Array
    first: int
    file: tuple[Path, int] | None
    """The file of a memory-mapped array, and where its data start."""


class Vectors:
    """The rows of one or several arrays, as one.

    Memory-mapped arrays are read from their files, so that no more than the blocks in use counts
    towards the memory of the process.

    Parameters
    ----------
    arrays : array or sequence of arrays, each of shape (n, d)
        L2-normalised float32 embeddings, or uint8 hash codes of d bytes.
    name : str
        What they are, for messages.

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
            found = " and ".join(sorted(f"{d} x {dtype}" for d, dtype in kinds))
            raise DataError(f"{name}: its parts have {found}; embed all with one encoder")
        self.name = name
        self.dimension, self.dtype = next(iter(kinds))
        if self.dtype not in (np.float32, np.uint8):
            raise DataError(f"{name}: embeddings must be float32 or uint8, not {self.dtype}")
        self._shards: list[_Shard] = []
        self.n = 0
        for part in parts:
            self._shards.append(_Shard(part, self.n, _file_of(part)))
            self.n += len(part)
        self._firsts = np.array([shard.first for shard in self._shards])

    @property
    def is_hash(self) -> bool:
        """Whether the rows are hash codes, compared by their bits."""
        return bool(self.dtype == np.uint8)

    def check_like(self, other: Vectors) -> None:
        """Refuse to compare embeddings of different encoders.

        Raises
        ------
        DataError
            If dimension or type differ.
        """
        if (self.dimension, self.dtype) != (other.dimension, other.dtype):
            raise DataError(
                f"{self.name}: {self.dimension} x {self.dtype}, but {other.name}:"
                f" {other.dimension} x {other.dtype}; embed both with the same encoder"
            )

    def take(self, rows: NDArray[np.int64]) -> Array:
        """Return rows by number, in the order asked for: shape (len(rows), d).

        Raises
        ------
        DataError
            As by `blocks`.
        """
        result = np.empty((len(rows), self.dimension), self.dtype)
        holders = self._holders(rows)
        for number in np.unique(holders).tolist():
            shard, here = self._shards[number], np.flatnonzero(holders == number)
            if shard.file is None:
                result[here] = shard.array[rows[here] - shard.first]
                continue
            with shard.file[0].open("rb", buffering=0) as file:
                for at in here[np.argsort(rows[here])].tolist():
                    self._read(file, shard, int(rows[at]) - shard.first, result[at : at + 1])
        return self.checked(result, rows)

    def blocks(self, n_bytes: int) -> Iterator[tuple[int, Array]]:
        """Yield (number of the first row, rows); the next block is read in the meantime.

        Two blocks of ``n_bytes`` are in memory. A block is overwritten after the next one.

        Raises
        ------
        DataError
            If a row is not finite or not normalised, or a file is too short.
        """
        size = min(self.n, max(1, n_bytes // (self.dimension * self.dtype.itemsize)))
        buffers: list[Array | None] = [None, None]

        def read(number: int) -> Array:
            start = number * size
            stop = min(self.n, start + size)
            shard = self._shards[self._holders(start)]
            low, high = start - shard.first, stop - shard.first
            if shard.file is None and high <= len(shard.array):
                rows = np.ascontiguousarray(shard.array[low:high])
                return self.checked(rows, range(start, stop))
            buffer = buffers[number % 2]
            if buffer is None:
                buffer = buffers[number % 2] = np.empty((size, self.dimension), self.dtype)
            self._fill(start, buffer[: stop - start])
            return self.checked(buffer[: stop - start], range(start, stop))

        n_blocks = -(-self.n // size)
        with ThreadPoolExecutor(1) as reader:
            waiting = reader.submit(read, 0)
            for number in range(n_blocks):
                block = waiting.result()
                if number + 1 < n_blocks:
                    waiting = reader.submit(read, number + 1)
                yield number * size, block

    def checked(self, block: Array, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return a block, whose rows have these numbers.

        Raises
        ------
        DataError
            If a row has NaN, or a norm that differs from 1 by more than 0.001.
        """
        if self.is_hash:
            return block
        squares = np.einsum("ij,ij->i", block, block)
        bad = np.flatnonzero(~(np.abs(squares - 1) <= 2 * _TOLERANCE))
        if len(bad):
            norm = float(np.sqrt(squares[bad[0]]))
            what = f"its norm is {norm:.4g}" if np.isfinite(norm) else "it is not finite"
            raise DataError(
                f"{self.name}, row {rows[bad[0]]:,}: {what}; embeddings must be finite and"
                " L2-normalised: embed again, or divide each row by its norm"
            )
        return block

    def _holders(self, rows: Any) -> Any:
        """Return the numbers of the shards that hold rows."""
        return np.searchsorted(self._firsts, rows, side="right") - 1

    def _fill(self, start: int, block: Array) -> None:
        stop = start + len(block)
        for number in range(self._holders(start), self._holders(stop - 1) + 1):
            shard = self._shards[number]
            low = max(start, shard.first)
            high = min(stop, shard.first + len(shard.array))
            target = block[low - start : high - start]
            if shard.file is None:
                target[:] = shard.array[low - shard.first : high - shard.first]
            else:
                with shard.file[0].open("rb", buffering=0) as file:
                    self._read(file, shard, low - shard.first, target)

    def _read(self, file: Any, shard: _Shard, row: int, target: Array) -> None:
        assert shard.file is not None
        path, offset = shard.file
        file.seek(offset + row * self.dimension * self.dtype.itemsize)
        left: Any = memoryview(target).cast("B")  # type: ignore[arg-type]
        while len(left):
            n_read = file.readinto(left)
            if not n_read:
                raise DataError(f"{path}: shorter than its header states; embed again")
            left = left[n_read:]


def _file_of(array: Array) -> tuple[Path, int] | None:
    """Return the file of a memory-mapped array and the offset of its data; None for any other."""
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    if (
        isinstance(root, np.memmap)
        and isinstance(root.base, mmap.mmap)
        and root.filename is not None
        and root.mode != "c"
        and array.flags.c_contiguous
        and array.dtype == root.dtype
    ):
        return Path(root.filename), int(root.offset + array.ctypes.data - root.ctypes.data)
    return None
