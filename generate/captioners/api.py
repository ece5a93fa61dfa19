"""Captions from a chat model: through an API, through batches, or on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from flipbench.config.chat import APISpec
from flipbench.config.kinds import Context
from flipbench.config.local_models import LocalSpec
from flipbench.core.errors import DataError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Value
from flipbench.models.chat.batch_api import server_chat
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.models.protocols import CaptionText, release

PROMPTS = Path(__file__).parents[1] / "prompts"
DEFAULT_PROMPT = "caption-release-v1"
PROPOSING_PROMPT = "counterfactual-v1"
_REFUSAL = re.compile(
    r"(?:i['’]?m|i am) (?:really |very )?sorry|sorry,|i (?:can(?:no|['’])t|am unable to|won['’]t)\b"
    r"|as an ai\b",
    re.IGNORECASE,
)


class Prompts(Value):
    """Prompts of a captioning chat model."""

    prompt: str = Field(
        default=DEFAULT_PROMPT, description="name of a prompt in generate/prompts, or a .txt file"
    )
    counterfactual_prompt: str = Field(
        default=PROPOSING_PROMPT, description="prompt that asks for a free-form item's new answer"
    )

    @property
    def prompt_file(self) -> PromptFile:
        """The loaded caption prompt."""
        return caption_prompt(self.prompt)

    @property
    def writes(self) -> Literal["caption", "instruction"] | None:
        """What the prompt asks for; None of a prompt of one's own."""
        return written_by(self.prompt)


class APICaptionerSpec(APISpec, Prompts):
    """Captions from an OpenAI-compatible server."""

    def build(self, context: Context) -> APICaptioner:
        """Return the captioner; nothing is sent before its first call."""
        chat = server_chat(self.chat, context.folder, batch=self.batch)
        return APICaptioner(chat, self.prompt, self.counterfactual_prompt)


class LocalCaptionerSpec(LocalSpec, Prompts):
    """Captions from a model on this machine."""

    def build(self, context: Context) -> APICaptioner:
        """Return the captioner; weights are loaded on its first call."""
        from flipbench.models.vlm.local_chat import local_chat

        chat = local_chat(self.chat, context.seed)
        return APICaptioner(chat, self.prompt, self.counterfactual_prompt)


class APICaptioner:
    """Have a chat model write the caption.

    ``prompt`` is the name of a prompt in ``generate/prompts``, or your own ``.txt`` file, and has
    the new answer; ``counterfactual_prompt`` is the same, for proposing new answers of free-form
    items (`ProposeStage`).

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4 and its appendix on prompts. Differs from the paper in
    the wording of the prompts, which is ours, and by default from its released code, which does not
    show the options; see docs/papers.md.
    """

    def __init__(
        self,
        chat: Chat,
        prompt: str | Path = DEFAULT_PROMPT,
        counterfactual_prompt: str | Path = PROPOSING_PROMPT,
    ) -> None:
        self.chat, self.prompt_path = chat, prompt
        self.counterfactual_prompt = counterfactual_prompt
        self.prompt_file = caption_prompt(prompt)
        self.name = chat.name
        self.prompt = self.prompt_file.id
        self.settings = dict(chat.settings)
        self._notes: Mapping[str, str] = {}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        """Describe a batch, in order."""
        return ask_each(self.chat, candidates, images, self._request, _caption)

    def rewriting(self, attempt: int, notes: Mapping[str, str]) -> APICaptioner:
        """Return the captioner of a later attempt, which is told what was wrong before.

        ``notes`` are by item id. The attempt, not the notes, is part of the captions' ids: they
        follow from what is stored.
        """
        other = APICaptioner(self.chat, self.prompt_path, self.counterfactual_prompt)
        other.settings = self.settings | {"attempt": attempt}
        other._notes = notes
        return other

    def _request(self, candidate: Candidate) -> ChatRequest:
        request = caption_request(self.prompt_file, candidate)
        note = self._notes.get(candidate.item.id)
        return replace(request, text=f"{request.text}\n\n{note}") if note else request

    def release(self) -> None:
        """Free a local model's weights."""
        release(self.chat)


def written_by(prompt: str) -> Literal["caption", "instruction"] | None:
    """Return what a prompt in ``generate/prompts`` asks for; None of one's own."""
    if prompt.endswith(".txt"):
        return None
    return "instruction" if "instruction" in prompt else "caption"


def caption_prompt(prompt: str | Path) -> PromptFile:
    """Load a caption prompt; it must contain the new answer."""
    return load_prompt(prompt, PROMPTS, needs=("new_answer",))


def caption_request(prompt: PromptFile, candidate: Candidate) -> ChatRequest:
    """Fill in the prompt for a candidate; of several images, it names the one to describe.

    Raises
    ------
    DataError
        If the item has no image or no new answer.
    """
    refs = candidate.item.images
    if not refs:
        raise DataError(f"{candidate.subject}: there is no image to describe")
    request = prompt.request(candidate, refs)
    if len(refs) == 1:
        return request
    place = f"number {candidate.picture + 1}" if candidate.picture else "the first"
    note = f"There are {len(refs)} pictures; the one to describe and change is {place}."
    return replace(request, text=f"{note}\n{request.text}")


def declines(text: str) -> bool:
    """Return whether a reply begins like a refusal.

    >>> declines("I'm sorry, I can't help with that."), declines("A red bus on a bridge.")
    (True, False)
    """
    return _REFUSAL.match(text.lstrip("\"'“ ")) is not None


def _caption(_: Candidate, reply: ChatReply) -> CaptionText | Exception:
    if declines(reply.text):
        return ServiceError(f"the model declined to write a caption: {reply.text[:200]}")
    return CaptionText(reply.text, reply.usage)
