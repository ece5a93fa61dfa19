"""Shapes alone take as much memory, and as many operations, as tensors with values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flipbench.models.footprint import Footprint
from tests.fixtures.allocations import Allocations

WIDTH = 64


def network() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def training(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def run() -> None:
        for _ in range(2):
            model(inputs).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def test_a_training_without_values_takes_what_a_real_one_takes() -> None:
    real = network()
    allocations = Allocations(real)
    expected = allocations.peak_of(training(real, torch.ones(2, 50, WIDTH)))
    with torch.device("meta"):
        shapes = network()
    footprint = Footprint()
    inputs = footprint.load(shapes) and footprint.empty(2, 50, WIDTH)
    peak = footprint.peak_of(training(shapes, inputs))
    assert peak == pytest.approx(expected, rel=0.02)
    assert footprint.flops == allocations.flops > 0
    weights = sum(4 * w.numel() for w in real.parameters())
    assert peak > 4 * weights, "gradients and two moments"


def test_what_is_freed_counts_no_longer() -> None:
    footprint = Footprint()
    first = footprint.empty(1000)
    second = footprint.empty(1000)
    assert footprint.now == 8000
    del first
    assert footprint.now == 4000 and footprint.peak == 8000
    with footprint:
        _ = second.view(10, 100)
    assert footprint.now == 4000, "a view is no copy"


def test_operations_are_those_that_torch_counts() -> None:
    real, inputs = network().eval(), torch.ones(2, 50, WIDTH, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        products = inputs @ inputs.mT @ inputs
        torch.autograd.backward(products.sum())
    footprint = Footprint()
    with footprint:
        torch.autograd.backward((inputs @ inputs.mT @ inputs).sum())
    assert footprint.flops == counter.get_total_flops()
    allocations = Allocations(real)
    with allocations:
        real(inputs)
    heads_and_scores = 3 * 2 * 2 * 2 * 50 * 50 * WIDTH  # of three layers, for two rows
    linear = 2 * 100 * sum(w.numel() for w in real.parameters() if w.ndim == 2)
    assert allocations.flops == linear + heads_and_scores


def test_code_that_asks_for_values_gets_unremarkable_ones() -> None:
    footprint = Footprint()
    values = footprint.empty(3, 4)
    with footprint:
        assert not values.isnan().any()
        assert values.sum().item() == 1
        ids = torch.tensor([0, 2, 2])
        assert values[ids].shape == (3, 4) and ids.max().item() == 2, "integers stay real"
