"""A chat model on this machine as a judge."""

from __future__ import annotations

from flipbench.config.kinds import Context
from flipbench.config.local_models import LocalSpec

from .api import APIJudge, Task


class LocalJudgeSpec(LocalSpec, Task):
    """A judge model on this machine."""

    def build(self, context: Context) -> APIJudge:
        """Return the judge; weights are loaded on its first call."""
        from flipbench.models.vlm.local_chat import local_chat

        chat = local_chat(self.chat, context.seed)
        return APIJudge(chat, self.prompt, blind=self.blind, structured=False)
