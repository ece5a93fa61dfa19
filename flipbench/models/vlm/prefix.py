"""Prompts about the same images read their common beginning once: picture, template, question.

The language model's keys and values of that beginning are kept and shared by all prompts that go
on from it, so an image is processed, encoded and read once for each batch of probes about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

SHARING = frozenset(
    {"llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "internvl", "idefics3"}
)
"""Model types of which a test shows that shared beginnings give the same answers.

Left out on purpose: models whose prompt attends in both directions (PaliGemma), since there the
beginning depends on what follows, and models that read the picture by cross-attention.
"""


@dataclass(frozen=True)
class Beginning:
    """What the prompts about one set of images begin with, and how each goes on.

    ``row`` is the processor's output row that holds the expanded image tokens; ``n_kept`` of its
    tokens, and then ``shared``, are the beginning. ``rests[i]`` are the tokens of ``prompts[i]``.
    """

    row: int
    n_kept: int
    shared: tuple[int, ...]
    prompts: tuple[int, ...]
    rests: tuple[tuple[int, ...], ...]


def beginning_of(
    row: int,
    expanded: Sequence[int],
    image_token: int,
    plain: Sequence[Sequence[int]],
    prompts: Sequence[int],
) -> Beginning | None:
    """Return the beginning that some prompts about the same images share.

    Parameters
    ----------
    row : int
        Where the processor put the first prompt.
    expanded : sequence of int
        The first prompt's tokens as the model reads them: an image is as many tokens as it takes.
    image_token : int
        The token that images are expanded to.
    plain : sequence of sequences of int
        Each prompt's tokens as the tokenizer alone gives them, an image still one placeholder.
    prompts : sequence of int
        The prompts' numbers in the batch.

    Returns
    -------
    Beginning, or None where the prompts place their images differently.

    >>> beginning_of(0, [1, 9, 9, 9, 5, 6, 7], 9, [[1, 8, 5, 6, 7], [1, 8, 5, 6, 3, 4]], [0, 1])
    Beginning(row=0, n_kept=4, shared=(5, 6), prompts=(0, 1), rests=((7,), (3, 4)))
    """
    if image_token not in expanded:
        return None
    after_image = list(expanded[::-1]).index(image_token)
    pairs = zip(reversed(expanded), reversed(plain[0]), strict=False)
    n_tail = min(after_image, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    head = list(plain[0][: len(plain[0]) - n_tail])
    tails = [tuple(ids[len(head) :]) for ids in plain]
    if any(list(ids[: len(head)]) != head for ids in plain) or not all(tails):
        return None
    n_shared = min(_n_common(tails), min(map(len, tails)) - 1)
    return Beginning(
        row,
        len(expanded) - n_tail,
        tails[0][:n_shared],
        tuple(prompts),
        tuple(tail[n_shared:] for tail in tails),
    )


def _n_common(rows: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all rows begin with in common."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def share(
    model: Any,
    processed: Mapping[str, torch.Tensor],
    groups: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    pad: int,
) -> dict[str, Any] | None:
    """Return inputs of B prompts whose beginnings the model has read, or None if it cannot be done.

    Parameters
    ----------
    model : PreTrainedModel
        Of a type in ``SHARING``.
    processed : mapping of str to torch.Tensor
        The processor's output for the first prompt of each group.
    groups : sequence of sequences of int
        The numbers of the prompts about the same images; each of the B prompts is in one.
    plain : sequence of sequences of int
        Each prompt's tokens as the tokenizer alone gives them.
    pad : int
        The token to pad with.

    Returns
    -------
    dict
        ``input_ids`` and ``attention_mask``, shape (B, T), and ``past_key_values`` with the first
        P positions; `unread` leaves the model the others. ``generate`` takes them as they are.
    """
    beginnings = []
    for row, prompts in enumerate(groups):
        expanded = processed["input_ids"][row][processed["attention_mask"][row].bool()].tolist()
        texts = [plain[i] for i in prompts]
        found = beginning_of(row, expanded, model.config.image_token_id, texts, prompts)
        if found is None:
            return None
        beginnings.append(found)
    inputs = _read(model, processed, beginnings, pad)
    numbered = [pair for b in beginnings for pair in zip(b.prompts, b.rests, strict=True)]
    rests = [rest for _, rest in sorted(numbered)]
    width = max(map(len, rests))
    for name, fill, values in (
        ("input_ids", pad, rests),
        ("attention_mask", 0, [[1] * len(rest) for rest in rests]),
    ):
        rows = [[fill] * (width - len(row)) + list(row) for row in values]
        more = torch.tensor(rows, dtype=inputs[name].dtype, device=inputs[name].device)
        inputs[name] = torch.cat([inputs[name], more], 1)
    return inputs


def unread(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs with the tokens that the model has not read, and their positions."""
    if "past_key_values" not in inputs:
        return inputs
    n_read = inputs["past_key_values"].get_seq_length()
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)[:, n_read:]
    if owner := _rotary_owner(model):  # with multimodal rotary positions: time, height, width
        positions = (positions + owner.rope_deltas).expand(3, -1, -1)
    return {**inputs, "input_ids": inputs["input_ids"][:, n_read:], "position_ids": positions}


def _read(
    model: Any, processed: Mapping[str, torch.Tensor], beginnings: Sequence[Beginning], pad: int
) -> dict[str, Any]:
    """Run the model over each beginning, and return its cache with one row for each prompt."""
    ids_gw, kept_gw = processed["input_ids"], processed["attention_mask"].bool()
    lengths = [b.n_kept + len(b.shared) for b in beginnings]
    width = max(lengths)

    def cut(values_gw: torch.Tensor, fill: int, shared: bool = False) -> torch.Tensor:
        rows = []
        for b in beginnings:
            row = values_gw[b.row][kept_gw[b.row]][: b.n_kept].tolist()
            row += b.shared if shared else [fill] * len(b.shared)
            rows.append([fill] * (width - len(row)) + row)
        return torch.tensor(rows, dtype=values_gw.dtype, device=values_gw.device)

    inputs = {
        name: cut(value, 0) if value.shape[:2] == ids_gw.shape else value
        for name, value in processed.items()
    }
    inputs["input_ids"] = cut(ids_gw, pad, shared=True)
    padding = [[0] * (width - n) + [1] * n for n in lengths]
    inputs["attention_mask"] = mask_gp = ids_gw.new_tensor(padding)
    owner = _rotary_owner(model)
    if owner is None:
        inputs["position_ids"] = (mask_gp.cumsum(-1) - 1).clamp(min=0)
    cache = model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
    prompts = sorted((prompt, g) for g, b in enumerate(beginnings) for prompt in b.prompts)
    group_of = ids_gw.new_tensor([g for _, g in prompts])
    cache.batch_select_indices(group_of)
    if owner is not None:
        owner.rope_deltas = owner.rope_deltas[group_of]
    return {
        "input_ids": inputs["input_ids"][group_of],
        "attention_mask": mask_gp[group_of],
        "past_key_values": cache,
    }


def _rotary_owner(model: Any) -> Any:
    """Return the module that keeps how far multimodal rotary positions are shifted, if any."""
    return next((m for m in model.modules() if "rope_deltas" in vars(m)), None)
