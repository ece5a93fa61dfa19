"""What model families differ in: what they can do, their prompt where they have no chat template.

A family is a ``model_type`` of transformers. One that is not in the table has a chat template,
reads any number of images, none included, and can do everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flipbench.models.protocols import Capability

EVERYTHING: frozenset[Capability] = frozenset(
    {"choose", "generate", "token_logprobs", "hidden_states", "text_only"}
)


@dataclass(frozen=True)
class Family:
    """How a family is asked.

    Attributes
    ----------
    can : frozenset of str
        What it can be asked for.
    prompt : str
        How a prompt is written where there is no chat template: ``{images}`` and ``{prompt}``.
    image : str
        What stands for one image in ``prompt``, where the processor does not put it there itself.
    reply : str
        How ``{reply}`` goes on from ``prompt``; the end mark follows it.
    least_images, most_images : int
        How many images one probe may have; ``None``: any number.
    reply_token_type : int
        The token type of a reply's tokens: 1 where they, unlike the prompt's, are read causally.
    """

    can: frozenset[Capability] = EVERYTHING
    prompt: str = ""
    image: str = ""
    reply: str = " {reply}"
    least_images: int = 0
    most_images: int | None = None
    reply_token_type: int = 0

    def refuses(self, n_images: int) -> str:
        """Return why a probe with so many images cannot be asked, or nothing.

        >>> Family(least_images=1, most_images=1).refuses(2)
        'it reads exactly 1 image at a time, not 2'
        >>> Family().refuses(2)
        ''
        """
        most = self.most_images
        if n_images >= self.least_images and (most is None or n_images <= most):
            return ""
        wanted = f"at least {self.least_images}" if most is None else f"exactly {most}"
        return f"it reads {wanted} image at a time, not {n_images}"


# Prompts are the documentation's: transformers' examples for BLIP-2 and InstructBLIP, the model
# cards' "answer en" for PaliGemma. Their outputs hold no last hidden state of the language model.
_BLIP = EVERYTHING - {"hidden_states", "text_only"}
FAMILIES: dict[str, Family] = {
    "blip-2": Family(_BLIP, "Question: {prompt} Answer:", least_images=1, most_images=1),
    "instructblip": Family(_BLIP, "{prompt}", least_images=1, most_images=1),
    "paligemma": Family(
        EVERYTHING - {"text_only"},
        prompt="{images}answer en {prompt}",
        image="<image>",
        reply="{reply}",
        least_images=1,
        reply_token_type=1,
    ),
}


def family_of(config: Any) -> Family:
    """Return the family of a model's configuration.

    A language model of an encoder and a decoder (BLIP-2 and InstructBLIP with T5) is only asked
    to write.
    """
    family = FAMILIES.get(config.model_type, Family())
    if is_encoder_decoder(config):
        return replace(family, can=frozenset({"generate"}))
    return family


def is_encoder_decoder(config: Any) -> bool:
    """Return whether replies come from a decoder of their own, apart from the prompt."""
    return bool(config.is_encoder_decoder or config.get_text_config().is_encoder_decoder)
