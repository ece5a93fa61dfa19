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

    def _added(self, part: int, kept_states: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
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


def stacked(rows: Sequence[Layers], width: int, room: int = ROOM) -> Any:
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
