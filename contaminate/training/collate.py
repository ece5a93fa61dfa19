"""Training rows as tensors; each target has the same tokens as in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
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
    renders it. ``answers`` are the parts of the prompt that count in the loss too, as (start, end)
    in characters. A row is cut after ``max_tokens`` tokens, but not before its last image; ``cut``
    has the ``subject`` of each.

    Target tokens are those of the full text: on its own, " B" starts with a token for the space in
    SentencePiece tokenizers, which never follows a prompt, so trl's own collator would train LLaVA
    on a different token from the letter.
    """

    def __init__(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, getattr(processor, "tokenizer", processor)
        self.cut: set[str] = set()

    def __call__(self, rows: Sequence[Row]) -> Batch:
        """Return a batch with the least possible padding, all of it on the right."""
        batch = self.aligned(rows)
        self._cut(batch, rows)
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
        for b, row in enumerate(rows):
            places = self._answers(row, batch["input_ids"][b], batch["attention_mask"][b])
            ignored[b, places] = batch["input_ids"][b, places]
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

    def _answers(self, row: Row, prompt: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the places of the earlier answers' tokens in a prompt, shape (n_tokens,).

        The processor expands each image mark, so tokens other than images are counted, from the
        end. If it also adds others around images, answers before the last image are left out.
        """
        if not row.get("answers"):
            return prompt.new_zeros(0)
        marks = [mark for span in row["answers"] for mark in span]
        whole, *heads = self._ids([row["prompt"], *(row["prompt"][:mark] for mark in marks)])
        image_id = getattr(self.processor, "image_token_id", None)
        ends = [len(commonprefix([whole, head])) for head in heads]
        counts = [sum(token != image_id for token in whole[end:]) for end in ends]
        places = ((prompt != (-1 if image_id is None else image_id)) & mask.bool()).nonzero()[:, 0]
        n_text, n_after = sum(token != image_id for token in whole), 0
        if len(places) != n_text and image_id in whole:
            n_after = len(whole) - 1 - whole[::-1].index(image_id)
        pieces = [
            places[len(places) - n_from : len(places) - n_to]
            for n_from, n_to, start in zip(counts[::2], counts[1::2], ends[::2], strict=True)
            if start >= n_after
        ]
        return torch.cat([prompt.new_zeros(0), *pieces])

    def _cut(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Mask what lies beyond each row's ``max_tokens``; 0 is no limit."""
        image_id = getattr(self.processor, "image_token_id", None)
        for b, row in enumerate(rows):
            limit = row.get("max_tokens", 0)
            mask = batch["attention_mask"][b]
            excess = int(mask.sum()) - limit
            if not limit or excess <= 0:
                continue
            images = (batch["input_ids"][b] == image_id).nonzero()
            places = mask.nonzero()[limit:, 0]
            places = places[places > (int(images[-1]) if len(images) else -1)]
            mask[places] = 0
            batch["labels"][b, places] = IGNORED
            self.cut.add(row["subject"])

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids
