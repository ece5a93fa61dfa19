"""A checkpoint that answers probes through a vLLM server of this command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from flipbench.config.local_models import ModelConfig
from flipbench.config.served_model import ServedModelConfig, VLLMConfig
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.files import PRIVATE, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Probe, Response, content_id
from flipbench.models.protocols import Capability
from flipbench.models.serving.vllm import BASE, Served, VLLMServers, check_executable
from flipbench.models.vlm.checkpoints import (
    ADAPTER,
    base_of,
    check_files,
    fingerprint,
    padding_of,
    read_object,
    resolve_path,
)
from flipbench.models.vlm.served import APIVLM

RECORD = "server.json"
"""Beside a model's responses: the servers that gave them, the latest last."""


def served_fingerprint(weights: str, engine: VLLMConfig) -> str:
    """Return the fingerprint of weights that a server loads; its version is not part of it."""
    return content_id("vllm", weights, engine.settings)


class ManagedVLM:
    """A checkpoint, full or an adapter, that is asked through vLLM.

    The server is started when it is first needed, and shared with the other adapters of the same
    base. A finished run needs none.

    Parameters
    ----------
    weights : ModelConfig
    engine : VLLMConfig
        How it is served.
    servers : VLLMServers
        The command's server.
    responses : Path
        The folder of a run's responses, where the server is recorded beside them.
    name : str
        In tables.
    local_fingerprint : str, optional
        That of the weights in transformers, if a record names it; files are then read when they are
        needed. The model's own fingerprint adds the engine's settings.

    Raises
    ------
    DataError, PrerequisiteError
        If no fingerprint is given, and there is no such checkpoint, or its files are damaged.
    """

    def __init__(
        self,
        weights: ModelConfig,
        engine: VLLMConfig,
        servers: VLLMServers,
        responses: Path,
        name: str,
        local_fingerprint: str = "",
    ) -> None:
        self.weights, self.engine, self.name, self._servers = weights, engine, name, servers
        self._path = resolve_path(weights.path)
        self.local_fingerprint = local_fingerprint or self._hash_files()
        self.fingerprint = served_fingerprint(self.local_fingerprint, engine)
        self._record = responses / self.fingerprint / RECORD
        self._model: APIVLM | None = None

    def _capabilities(self) -> frozenset[Capability]:
        """Return what the server supports: as recorded, or as found by asking it."""
        if servers := self.servers_used:
            return frozenset(servers[-1]["can"])
        return self._running_model().can

    can: Any = cached_property(_capabilities)

    @property
    def servers_used(self) -> list[JsonDict]:
        """The servers that gave its stored responses, as recorded."""
        try:
            servers = json.loads(self._record.read_text())
        except (OSError, ValueError):
            return []
        return servers if isinstance(servers, list) else []

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order; a server that does not start, or ends, concerns all."""
        answers = self._running_model().ask(probes, images)
        if any(isinstance(answer, Exception) for answer in answers):
            self._servers.start(self._served).check()
        return answers

    def release(self) -> None:
        """Stop the server; the next question starts it again."""
        self._servers.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("the server belongs to one process")

    def check(self) -> None:
        """Refuse what no server can do, before one is started.

        Raises
        ------
        ConfigError
            If an adapter's rank is above ``max_lora_rank``, or the server would prepare pictures
            differently from the model in transformers.
        DataError
            If the weights are damaged, not those whose fingerprint was given, or a tensor has no
            place, or only under another name.
        PrerequisiteError
            If there is no such executable.
        """
        from flipbench.models.vlm.loading import check_weights  # imports torch: seconds
        from flipbench.models.vlm.processors import load_processor

        check_executable(self.engine.executable)
        if self._hash_files() != self.local_fingerprint:
            raise DataError(
                f"{self._path}: not the weights that the run's record of {self.name} names: a file"
                " was altered; restore it, or delete the folder and run 'flipbench contaminate'"
            )
        setting, weights = f"models.{self.name}.engine", self.weights
        placement = check_weights(weights)
        if placement and placement.n_renamed:
            raise DataError(
                f"{self._path}: {placement}, and vLLM passes over names that it does not know;"
                f" save the adapter with today's peft, or ask it with transformers (leave out"
                f" {setting})"
            )
        if self._is_adapter:
            rank = read_object(Path(self._path) / ADAPTER).get("r")
            max_rank = self.engine.max_lora_rank
            if not isinstance(rank, int) or rank > (max_rank or 0):
                raise ConfigError(
                    f"{setting}: {self._path} is an adapter of rank {rank}, and max_lora_rank is"
                    f" {max_rank}; set it to the rank or above"
                )
        if padding_of(self._path, weights.image_padding, weights.revision) == "square":
            processor = load_processor(
                self._path,
                revision=weights.revision,
                image_padding="none",
                trust_remote_code=weights.trust_remote_code,
            )
            if not getattr(processor.image_processor, "do_pad", False):
                raise ConfigError(
                    f"{setting}: vLLM prepares pictures with the checkpoint's own processor, which"
                    " crops them instead of padding; set image_padding: none, or give a folder"
                    " whose preprocessor_config.json names LlavaImageProcessor with do_pad"
                )

    def _hash_files(self) -> str:
        check_files(self._path)
        weights = self.weights
        return fingerprint(
            self._path, weights.dtype, weights.revision, image_padding=weights.image_padding
        )

    @property
    def _is_adapter(self) -> bool:
        return self._served.path != self._path

    @property
    def _served(self) -> Served:
        base, at = base_of(self._path, self.weights.revision)
        dtype, trust = self.weights.dtype, self.weights.trust_remote_code
        return Served(base, at.get("revision"), dtype, trust, self.engine)

    def _running_model(self) -> APIVLM:
        """Return the model behind the running server, with its adapter loaded."""
        if self._model is None:
            try:
                self.check()
            except (ConfigError, DataError) as error:  # which concern every probe
                raise PrerequisiteError(str(error)) from error
        process = self._servers.start(self._served)
        process.check()
        model_name = self.fingerprint if self._is_adapter else BASE
        if self._is_adapter:
            try:
                self._servers.use_adapter(model_name, self._path)
            except ServiceError as error:
                raise PrerequisiteError(
                    f"{self.name}: {error}; leave out models.{self.name}.engine to ask it with"
                    " transformers"
                ) from error
        base_url = f"{process.url}/v1"
        if self._model is None or self._model.spec.base_url != base_url:
            spec = ServedModelConfig(
                model=model_name,
                base_url=base_url,
                api_key_env=None,
                n_concurrent=self.engine.n_concurrent,
                max_retries=1,
                reasoning=False,
            )
            self._model = APIVLM(spec, self.name)
            self._model.fingerprint = self.fingerprint
            version = (process.request("/version") or {}).get("version", "unknown")
            self._record_server(str(version), self._model.letters, self._model.can)
        return self._model

    def _record_server(self, version: str, letters: str, can: frozenset[Capability]) -> None:
        """Record the server beside the responses; refuse one that reads letters differently."""
        served, engine = self._served, self.engine
        description: dict[str, Any] = {
            "engine": engine.kind,
            "version": version,
            "command": served.command,
            "environment": served.environment,
            "batch_invariant": engine.batch_invariant,
            "mm_processor_kwargs": engine.mm_processor_kwargs,
            "images_per_prompt": engine.images_per_prompt,
            "letters": letters,
            "can": sorted(can),
        }
        servers = self.servers_used
        if servers and servers[-1]["letters"] != letters:
            raise PrerequisiteError(
                f"{self.name}: its stored answers are of vLLM {servers[-1]['version']}, which reads"
                f" letters by {servers[-1]['letters']}, and {version} reads them by {letters};"
                " use the same version, or another run directory"
            )
        if description not in servers:
            write_atomically(
                self._record, json.dumps([*servers, description], indent=2) + "\n", PRIVATE
            )
