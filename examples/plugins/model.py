"""A custom model: anything with a name, a fingerprint, capabilities and ``ask``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flipbench.core.images import ImageStore
from flipbench.core.randomness import generator
from flipbench.core.records import Probe, Response
from flipbench.models.protocols import Capability
from flipbench.prompting.prompts import LETTERS


class Guesser:
    """Choose an option at random, but always the same one for the same probe.

    ``fingerprint`` must identify everything that a response depends on: weights, precision, prompt.
    A real model should load its weights in the first call of ``ask``, because a finished run needs
    none.
    """

    can: frozenset[Capability] = frozenset({"choose", "generate", "text_only"})

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.name, self.fingerprint = seed, "guesser", f"guesser-{seed}"

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order; an exception fails only that probe."""
        return [self._answer(probe) for probe in probes]

    def _answer(self, probe: Probe) -> Response:
        scores = generator(self.seed, probe.id, "guess").random(len(probe.options or ()))
        log_probs, choice = np.log(scores / scores.sum()), int(scores.argmax())
        return Response(
            probe_id=probe.id,
            model_fingerprint=self.fingerprint,
            model=self.name,
            text=LETTERS[choice] if probe.ask == "generate" else "",
            choice=choice,
            option_log_probs=tuple(log_probs.tolist()),
        )
