"""Build chat models, writers and models without weights; what a backend costs and requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flipbench.config.chat import APISpec
from flipbench.config.experiment import AnswerJudgeConfig, ModelUnderTestConfig
from flipbench.config.kinds import Context, PartSettings
from flipbench.config.local_models import LocalSpec, ModelConfig
from flipbench.config.served_model import VLLMConfig
from flipbench.config.training import RewriteConfig
from flipbench.contaminate.data.wordings import ChatWriter, FileWriter, ShapesWriter, Writer
from flipbench.core.errors import PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Response
from flipbench.core.run import Run
from flipbench.filters.judges.api import APIJudgeSpec
from flipbench.generate.captioners.api import APICaptionerSpec
from flipbench.generate.editors.images_api import ImagesAPIEditorSpec
from flipbench.models.chat.batch_api import BATCH_PRICE, server_chat
from flipbench.models.chat.cost import CostEstimate, estimate_cost, typical_request
from flipbench.models.chat.messages import Chat
from flipbench.models.chat.prompt_files import PromptFile
from flipbench.models.plugins import PythonVLM
from flipbench.models.protocols import VLM
from flipbench.models.serving.managed import ManagedVLM
from flipbench.models.serving.vllm import VLLMServers


def backend_context(run: Run, seed: int) -> Context:
    """Return what backends are built with: where Batch APIs keep their state, and the seed."""
    return Context(run.path / "batches", seed)


def build_chat(config: RewriteConfig | AnswerJudgeConfig, context: Context) -> Chat:
    """Return the configured chat model, behind a server or on this machine."""
    if config.local is not None:
        from flipbench.models.vlm.local_chat import local_chat

        return local_chat(config.local, context.seed)
    assert config.chat is not None  # validated with the configuration
    return server_chat(config.chat, context.folder, batch=config.batch)


def build_writer(config: RewriteConfig, context: Context, images: ImageStore) -> Writer:
    """Return what rewords or translates the questions."""
    if config.by == "shapes":
        return ShapesWriter(config.how)
    if config.by == "file" and config.path is not None:
        return FileWriter(config.path)
    chat = build_chat(config, context)
    return ChatWriter(chat, images, config.language, config.levels, config.prompt)


def model_without_weights(
    name: str, model: ModelUnderTestConfig, servers: Servers | None = None
) -> VLM | None:
    """Return a model behind a server, or an object of your own; None for weights to load here."""
    if model.engine:
        assert servers is not None  # an experiment has them
        return servers.serve(model, model.engine, name)
    if model.api:
        from flipbench.models.vlm.served import APIVLM

        return APIVLM(model.api, name)
    if model.python:
        return PythonVLM(model.python.target, model.python.arguments, name)
    return None


@dataclass(frozen=True)
class Servers:
    """The model servers that a command starts for a run, with their logs and records there."""

    run: Run

    @cached_property
    def vllm(self) -> VLLMServers:
        """At most one vLLM server at a time."""
        return VLLMServers(self.run.path / "servers")

    def serve(
        self, weights: ModelConfig, engine: VLLMConfig, name: str, weights_hash: str = ""
    ) -> ManagedVLM:
        """Return a checkpoint that is asked through vLLM; nothing is started yet.

        ``known`` is the fingerprint of its weights, if a record names it.
        """
        fields = weights.model_dump(include=set(ModelConfig.model_fields))
        responses = self.run.path / Response.kind
        return ManagedVLM(ModelConfig(**fields), engine, self.vllm, responses, name, weights_hash)


def missing_key(spec: PartSettings) -> PrerequisiteError | None:
    """Return the error if the key for a part's server is missing, else None."""
    chat = spec.chat if isinstance(spec, APISpec) else None
    if isinstance(spec, ImagesAPIEditorSpec):
        chat = spec.as_chat()
    if chat is not None:
        from flipbench.models.chat.api import ChatAPI

        try:
            _ = ChatAPI(chat).client
        except PrerequisiteError as error:
            return error
    return None


def runs_here(spec: PartSettings) -> bool:
    """Return whether a captioner is a chat model on this machine, which workers share out."""
    return isinstance(spec, LocalSpec)


def batch_size_for(spec: PartSettings, configured: int, n_items: int) -> int:
    """Return how many items a backend gets per call: a Batch API gets all of them."""
    return max(n_items, 1) if isinstance(spec, APISpec) and spec.batch else configured


def api_cost(
    spec: PartSettings, candidates: Sequence[Candidate], prompt: PromptFile | None = None
) -> CostEstimate | None:
    """Return the cost of a caption or verdict per candidate, image tokens included.

    None unless ``spec`` configures an API. ``prompt`` is asked instead of the spec's own.
    """
    if not isinstance(spec, APICaptionerSpec | APIJudgeSpec):
        return None
    prompt_file = prompt or spec.prompt_file
    requests = [typical_request(c, prompt_file) for c in candidates if c.item.images]
    return estimate_cost(requests, spec.chat, price_factor=BATCH_PRICE if spec.batch else 1.0)
