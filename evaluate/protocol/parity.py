"""How the answers of a served model compare with those of the same weights in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flipbench.core.rates import Rate
from flipbench.core.records import Probe
from flipbench.models.engine import Answers
from flipbench.reporting.formats import rate


@dataclass(frozen=True)
class Parity:
    """Two engines on the same questions.

    Attributes
    ----------
    same : Rate
        How often both chose the same option, of the questions that both answered; a reply that
        names none is a choice of its own. Exact interval.
    n_asked : int
        How many questions were put to both.
    n_scored : int
        For how many both returned the log-probability of every option.
    largest : float, optional
        The largest difference between these log-probabilities, in nats; None without any.
    """

    same: Rate
    n_asked: int
    n_scored: int
    largest: float | None

    def __str__(self) -> str:
        """Return the comparison as part of a sentence."""
        if not self.same.n:
            return f"not compared with transformers: both answered none of {self.n_asked} questions"
        asked = f" of {self.n_asked} asked" if self.same.n < self.n_asked else ""
        text = f"the same letter as transformers for {rate(self.same)}{asked}"
        if self.largest is None:
            return f"{text}; log-probabilities were not compared"
        of = f" ({self.n_scored} questions)" if self.n_scored < self.same.n else ""
        return f"{text}; largest difference {self.largest:.2g} nats{of}"


def parity(probes: Sequence[Probe], served: Answers, local: Answers) -> Parity:
    """Compare the stored answers of two engines to the same questions.

    >>> parity([], Answers("m", "1", {}), Answers("m", "2", {})).same.n
    0
    """
    pairs = [
        (there, here)
        for probe in probes
        if (there := served.to(probe)) is not None and (here := local.to(probe)) is not None
    ]
    scored = [
        (there.option_log_probs, here.option_log_probs)
        for there, here in pairs
        if there.option_log_probs and here.option_log_probs
    ]
    differences = [abs(a - b) for both in scored for a, b in zip(*both, strict=True)]
    return Parity(
        Rate.exact(sum(there.choice == here.choice for there, here in pairs), len(pairs)),
        len(probes),
        len(scored),
        max(differences, default=None),
    )
