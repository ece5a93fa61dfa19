"""Prompts and replies in a model's chat format, as text and as tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from os.path import commonprefix
from typing import Any

import torch
from jinja2 import TemplateError
from PIL import Image

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import Probe
from flipbench.models.vlm.checkpoints import first_line
from flipbench.models.vlm.families import ModelFamily
from flipbench.models.vlm.prefill import PrefillRequest
from flipbench.models.vlm.processors import crop_warning
from flipbench.prompting.prompts import LETTERS, split_labels

log = logging.getLogger(__name__)
RAW = ("score_text", "continue_text")
"""Kinds of probe whose prompt is raw text, without the chat template."""

_REPLY = "[reply]"


class Conversation:
    """Writes one prompt and one reply in the format of a processor and a family.

    The processor's chat template is looked up at every call, so it may change; without one, the
    family's prompt format is used. ``name`` is the model's, for messages.
    """

    def __init__(self, processor: Any, family: ModelFamily, name: str) -> None:
        if not hasattr(processor, "image_processor"):
            raise PrerequisiteError(
                f"{name}: there is no image processor next to the weights; copy"
                " preprocessor_config.json and processor_config.json from the original checkpoint"
            )
        if not (processor.chat_template or family.prompt):
            raise PrerequisiteError(
                f"{name}: there is no chat template; put the chat_template.jinja that it was"
                " trained with next to the weights"
            )
        self.processor, self.family, self.name = processor, family, name
        self.tokenizer = processor.tokenizer
        self.tokenizer.padding_side = "left"
        self._warned = False

    def render(self, prompt: str, n_images: int) -> str:
        """Return the text for the processor, with chat template."""
        if self.processor.chat_template:
            return self._apply_template(prompt, n_images, add_generation_prompt=True)
        images = self.family.image * n_images
        return self.family.prompt.replace("{images}", images).replace("{prompt}", prompt)

    def completion(self, reply: str) -> str:
        """Return ``reply`` as it follows a prompt, including the end token."""
        return self._reply_format.replace(_REPLY, reply)

    @property
    def _reply_format(self) -> str:
        if not self.processor.chat_template:
            return self.family.reply.format(reply=_REPLY) + (self.tokenizer.eos_token or "")
        turn = self._apply_template("?", 0, add_generation_prompt=False)
        opened = self._apply_template("?", 0, add_generation_prompt=True)
        chat = self._apply_template("?", 0, reply=_REPLY)
        if chat.startswith(opened):
            return chat[len(opened) :]
        if chat.startswith(turn) and opened.startswith(turn) and _REPLY in chat:
            return chat[chat.index(_REPLY) :]  # LLaVA-OneVision writes "assistant" differently
        raise PrerequisiteError(
            f"{self.name}: its chat template rewrites the prompt when a reply follows, so"
            " flipbench cannot determine where the reply begins"
        )

    def _apply_template(
        self, prompt: str, n_images: int, *, reply: str | None = None, **options: bool
    ) -> str:
        """Return a chat in the template's format: images first, then text, as in training."""
        parts: list[dict[str, str]] = [{"type": "image"}] * n_images
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]
        if reply is not None:
            chat.append({"role": "assistant", "content": [{"type": "text", "text": reply}]})
        try:
            return str(self.processor.apply_chat_template(chat, tokenize=False, **options))
        except (
            TemplateError,
            ArithmeticError,
            LookupError,
            RecursionError,  # a macro that calls itself
            TypeError,
            ValueError,
        ) as error:
            raise DataError(
                f"{self.name}: its chat template cannot be used ({first_line(error)}); copy"
                " chat_template.jinja from the original checkpoint"
            ) from error

    def reply_ids(self, replies: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each reply after a prompt, without the end token.

        They are cut from a full conversation: SentencePiece tokenizers would start a separate " B"
        with a token for the space. If prompt and reply would share a token, the reply is tokenised
        separately, since generation continues from complete tokens.
        """
        prompt = self.render("?", 0)
        lead = self._reply_format.partition(_REPLY)[0]
        texts = [lead + reply for reply in replies]
        n_before = len(ids_before := self._ids([prompt])[0])
        full = self._ids([prompt + text for text in texts])
        return [
            ids[n_before:] if ids[:n_before] == ids_before else separate
            for separate, ids in zip(self._ids(texts), full, strict=True)
        ]

    def raw_ids(self, prompt: str, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens before ``text``, and those of ``text``, without chat template.

        The tokenizer sees both as one text; the tokens before include its BOS token, if any, and
        at least one token of the text, which could not be scored without a BOS token.
        """
        ids, prompt_ids = self._ids([prompt + text, prompt])
        n_before = max(1, len(commonprefix([ids, prompt_ids])))
        bos = self._ids([""], special=True)[0][:1]
        bos = bos if bos == [self.tokenizer.bos_token_id] else []
        return bos + ids[:n_before], ids[n_before:]

    def letter_ids(self, n_letters: int) -> list[int]:
        """Return the first token of each option letter as a reply; no two may be equal."""
        ids = [reply[0] for reply in self.reply_ids(LETTERS[:n_letters])]
        self._check_distinct(ids, n_letters)
        return ids

    def label_ids(self, labels: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the tokens that begin every label as a reply, and each label's next token.

        Some tokenizers write the space before a digit as a token of its own.
        """
        replies = self.reply_ids(labels)
        common = list(commonprefix(replies))
        ids = [reply[len(common)] for reply in replies if len(reply) > len(common)]
        self._check_distinct(ids, len(labels))
        return common, ids

    def other_spellings(self, labels: Sequence[str], ids: Sequence[int]) -> list[int]:
        """Return other tokens than ``ids`` that spell labels: with a space, in other cases."""
        texts = {
            text
            for label in labels
            for text in (
                [label] if len(label) == 1 else [label.lower(), label.title(), label.upper()]
            )
        }
        spelled = {
            self._vocabulary.get(f"{space}{text}")
            for text in texts
            for space in ("", "▁", "Ġ", " ")
        }
        return sorted(i for i in spelled if i is not None and i not in ids)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab())

    def prefill_requests(
        self, probes: Sequence[Probe], rendered: Sequence[str]
    ) -> list[PrefillRequest]:
        """Return what a model reads to answer each probe, from its rendered prompt."""
        prompts = self.ids(rendered)
        n_options: dict[str, int] = {}  # the largest number, by labels
        for probe in probes:
            if probe.ask == "choose":
                n_options[probe.labels] = max(n_options.get(probe.labels, 0), probe.n_options)
        label_ids = {
            labels: self.label_ids(split_labels(labels)[:n]) if labels else ([], self.letter_ids(n))
            for labels, n in n_options.items()
        }
        replying = [i for i, p in enumerate(probes) if p.ask in ("score", "embed")]
        replies = self.reply_ids([probes[i].continuation.strip() for i in replying])
        reply_by_row = dict(zip(replying, replies, strict=True))
        return [
            self._prefill_request(probe, prompts[i], reply_by_row.get(i, []), label_ids)
            for i, probe in enumerate(probes)
        ]

    def _prefill_request(
        self,
        probe: Probe,
        prompt: list[int],
        reply: list[int],
        label_ids: Mapping[str, tuple[list[int], list[int]]],
    ) -> PrefillRequest:
        if probe.ask == "choose":
            prefix, ids = label_ids[probe.labels]
            ids = ids[: probe.n_options]
            spellings = self.other_spellings(split_labels(probe.labels)[: probe.n_options], ids)
            return PrefillRequest(probe.images, prompt, prefix, 1, (*ids, *spellings))
        if probe.ask in RAW:
            prompt, reply = self.raw_ids(probe.prompt, probe.continuation)
        if probe.ask in ("generate", "continue_text"):
            return PrefillRequest(probe.images, prompt, n_new=probe.max_new_tokens)
        if not probe.continuation.strip() or not reply:
            raise DataError(f"{probe.variant} of item {probe.item_id}: nothing to score")
        if probe.ask == "embed":
            return PrefillRequest(probe.images, prompt, reply, 1)
        return PrefillRequest(probe.images, prompt, reply[:-1], len(reply), tuple(reply))

    def _check_distinct(self, ids: Sequence[int], n_labels: int) -> None:
        if len(set(ids)) != n_labels:
            raise PrerequisiteError(
                f"{self.name}: its tokenizer encodes several option letters with the same first"
                " token; set 'ask: generate' for this model"
            )

    def ids(self, rendered: Sequence[str]) -> list[list[int]]:
        """Return the tokens of rendered prompts, with one placeholder per image."""
        has_first = any(has_first_token(text, self.tokenizer) for text in rendered)
        return self._ids(rendered, special=not has_first)

    def _ids(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]
        return ids

    def encode(
        self, texts: Sequence[str], pictures: Sequence[Sequence[Image.Image]]
    ) -> dict[str, torch.Tensor]:
        """Return the model's inputs for rendered texts; either all or none have pictures.

        Padding is moved to the front: BLIP's processors put it between image and text. The first
        batch with pictures that the processor crops is logged.
        """
        sizes = [] if self._warned else [picture.size for row in pictures for picture in row]
        if warning := crop_warning(self.processor, self.name, sizes):
            log.warning("%s", warning)
            self._warned = True
        batch = self.processor(
            text=list(texts),
            images=[list(row) for row in pictures] if pictures[0] else None,
            padding=True,
            return_tensors="pt",
            add_special_tokens=not has_first_token(texts[0], self.tokenizer),
        )
        batch.pop("labels", None)  # PaliGemma's, which would make the model compute a loss
        inputs = dict(batch)
        mask_bt = inputs["attention_mask"]
        order_bt = mask_bt.argsort(dim=1, stable=True)
        for name in TOKEN_INPUTS & inputs.keys():
            inputs[name] = inputs[name].gather(1, order_bt)
        return inputs

    def check_images(self, config: Any) -> None:
        """Process a blank image to check that the processor fits a model of ``config``."""
        blank = Image.new("RGB", (64, 64), "gray")
        try:
            ids = self.encode([self.render("?", 1)], [[blank]])["input_ids"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PrerequisiteError(
                f"{self.name}: its processor cannot read an image ({error}); chat template,"
                " tokenizer and image processor must come from one checkpoint"
            ) from error
        token = getattr(config, "image_token_id", -1)  # -1: this class has none
        if token is None or token >= 0 and not (ids == token).any():
            raise PrerequisiteError(
                f"{self.name}: its processor inserts no image token (id {token} in config.json),"
                " so the model would not see the image; chat template, tokenizer and processor"
                " must be those of the weights"
            )


TOKEN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
"""Inputs with one value per token of the prompt, shape (B, T)."""


def append_replies(
    inputs: dict[str, Any], replies: Sequence[list[int]], pad: int, token_type: int = 0
) -> None:
    """Append the replies' tokens, padded right, to the inputs of their prompts."""
    width = max(map(len, replies))
    appended = {
        "input_ids": [reply + [pad] * (width - len(reply)) for reply in replies],
        "attention_mask": [[1] * len(reply) + [0] * (width - len(reply)) for reply in replies],
        "token_type_ids": [[token_type] * width] * len(replies),
        "mm_token_type_ids": [[0] * width] * len(replies),
    }
    for name in TOKEN_INPUTS & inputs.keys():
        values = torch.tensor(appended[name], dtype=inputs[name].dtype, device=inputs[name].device)
        inputs[name] = torch.cat([inputs[name], values], 1)


def has_first_token(rendered: str, tokenizer: Any) -> bool:
    """Return whether a rendered chat already begins with the tokenizer's BOS token."""
    return bool(tokenizer.bos_token) and rendered.startswith(tokenizer.bos_token)
