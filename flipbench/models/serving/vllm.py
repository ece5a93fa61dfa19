"""vLLM as a server of this command: its command line, and one server at a time."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from flipbench.config.local_models import Dtype
from flipbench.config.served_model import VLLMConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.models.serving.process import ServerProcess

log = logging.getLogger(__name__)
BASE = "base"
"""The name under which a server knows the weights that it was started with."""


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
        _reach_this_machine()
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
            self._process.post("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = ""
        body = {"lora_name": name, "lora_path": str(Path(path).absolute())}
        self._process.post("/v1/load_lora_adapter", body)
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


def _reach_this_machine() -> None:
    """Let no proxy stand between this process and its server."""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = os.environ.get(name, "")
        if "127.0.0.1" not in hosts:
            os.environ[name] = f"{hosts},127.0.0.1".lstrip(",")
