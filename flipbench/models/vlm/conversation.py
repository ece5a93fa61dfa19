"""How a model is spoken to: its prompt, how a reply goes on from it, and the tokens of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from flipbench.core.errors import PrerequisiteError
from flipbench.models.vlm.families import Family
from flipbench.prompting.prompts import LETTERS

_REPLY = "[reply]"


class Conversation:
    """One prompt and one reply, as a processor and a family write them.

    Parameters
    ----------
    processor : ProcessorMixin
        Its chat template is what counts, as it is when a prompt is written.
    family : Family
        Says how prompts are written where there is no chat template.
    name : str
        The model's, for messages.

    Raises
    ------
    PrerequisiteError
        Where no image processor, or neither a chat template nor a prompt form is known.
    """

    def __init__(self, processor: Any, family: Family, name: str) -> None:
        if not hasattr(processor, "image_processor"):
            raise PrerequisiteError(
                f"{name}: there is no image processor beside the weights; copy"
                " preprocessor_config.json and processor_config.json of the original checkpoint"
            )
        if not (processor.chat_template or family.prompt):
            raise PrerequisiteError(
                f"{name}: it has no chat template; put the chat_template.jinja that it was trained"
                " with beside the weights"
            )
        self.processor, self.family, self.name = processor, family, name
        self.tokenizer = processor.tokenizer
        self.tokenizer.padding_side = "left"

    def render(self, prompt: str, n_images: int) -> str:
        """Return the text that the processor gets, chat template and all."""
        if self.processor.chat_template:
            return self._templated(prompt, n_images, add_generation_prompt=True)
        images = self.family.image * n_images
        return self.family.prompt.replace("{images}", images).replace("{prompt}", prompt)

    def completion(self, reply: str) -> str:
        """Return ``reply`` as it is written after a prompt, end mark included."""
        return self._written_reply.replace(_REPLY, reply)

    @property
    def _written_reply(self) -> str:
        if not self.processor.chat_template:
            return self.family.reply.format(reply=_REPLY) + (self.tokenizer.eos_token or "")
        turn = self._templated("?", 0, add_generation_prompt=False)
        before = self._templated("?", 0, add_generation_prompt=True)
        whole = self._templated("?", 0, reply=_REPLY)
        if whole.startswith(before):
            return whole[len(before) :]
        if whole.startswith(turn) and before.startswith(turn) and _REPLY in whole:
            return whole[whole.index(_REPLY) :]  # LLaVA-OneVision writes "assistant" differently
        raise PrerequisiteError(
            f"{self.name}: its chat template rewrites the prompt when an answer follows;"
            " flipbench cannot tell where the answer begins"
        )

    def _templated(
        self, prompt: str, n_images: int, *, reply: str | None = None, **options: bool
    ) -> str:
        """Return a chat as the template writes it: images first, then text, as training does."""
        parts: list[dict[str, str]] = [{"type": "image"}] * n_images
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]
        if reply is not None:
            chat.append({"role": "assistant", "content": [{"type": "text", "text": reply}]})
        return str(self.processor.apply_chat_template(chat, tokenize=False, **options))

    def tails(self, replies: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each reply, without its end mark, as they go on from a prompt.

        They are cut from a whole conversation: by itself, " B" begins with a token for the space
        in SentencePiece tokenizers. Where prompt and reply would share a token, the reply is
        tokenised by itself, since a model that writes goes on from whole tokens.
        """
        before = self.render("?", 0)
        lead = self._written_reply.partition(_REPLY)[0]
        written = [lead + reply for reply in replies]
        n_before = len(ids_before := self._ids([before])[0])
        tails = []
        for alone, whole in zip(
            self._ids(written), self._ids([before + text for text in written]), strict=True
        ):
            tails.append(whole[n_before:] if whole[:n_before] == ids_before else alone)
        return tails

    def letter_ids(self, n_letters: int) -> list[int]:
        """Return the first token of each letter as an answer; they must differ.

        Raises
        ------
        PrerequisiteError
            Where two letters begin with the same token.
        """
        ids = [tail[0] for tail in self.tails(LETTERS[:n_letters])]
        if len(set(ids)) != n_letters:
            raise PrerequisiteError(
                f"{self.name}: its tokenizer does not begin the letters with tokens of their own;"
                " set 'ask: generate' for this model"
            )
        return ids

    def ids(self, rendered: Sequence[str]) -> list[list[int]]:
        """Return the tokens of rendered prompts, each image still a placeholder."""
        with_first = not has_first_token(rendered[0], self.tokenizer)
        found: list[list[int]] = self.tokenizer(list(rendered), add_special_tokens=with_first)[
            "input_ids"
        ]
        return found

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def encode(
        self, texts: Sequence[str], pictures: Sequence[Sequence[Image.Image]]
    ) -> dict[str, torch.Tensor]:
        """Return the model's inputs for rendered texts, all of which have pictures, or none has.

        Padding is moved in front of everything: BLIP's processors leave it between image and text.
        """
        batch = self.processor(
            text=list(texts),
            images=[list(row) for row in pictures] if pictures[0] else None,
            padding=True,
            return_tensors="pt",
            add_special_tokens=not has_first_token(texts[0], self.tokenizer),
        )
        batch.pop("labels", None)  # PaliGemma's, with which its model computes a loss
        inputs = dict(batch)
        mask_bt = inputs["attention_mask"]
        order_bt = mask_bt.argsort(dim=1, stable=True)
        for name in TOKEN_INPUTS & inputs.keys():
            inputs[name] = inputs[name].gather(1, order_bt)
        return inputs

    def check_images(self, config: Any) -> None:
        """Read a blank picture, to see that the processor shows a model of ``config`` any.

        Raises
        ------
        PrerequisiteError
            Where the processor fails on it, or writes no token that the weights know for a picture.
        """
        blank = Image.new("RGB", (64, 64), "gray")
        try:
            ids = self.encode([self.render("?", 1)], [[blank]])["input_ids"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PrerequisiteError(
                f"{self.name}: its processor cannot read a picture ({error}); chat template,"
                " tokenizer and image processor must be of one checkpoint"
            ) from error
        token = getattr(config, "image_token_id", -1)  # -1: this class has none
        if token is None or token >= 0 and not (ids == token).any():
            raise PrerequisiteError(
                f"{self.name}: its processor writes no image token (id {token} in config.json) for"
                " a picture, so the model would see none; chat template, tokenizer and processor"
                " must be those of the weights"
            )


TOKEN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
"""Inputs with a value for each token of the prompt, shape (B, T)."""


def has_first_token(rendered: str, tokenizer: Any) -> bool:
    """Return whether a rendered chat begins with the token that tokenizers put before a text."""
    return bool(tokenizer.bos_token) and rendered.startswith(tokenizer.bos_token)
