"""Assert that a training changed the parameters it was to change, and no other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from flipbench.core.errors import DataError, FlipbenchError


class Diverged(DataError):
    """A training whose loss or weights are no longer numbers."""


class WrongParameters(FlipbenchError):
    """A training that changed a frozen parameter, or none at all: a defect, not a setting."""


@dataclass(frozen=True)
class Changes:
    """What a training changed: counts, and the trainable parameters that stayed as they were."""

    n_changed: int
    unchanged: tuple[str, ...]


def sums(model: Any) -> dict[str, tuple[int, int]]:
    """Return two integers for every parameter that are other ones if any value has changed.

    The sum of the bytes and the sum of the bytes by position: no copy of the weights is kept, and
    one pass over them is enough. They are the bytes of float32, which a trainer may turn the
    weights into. Of a model that is sharded, every process must call this.
    """
    found = {}
    for name, parameter in model.named_parameters():
        with whole(parameter) as tensor:
            found[name] = _sum(tensor)
    return found


@contextmanager
def whole(parameter: Any) -> Iterator[torch.Tensor]:
    """Give a parameter with all its values, gathered where processes hold a shard each.

    FSDP shards as a ``DTensor``, DeepSpeed's ZeRO-3 leaves an empty parameter with a ``ds_id``.
    """
    if isinstance(parameter, DTensor):
        gathered: torch.Tensor = parameter.full_tensor()
        yield gathered.detach()
    elif hasattr(parameter, "ds_id"):
        import deepspeed  # type: ignore[import-not-found]

        with deepspeed.zero.GatheredParameters([parameter]):
            yield parameter.detach()
    else:
        yield parameter.detach()


@torch.no_grad()
def _sum(tensor: torch.Tensor, chunk: int = 1 << 22) -> tuple[int, int]:
    flat = tensor.reshape(-1)
    plain = weighted = 0
    for start in range(0, flat.numel(), chunk):
        values = flat[start : start + chunk]
        values = values.float() if values.is_floating_point() else values
        part = values.contiguous().view(torch.uint8).to(torch.int64)
        place = start * values.element_size()
        position = torch.arange(place, place + part.numel(), device=part.device) % 8191 + 1
        plain += int(part.sum())
        weighted += int((part * position).sum())
    return plain, weighted


def check_changes(
    model: Any, before: dict[str, tuple[int, int]], trainable: Iterable[str]
) -> Changes:
    """Compare a model with what it was.

    A trainable parameter may stay as it was, where it got no gradient (CLIP's last layer norm in
    LLaVA) or where its steps are too small for its precision; the card names those.

    Raises
    ------
    WrongParameters
        Where a frozen parameter changed, or no trainable one did.
    Diverged
        Where a trainable parameter is no longer finite.
    """
    wanted, now = set(trainable), sums(model)
    changed = {name for name in before if now.get(name) != before[name]}
    if stray := sorted(changed - wanted):
        raise WrongParameters(
            f"the training changed {len(stray)} parameters that were to stay as they are, e.g."
            f" {stray[0]}; this is a defect of flipbench or of its trainer: please report it"
        )
    for name, parameter in model.named_parameters():
        if name not in wanted:
            continue
        with whole(parameter) as tensor:
            if not math.isfinite(float(tensor.float().sum())):
                raise Diverged(f"{name} holds NaN or infinity; lower the learning rate")
    if not changed:
        raise WrongParameters(
            "the training changed no parameter at all: the learning rate is too small for the"
            " weights' precision, or the warm-up is longer than the training; raise the one, or"
            " shorten the other"
        )
    return Changes(len(changed), tuple(sorted(wanted - changed)))
