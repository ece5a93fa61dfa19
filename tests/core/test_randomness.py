"""A draw depends on its seed, its item and its purpose, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from flipbench.core.randomness import generator


def draws(seed: int, item_id: str, purpose: str) -> list[int]:
    return [int(x) for x in generator(seed, item_id, purpose).integers(2**32, size=8)]


def test_draws_are_stable() -> None:
    assert draws(0, "a", "flip")[:3] == [4061352409, 1607067469, 2547267452]


def test_draws_are_independent_of_order_and_global_state() -> None:
    state = str(np.random.get_state())
    first = draws(0, "a", "flip")
    draws(0, "b", "flip")
    assert draws(0, "a", "flip") == first
    assert str(np.random.get_state()) == state


@pytest.mark.parametrize(
    "other", [(1, "a", "flip"), (0, "b", "flip"), (0, "a", "edit"), (0, "af", "lip"), (10, "a", "")]
)
def test_each_part_of_the_seed_matters(other: tuple[int, str, str]) -> None:
    assert draws(*other) != draws(0, "a", "flip")
