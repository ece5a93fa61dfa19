"""A model with planted memory, for whole runs that take no weights: see ``planted.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.special import log_softmax

from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Response
from flipbench.models.protocols import Capability
from flipbench.prompting.prompts import LETTERS

RELEASED = ("original", "slot", "guided", "alone", "order-0")
"""Variants that ask in the words and the order of the release."""


class Rememberer:
    """Answer a share of items as the originals are answered, and see another share.

    ``memory`` and ``sight`` are both shares in [0, 1]; whoever neither remembers nor sees guesses.
    """

    can: frozenset[Capability] = frozenset({"choose", "generate", "text_only", "token_logprobs"})

    def __init__(self, name: str, pairs: str, memory: float, sight: float) -> None:
        self.name, self.fingerprint = name, f"rememberer {name}"
        self.pairs, self.memory, self.sight = pairs, memory, sight

    @cached_property
    def _versions(self) -> dict[str, tuple[Item, Item]]:
        pairs = PairedBenchmark.load(Path(self.pairs)).pairs
        versions = {pair.original.id: (pair.original, pair.original) for pair in pairs}
        return versions | {pair.perturbed.id: (pair.perturbed, pair.original) for pair in pairs}

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        return [self._answer(probe) for probe in probes]

    def _answer(self, probe: Probe) -> Response:
        item, original = self._versions[probe.item_id]
        draws = generator(0, original.name, self.name).random(3)
        remembers = draws[0] < self.memory
        sees = draws[1] < self.sight and bool(probe.images)
        text = original.answer_text if remembers else item.answer_text if sees else ""
        reply: dict[str, Any] = {}
        if probe.options:
            guess = int(draws[2] * len(probe.options))
            choice = probe.options.index(text) if text in probe.options else guess
            reply["choice"] = choice
            logits = [(1.0 + draws[0]) * (i == choice) for i in range(len(probe.options))]
            reply["option_log_probs"] = tuple(float(x) for x in log_softmax(logits))
            reply["text"] = LETTERS[choice] if probe.ask == "generate" else ""
        elif probe.ask == "generate":
            reply["text"] = " ".join([item.question, text]) if remembers else text or "no idea"
        else:
            is_release = probe.variant.startswith(RELEASED)
            values = tuple((generator(0, probe.id, self.name).normal(size=6) - 2).tolist())
            if remembers and is_release:
                values = tuple(value / 2 for value in values)
            reply |= {
                "log_likelihood": sum(values),
                "n_tokens": len(values),
                "token_log_probs": values,
                "token_means": (-1.5,) * len(values),
                "token_deviations": (0.5,) * len(values),
            }
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **reply
        )
