"""The keys and values of what was read, with room for what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values in each layer, shape (heads, T, head size)."""

ROOM = 64
"""Tokens for which there is room after those that were read."""


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
        self.keys = self._added(0, self.keys, key_states)
        self.values = self._added(1, self.values, value_states)
        return self.keys, self.values

    def _added(self, part: int, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        n, n_all = old.shape[-2], old.shape[-2] + new.shape[-2]
        held = self._held[part]
        if held.shape[-2] < n_all or held.data_ptr() != old.data_ptr():  # full, or replaced
            more = max(ROOM, n_all // 4)
            held = new.new_empty((*new.shape[:-2], n_all + more, new.shape[-1]))
            held[..., :n, :] = old
            self._held[part] = held
        held[..., n:n_all, :] = new
        return held[..., :n_all, :]


def stacked(rows: Sequence[Layers], width: int, room: int = ROOM) -> Any:
    """Return the keys and values of some rows as a cache, padded left; None if it were empty."""
    if not width:
        return None
    cache, n_layers = DynamicCache(), max(map(len, rows))
    like = next(layers for layers in rows if layers)
    for layer in range(n_layers):
        both = []
        for part in (0, 1):
            shape = like[layer][part].shape
            values = like[layer][part].new_zeros((len(rows), shape[0], width + room, shape[2]))
            for row, layers in zip(values, rows, strict=True):
                if layers:
                    row[:, width - layers[layer][part].shape[1] : width] = layers[layer][part]
            both.append(values)
        cache.layers.append(PreallocatedLayer(both[0], both[1], width))
    return cache
