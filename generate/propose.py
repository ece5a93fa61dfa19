"""Have a chat model propose the new answer of a free-form question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.core.errors import ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, Item, Record, content_id
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.chat.prompt_files import load_prompt

from .captioners.api import PROMPTS, PROPOSING_PROMPT, declines
from .letters import same_text

_MAX_LENGTH = 200


class ProposeStage:
    """Ask for another plausible short answer of the same kind as the old one.

    References
    ----------
    Ours: Park et al., arXiv 2511.03774, flip multiple-choice questions only.
    """

    name = "propose"
    record: type[Record] = Flip

    def __init__(
        self, chat: Chat, images: ImageStore, prompt: str | Path = PROPOSING_PROMPT
    ) -> None:
        self.chat, self.images = chat, images
        self.prompt_file = load_prompt(
            prompt, PROMPTS, needs=("question", "old_answer"), hides=("new_answer",)
        )
        settings = content_id(chat.settings)[:8]
        self.method = f"proposed by {chat.name} {settings}, {self.prompt_file.id}"

    def id_of(self, item: Item) -> str:
        """Return the id of the item's flip."""
        return Flip.id_for(item_id=item.id, method=self.method, seed=0)

    def subject(self, item: Item) -> str:
        """Return the item's benchmark and name."""
        return Candidate(item).subject

    def __call__(self, items: Sequence[Item]) -> list[Flip | Exception]:
        """Ask about a batch."""
        return ask_each(self.chat, items, self.images, self._request, self._flip)

    def _request(self, item: Item) -> ChatRequest:
        return self.prompt_file.request(Candidate(item), item.images)

    def _flip(self, item: Item, reply: ChatReply) -> Flip | Exception:
        text = reply.text.strip().strip("\"'`").strip()
        if declines(text):
            return ServiceError(f"the model declined to propose an answer: {text[:200]}")
        if not text or "\n" in text or len(text) > _MAX_LENGTH:
            return ServiceError(f"not one short answer: {text[:200]!r}")
        if same_text(text.rstrip("."), item.answer_text.rstrip(".")):
            return ServiceError(f"the proposed answer equals the old one: {text!r}")
        return Flip(item_id=item.id, method=self.method, seed=0, new_answer=None, new_text=text)
