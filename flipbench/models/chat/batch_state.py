"""The state of pending batches, in files that survive a kill."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.files import PRIVATE, write_atomically
from flipbench.core.records import JsonDict, Value
from flipbench.models.chat.scrubbing import parse

log = logging.getLogger(__name__)


class Shard(Value):
    """The state of one batch.

    ``sent`` are the parameters of each request, by ``custom_id``; ``file_id``, ``batch_id``,
    ``status``, ``problem`` and ``code`` are the server's. Once ``collected``, it is final.
    """

    name: str
    sent: dict[str, JsonDict]
    file_id: str
    batch_id: str | None = None
    status: str = "uploaded"
    problem: str = ""
    code: str = ""
    collected: bool = False


class BatchFolder:
    """A folder, for the user alone, with a state, an output and an error file for each shard."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shards(self) -> list[Shard]:
        """Return the state of every shard."""
        shards = []
        for path in sorted(self.path.glob("*.state.json")):
            try:
                shards.append(Shard.model_validate_json(path.read_bytes()))
            except ValueError as error:
                raise PrerequisiteError(
                    f"{path}: not the state of a batch ({error}); move it away to send its requests"
                    " again"
                ) from error
        return shards

    def keep(self, shard: Shard, **changes: Any) -> Shard:
        """Write a shard's changed state atomically; return the shard."""
        shard = shard.model_copy(update=changes)
        write_atomically(self.path / f"{shard.name}.state.json", shard.model_dump_json(), PRIVATE)
        return shard

    def keep_rows(self, shard: Shard, kind: str, data: bytes) -> None:
        """Write a downloaded file; ``kind`` is "output" or "error"."""
        write_atomically(self.path / f"{shard.name}.{kind}.jsonl", data, PRIVATE)

    def rows(self, shard: Shard, kind: str) -> Iterator[JsonDict]:
        """Yield the lines of a downloaded file; none if it does not exist."""
        path = self.path / f"{shard.name}.{kind}.jsonl"
        if not path.exists():
            return
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                row = parse(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            else:
                log.warning("%s:%d is not a reply; its request is sent again", path, number)

    def new_input(self) -> Path:
        """Return a path for the input file of a new shard."""
        return self.path / f"{uuid.uuid4().hex[:12]}.input.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes, and remove input files left behind by a kill."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise PrerequisiteError(
                        f"{self.path}: another process is using these batches; wait for it"
                    ) from error
                for path in self.path.glob("*.input.jsonl"):
                    path.unlink()
                yield
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot store the batches ({error.strerror}); free some disk space"
                " and run the same command again"
            ) from error
