"""Read what prompts have in common once: text before the pictures, pictures, question, reply.

All prompts about the same pictures share their keys and values, whatever they ask for. The texts
that follow become trees, in which each distinct beginning stands once and a token sees only its own
beginning; a forward pass reads several trees. Texts without pictures do the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flipbench.core.records import ImageRef
from flipbench.models.vlm.sharing.cache import Layers, stacked
from flipbench.models.vlm.sharing.token_trees import (
    TokenTree,
    batched,
    by_length,
    forward_cost,
    head_and_kept,
    token_trees,
)

SHARING = frozenset(
    {"llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "internvl", "idefics3"}
)
"""Model types for which a test shows that shared prefixes give the same answers.

Deliberately excluded: models whose prompt has bidirectional attention (PaliGemma), since there a
prefix depends on what follows, and models that read the image by cross-attention.
"""

_PER_TREE = 512
"""Tokens in a tree; attention within it takes their square."""

_PER_PASS = 2_048
"""Tokens in a forward pass on a CPU; eight times as many elsewhere."""

Images = tuple[ImageRef, ...]


def can_share(model: Any) -> bool:
    """Return whether a model takes a mask for each pair of tokens, over the whole text."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    slides = "sliding_attention" in kinds if kinds else getattr(text, "sliding_window", None)
    attention = getattr(text, "_attn_implementation", None)
    return bool(
        model.config.model_type in SHARING and not slides and attention in ("sdpa", "eager")
    )


@dataclass(frozen=True)
class Passage:
    """What a model reads in order to answer a probe.

    Attributes
    ----------
    prompt : list of int
        The prompt's tokens from the tokenizer, with one placeholder per image.
    more : list of int
        The tokens read after it.
    n_states : int
        How many of the last tokens' hidden states are wanted.
    targets : tuple of int
        The tokens whose log-probabilities are wanted: one at each state, or any number at one.
    n_new : int
        How many tokens may be generated; if any, the last token is left to the generation.
    """

    images: Images
    prompt: list[int]
    more: list[int] = field(default_factory=list)
    n_states: int = 0
    targets: tuple[int, ...] = ()
    n_new: int = 0


@dataclass(frozen=True)
class Beginning:
    """A text that has been read but for its last token.

    ``shift`` is that of its multimodal rotary positions.
    """

    ids: list[int]
    layers: Layers
    last: int
    shift: int


@dataclass
class Reading:
    """What was read of some passages.

    Attributes
    ----------
    states : torch.Tensor, shape (n_states, d)
        The last layer's hidden states, each distinct one once.
    rows : dict of int to list of int
        For each passage that was read, its rows of these. Passages are left out if they exceed the
        context, or place their pictures in another way than others about the same ones.
    beginnings : dict of int to Beginning
        Of the passages that go on.
    """

    states: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    rows: dict[int, list[int]] = field(default_factory=dict)
    beginnings: dict[int, Beginning] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pictures:
    """What prompts about some pictures begin with, up to the last one, as it was read."""

    head: list[int]  # with one placeholder per image
    ids: list[int]  # with expanded image tokens
    layers: Layers
    shift: int


_NO_PICTURES = _Pictures([], [], [], 0)


class Reader:
    """Reads passages with a model that can share, and keeps the keys and values of pictures.

    Parameters
    ----------
    model : PreTrainedModel
        See `can_share`. Pictures are read anew once its parameters have changed.
    pad : int
        The padding token.
    mib : int, optional
        MiB of keys and values; by default 2048, or a quarter of a GPU's free memory. Half are
        for pictures that may be asked about again, the oldest of which are dropped first, half for
        what is being read; a single passage is read even if it needs more.
    """

    def __init__(self, model: Any, pad: int, mib: int | None = None) -> None:
        self._model, self._pad = model, pad
        self._owner = next((m for m in model.modules() if "rope_deltas" in vars(m)), None)
        self._pictures: OrderedDict[Images, _Pictures] = OrderedDict()
        self._weights: tuple[int, ...] = ()
        self._longest = 0
        self._cost = forward_cost(model.device.type)
        self._per_pass = _PER_PASS if model.device.type == "cpu" else 8 * _PER_PASS
        text = model.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        per_token = 2 * text.num_hidden_layers * heads * size * model.dtype.itemsize
        if mib is None:
            on_gpu = model.device.type == "cuda"
            mib = torch.cuda.mem_get_info(model.device)[0] >> 22 if on_gpu else 2048
        self._n_tokens = (mib << 20) // (2 * per_token)

    def read(
        self, passages: Sequence[Passage], process: Callable[[Sequence[int]], Mapping[str, Any]]
    ) -> Iterator[Reading]:
        """Read passages, as many at once as the budget allows.

        Parameters
        ----------
        process : callable
            Returns the processor's output for the prompts of some passages, by their positions.
        """
        before, self._weights = self._weights, tuple(p._version for p in self._model.parameters())
        if before != self._weights:
            self.forget()
        for part in self._parts(passages):
            self._look(part, passages, process)
            yield self._read_rest(part, passages)
            while sum(len(p.ids) for p in self._pictures.values()) > self._n_tokens:
                self._pictures.popitem(last=False)

    def forget(self) -> None:
        """Drop all pictures."""
        self._pictures.clear()

    def _parts(self, passages: Sequence[Passage]) -> Iterator[dict[Images, list[int]]]:
        """Yield passages by their pictures, as many at once as the budget allows."""
        by_images: dict[Images, list[int]] = {}
        for row, passage in enumerate(passages):
            by_images.setdefault(passage.images, []).append(row)
        part, n_tokens = dict[Images, list[int]](), 0
        for images, rows in by_images.items():
            known = self._pictures.get(images)
            n_before = (len(known.ids) if known else self._longest) if images else 0
            for row in rows:
                passage = passages[row]
                n_text = len(passage.prompt) + len(passage.more)
                needed = n_text + (n_before + n_text + passage.n_new if passage.n_new else 0)
                more = 0 if images in part else n_before
                # how long pictures are is only known once some have been read
                first = any(part) and not self._longest and images not in part
                if part and (first or n_tokens + more + needed > self._n_tokens):
                    yield part
                    part, n_tokens, more = {}, 0, n_before
                part.setdefault(images, []).append(row)
                n_tokens += more + needed
        if part:
            yield part

    def _look(
        self,
        part: Mapping[Images, Sequence[int]],
        passages: Sequence[Passage],
        process: Callable[[Sequence[int]], Mapping[str, Any]],
    ) -> None:
        """Read the pictures of a part that are not kept, or were read with another beginning."""
        new = []
        for images, rows in part.items():
            known = self._pictures.get(images)
            if known and passages[rows[0]].prompt[: len(known.head)] == known.head:
                self._pictures.move_to_end(images)
            elif images:
                new.append(rows[0])
        n = max(1, self._per_pass // (self._longest or self._per_pass))
        for rows in batched(new, n):
            self._look_at([passages[row] for row in rows], process(rows))

    def _look_at(self, passages: Sequence[Passage], processed: Mapping[str, Any]) -> None:
        ids_bt, kept_bt = processed["input_ids"], processed["attention_mask"].bool()
        token, heads, expanded = self._model.config.image_token_id, [], []
        for ids_t, kept_t, passage in zip(ids_bt, kept_bt, passages, strict=True):
            ids = ids_t[kept_t].tolist()
            n_head, n_kept = head_and_kept(ids, passage.prompt, token)
            heads.append(passage.prompt[:n_head])
            expanded.append(ids[:n_kept])
        width = max(map(len, expanded))

        def cut(values_bt: torch.Tensor, fill: int) -> torch.Tensor:
            rows = [
                [fill] * (width - len(ids)) + values_t[kept_t].tolist()[: len(ids)]
                for values_t, kept_t, ids in zip(values_bt, kept_bt, expanded, strict=True)
            ]
            return torch.tensor(rows, dtype=values_bt.dtype, device=values_bt.device)

        inputs = {
            name: cut(value, self._pad if name == "input_ids" else 0)
            if value.shape[:2] == ids_bt.shape
            else value
            for name, value in processed.items()
        }
        if self._owner is None:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        cache = self._model.base_model(**inputs, use_cache=True).past_key_values
        self._longest = max(self._longest, width)
        for i, (passage, head, ids) in enumerate(zip(passages, heads, expanded, strict=True)):
            at = slice(width - len(ids), None)  # a copy, so that the batch's can be freed
            layers = [(x.keys[i, :, at].clone(), x.values[i, :, at].clone()) for x in cache.layers]
            shift = 0 if self._owner is None else int(self._owner.rope_deltas[i])
            self._pictures[passage.images] = _Pictures(head, ids, layers, shift)

    def _read_rest(
        self, part: Mapping[Images, Sequence[int]], passages: Sequence[Passage]
    ) -> Reading:
        """Read what follows the pictures."""
        text = self._model.config.get_text_config()
        context = getattr(text, "max_position_embeddings", None) or 2**31
        trees = list[tuple[_Pictures, TokenTree]]()
        for images, rows in part.items():
            seen = self._pictures[images] if images else _NO_PICTURES
            n, most = len(seen.head), context - len(seen.ids)
            rests = dict[int, list[int]]()
            for row in rows:
                prompt = passages[row].prompt
                rest = [*prompt[n:], *passages[row].more]
                if prompt[:n] == seen.head and len(prompt) > n and len(rest) < most:
                    rests[row] = rest[:-1] if passages[row].n_new else rest
            trees += [(seen, tree) for tree in token_trees(rests, _PER_TREE)]
        reading, states = Reading(), list[torch.Tensor]()
        for batch in by_length([len(tree.tokens) for _, tree in trees], self._cost):
            width = max(1, len(trees[batch[-1]][1].tokens))
            n_before = max(len(trees[i][0].ids) for i in batch)
            n = min(self._per_pass // width, self._n_tokens // (n_before + width))
            for some in batched(batch, max(1, n)):
                self._pass([trees[i] for i in some], passages, reading, states)
        if states:
            reading.states = torch.cat(states)
        return reading

    def _pass(
        self,
        trees: Sequence[tuple[_Pictures, TokenTree]],
        passages: Sequence[Passage],
        reading: Reading,
        states: list[torch.Tensor],
    ) -> None:
        """Read some trees, each after its pictures, in one forward pass."""
        n_before = max(len(seen.ids) for seen, _ in trees)
        width = max(len(tree.tokens) for _, tree in trees)
        cache = stacked([seen.layers for seen, _ in trees], n_before, width)
        states_btd = None
        if width:
            keeps = any(passages[row].n_new for _, tree in trees for row in tree.paths)
            inputs = self._inputs(trees, n_before, width)
            out = self._model.base_model(
                **inputs, past_key_values=cache, use_cache=keeps or n_before > 0
            )
            states_btd, cache = out.last_hidden_state, out.past_key_values
        for i, (seen, tree) in enumerate(trees):
            wanted = {
                row: path[len(path) - passages[row].n_states :] for row, path in tree.paths.items()
            }
            nodes = sorted({node for path in wanted.values() for node in path})
            first = sum(map(len, states))
            place = {node: first + at for at, node in enumerate(nodes)}
            if states_btd is not None and nodes:
                states.append(states_btd[i, nodes])
            for row, path in tree.paths.items():
                reading.rows[row] = [place[node] for node in wanted[row]]
                if passages[row].n_new:
                    at = [*range(n_before - len(seen.ids), n_before)]
                    at += [n_before + node for node in path]
                    reading.beginnings[row] = Beginning(
                        [*seen.ids, *(tree.tokens[node] for node in path)],
                        [(x.keys[i, :, at], x.values[i, :, at]) for x in cache.layers]
                        if at
                        else [],
                        (passages[row].more or passages[row].prompt)[-1],
                        seen.shift,
                    )

    def _inputs(
        self, trees: Sequence[tuple[_Pictures, TokenTree]], n_before: int, width: int
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of trees of up to ``width`` tokens after up to ``n_before`` others."""
        ids = np.full((len(trees), width), self._pad)
        positions = np.zeros((len(trees), width), dtype=int)
        sees = np.zeros((len(trees), 1, width, n_before + width), dtype=bool)
        at = np.arange(width)
        sees[:, :, at, n_before + at] = True  # padding sees itself, since no token may see nothing
        for i, (seen, tree) in enumerate(trees):
            n, n_seen = len(tree.tokens), len(seen.ids)
            ids[i, :n] = tree.tokens
            positions[i, :n] = np.array(tree.depths, dtype=int) + n_seen + seen.shift
            sees[i, 0, :n, n_before - n_seen : n_before] = True
            sees[i, 0, :n, n_before : n_before + n] = tree.sees()
        device, dtype = self._model.device, self._model.dtype
        mask = torch.zeros(sees.shape, dtype=dtype, device=device)
        mask.masked_fill_(~torch.from_numpy(sees).to(device), torch.finfo(dtype).min)
        positions_bt = torch.from_numpy(positions).to(device)
        if self._owner is not None:  # positions in time, height and width
            positions_bt = positions_bt.expand(3, -1, -1)
        return {
            "input_ids": torch.from_numpy(ids).to(device),
            "attention_mask": mask,
            "position_ids": positions_bt,
        }

    def continued(self, beginnings: Sequence[Beginning]) -> dict[str, Any]:
        """Return inputs with which ``generate`` continues texts.

        They are valid until the next call, since the model itself keeps the shift of its positions.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask``, shape (B, T), padded left, and
            ``past_key_values`` of all but the last token.
        """
        width = max(len(b.ids) for b in beginnings)
        ids = [[self._pad] * (width - len(b.ids)) + [*b.ids, b.last] for b in beginnings]
        mask = [[0] * (width - len(b.ids)) + [1] * (len(b.ids) + 1) for b in beginnings]
        if self._owner is not None:
            shifts = [[b.shift] for b in beginnings]
            self._owner.rope_deltas = torch.tensor(shifts, device=self._model.device)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor(ids, device=self._model.device),
            "attention_mask": torch.tensor(mask, device=self._model.device),
        }
        if cache := stacked([b.layers for b in beginnings], width):
            inputs["past_key_values"] = cache
        return inputs
