"""Captions from a vision-language model on this machine."""

from __future__ import annotations

from flipbench.config.kinds import Context
from flipbench.config.local_models import LocalSpec

from .api import APICaptioner, Prompts


class LocalCaptionerSpec(LocalSpec, Prompts):
    """Captions from a model on this machine."""

    def build(self, context: Context) -> APICaptioner:
        """Return the captioner; weights are loaded on its first call."""
        from flipbench.models.vlm.local_chat import local_chat

        chat = local_chat(self.chat, context.seed)
        return APICaptioner(chat, self.prompt, self.counterfactual_prompt)
