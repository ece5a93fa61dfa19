"""Build what a configuration names: captioner, editor, judges, chat models; and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.config.chat import APISpec
from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.config.kinds import CaptionerSpec, Context, EditorSpec, JudgeSpec, Settings
from flipbench.config.local_models import LocalSpec
from flipbench.core.errors import PrerequisiteError
from flipbench.core.paired import Candidate
from flipbench.filters.judges.api import APIJudgeSpec
from flipbench.generate.captioners.api import APICaptionerSpec
from flipbench.models.chat.cost import CostEstimate, estimate_cost
from flipbench.models.chat.messages import Chat
from flipbench.models.chat.server import ServerChat
from flipbench.models.plugins import PythonVLM
from flipbench.models.protocols import VLM, Captioner, Editor, Judge

BATCH_PRICE = 0.5  # what a Batch API asks of the ordinary price


def build_captioner(spec: CaptionerSpec, folder: Path, seed: int = 0) -> Captioner:
    """Return the captioner; ``folder`` keeps a Batch API's state, ``seed`` seeds local sampling."""
    captioner: Captioner = spec.build(Context(folder, seed))
    return captioner


def build_editor(spec: EditorSpec, folder: Path = Path(), seed: int = 0) -> Editor:
    """Return the editor; the arguments are those of `build_captioner`."""
    editor: Editor = spec.build(Context(folder, seed))
    return editor


def build_judge(spec: JudgeSpec, folder: Path, seed: int = 0) -> Judge:
    """Return a judge; the arguments are those of `build_captioner`."""
    judge: Judge = spec.build(Context(folder, seed))
    return judge


def build_chat(spec: APISpec | LocalSpec, folder: Path, seed: int = 0) -> Chat:
    """Return a chat model; the arguments are those of `build_captioner`."""
    if isinstance(spec, APISpec):
        return ServerChat(spec.chat, folder, batch=spec.batch)
    from flipbench.models.vlm.local_chat import local_chat

    return local_chat(spec.chat, seed)


def model_without_weights(name: str, model: ModelUnderTestConfig) -> VLM | None:
    """Return a model behind a server, or an object of your own; None for a checkpoint."""
    if model.api:
        from flipbench.models.vlm.served import APIVLM

        return APIVLM(model.api, name)
    if model.python:
        return PythonVLM(model.python.target, model.python.arguments, name)
    return None


def missing_key(spec: Settings) -> PrerequisiteError | None:
    """Return why the server behind a captioner or a judge cannot be asked, or None."""
    if isinstance(spec, APISpec):
        from flipbench.models.chat.api import ChatAPI

        try:
            ChatAPI(spec.chat)
        except PrerequisiteError as error:
            return error
    return None


def records_at_once(spec: Settings, configured: int, n_items: int) -> int:
    """Return how many items a backend gets at once: a Batch API wants all of them."""
    return max(n_items, 1) if isinstance(spec, APISpec) and spec.batch else configured


def estimate_captions(spec: CaptionerSpec, candidates: Sequence[Candidate]) -> CostEstimate | None:
    """Return what captioning would cost, image tokens counted, or None where it is no API."""
    return _estimate(spec, candidates)


def estimate_verdicts(spec: JudgeSpec, candidates: Sequence[Candidate]) -> CostEstimate | None:
    """Return what judging would cost, a verdict for each candidate; None for a judge of no API."""
    return _estimate(spec, candidates)


def _estimate(spec: Settings, candidates: Sequence[Candidate]) -> CostEstimate | None:
    if not isinstance(spec, APICaptionerSpec | APIJudgeSpec):
        return None
    shown = [candidate for candidate in candidates if candidate.item.images]
    factor = BATCH_PRICE if spec.batch else 1.0
    return estimate_cost(shown, spec.chat, spec.prompt_file, price_factor=factor)
