"""Process the common prefix of prompts about the same images once: template, image, question.

All prompts with a prefix share its keys and values in the language model, so that an image is
processed and encoded once per batch of probes about it. A prompt scored with several replies
is read once, too. What is left is run in batches of similar length.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass
class Shared:
    """B prompts of which the model has read the beginnings, each distinct one once.

    Attributes
    ----------
    model : PreTrainedModel
        Of a type in ``SHARING``.
    ids, mask : torch.Tensor, shape (G, P)
        The tokens of the G beginnings, padded, and which of them are not padding.
    cache : Cache
        Their keys and values, one row per beginning.
    shift : torch.Tensor, shape (G, 1), optional
        The shift of their multimodal rotary positions.
    beginnings : list of int, shape (B,)
        Each prompt's row in these.
    rests : list of tuples of int, shape (B,)
        Each prompt's further tokens, at least one.
    pad : int
        The padding token.
    """

    model: Any
    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any
    shift: torch.Tensor | None
    beginnings: list[int]
    rests: list[tuple[int, ...]]
    pad: int

    def inputs(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the inputs of some prompts.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask``, shape (n_rows, T), padded left, and
            ``past_key_values`` of the first P positions. ``generate`` accepts them directly; a
            forward pass needs `unread`. They are valid until the next call, since the model itself
            keeps the shift of its positions.
        """
        rests = [self.rests[row] for row in rows]
        width = max(map(len, rests))
        chosen = self.ids.new_tensor([self.beginnings[row] for row in rows])
        more = [[self.pad] * (width - len(rest)) + list(rest) for rest in rests]
        new = [[0] * (width - len(rest)) + [1] * len(rest) for rest in rests]
        cache = copy.copy(self.cache)
        cache.layers = [copy.copy(layer) for layer in self.cache.layers]
        cache.batch_select_indices(chosen)
        if self.shift is not None:
            _rotary_owner(self.model).rope_deltas = self.shift[chosen]
        return {
            "input_ids": torch.cat([self.ids[chosen], self.ids.new_tensor(more)], 1),
            "attention_mask": torch.cat([self.mask[chosen], self.mask.new_tensor(new)], 1),
            "past_key_values": cache,
        }

    def n_repeated(self) -> int:
        """Return how many tokens, but for each prompt's last, stand in an earlier prompt, too."""
        distinct = set(zip(self.beginnings, self.rests, strict=True))
        return sum(len(r) - 1 for r in self.rests) - sum(len(r) - 1 for _, r in distinct)

    def read_on(self, rows: Sequence[int]) -> Shared:
        """Return some prompts with all but the last token read, each distinct one once."""
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        for row in rows:
            first.setdefault((self.beginnings[row], self.rests[row]), row)
        place = {key: i for i, key in enumerate(first)}
        beginnings = [place[self.beginnings[row], self.rests[row]] for row in rows]
        last = [self.rests[row][-1:] for row in rows]
        ahead = replace(self, rests=[rest[:-1] for rest in self.rests])
        inputs = ahead.inputs(list(first.values()))
        if inputs["input_ids"].shape[1] > self.ids.shape[1]:
            self.model(**unread(self.model, inputs), use_cache=True, logits_to_keep=1)
        chosen = self.ids.new_tensor([self.beginnings[row] for row in first.values()])
        return Shared(
            self.model,
            inputs["input_ids"],
            inputs["attention_mask"],
            inputs["past_key_values"],
            None if self.shift is None else self.shift[chosen],
            beginnings,
            last,
            self.pad,
        )

    def batches(
        self, replies: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Return rows and inputs, in batches of similar length once ``replies`` are appended.

        Prompts that are scored with several replies are read once.
        """
        forward = forward_cost(self.model.device.type)
        if self.n_repeated() <= forward:
            lengths = [len(r) + len(reply) for r, reply in zip(self.rests, replies, strict=True)]
            for rows in by_length(lengths, forward):
                yield rows, self.inputs(rows)
            return
        for part in by_length(list(map(len, self.rests)), forward):
            read = self.read_on(part)
            for rows in by_length([len(replies[row]) + 1 for row in part], forward):
                yield [part[row] for row in rows], read.inputs(rows)


def forward_cost(device: str) -> int:
    """Return how many tokens take as long as what a forward pass costs without any."""
    return 48 if device == "cpu" else 512


def by_length(lengths: Sequence[int], cost: int) -> list[list[int]]:
    """Return the positions in batches such that little is padded; ``cost`` is that of a batch.

    The sum of rows times longest row, plus ``cost`` for each batch, is the least possible.

    >>> by_length([5, 30, 6, 29], cost=4), by_length([5, 30, 6, 29], cost=400)
    ([[0, 2], [3, 1]], [[0, 2, 3, 1]])
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best = {0: (0, 0)}  # of the first rows, by their number: total, and where the last batch begins
    for longest, n_rows in sorted(Counter(lengths).items()):
        end = n_rows + max(best)
        best[end] = min((best[i][0] + (end - i) * longest + cost, i) for i in best)
    batches, end = [], len(order)
    while end:
        begin = best[end][1]
        batches.append(order[begin:end])
        end = begin
    return batches[::-1]


def share(
    model: Any,
    processed: Mapping[str, torch.Tensor],
    groups: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    pad: int,
) -> Shared | None:
    """Return B prompts whose prefixes the model has read, or None if they share none.

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
    """
    prefixes = []
    for row, prompts in enumerate(groups):
        expanded = processed["input_ids"][row][processed["attention_mask"][row].bool()].tolist()
        texts = [plain[i] for i in prompts]
        prefix = common_prefix(row, expanded, model.config.image_token_id, texts, prompts)
        if prefix is None:
            return None
        prefixes.append(prefix)
    return _read(model, processed, prefixes, pad)


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
) -> Shared:
    """Run the model on each prefix."""
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
    prompts = sorted(
        (prompt, g, rest)
        for g, p in enumerate(prefixes)
        for prompt, rest in zip(p.prompts, p.rests, strict=True)
    )
    return Shared(
        model,
        inputs["input_ids"],
        mask_gp,
        cache,
        None if owner is None else owner.rope_deltas,
        [g for _, g, _ in prompts],
        [rest for _, _, rest in prompts],
        pad,
    )


def _rotary_owner(model: Any) -> Any:
    """Return the module that stores the shift of multimodal rotary positions, if any."""
    return next((m for m in model.modules() if "rope_deltas" in vars(m)), None)
