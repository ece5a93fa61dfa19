"""A local vision-language model as a chat model, with the same prompts as an API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from flipbench.config.local_models import LocalChatSpec
from flipbench.core.errors import FlipbenchError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.protocols import release
from flipbench.models.vlm.decoding import n_before_end
from flipbench.models.vlm.huggingface import HuggingFaceVLM, lazy_vlm
from flipbench.prompting.wrappers import answer_text


def local_chat(spec: LocalChatSpec, seed: int = 0) -> LocalChat:
    """Return the configured model; its weights are loaded on first use."""
    return LocalChat(lazy_vlm(spec.model), spec.max_tokens, spec.temperature, seed)


class LocalChat:
    """Generate replies with any image-text-to-text model of transformers.

    Instruction and item form one turn after the images, since many of these models have no system
    role; schemas are not enforced. A reply that is cut off is a failure, as with an API. At a
    temperature, each item is sampled separately, with a seed drawn from (seed, item id), so that
    results do not depend on order or batch.
    """

    def __init__(
        self, vlm: HuggingFaceVLM, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self.vlm, self.max_tokens = vlm, max_tokens
        self.temperature, self.seed = temperature, seed
        self.name = vlm.name
        self.settings: JsonDict = {
            "fingerprint": vlm.fingerprint,
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if temperature:
            self.settings["seed"] = seed

    def release(self) -> None:
        """Free the weights, if they are loaded on demand."""
        release(self.vlm)

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> list[ChatReply | Exception]:
        """Answer a batch, in order."""
        groups: dict[int | bool, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(i if self.temperature else bool(request.images), []).append(i)
        out: dict[int, ChatReply | Exception] = {}
        for rows in groups.values():
            batch = [requests[i] for i in rows]
            out.update(zip(rows, self._answer(batch, images), strict=True))
        return [out[i] for i in range(len(requests))]

    def _answer(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> Sequence[ChatReply | Exception]:
        try:
            pictures = [[images.open(ref) for ref in r.images] for r in requests]
        except FlipbenchError as error:
            if len(requests) == 1:
                return [error]
            return [self._answer([request], images)[0] for request in requests]
        texts = [
            self.vlm.conversation.render(
                f"{r.instruction}\n\n{r.text}" if r.instruction else r.text, len(r.images)
            )
            for r in requests
        ]
        encoded = self.vlm.conversation.encode(texts, pictures)
        inputs = {name: value.to(self.vlm.model.device) for name, value in encoded.items()}
        n_prompts = inputs["attention_mask"].sum(1).tolist()
        too_long = [
            self.vlm.too_long(n + 1, r.item_id) for n, r in zip(n_prompts, requests, strict=True)
        ]
        if any(too_long):
            if len(requests) == 1:
                return [error for error in too_long if error]
            return [self._answer([request], images)[0] for request in requests]
        ids = self._generate(inputs, requests[0].item_id)[:, inputs["input_ids"].shape[1] :]
        return [
            self.vlm.too_long(n + n_before_end(row, self.vlm.end_ids), request.item_id)
            or self._read(row, n)
            for row, n, request in zip(ids.tolist(), n_prompts, requests, strict=True)
        ]

    @torch.inference_mode()
    def _generate(self, inputs: dict[str, Any], item_id: str) -> torch.Tensor:
        options: dict[str, Any] = {"do_sample": False}
        if self.temperature:
            options = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        options["max_new_tokens"] = self.max_tokens
        with torch.random.fork_rng(enabled=bool(self.temperature)):
            if self.temperature:
                torch.manual_seed(int(generator(self.seed, item_id, "chat").integers(2**63)))
            ids: torch.Tensor = self.vlm.model.generate(
                **inputs, generation_config=GenerationConfig(**options)
            )
        return ids

    def _read(self, ids: list[int], n_prompt: int) -> ChatReply | Exception:
        """Read the new tokens of one row, up to its end token."""
        reply = ids[: n_before_end(ids, self.vlm.end_ids)]
        if len(reply) == len(ids):
            return ServiceError(
                f"{self.name}: the reply was cut off after {len(ids)} tokens; raise max_tokens"
            )
        text = self.vlm.tokenizer.decode(reply, skip_special_tokens=True)
        text = answer_text(text).strip()
        if not text:
            return ServiceError(f"{self.name}: the model returned an empty text")
        n_tokens = len(reply) + 1
        usage = {"model": self.name, "prompt_tokens": n_prompt, "completion_tokens": n_tokens}
        return ChatReply(text, usage)
