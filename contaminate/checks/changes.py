"""Check that training changed the intended parameters, and no others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from flipbench.core.errors import DataError, FlipbenchError

_PERIOD = 8191  # bytes after which the weights of positions repeat
_CHUNK = _PERIOD << 9  # values at a time: a whole number of periods


class Diverged(DataError):
    """The loss or the weights of a training run are no longer finite."""


class WrongParameters(FlipbenchError):
    """A training run changed a frozen parameter, or none at all."""


def checksums(model: Any) -> dict[str, tuple[int, int]]:
    """Return a checksum of every parameter: the sum of its bytes, plain and weighted by position.

    This needs one pass and no copy of the weights. The bytes are those of float32, because a
    trainer may convert the weights to it. If the model is sharded, every process must call this.
    """
    by_name = {}
    for name, parameter in model.named_parameters():
        with gathered(parameter) as tensor:
            by_name[name] = _checksum(tensor)
    return by_name


@contextmanager
def gathered(parameter: Any) -> Iterator[torch.Tensor]:
    """Yield a parameter with all its values, gathered if it is sharded.

    FSDP shards as ``DTensor``; DeepSpeed's ZeRO-3 leaves an empty parameter with a ``ds_id``.
    """
    if isinstance(parameter, DTensor):
        full: torch.Tensor = parameter.full_tensor()
        yield full.detach()
    elif hasattr(parameter, "ds_id"):
        import deepspeed  # type: ignore[import-not-found]

        with deepspeed.zero.GatheredParameters([parameter]):
            yield parameter.detach()
    else:
        yield parameter.detach()


@torch.no_grad()
def _checksum(tensor: torch.Tensor) -> tuple[int, int]:
    flat = tensor.reshape(-1)
    columns = flat.new_zeros(_PERIOD, dtype=torch.int64)
    for start in range(0, flat.numel(), _CHUNK):
        values = flat[start : start + _CHUNK]
        values = values.float() if values.is_floating_point() else values
        data = values.contiguous().view(torch.uint8)
        whole = data.numel() // _PERIOD * _PERIOD
        columns += data[:whole].view(-1, _PERIOD).sum(0, dtype=torch.int64)
        columns[: data.numel() - whole] += data[whole:]
    weights = torch.arange(1, _PERIOD + 1, device=flat.device)
    return int(columns.sum()), int((columns * weights).sum())


def check_changes(
    model: Any, original: dict[str, tuple[int, int]], trainable: Iterable[str]
) -> list[str]:
    """Compare a model with the checksums that it had before the training (``original``).

    Returns the trainable parameters that did not change, which the card lists: those without a
    gradient (CLIP's last layer norm in LLaVA), and those whose steps are too small for their
    precision.

    Raises
    ------
    WrongParameters
        If a frozen parameter changed, or no trainable one did.
    Diverged
        If a trainable parameter is no longer finite.
    """
    allowed, trained = set(trainable), checksums(model)
    changed_names = {name for name in original if trained.get(name) != original[name]}
    if stray := sorted(changed_names - allowed):
        raise WrongParameters(
            f"the training changed {len(stray)} frozen parameters, e.g. {stray[0]}; this is a bug"
            " in flipbench or in the trainer: please report it"
        )
    for name, parameter in model.named_parameters():
        if name not in allowed:
            continue
        with gathered(parameter) as tensor:
            if not math.isfinite(float(tensor.float().sum())):
                raise Diverged(f"{name} contains NaN or infinity; lower the learning rate")
    if not changed_names:
        raise WrongParameters(
            "the training changed no parameter: the learning rate is too small for the weights'"
            " precision, or the warm-up is longer than the training; raise the learning rate or"
            " shorten the warm-up"
        )
    return sorted(allowed - changed_names)
