"""A server as a process: start it, wait until it answers, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import PrerequisiteError, ServiceError, shorten
from flipbench.core.redirects import SameServer
from flipbench.models.serving import keeper

_HOST = "127.0.0.1"
_GRACE = 20.0  # seconds between SIGTERM and SIGKILL
_LINES = 12  # of the log, in a message
_OURS = ("PYTHONPATH", "PYTHONHOME")  # not for a server, which has an environment of its own
_DIRECT = urllib.request.build_opener(  # it is on this machine
    urllib.request.ProxyHandler({}), SameServer("engine.executable")
)


class ServerProcess:
    """A server on this machine, which ends with this process, however that ends.

    Parameters
    ----------
    name : str
        In messages.
    command : sequence of str
        Starts it; ``--host`` and ``--port`` are added.
    environment : mapping of str
        Added to this process's environment, without its PYTHONPATH.
    log : Path
        Gets what it prints.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.log = name, log
        port = _free_port()
        self.url = f"http://{_HOST}:{port}"
        keeper_command = [sys.executable, "-I", keeper.__file__, str(_GRACE)]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*keeper_command, *command, "--host", _HOST, "--port", str(port)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={k: v for k, v in os.environ.items() if k not in _OURS} | {**environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise PrerequisiteError(f"{log}: {name} cannot be started ({error})") from error

    def wait_until_healthy(self, seconds: float) -> None:
        """Wait until ``/health`` answers; a `PrerequisiteError` quotes the log if it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(ServiceError):
                self.get("/health")
                return
            time.sleep(0.2)
        self.stop()
        raise PrerequisiteError(
            f"{self.name} did not answer within {seconds:g} seconds; raise start_timeout, or look"
            f" into {self.log}, which ends with:\n{self.tail()}"
        )

    def check(self) -> None:
        """Raise a `PrerequisiteError` if it has ended."""
        if (status := self._process.poll()) is not None:
            raise PrerequisiteError(
                f"{self.name} ended with status {status}; what was answered is safe, and the same"
                f" command starts it again. {self.log} ends with:\n{self.tail()}"
            )

    def get(self, path: str) -> Any:
        """Return the JSON at a path, None if it is empty; an error is a `ServiceError`."""
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Send JSON to a path; errors are those of `get`."""
        head = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        self._ask(urllib.request.Request(self.url + path, data, head), timeout=600)

    def _ask(self, request: urllib.request.Request, timeout: float = 10) -> Any:
        try:
            with _DIRECT.open(request, timeout=timeout) as reply:
                text = reply.read()
            is_json = text and "json" in reply.headers.get_content_type()
            return json.loads(text) if is_json else None
        except urllib.error.HTTPError as error:
            reply_text = shorten(error.read(4000).decode(errors="replace"), 400)
            raise ServiceError(f"{self.name} refused {request.selector}: {reply_text}") from error
        except (OSError, ValueError) as error:
            raise ServiceError(f"{self.name} did not answer {request.selector}: {error}") from error

    def stop(self) -> None:
        """Stop it and all that it started, and wait until they are gone."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE + 10)
        except subprocess.TimeoutExpired:  # then Linux tells the server
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        """Return the last lines of its log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(shorten(line, 300) for line in lines[-_LINES:])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_HOST, 0))
        return int(free.getsockname()[1])
