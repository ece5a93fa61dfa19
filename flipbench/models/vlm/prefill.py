"""Read what prompts have in common once: text before the pictures, pictures, question, reply.

All prompts about the same pictures share their keys and values, whatever they ask for. The texts
that follow become trees, in which each distinct prefix stands once and a token sees its own prefix
alone; a forward pass reads several trees. Texts without pictures do the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from flipbench.core.records import ImageRef
from flipbench.models.vlm.token_trees import (
    TokenTree,
    batched,
    by_length,
    forward_cost,
    prefix_lengths,
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

ROOM = 64
"""Tokens for which there is room after those that were read."""

Images = tuple[ImageRef, ...]
Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values in each layer, shape (heads, T, head size)."""


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
class PrefillRequest:
    """What a model reads in order to answer a probe: its prompt, and the tokens of ``suffix``.

    ``prompt`` are tokens from the tokenizer, with one placeholder per image. The hidden states of
    the last ``n_states`` tokens are needed, and the log-probabilities of ``targets``: one at each
    state, or any number at one. Of what generates up to ``n_new`` tokens, the last token is left to
    the generation.
    """

    images: Images
    prompt: list[int]
    suffix: list[int] = field(default_factory=list)
    n_states: int = 0
    targets: tuple[int, ...] = ()
    n_new: int = 0


@dataclass(frozen=True)
class Prefix:
    """Tokens, and the keys and values of all of them, or but the last of what generates.

    ``shift`` is that of their rotary positions. ``prompt`` are the tokens of pictures and what
    precedes them as the tokenizer writes them, with one placeholder per image.
    """

    ids: list[int]
    layers: Layers
    shift: int
    prompt: list[int] = field(default_factory=list)


@dataclass
class PrefillResult:
    """What was read for some requests.

    ``states`` are the last layer's hidden states, each distinct one once, shape (n_states, d), and
    ``rows`` each request's rows of these. Requests are left out if they exceed the context, or
    place their pictures in another way than others about the same ones. Those that generate have a
    prefix.
    """

    states: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    rows: dict[int, list[int]] = field(default_factory=dict)
    prefixes: dict[int, Prefix] = field(default_factory=dict)


_NO_IMAGES = Prefix([], [], 0)
Requests = Mapping[int, PrefillRequest]
Process = Callable[[Sequence[int]], Mapping[str, Any]]


class Prefiller:
    """Reads prompts with a model that can share, and keeps the keys and values of pictures.

    Pictures are read anew once the model's parameters have changed. Keys and values take up to
    ``mib`` MiB, by default 2048, or a quarter of a GPU's free memory. Half are for pictures that
    may be asked about again, the oldest of which are dropped first, half for what is being read; a
    single request is read even if it needs more.
    """

    def __init__(self, model: Any, pad: int, mib: int | None = None) -> None:
        self._model, self._pad = model, pad
        self._rope_owner = next((m for m in model.modules() if "rope_deltas" in vars(m)), None)
        self._cache: OrderedDict[Images, Prefix] = OrderedDict()
        self._weight_versions: tuple[int, ...] = ()
        self._longest = 0  # tokens of pictures
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

    def prefill(self, requests: Requests, process: Process) -> Iterator[PrefillResult]:
        """Read prompts, as many at once as the budget allows.

        ``process`` returns the processor's output for the prompts of some requests, by their keys.
        """
        versions = tuple(p._version for p in self._model.parameters())
        if versions != self._weight_versions:
            self.forget()
        self._weight_versions = versions
        for part in self._parts(requests):
            self._prefill_images(part, requests, process)
            yield self._prefill_suffixes(part, requests)
            while sum(len(prefix.ids) for prefix in self._cache.values()) > self._n_tokens:
                self._cache.popitem(last=False)

    def forget(self) -> None:
        """Drop all pictures."""
        self._cache.clear()

    def _parts(self, requests: Requests) -> Iterator[dict[Images, list[int]]]:
        """Yield requests by their pictures, as many at once as the budget allows."""
        by_images: dict[Images, list[int]] = {}
        for key, request in requests.items():
            by_images.setdefault(request.images, []).append(key)
        part, n_tokens = dict[Images, list[int]](), 0
        for images, keys in by_images.items():
            cached = self._cache.get(images)
            n_before = (len(cached.ids) if cached else self._longest) if images else 0
            for key in keys:
                request = requests[key]
                n_text = len(request.prompt) + len(request.suffix)
                n_more = n_text + (n_before + n_text + request.n_new if request.n_new else 0)
                n_more += 0 if images in part else n_before
                # how long pictures are is only known once some have been read
                is_unknown = any(part) and not self._longest and images not in part
                if part and (is_unknown or n_tokens + n_more > self._n_tokens):
                    n_more += n_before if images in part else 0
                    yield part
                    part, n_tokens = {}, 0
                part.setdefault(images, []).append(key)
                n_tokens += n_more
        if part:
            yield part

    def _prefill_images(
        self, part: Mapping[Images, Sequence[int]], requests: Requests, process: Process
    ) -> None:
        """Read the pictures of a part that are not kept, or were read with another prefix."""
        uncached = []
        for images, keys in part.items():
            cached = self._cache.get(images)
            if cached and requests[keys[0]].prompt[: len(cached.prompt)] == cached.prompt:
                self._cache.move_to_end(images)
            elif images:
                uncached.append(keys[0])
        n = max(1, self._per_pass // (self._longest or self._per_pass))
        for keys in batched(uncached, n):
            self._prefill_image_batch([requests[key] for key in keys], process(keys))

    def _prefill_image_batch(
        self, requests: Sequence[PrefillRequest], processed: Mapping[str, Any]
    ) -> None:
        ids_bt, mask_bt = processed["input_ids"], processed["attention_mask"].bool()
        token, prompts, prefixes = self._model.config.image_token_id, [], []
        for ids_t, mask_t, request in zip(ids_bt, mask_bt, requests, strict=True):
            ids = ids_t[mask_t].tolist()
            n_prompt, n_expanded = prefix_lengths(ids, request.prompt, token)
            prompts.append(request.prompt[:n_prompt])
            prefixes.append(ids[:n_expanded])
        width = max(map(len, prefixes))

        def cut(values_bt: torch.Tensor, fill: int) -> torch.Tensor:
            rows = [
                [fill] * (width - len(ids)) + values_t[mask_t].tolist()[: len(ids)]
                for values_t, mask_t, ids in zip(values_bt, mask_bt, prefixes, strict=True)
            ]
            return torch.tensor(rows, dtype=values_bt.dtype, device=values_bt.device)

        inputs = {
            name: cut(value, self._pad if name == "input_ids" else 0)
            if value.shape[:2] == ids_bt.shape
            else value
            for name, value in processed.items()
        }
        if self._rope_owner is None:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        cache = self._model.base_model(**inputs, use_cache=True).past_key_values
        self._longest = max(self._longest, width)
        for i, (request, prompt, ids) in enumerate(zip(requests, prompts, prefixes, strict=True)):
            at = slice(width - len(ids), None)  # a copy, so that the batch's can be freed
            layers = [(x.keys[i, :, at].clone(), x.values[i, :, at].clone()) for x in cache.layers]
            shift = 0 if self._rope_owner is None else int(self._rope_owner.rope_deltas[i])
            self._cache[request.images] = Prefix(ids, layers, shift, prompt)

    def _prefill_suffixes(
        self, part: Mapping[Images, Sequence[int]], requests: Requests
    ) -> PrefillResult:
        """Read what follows the pictures."""
        text = self._model.config.get_text_config()
        context = getattr(text, "max_position_embeddings", None) or 2**31
        trees = list[tuple[Prefix, TokenTree]]()
        for images, keys in part.items():
            prefix = self._cache[images] if images else _NO_IMAGES
            n, room = len(prefix.prompt), context - len(prefix.ids)
            suffixes = dict[int, list[int]]()
            for key in keys:
                prompt = requests[key].prompt
                suffix = [*prompt[n:], *requests[key].suffix]
                if prompt[:n] == prefix.prompt and len(prompt) > n and len(suffix) < room:
                    suffixes[key] = suffix[:-1] if requests[key].n_new else suffix
            trees += [(prefix, tree) for tree in token_trees(suffixes, _PER_TREE)]
        result, states = PrefillResult(), list[torch.Tensor]()
        for batch in by_length([len(tree.tokens) for _, tree in trees], self._cost):
            width = max(1, len(trees[batch[-1]][1].tokens))
            n_before = max(len(trees[i][0].ids) for i in batch)
            n = min(self._per_pass // width, self._n_tokens // (n_before + width))
            for rows in batched(batch, max(1, n)):
                self._forward([trees[i] for i in rows], requests, result, states)
        if states:
            result.states = torch.cat(states)
        return result

    def _forward(
        self,
        trees: Sequence[tuple[Prefix, TokenTree]],
        requests: Requests,
        result: PrefillResult,
        states: list[torch.Tensor],
    ) -> None:
        """Read some trees, each after its pictures, in one forward pass."""
        n_before = max(len(prefix.ids) for prefix, _ in trees)
        width = max(len(tree.tokens) for _, tree in trees)
        cache = stacked_cache([prefix.layers for prefix, _ in trees], n_before, width)
        states_btd = None
        if width:
            generates = any(requests[key].n_new for _, tree in trees for key in tree.paths)
            inputs = self._inputs(trees, n_before, width)
            out = self._model.base_model(
                **inputs, past_key_values=cache, use_cache=generates or n_before > 0
            )
            states_btd, cache = out.last_hidden_state, out.past_key_values
        for i, (prefix, tree) in enumerate(trees):
            state_paths = {
                key: path[len(path) - requests[key].n_states :] for key, path in tree.paths.items()
            }
            nodes = sorted({node for path in state_paths.values() for node in path})
            n_states = sum(map(len, states))
            rows = {node: n_states + number for number, node in enumerate(nodes)}
            if states_btd is not None and nodes:
                states.append(states_btd[i, nodes])
            for key, path in tree.paths.items():
                request = requests[key]
                result.rows[key] = [rows[node] for node in state_paths[key]]
                if request.n_new:
                    at = [*range(n_before - len(prefix.ids), n_before)]
                    at += [n_before + node for node in path]
                    read_layers = cache.layers if at else ()  # else there may be no cache
                    layers = [(x.keys[i, :, at], x.values[i, :, at]) for x in read_layers]
                    ids = [*prefix.ids, *(tree.tokens[node] for node in path)]
                    ids.append((request.suffix or request.prompt)[-1])
                    result.prefixes[key] = Prefix(ids, layers, prefix.shift)

    def _inputs(
        self, trees: Sequence[tuple[Prefix, TokenTree]], n_before: int, width: int
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of trees of up to ``width`` tokens after up to ``n_before`` others."""
        ids = np.full((len(trees), width), self._pad)
        positions = np.zeros((len(trees), width), dtype=int)
        sees = np.zeros((len(trees), 1, width, n_before + width), dtype=bool)
        at = np.arange(width)
        sees[:, :, at, n_before + at] = True  # padding sees itself, since no token may see nothing
        for i, (prefix, tree) in enumerate(trees):
            n, n_prefix = len(tree.tokens), len(prefix.ids)
            ids[i, :n] = tree.tokens
            positions[i, :n] = np.array(tree.depths, dtype=int) + n_prefix + prefix.shift
            sees[i, 0, :n, n_before - n_prefix : n_before] = True
            sees[i, 0, :n, n_before : n_before + n] = tree.sees()
        device, dtype = self._model.device, self._model.dtype
        mask = torch.zeros(sees.shape, dtype=dtype, device=device)
        mask.masked_fill_(~torch.from_numpy(sees).to(device), torch.finfo(dtype).min)
        positions_bt = torch.from_numpy(positions).to(device)
        if self._rope_owner is not None:  # positions in time, height and width
            positions_bt = positions_bt.expand(3, -1, -1)
        return {
            "input_ids": torch.from_numpy(ids).to(device),
            "attention_mask": mask,
            "position_ids": positions_bt,
        }

    def generation_inputs(self, prefixes: Sequence[Prefix]) -> dict[str, Any]:
        """Return inputs, padded left, with which ``generate`` continues texts.

        They are valid until the next call, since the model itself keeps the shift of its positions.
        """
        device = self._model.device
        if self._rope_owner is not None:
            shifts = [[prefix.shift] for prefix in prefixes]
            self._rope_owner.rope_deltas = torch.tensor(shifts, device=device)
        inputs = left_padded([prefix.ids for prefix in prefixes], self._pad)
        inputs = {name: values.to(device) for name, values in inputs.items()}
        width = inputs["input_ids"].shape[1] - 1
        if cache := stacked_cache([prefix.layers for prefix in prefixes], width):
            inputs["past_key_values"] = cache
        return inputs


def left_padded(rows: Sequence[list[int]], pad: int) -> dict[str, Any]:
    """Return a model's inputs of tokens alone, shape (B, T)."""
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values with room for more tokens: adding one copies no other.

    The layer of transformers copies all of them for every token of a reply, which takes most of the
    time after a picture of hundreds of tokens. Both tensors have shape (B, heads, T + room, head
    size); the first T = ``n`` hold tokens that were read.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, n: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._held = [keys, values]
        self.keys, self.values = keys[..., :n, :], values[..., :n, :]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add tokens, shape (B, heads, n, head size); return all keys and values."""
        self.keys = self._append(0, self.keys, key_states)
        self.values = self._append(1, self.values, value_states)
        return self.keys, self.values

    def _append(self, part: int, kept_states: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        n, n_all = kept_states.shape[-2], kept_states.shape[-2] + added.shape[-2]
        buffer = self._held[part]
        if (
            buffer.shape[-2] < n_all or buffer.data_ptr() != kept_states.data_ptr()
        ):  # full, or replaced
            room = max(ROOM, n_all // 4)
            buffer = added.new_empty((*added.shape[:-2], n_all + room, added.shape[-1]))
            buffer[..., :n, :] = kept_states
            self._held[part] = buffer
        buffer[..., n:n_all, :] = added
        return buffer[..., :n_all, :]


def stacked_cache(rows: Sequence[Layers], width: int, room: int = ROOM) -> Any:
    """Return the keys and values of some rows as a cache, padded left; None if it were empty."""
    if not width:
        return None
    cache, n_layers = DynamicCache(), max(map(len, rows))
    example = next(layers for layers in rows if layers)
    for layer in range(n_layers):
        keys_and_values = []
        for part in (0, 1):
            shape = example[layer][part].shape
            values = example[layer][part].new_zeros((len(rows), shape[0], width + room, shape[2]))
            for row, layers in zip(values, rows, strict=True):
                if layers:
                    row[:, width - layers[layer][part].shape[1] : width] = layers[layer][part]
            keys_and_values.append(values)
        cache.layers.append(PreallocatedLayer(keys_and_values[0], keys_and_values[1], width))
    return cache
