"""What the lessons share: Muon for matrices and AdamW for the rest, warm-up and decay, a log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

_NOT_MATRICES = ("embed", "proj_out", "shared", "relative", "controlnet_", "queries")


class Optimizer:
    """Steps all weights; the rate rises over ``warm_up`` steps and falls over the last 40 %.

    Parameters
    ----------
    named : iterable of (str, Parameter)
        Matrices (two dimensions, neither embeddings nor output layers) are stepped by Muon.
    matrix_rate, rate : float
        Peak rates of Muon and of AdamW.
    warm_up : int
        Steps.
    """

    def __init__(
        self,
        named_weights: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        matrix_rate: float = 0.02,
        rate: float = 3e-3,
        warm_up: int = 100,
    ) -> None:
        named_weights = [(name, weight) for name, weight in named_weights if weight.requires_grad]
        self.weights = [weight for _, weight in named_weights]
        self.warm_up = warm_up
        matrices = [
            weight
            for name, weight in named_weights
            if weight.ndim == 2 and not any(part in name for part in _NOT_MATRICES)
        ]
        matrix_ids = {id(weight) for weight in matrices}
        distances = [weight for name, weight in named_weights if "relative" in name]
        matrix_ids |= {id(weight) for weight in distances}
        vectors = [weight for weight in self.weights if id(weight) not in matrix_ids]
        self.parts: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            muon = torch.optim.Muon(matrices, matrix_rate, weight_decay=0.0, momentum=0.95)
            self.parts.append((muon, matrix_rate))
        for weights, rise in ((vectors, rate), (distances, 10 * rate)):
            if weights:
                adam = torch.optim.AdamW(weights, rise, weight_decay=0.0, betas=(0.9, 0.98))
                self.parts.append((adam, rise))

    def step(self, loss: torch.Tensor, number: int, progress: float) -> None:
        """Take step ``number``, when the fraction ``done`` of the lesson is over."""
        scale = min(1.0, (number + 1) / self.warm_up) * min(1.0, max(0.02, (1 - progress) / 0.4))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimizer, rate in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[Any]:
        """Return what `restore` reads."""
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def restore(self, state: list[Any]) -> None:
        """Continue from a state."""
        for (optimizer, _), part in zip(self.parts, state, strict=True):
            optimizer.load_state_dict(part)


class Log:
    """Prints each line as JSON, and appends it to a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.start = path, time.monotonic()

    def __call__(self, lesson: str, **values: Any) -> None:
        """Write one line."""
        values = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        seconds = round(time.monotonic() - self.start)
        line = json.dumps({"lesson": lesson, **values, "seconds": seconds})
        print(line, flush=True)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(line + "\n")


class Mean:
    """A running mean that forgets."""

    def __init__(self, keep: float = 0.98) -> None:
        self.keep, self.value = keep, 0.0
        self._weight = 0.0

    def add(self, value: float) -> float:
        """Add a value and return the mean."""
        self._weight = self.keep * self._weight + 1 - self.keep
        self.value += (value - self.value) * (1 - self.keep) / self._weight
        return self.value
