"""The state of batches under way, as files: what a kill must not lose."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.files import write_atomically
from flipbench.core.records import JsonDict, Value

log = logging.getLogger(__name__)


class Shard(Value):
    """The state of one batch.

    Attributes
    ----------
    name : str
        What its files are called.
    sent : dict
        Under the ``custom_id`` of each request, the parameters that were sent with it.
    file_id, batch_id : str
        What the server calls its input file and the batch.
    status, problem, code : str
        What the server says of it.
    collected : bool
        Whether its replies are here; nothing changes after that.
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
    """A folder with a state file, an output file and an error file for each shard."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shards(self) -> list[Shard]:
        """Return the state of every shard.

        Raises
        ------
        PrerequisiteError
            Where a state file is damaged.
        """
        found = []
        for path in sorted(self.path.glob("*.state.json")):
            try:
                found.append(Shard.model_validate_json(path.read_bytes()))
            except ValueError as error:
                raise PrerequisiteError(
                    f"{path}: not the state of a batch ({error}); move it away to send its requests"
                    " anew"
                ) from error
        return found

    def keep(self, shard: Shard) -> Shard:
        """Write a shard's state, as a whole or not at all; return the shard."""
        write_atomically(self.path / f"{shard.name}.state.json", shard.model_dump_json())
        return shard

    def keep_rows(self, shard: Shard, kind: str, data: bytes) -> None:
        """Write a file that came back: ``kind`` is "output" or "error"."""
        write_atomically(self.path / f"{shard.name}.{kind}.jsonl", data)

    def rows(self, shard: Shard, kind: str) -> Iterator[JsonDict]:
        """Yield the lines of a file that came back; none where it did not."""
        path = self.path / f"{shard.name}.{kind}.jsonl"
        if not path.exists():
            return
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError:
                log.warning("%s:%d is no JSON; its request is sent again", path, number)
                continue
            if isinstance(row, dict):
                yield row

    def new_input(self) -> Path:
        """Return a name for another shard's input file."""
        return self.path / f"{uuid.uuid4().hex[:12]}.input.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone, and clear away input files that a kill left behind.

        Raises
        ------
        PrerequisiteError
            Where another process holds it.
        DataError
            Where it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise PrerequisiteError(
                        f"{self.path}: another process is at work on these batches; wait for it"
                    ) from error
                for path in self.path.glob("*.input.jsonl"):
                    path.unlink()
                yield
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot keep the batches ({error.strerror}); make room and run the"
                " same command again"
            ) from error
