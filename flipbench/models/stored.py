"""A model's stored responses, read when they are needed, and a columnar copy of its choices."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.files import PRIVATE, write_atomically
from flipbench.core.records import Response
from flipbench.core.run import Run

COPY = "choices.parquet"
"""The copy's file, beside the shards that it was made from."""

WORTH_COPYING = 1_000
"""Fewer are read in about 10 ms, line by line: another file would save too little."""

_SHARDS = b"shards"
_BLOCK = 1 << 20


class StoredResponses(Mapping[str, Response]):
    """A model's responses in a run by probe id; nothing is read before it is needed.

    Scoring choices needs no more than `choices`. Whoever looks up a response gets every line read
    and checked against its id.
    """

    def __init__(self, run: Run, fingerprint: str) -> None:
        self._run, self._fingerprint = run, fingerprint

    @cached_property
    def _records(self) -> dict[str, Response]:
        with _gc_paused():
            return {r.probe_id: r for r in self._run.read(Response, self._fingerprint)}

    @cached_property
    def choices(self) -> Mapping[str, int]:
        """Each response's ``choice`` by probe id.

        They are read from a columnar copy, `COPY`, if the shards still are the very bytes it was
        made from, by SHA-256. Otherwise all responses are read and checked, and of many only the
        choices are kept and copied, if no line had to be set aside.
        """
        return {probe_id: choice for probe_id, (choice, _) in self._choices_and_shares.items()}

    @cached_property
    def letter_shares(self) -> Mapping[str, float | None]:
        """Each response's ``letter_share`` by probe id; read as `choices` are."""
        return {probe_id: share for probe_id, (_, share) in self._choices_and_shares.items()}

    @cached_property
    def _choices_and_shares(self) -> Mapping[str, tuple[int, float | None]]:
        paths = self._run.shards(Response, self._fingerprint)
        if "_records" in vars(self) or not paths:
            return _extract(self._records.values())
        path = self._run.path / Response.kind / self._fingerprint / COPY
        shards = _summary(paths)
        if (copied := _read(path, shards)) is not None:
            return copied
        n_lines = sum(n for _, n in shards.values())
        if n_lines < WORTH_COPYING:
            return _extract(self._records.values())
        letters = _extract(self._run.read(Response, self._fingerprint))
        paths_after = self._run.shards(Response, self._fingerprint)
        if len(letters) == n_lines and _summary(paths_after) == shards:
            with contextlib.suppress(DataError):  # all works without a copy
                _write(path, letters, shards)
        return letters

    def __getitem__(self, probe_id: str) -> Response:
        return self._records[probe_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@contextlib.contextmanager
def _gc_paused() -> Iterator[None]:
    """Look for no garbage meanwhile: records are many, and none is part of a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _summary(paths: list[Path]) -> dict[str, tuple[str, int]]:
    """Return each shard's SHA-256 and number of complete lines, by name; none if unreadable."""
    summary = {}
    for path in paths:
        digest, n_lines = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    n_lines += block.count(b"\n")
        except OSError:
            return {}
        summary[path.name] = digest.hexdigest(), n_lines
    return summary


def _extract(responses: Iterable[Response]) -> dict[str, tuple[int, float | None]]:
    return {r.probe_id: (r.choice, r.letter_share) for r in responses}


def _write(
    path: Path,
    letters: Mapping[str, tuple[int, float | None]],
    shards: dict[str, tuple[str, int]],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "probe_id": list(letters),
            "choice": pa.array([choice for choice, _ in letters.values()], pa.int64()),
            "letter_share": pa.array([share for _, share in letters.values()], pa.float64()),
        },
        metadata={_SHARDS: json.dumps(shards)},
    )
    data = io.BytesIO()
    pq.write_table(table, data, use_dictionary=["choice"], write_page_checksum=True)
    write_atomically(path, data.getvalue(), PRIVATE)


def _read(
    path: Path, shards: dict[str, tuple[str, int]]
) -> dict[str, tuple[int, float | None]] | None:
    """Return choices and shares from a copy of these shards; None if it is damaged or absent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(
            path, use_threads=False, page_checksum_verification=True, partitioning=None
        )
        made_from = json.loads(table.schema.metadata[_SHARDS])
        if not shards or made_from != {name: list(stamp) for name, stamp in shards.items()}:
            return None
        columns = (table[name].to_pylist() for name in ("probe_id", "choice", "letter_share"))
        return {probe_id: (choice, share) for probe_id, choice, share in zip(*columns, strict=True)}
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
