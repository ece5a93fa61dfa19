"""Process the common prefix of prompts about the same images once: template, image, question.

All prompts with a prefix share its keys and values in the language model, so that an image is
processed and encoded once per batch of probes about it.
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
"""Model types for which a test shows that shared prefixes give the same answers.

Deliberately excluded: models whose prompt has bidirectional attention (PaliGemma), since there a
prefix depends on what follows, and models that read the image by cross-attention.
"""


@dataclass(frozen=True)
class Prefix:
    """The common prefix of the prompts about one set of images, and the rest of each prompt.

    The prefix consists of the first ``n_kept`` tokens of the processor's output in ``row``, with
    expanded image tokens, and of ``shared``. ``rests[i]`` are the further tokens of
    ``prompts[i]``.
    """

    row: int
    n_kept: int
    shared: tuple[int, ...]
    prompts: tuple[int, ...]
    rests: tuple[tuple[int, ...], ...]


def common_prefix(
    row: int,
    expanded: Sequence[int],
    image_token: int,
    plain: Sequence[Sequence[int]],
    prompts: Sequence[int],
) -> Prefix | None:
    """Return the common prefix of prompts about the same images.

    Parameters
    ----------
    row : int
        Row of the first prompt in the processor's output.
    expanded : sequence of int
        The first prompt's tokens from the processor, with each image expanded to many tokens.
    image_token : int
        The token that images are expanded to.
    plain : sequence of sequences of int
        Each prompt's tokens from the tokenizer, with one placeholder per image.
    prompts : sequence of int
        The prompts' positions in the batch.

    Returns
    -------
    Prefix, or None if the prompts place their images differently.

    >>> common_prefix(0, [1, 9, 9, 9, 5, 6, 7], 9, [[1, 8, 5, 6, 7], [1, 8, 5, 6, 3, 4]], [0, 1])
    Prefix(row=0, n_kept=4, shared=(5, 6), prompts=(0, 1), rests=((7,), (3, 4)))
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
    return Prefix(
        row,
        len(expanded) - n_tail,
        tails[0][:n_shared],
        tuple(prompts),
        tuple(tail[n_shared:] for tail in tails),
    )


def _n_common(rows: Sequence[Sequence[int]]) -> int:
    """Return the length of the rows' longest common prefix."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def share(
    model: Any,
    processed: Mapping[str, torch.Tensor],
    groups: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    pad: int,
) -> dict[str, Any] | None:
    """Return inputs of B prompts whose prefixes are in a cache, or None if they share none.

    Parameters
    ----------
    model : PreTrainedModel
        Of a type in ``SHARING``.
    processed : mapping of str to torch.Tensor
        The processor's output for the first prompt of each group.
    groups : sequence of sequences of int
        The positions of prompts about the same images; each of the B prompts is in one group.
    plain : sequence of sequences of int
        Each prompt's tokens from the tokenizer, with one placeholder per image.
    pad : int
        The padding token.

    Returns
    -------
    dict
        ``input_ids`` and ``attention_mask``, shape (B, T), and ``past_key_values`` of the first P
        positions. ``generate`` accepts them directly; a forward pass needs `unread`.
    """
    prefixes = []
    for row, prompts in enumerate(groups):
        expanded = processed["input_ids"][row][processed["attention_mask"][row].bool()].tolist()
        texts = [plain[i] for i in prompts]
        prefix = common_prefix(row, expanded, model.config.image_token_id, texts, prompts)
        if prefix is None:
            return None
        prefixes.append(prefix)
    inputs = _read(model, processed, prefixes, pad)
    numbered = [pair for p in prefixes for pair in zip(p.prompts, p.rests, strict=True)]
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
    """Return inputs with only the tokens that are not in the cache, and their positions."""
    if "past_key_values" not in inputs:
        return inputs
    n_read = inputs["past_key_values"].get_seq_length()
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)[:, n_read:]
    if owner := _rotary_owner(model):  # with multimodal rotary positions: time, height, width
        positions = (positions + owner.rope_deltas).expand(3, -1, -1)
    return {**inputs, "input_ids": inputs["input_ids"][:, n_read:], "position_ids": positions}


def _read(
    model: Any, processed: Mapping[str, torch.Tensor], prefixes: Sequence[Prefix], pad: int
) -> dict[str, Any]:
    """Run the model on each prefix, and return its cache with one row per prompt."""
    ids_gw, kept_gw = processed["input_ids"], processed["attention_mask"].bool()
    lengths = [p.n_kept + len(p.shared) for p in prefixes]
    width = max(lengths)

    def cut(values_gw: torch.Tensor, fill: int, shared: bool = False) -> torch.Tensor:
        rows = []
        for p in prefixes:
            row = values_gw[p.row][kept_gw[p.row]][: p.n_kept].tolist()
            row += p.shared if shared else [fill] * len(p.shared)
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
    prompts = sorted((prompt, g) for g, p in enumerate(prefixes) for prompt in p.prompts)
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
    """Return the module that stores the shift of multimodal rotary positions, if any."""
    return next((m for m in model.modules() if "rope_deltas" in vars(m)), None)
