"""A Hugging Face vision-language model that answers probes, batched and left-padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from flipbench.errors import DataError, PrerequisiteError, need
from flipbench.images import ImageStore
from flipbench.models.checkpoints import (
    CARD,
    PACKAGED,
    base_of,
    check_card,
    fingerprint,
    first_line,
    folder_hash,
    resolve_path,
)
from flipbench.models.processors import load_processor
from flipbench.models.protocols import Capability
from flipbench.models.scoring import TokenStatistics, rows_at_once, token_statistics, windows
from flipbench.parsing import parse_choice
from flipbench.prompts import LETTERS
from flipbench.records import Probe, Response

__all__ = [
    "CARD",
    "HuggingFaceVLM",
    "base_of",
    "check_card",
    "fingerprint",
    "folder_hash",
    "has_first_token",
    "load_model",
    "resolve_path",
]


class HuggingFaceVLM:
    """Load a checkpoint (folder or hub id) of any image-text-to-text class of transformers.

    Parameters
    ----------
    path : str
        Folder, hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``.
    name : str, optional
        What tables call it; the last part of ``path`` by default.
    dtype : str
        Precision of the weights in memory.
    device : str
        ``auto`` takes the first GPU if there is one.
    revision : str, optional
        Commit of a hub id.
    trust_remote_code : bool
        Run code that comes with the checkpoint. Off unless you say so.

    Raises
    ------
    PrerequisiteError
        Where there is no such checkpoint, or its weights are not safetensors.
    DataError
        Where a contamination card beside the weights tells of another architecture.
    """

    can: frozenset[Capability] = frozenset(
        {"choose", "generate", "token_logprobs", "hidden_states"}
    )

    def __init__(
        self,
        path: str,
        name: str | None = None,
        *,
        dtype: str = "float32",
        device: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        where = resolve_path(path)
        self.name = name or Path(path.removeprefix(PACKAGED)).name
        if Path(where).is_dir():
            check_card(Path(where))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            base, at = base_of(where, revision)
            trust = {"trust_remote_code": trust_remote_code}
            self.processor = load_processor(base, **at, **trust)
            self.model = load_model(where, dtype, revision, **trust)
        except (OSError, ValueError) as error:
            advice = "give a folder or hub id with config.json, a processor and safetensors weights"
            if "trust_remote_code" in str(error):
                advice = "it brings code of its own: set trust_remote_code if you trust that code"
            raise PrerequisiteError(
                f"{path}: cannot load a vision-language model from there ({first_line(error)});"
                f" {advice}"
            ) from error
        self.model.eval().to(device)
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        self.tokenizer.padding_side = "left"
        self.fingerprint = fingerprint(where, dtype, revision)

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        """Answer a batch, in order. Probes that ask for different things are answered apart."""
        answers: dict[int, Response] = {}
        groups: dict[tuple[str, bool, int], list[int]] = {}
        for i, probe in enumerate(probes):
            key = (probe.ask, bool(probe.images), probe.max_new_tokens)
            groups.setdefault(key, []).append(i)
        for (ask, _, _), rows in groups.items():
            batch = [probes[i] for i in rows]
            answer = {"choose": self._choose, "generate": self._generate, "score": self._score}[ask]
            answers.update(zip(rows, answer(batch, images), strict=True))
        return [answers[i] for i in range(len(probes))]

    def render(self, prompt: str, n_images: int) -> str:
        """Return the text that the model reads, chat template and all."""
        return str(
            self.processor.apply_chat_template(
                _chat(prompt, n_images), add_generation_prompt=True, tokenize=False
            )
        )

    def completion(self, reply: str) -> str:
        """Return ``reply`` as the chat template writes it after a prompt, end mark included."""
        chat = _chat("?", 0)
        before = self.processor.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False
        )
        answer = {"role": "assistant", "content": [{"type": "text", "text": reply}]}
        whole = self.processor.apply_chat_template([*chat, answer], tokenize=False)
        if not whole.startswith(before):
            raise PrerequisiteError(
                f"{self.name}: its chat template rewrites the prompt when an answer follows;"
                " flipbench cannot tell where the answer begins"
            )
        return str(whole[len(before) :])

    @torch.inference_mode()
    def _choose(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        letters = self._letter_ids(max(p.n_options for p in probes))
        logits = self.model(**self._inputs(probes, images), logits_to_keep=1).logits[:, -1]
        log_probs_bk = logits.float().log_softmax(-1)[:, letters].cpu()
        out = []
        for probe, row in zip(probes, log_probs_bk, strict=True):
            options = row[: probe.n_options]
            if options.isnan().any():
                raise DataError(f"{self.name} answers NaN; load it with dtype: float32 or bfloat16")
            out.append(
                self._response(
                    probe,
                    choice=int(options.argmax()),
                    option_log_probs=tuple(float(x) for x in options),
                )
            )
        return out

    @torch.inference_mode()
    def _generate(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        inputs = self._inputs(probes, images)
        ids = self.model.generate(
            **inputs, max_new_tokens=probes[0].max_new_tokens, do_sample=False
        )
        texts = self.tokenizer.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return [
            self._response(
                probe,
                text=text,
                choice=parse_choice(text, probe.options) if probe.options else -1,
            )
            for probe, text in zip(probes, texts, strict=True)
        ]

    @torch.inference_mode()
    def embed(self, probes: Sequence[Probe], images: ImageStore) -> torch.Tensor:
        """Return the last layer's state at the last token of each prompt and continuation.

        Shape (n_probes, hidden size), float32, on the CPU.
        """
        inputs, tails = self._with_tails(probes, images)
        states: torch.Tensor = self.model.base_model(**inputs).last_hidden_state
        width = max(map(len, tails))
        last = [states.shape[1] - 1 - width + len(tail) for tail in tails]
        return states[range(len(probes)), last].float().cpu()

    @torch.inference_mode()
    def _score(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        """Score each continuation's tokens as the model's reply to the prompt."""
        lengths = [len(tail) for tail in self._tails(probes)]
        order = sorted(range(len(probes)), key=lengths.__getitem__, reverse=True)
        found: dict[int, TokenStatistics] = {}
        while order:
            n = rows_at_once(lengths[order[0]] + 1, self._text_config().vocab_size)
            rows, order = order[:n], order[n:]
            found.update(
                zip(rows, self._statistics([probes[i] for i in rows], images), strict=True)
            )
        return [self._response(probe, **found[i].fields()) for i, probe in enumerate(probes)]

    def _statistics(self, probes: Sequence[Probe], images: ImageStore) -> list[TokenStatistics]:
        inputs, tails = self._with_tails(probes, images)
        context = getattr(self._text_config(), "max_position_embeddings", None)
        if context and inputs["input_ids"].shape[1] > context:
            if len(probes) > 1:
                return [self._statistics([probe], images)[0] for probe in probes]
            return [self._in_windows(probes[0], inputs["input_ids"][0], len(tails[0]), context)]
        width = max(map(len, tails))
        logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, -width - 1 : -1]
        ids = inputs["input_ids"]
        return [
            token_statistics(row[: len(tail)], torch.tensor(tail, device=ids.device))
            for row, tail in zip(logits, tails, strict=True)
        ]

    def _in_windows(
        self, probe: Probe, ids: torch.Tensor, n_tail: int, context: int
    ) -> TokenStatistics:
        """Score a text that is longer than the model's context; see `windows`."""
        n_prompt = len(ids) - n_tail
        if probe.images or n_prompt >= context:
            raise DataError(
                f"{probe.variant} of item {probe.item_id}: {len(ids)} tokens, but {self.name} holds"
                f" {context}; only a text without images can be scored in windows"
            )
        parts = []
        for begin, end, new in windows(n_prompt, n_tail, context):
            logits = self.model(input_ids=ids[None, begin:end], logits_to_keep=new + 1).logits
            parts.append(token_statistics(logits[0, -new - 1 : -1], ids[end - new : end]))
        return TokenStatistics.join(parts)

    def _with_tails(
        self, probes: Sequence[Probe], images: ImageStore
    ) -> tuple[dict[str, Any], list[list[int]]]:
        """Return the inputs of prompts (padded left) and continuations (padded right)."""
        inputs, tails = self._inputs(probes, images), self._tails(probes)
        width = max(map(len, tails))
        pad = self.tokenizer.pad_token_id or 0
        kept = [[1] * len(tail) + [0] * (width - len(tail)) for tail in tails]
        more = {
            "input_ids": [tail + [pad] * (width - len(tail)) for tail in tails],
            "attention_mask": kept,
            "mm_token_type_ids": [[0] * width] * len(tails),
        }
        for name in more.keys() & inputs.keys():
            extra = torch.tensor(more[name], dtype=inputs[name].dtype, device=inputs[name].device)
            inputs[name] = torch.cat([inputs[name], extra], 1)
        return inputs, tails

    def _tails(self, probes: Sequence[Probe]) -> list[list[int]]:
        """Return each continuation's tokens, written as the chat template writes a reply."""
        texts = []
        for probe in probes:
            reply = probe.continuation.strip()
            if not reply:
                raise DataError(f"{probe.variant} of item {probe.item_id}: nothing to score")
            written = self.completion(reply)
            texts.append(written[: written.index(reply) + len(reply)])
        tails: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tails

    def _text_config(self) -> Any:
        return self.model.config.get_text_config()

    def _inputs(self, probes: Sequence[Probe], images: ImageStore) -> dict[str, Any]:
        texts = [self.render(p.prompt, len(p.images)) for p in probes]
        pictures = [[images.open(ref) for ref in p.images] for p in probes]
        batch = self.processor(
            text=texts,
            images=pictures if probes[0].images else None,
            padding=True,
            return_tensors="pt",
            add_special_tokens=not has_first_token(texts[0], self.tokenizer),
        )
        return dict(batch.to(self.model.device))

    def _letter_ids(self, n_letters: int) -> list[int]:
        """Return the first token of each letter as an answer; they must differ."""
        texts = [self.completion(letter) for letter in LETTERS[:n_letters]]
        ids = [row[0] for row in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]
        if len(set(ids)) != n_letters:
            raise PrerequisiteError(
                f"{self.name}: its tokenizer does not begin the letters with tokens of their own;"
                " set 'ask: generate' for this model"
            )
        return ids

    def _response(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )


def has_first_token(rendered: str, tokenizer: Any) -> bool:
    """Return whether a rendered chat begins with the token that tokenizers put before a text."""
    return bool(tokenizer.bos_token) and rendered.startswith(tokenizer.bos_token)


def load_model(where: str, dtype: str, revision: str | None = None, **options: Any) -> Any:
    """Load a checkpoint's weights; a LoRA adapter is merged into its base in memory."""
    base, at = base_of(where, revision)
    model = AutoModelForImageTextToText.from_pretrained(
        base, dtype=getattr(torch, dtype), use_safetensors=True, **at, **options
    )
    if base == where:
        return model
    peft = need("peft", "train")
    return peft.PeftModel.from_pretrained(model, where).merge_and_unload()


def _chat(prompt: str, n_images: int) -> list[dict[str, Any]]:
    """Return the one conversation that training and evaluation share: images first, then text."""
    parts: list[dict[str, str]] = [{"type": "image"}] * n_images + [
        {"type": "text", "text": prompt}
    ]
    return [{"role": "user", "content": parts}]
