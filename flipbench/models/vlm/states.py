"""A model's hidden state as text, for records."""

from __future__ import annotations

import base64

import numpy as np
import torch
from numpy.typing import NDArray

_FORM = "<f4"


def pack_state(state: torch.Tensor) -> str:
    """Return a hidden state, shape (d,), as base64 of little-endian float32."""
    values = state.detach().float().cpu().numpy().astype(_FORM)
    return base64.b64encode(values.tobytes()).decode()


def unpack_state(text: str) -> NDArray[np.float32]:
    """Return the state packed by `pack_state`, shape (d,).

    >>> unpack_state(pack_state(torch.tensor([1.5, -2.0]))).tolist()
    [1.5, -2.0]
    """
    return np.frombuffer(base64.b64decode(text), dtype=_FORM)
