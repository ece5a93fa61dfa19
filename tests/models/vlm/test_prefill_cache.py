"""Keys and values with room: what transformers' layer holds, without copying it for every token."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

from flipbench.models.vlm.prefill import ROOM, PreallocatedLayer, stacked_cache

HEADS, SIZE = 2, 3


def some(n: int, seed: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    keys, values = torch.randn((2, rows, HEADS, n, SIZE), generator=source)
    return keys, values


def both(n: int = 5) -> tuple[PreallocatedLayer, DynamicLayer]:
    """Return a layer with room and one of transformers, with the same n tokens."""
    (roomy,) = stacked_cache([[(k, v)] for k, v in zip(*some(n, 0), strict=True)], n).layers
    plain = DynamicLayer()
    plain.update(*some(n, 0))
    return roomy, plain


def assert_same(roomy: PreallocatedLayer, plain: DynamicLayer) -> None:
    assert torch.equal(roomy.keys, plain.keys) and torch.equal(roomy.values, plain.values)
    assert roomy.get_seq_length() == plain.get_seq_length()
    assert roomy.get_mask_sizes(1) == plain.get_mask_sizes(1)


def test_tokens_are_added_in_place_while_there_is_room() -> None:
    roomy, plain = both()
    places = {roomy.keys.data_ptr()}
    for token in range(2 * ROOM):
        keys, values = roomy.update(*some(1, token))
        plain.update(*some(1, token))
        assert torch.equal(keys, plain.keys) and torch.equal(values, plain.values)
        places.add(keys.data_ptr())
    assert_same(roomy, plain)
    assert len(places) == 2, "room is made once in as many tokens"


def test_rows_are_chosen_and_tokens_removed_as_in_the_layer_of_transformers() -> None:
    roomy, plain = both()
    for layer in (roomy, plain):
        layer.crop(-2)
        layer.update(*some(3, 1))
        layer.batch_select_indices(torch.tensor([1, 0, 1]))
        layer.update(*some(2, 2, rows=3))
        layer.batch_repeat_interleave(2)
        layer.update(*some(1, 3, rows=6))
    assert_same(roomy, plain)


def test_shorter_rows_are_padded_on_the_left() -> None:
    long, short = ([(torch.ones(HEADS, n, SIZE), torch.ones(HEADS, n, SIZE))] for n in (4, 1))
    (layer,) = stacked_cache([long, short, []], 4, room=0).layers
    filled = [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert layer.keys[:, 0, :, 0].tolist() == filled == layer.values[:, 1, :, 2].tolist()
