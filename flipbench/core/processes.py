"""Several processes that train one model together, as ``accelerate launch`` starts them.

The main one alone writes records, cards and checkpoints, and speaks. The processes of
`flipbench.core.workers` are others: they share out plans and know nothing of each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = timedelta(days=2)
"""How long the others wait while the main process asks a chat model, or verifies a checkpoint."""


def n_processes() -> int:
    """Return how many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this process is the one that writes and speaks."""
    return n_processes() == 1 or int(os.environ.get("RANK", "0")) == 0


def from_main(make: Callable[[], T]) -> T:
    """Return, in every process, what ``make`` returns in the main one; nobody else calls it.

    What it returns must be picklable. Where it raises, the main process ends, and the launcher
    ends the others.
    """
    if n_processes() == 1:
        return make()
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]
    from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

    PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    made: list[Any] = [make() if is_main() else None]
    broadcast_object_list(made)
    return made[0]  # type: ignore[no-any-return]


def main_first(make: Callable[[], T]) -> T:
    """Return what ``make`` returns in each process; it runs in the main one before the others.

    For what writes the first time and only reads the second.
    """
    if is_main():
        made = make()
        from_main(lambda: None)
        return made
    from_main(lambda: None)
    return make()
