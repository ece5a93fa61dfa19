"""Entry points: serve the page of a task for a run; export and import verdicts without it.

The task is the review of edited pairs unless another is given.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from flipbench.core.confined import read_confined
from flipbench.core.errors import ConfigError, DataError, need
from flipbench.core.files import write_atomically
from flipbench.core.run import Run

from .exchange import (
    ImportReport,
    export_csv,
    export_tasks,
    have_several,
    import_rows,
    label_config,
    read_rows,
)
from .ledger import Ledger
from .tasks import REVIEW, Task

PORT = 8765


def serve_review(
    run_path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    blind: bool = False,
    edit_ids: Collection[str] | None = None,
    task: Task = REVIEW,
) -> None:
    """Serve the page until interrupted.

    Parameters
    ----------
    run_path : path
        A run directory with edits, or with flagged pairs to adjudicate.
    host, port : str, int
        Where to listen; port 0 selects a free one. By default only this machine can connect.
    token : str, optional
        Required once from every browser. Random, and printed, if other machines can reach
        ``host``.
    blind : bool
        Have reviewers answer the question before they see the new answer.
    edit_ids : collection of str, optional
        Only the pairs of these edits (to adjudicate: benchmark pictures by sha256).

    Raises
    ------
    PrerequisiteError
        If the extra ``review`` is not installed.
    ConfigError
        If the address or port is not available, or the token is weak.
    DataError
        If there is no run, nothing to review, or another review of this run is open.
    """
    uvicorn = need("uvicorn", "review")
    need("starlette", "review")
    from .app import ReviewApp, make_app
    from .guard import few_messages, is_loopback, server_config

    if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,}", token):
        raise ConfigError("a token needs at least 16 characters: letters, digits, '-' and '_'")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(18)
    with _listener(host, port) as listener, _locked(run_path, task) as run:
        ledger = Ledger(run, task.load(run, edit_ids), task)
        title = f"{run.path.name}: {len(ledger.pairs):,} pairs"
        app = make_app(ReviewApp(ledger, run.images, run.path.name, blind), token)
        address = _address(host, listener, token)
        print(f"{title}, open {address} (stop with Ctrl+C)", flush=True)
        with few_messages(), contextlib.suppress(KeyboardInterrupt):  # how a review ends
            uvicorn.Server(server_config(app)).run(sockets=[listener])


def export_verdicts(
    run_path: str | Path,
    out: Path,
    edit_ids: Collection[str] | None = None,
    task: Task = REVIEW,
) -> int:
    """Write the effective verdicts as CSV, or for Label Studio; return the number of pairs.

    If ``out`` ends in ``.json``, writes Label Studio tasks, and their labelling configuration as
    ``.xml``. ``edit_ids`` restricts the export to some edits.
    """
    run = Run(_existing(run_path, task))
    ledger = Ledger(run, task.load(run, edit_ids), task)
    if out.suffix == ".json":
        write_atomically(out, export_tasks(ledger))
        config = label_config(task, several=have_several(ledger))
        write_atomically(out.with_suffix(".xml"), config)
    else:
        write_atomically(out, export_csv(ledger))
    return len(ledger.pairs)


def import_verdicts(run_path: str | Path, path: Path, task: Task = REVIEW) -> ImportReport:
    """Import people's verdicts from a CSV or Label Studio file into a run.

    Raises
    ------
    DataError
        If the file cannot be read, no row fits the run, or a review page is open on the run
        (which can import the file itself).
    """
    try:
        data = read_confined(path, None)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    rows, problems = read_rows(data, path.name, task)
    with _locked(run_path, task) as run:
        return import_rows(Ledger(run, task.load(run, None), task), rows, problems)


def _existing(run_path: str | Path, task: Task) -> Path:
    path = Path(run_path)
    if not (path / task.needs).exists():
        raise DataError(f"{path}: {task.missing}")
    return path


@contextlib.contextmanager
def _locked(run_path: str | Path, task: Task) -> Iterator[Run]:
    """Open a run for people's verdicts; a lock keeps two processes from numbering the same ones."""
    path = _existing(run_path, task)
    with Run(path) as run, (path / f"{task.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{path}: a review page is open on this run; use it, or stop it first"
            ) from error
        yield run


def _listener(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ConfigError(f"port {port}: ports range from 0 (any free port) to 65535")
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}: no address to listen on ({error})") from error
    try:
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        problem = os.strerror(error.errno or 0)
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({problem});"
            " choose another port, or 0 for any free port"
        ) from error


def _address(host: str, listener: socket.socket, token: str | None) -> str:
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    port = listener.getsockname()[1]
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
