"""vLLM as a server of this command: its command line, its process, one server at a time."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.config.local_models import Dtype
from flipbench.config.served_model import VLLMConfig
from flipbench.core.errors import PrerequisiteError, ServiceError, shorten
from flipbench.core.redirects import SameServer
from flipbench.models.serving import keeper

log = logging.getLogger(__name__)
BASE = "base"
"""The name under which a server knows the weights that it was started with."""


_HOST = "127.0.0.1"
_GRACE = 20.0  # seconds between SIGTERM and SIGKILL
_LINES = 12  # of the log, in a message
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME")  # a server has its own environment
_DIRECT = urllib.request.build_opener(  # it is on this machine
    urllib.request.ProxyHandler({}), SameServer("engine.executable")
)


@dataclass(frozen=True, eq=True)
class Served:
    """The weights that a server is started with, and how."""

    path: str
    revision: str | None
    dtype: Dtype
    trust_remote_code: bool
    engine: VLLMConfig

    @property
    def command(self) -> list[str]:
        """The command line of ``vllm serve``, without host and port."""
        engine = self.engine
        command = [engine.executable, "serve", self.path, "--served-model-name", BASE]
        command += ["--dtype", self.dtype, "--generation-config", "vllm"]
        command += ["--gpu-memory-utilization", str(engine.gpu_memory)]
        command += ["--tensor-parallel-size", str(engine.tensor_parallel)]
        command += ["--revision", self.revision] if self.revision else []
        command += ["--trust-remote-code"] if self.trust_remote_code else []
        if engine.max_length:
            command += ["--max-model-len", str(engine.max_length)]
        if engine.mm_processor_kwargs:
            command += ["--mm-processor-kwargs", json.dumps(engine.mm_processor_kwargs)]
        if engine.images_per_prompt:
            limit = {"image": engine.images_per_prompt}
            command += ["--limit-mm-per-prompt", json.dumps(limit)]
        if engine.max_lora_rank:
            command += ["--enable-lora", "--max-lora-rank", str(engine.max_lora_rank)]
        return [*command, *engine.arguments]

    @property
    def environment(self) -> dict[str, str]:
        """What is set in the server's environment."""
        return {
            "VLLM_BATCH_INVARIANT": "1" if self.engine.batch_invariant else "0",
            **({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if self.engine.max_lora_rank else {}),
        }


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
        inherited = {k: v for k, v in os.environ.items() if k not in _PYTHON_VARIABLES}
        keeper_command = [sys.executable, "-I", keeper.__file__, str(_GRACE)]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*keeper_command, *command, "--host", _HOST, "--port", str(port)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=inherited | {**environment},
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
                self.request("/health")
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

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send JSON to a path, if any; return the JSON that comes back, None if it is empty.

        Raises
        ------
        ServiceError
            If there is no answer, or an error.
        """
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, head)
        try:
            with _DIRECT.open(request, timeout=10 if body is None else 600) as reply:
                text = reply.read()
            is_json = text and "json" in reply.headers.get_content_type()
            return json.loads(text) if is_json else None
        except urllib.error.HTTPError as error:
            reply_text = shorten(error.read(4000).decode(errors="replace"), 400)
            raise ServiceError(f"{self.name} refused {path}: {reply_text}") from error
        except (OSError, ValueError) as error:
            raise ServiceError(f"{self.name} did not answer {path}: {error}") from error

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


class VLLMServers:
    """The vLLM server of a command: at most one at a time, stopped at the latest when it exits.

    ``folder`` gets the logs, one for each server and process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._served: Served | None = None
        self._process: ServerProcess | None = None
        self._adapter = ""

    def start(self, served: Served) -> ServerProcess:
        """Return the server of these weights; start it, and stop another, if need be."""
        if self._process is not None and self._served == served:
            return self._process
        self.stop()
        check_executable(served.engine.executable)
        name = re.sub(r"[^\w.-]+", "-", served.path).strip("-")[-80:]
        output = self.folder / f"vllm-{name}-{os.getpid()}.log"
        log.info("%s: starting vLLM; log: %s", served.path, output)
        _bypass_proxy()
        process = ServerProcess("vLLM", served.command, served.environment, output)
        atexit.register(self.stop)
        self._process, self._served = process, served
        try:
            process.wait_until_healthy(served.engine.start_timeout)
        except BaseException:
            self.stop()
            raise
        return process

    def use_adapter(self, name: str, path: str) -> None:
        """Load an adapter into the running server, in place of the one before."""
        assert self._process is not None  # started for its base
        if name == self._adapter:
            return
        if self._adapter:
            self._process.request("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = ""
        body = {"lora_name": name, "lora_path": str(Path(path).absolute())}
        self._process.request("/v1/load_lora_adapter", body)
        self._adapter = name

    def stop(self) -> None:
        """Stop the server, if one runs."""
        process, self._process = self._process, None
        self._served, self._adapter = None, ""
        atexit.unregister(self.stop)
        if process is not None:
            process.stop()


def check_executable(executable: str) -> None:
    """Raise a `PrerequisiteError` if there is no such program."""
    if shutil.which(executable) is None:
        raise PrerequisiteError(
            f"engine: there is no program {executable!r}; install vLLM into an environment of its"
            " own (python -m venv vllm && vllm/bin/pip install vllm) and set engine.executable to"
            " its bin/vllm"
        )


def _bypass_proxy() -> None:
    """Let no proxy stand between this process and its server."""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = os.environ.get(name, "")
        if "127.0.0.1" not in hosts:
            os.environ[name] = f"{hosts},127.0.0.1".lstrip(",")
