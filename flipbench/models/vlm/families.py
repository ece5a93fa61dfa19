"""Differences between model families: capabilities, and prompt formats without chat template.

A family is a ``model_type`` of transformers. A family without an entry in the table has a chat
template, accepts any number of images, including none, and has every capability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from flipbench.models.protocols import Capability

EVERYTHING: frozenset[Capability] = frozenset(get_args(Capability))


@dataclass(frozen=True)
class ModelFamily:
    """The prompt format and limits of a family.

    Without a chat template, ``prompt`` has ``{images}`` (each ``image``, unless the processor
    inserts it) and ``{prompt}``, and ``reply`` follows it. Tokens of a reply get
    ``reply_token_type``: 1 if they, unlike the prompt's, are attended causally.
    """

    can: frozenset[Capability] = EVERYTHING
    prompt: str = ""
    image: str = ""
    reply: str = " {reply}"
    min_images: int = 0
    max_images: int | None = None
    reply_token_type: int = 0

    def refuses(self, n_images: int) -> str:
        """Return why the family does not support this number of images, or ""."""
        maximum = self.max_images
        if n_images >= self.min_images and (maximum is None or n_images <= maximum):
            return ""
        limit = f"at least {self.min_images}" if maximum is None else f"exactly {maximum}"
        return f"it takes {limit} image, not {n_images}"


# Prompts from the documentation: transformers' examples for BLIP-2 and InstructBLIP, the model
# cards' "answer en" for PaliGemma. BLIP outputs lack the language model's last hidden state.
_NEEDS_IMAGE = EVERYTHING - {"raw_text", "text_only"}
_BLIP = _NEEDS_IMAGE - {"hidden_states"}
FAMILIES: dict[str, ModelFamily] = {
    "blip-2": ModelFamily(_BLIP, "Question: {prompt} Answer:", min_images=1, max_images=1),
    "instructblip": ModelFamily(_BLIP, "{prompt}", min_images=1, max_images=1),
    "paligemma": ModelFamily(
        _NEEDS_IMAGE,
        prompt="{images}answer en {prompt}",
        image="<image>",
        reply="{reply}",
        min_images=1,
        reply_token_type=1,
    ),
}


def family_of(config: Any) -> ModelFamily:
    """Return the family of a model's configuration.

    Encoder-decoder language models (BLIP-2 and InstructBLIP with T5) only support ``generate``.
    """
    family = FAMILIES.get(config.model_type, ModelFamily())
    if is_encoder_decoder(config):
        return replace(family, can=frozenset({"generate"}))
    return family


def is_encoder_decoder(config: Any) -> bool:
    """Return whether the language model has an encoder and a decoder."""
    return bool(config.is_encoder_decoder or config.get_text_config().is_encoder_decoder)
