"""Build the captioner, the editor and the judges that a configuration names.

`flipbench.pipelines.assembly` calls these; heavy packages are imported only for the backend that
needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flipbench.config.editors import (
    EditorSpec,
    FluxEditorSpec,
    ShapesEditorSpec,
)
from flipbench.config.raters import (
    APICaptionerSpec,
    APIJudgeSpec,
    CaptionerSpec,
    ChatBackedSpec,
    JudgeSpec,
    LocalCaptionerSpec,
    LocalJudgeSpec,
    ModelConfig,
    ShapesCaptionerSpec,
    ShapesJudgeSpec,
    VLMJudgeSpec,
)
from flipbench.core.errors import PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.captioners.api import APICaptioner, caption_prompt
from flipbench.models.chat.cost import CostEstimate, estimate_cost
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.models.protocols import Captioner, Editor, Judge
from flipbench.shapes.backends import SceneCaptioner, SceneEditor, SceneJudge

if TYPE_CHECKING:
    from flipbench.models.vlm.huggingface import HuggingFaceVLM

BATCH_PRICE = 0.5  # what a Batch API asks of the ordinary price


def build_captioner(spec: CaptionerSpec, folder: Path, seed: int = 0) -> Captioner:
    """Return the captioner; ``folder`` keeps a Batch API's state, ``seed`` seeds local sampling."""
    if isinstance(spec, ShapesCaptionerSpec):
        return SceneCaptioner()
    return APICaptioner(build_chat(spec, folder, seed), spec.prompt)


def build_judge(spec: JudgeSpec, folder: Path, seed: int = 0) -> Judge:
    """Return a judge; the arguments are those of `build_captioner`."""
    if isinstance(spec, ShapesJudgeSpec):
        return SceneJudge()
    if isinstance(spec, VLMJudgeSpec):
        from flipbench.filters.judges.vlm import VLMJudge

        return VLMJudge(cast("HuggingFaceVLM", _OnDemand(spec.model)), spec.asking, spec.sure)
    from flipbench.filters.judges.api import APIJudge

    structured = isinstance(spec, APIJudgeSpec) and spec.chat.structured
    chat = build_chat(spec, folder, seed)
    return APIJudge(chat, spec.prompt, blind=spec.blind, structured=structured)


def build_chat(spec: ChatBackedSpec, folder: Path, seed: int = 0) -> Chat:
    """Return the chat model behind a captioner or a judge."""
    if isinstance(spec, LocalCaptionerSpec | LocalJudgeSpec):
        from flipbench.models.vlm.local_chat import LocalChat

        return LocalChat(
            cast("HuggingFaceVLM", _OnDemand(spec.chat.model)),
            max_tokens=spec.chat.max_tokens,
            temperature=spec.chat.temperature,
            seed=seed,
        )
    return _Server(spec, folder)


def missing_key(spec: CaptionerSpec | JudgeSpec) -> PrerequisiteError | None:
    """Return why the server behind a captioner or a judge cannot be asked, or None."""
    if isinstance(spec, APICaptionerSpec | APIJudgeSpec):
        from flipbench.models.chat.api import ChatAPI

        try:
            ChatAPI(spec.chat)
        except PrerequisiteError as error:
            return error
    return None


class _Server:
    """A server that is spoken to when it is first asked: a finished run needs no key."""

    def __init__(self, spec: APICaptionerSpec | APIJudgeSpec, folder: Path) -> None:
        self.name, self.settings = spec.chat.model, spec.chat.settings
        self._spec, self._folder = spec, folder

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> Sequence[ChatReply | Exception]:
        return self._chat.ask(requests, images)

    @cached_property
    def _chat(self) -> Chat:
        from flipbench.models.chat.api import ChatAPI
        from flipbench.models.chat.batch_api import BatchAPI

        api = ChatAPI(self._spec.chat)
        return BatchAPI(api, self._folder) if self._spec.batch else api


class _OnDemand:
    """A local model whose weights are read when it is first needed: a finished run needs none."""

    def __init__(self, model: ModelConfig) -> None:
        from flipbench.models.vlm.huggingface import fingerprint, resolve_path

        self.name, self._model = model.path, model
        self.fingerprint = fingerprint(
            resolve_path(model.path), model.dtype, model.revision, model.quantization
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    @cached_property
    def _loaded(self) -> HuggingFaceVLM:
        from flipbench.models.vlm.huggingface import HuggingFaceVLM

        return HuggingFaceVLM(
            self._model.path, self.name, **self._model.model_dump(exclude={"path"})
        )


def build_editor(spec: EditorSpec) -> Editor:
    """Return the editor with its weights loaded."""
    if isinstance(spec, ShapesEditorSpec):
        return SceneEditor(spec.wrong)
    from flipbench.generate.editors.sizes import SizeRule

    common: dict[str, Any] = spec.model_dump(
        include={"pipeline", "revision", "batch_size", "dtype", "device", "offload", "compile"}
    )
    common["sizes"] = SizeRule(**spec.sizes.model_dump())
    if isinstance(spec, FluxEditorSpec):
        from flipbench.generate.editors.controls import Control
        from flipbench.generate.editors.flux_editor import FluxControlNetEditor

        return FluxControlNetEditor(
            controlnet=spec.controlnet,
            controlnet_revision=spec.controlnet_revision,
            settings=spec.settings,
            control=Control(**spec.control.model_dump()),
            **common,
        )
    from flipbench.generate.editors.diffusers_editor import DiffusersEditor

    return DiffusersEditor(
        pipeline_class=spec.pipeline_class,
        arguments=spec.arguments,
        instruction=spec.instruction,
        mask=spec.mask,
        **common,
    )


def records_at_once(spec: CaptionerSpec | JudgeSpec, configured: int, n_items: int) -> int:
    """Return how many items a backend gets at once: a Batch API wants all of them."""
    by_batch = isinstance(spec, APICaptionerSpec | APIJudgeSpec) and spec.batch
    return max(n_items, 1) if by_batch else configured


def estimate_captions(spec: CaptionerSpec, candidates: Sequence[Candidate]) -> CostEstimate | None:
    """Return what captioning would cost, image tokens counted, or None where it is no API."""
    if not isinstance(spec, APICaptionerSpec):
        return None
    return _estimate(spec, candidates, caption_prompt(spec.prompt))


def estimate_verdicts(spec: JudgeSpec, candidates: Sequence[Candidate]) -> CostEstimate | None:
    """Return what judging would cost, a verdict for each candidate; None for a judge of no API."""
    if not isinstance(spec, APIJudgeSpec):
        return None
    from flipbench.filters.judges.api import PROMPTS

    prompt = load_prompt(spec.prompt or ("judge-blind-v1" if spec.blind else "judge-v1"), PROMPTS)
    return _estimate(spec, candidates, prompt)


def _estimate(
    spec: APICaptionerSpec | APIJudgeSpec, candidates: Sequence[Candidate], prompt: PromptFile
) -> CostEstimate:
    shown = [candidate for candidate in candidates if candidate.item.images]
    factor = BATCH_PRICE if spec.batch else 1.0
    return estimate_cost(shown, spec.chat, prompt, price_factor=factor)
