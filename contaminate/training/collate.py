"""Training rows as tensors; each target has the same tokens as in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from flipbench.models.vlm.conversation import TOKEN_INPUTS, append_replies

Row = dict[str, Any]
Batch = dict[str, Any]
IGNORED = -100


class Collator:
    """Prompts, padded left, with their targets, padded right; only targets have labels.

    A row is ``{"images": [PIL images], "prompt": str, "completion": str}``, as the chat template
    renders it. Target tokens are those of the full text: on its own, " B" starts with a token for
    the space in SentencePiece tokenizers, which never follows a prompt, so trl's own collator
    would train LLaVA on a different token from the letter.
    """

    def __init__(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, getattr(processor, "tokenizer", processor)

    def __call__(self, rows: Sequence[Row]) -> Batch:
        """Return a batch with the least possible padding, all of it on the right."""
        batch = self.aligned(rows)
        order_bt = (batch["attention_mask"] == 0).long().argsort(dim=1, stable=True)
        width = int(batch["attention_mask"].sum(1).max())
        for name in (TOKEN_INPUTS | {"labels"}) & batch.keys():
            batch[name] = batch[name].gather(1, order_bt)[:, :width]
        return batch

    def aligned(self, rows: Sequence[Row]) -> Batch:
        """Return a batch whose targets all start in the same column.

        Shapes: (B, T) for ids, mask and labels; image inputs as the processor returns them.
        """
        images = [[image.convert("RGB") for image in row["images"]] for row in rows]
        batch = dict(
            self.processor(
                images=images if any(images) else None,
                text=[row["prompt"] for row in rows],
                padding=True,
                padding_side="left",
                return_tensors="pt",
                add_special_tokens=False,
            )
        )
        targets = self._target_ids(rows)
        ignored = torch.full_like(batch["input_ids"], IGNORED)
        labels = pad_sequence(
            [torch.tensor(ids) for ids in targets], batch_first=True, padding_value=IGNORED
        )
        batch["labels"] = torch.cat([ignored, labels], 1)
        append_replies(batch, targets, self.tokenizer.pad_token_id or 0)
        return batch

    def _target_ids(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return each target's tokens; tokenised on its own if it shares one with the prompt."""
        prompts = self._ids([row["prompt"] for row in rows])
        texts = self._ids([row["prompt"] + row["completion"] for row in rows])
        targets = self._ids([row["completion"] for row in rows])
        return [
            text[len(prompt) :] if text[: len(prompt)] == prompt else target
            for prompt, text, target in zip(prompts, texts, targets, strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids
