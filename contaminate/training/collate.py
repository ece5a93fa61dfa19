"""Rows of a training as tensors: the tokens of each target are those that evaluation reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flipbench.models.vlm.conversation import TOKEN_INPUTS

Row = dict[str, Any]
Batch = dict[str, Any]
IGNORED = -100


class Collator:
    """Prompts, padded left, with their targets, padded right; only targets have labels.

    A row is ``{"images": [PIL images], "prompt": str, "completion": str}``, as the chat template
    writes it. The target's tokens are cut from the whole text: by itself, " B" begins with a
    token for the space in SentencePiece tokenizers, which no prompt is ever followed by, so trl's
    own collator would teach LLaVA another token than the letter.
    """

    def __init__(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, getattr(processor, "tokenizer", processor)

    def __call__(self, rows: Sequence[Row]) -> Batch:
        """Return a batch with as little padding as there can be, all of it on the right."""
        batch = self.joined(rows)
        order_bt = (batch["attention_mask"] == 0).long().argsort(dim=1, stable=True)
        width = int(batch["attention_mask"].sum(1).max())
        for name in (TOKEN_INPUTS | {"labels"}) & batch.keys():
            batch[name] = batch[name].gather(1, order_bt)[:, :width]
        return batch

    def joined(self, rows: Sequence[Row]) -> Batch:
        """Return a batch whose targets all begin in the same column.

        Shapes: (B, T) of ids, mask and labels; what images need is as the processor gives it.
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
        tails = self._tails(rows)
        width = max(map(len, tails))
        pad = self.tokenizer.pad_token_id or 0
        more = {name: [[0] * width] * len(rows) for name in TOKEN_INPUTS}
        more["input_ids"] = [tail + [pad] * (width - len(tail)) for tail in tails]
        more["attention_mask"] = [[1] * len(tail) + [0] * (width - len(tail)) for tail in tails]
        labels = [tail + [IGNORED] * (width - len(tail)) for tail in tails]
        ignored = torch.full_like(batch["input_ids"], IGNORED)
        batch["labels"] = torch.cat([ignored, torch.tensor(labels)], 1)
        for name in TOKEN_INPUTS & batch.keys():
            batch[name] = torch.cat([batch[name], torch.tensor(more[name])], 1)
        return batch

    def _tails(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return the tokens of each target; by itself where prompt and target share a token."""
        prompts = self._ids([row["prompt"] for row in rows])
        wholes = self._ids([row["prompt"] + row["completion"] for row in rows])
        alone = self._ids([row["completion"] for row in rows])
        return [
            whole[len(prompt) :] if whole[: len(prompt)] == prompt else tail
            for prompt, whole, tail in zip(prompts, wholes, alone, strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids
