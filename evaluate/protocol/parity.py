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
        total = f" of {self.n_asked} asked" if self.same.n < self.n_asked else ""
        text = f"the same letter as transformers for {rate(self.same)}{total}"
        if self.largest is None:
            return f"{text}; log-probabilities were not compared"
        of = f" ({self.n_scored} questions)" if self.n_scored < self.same.n else ""
        return f"{text}; largest difference {self.largest:.2g} nats{of}"


def parity(probes: Sequence[Probe], served: Answers, local: Answers) -> Parity:
    """Compare the stored answers of two engines to the same questions.

    >>> parity([], Answers("m", "1", {}), Answers("m", "2", {})).same.n
    0
    """
    replies = [
        (server_reply, local_reply)
        for probe in probes
        if (server_reply := served.to(probe)) is not None
        and (local_reply := local.to(probe)) is not None
    ]
    differences = [
        [abs(a - b) for a, b in zip(server.option_log_probs, weights.option_log_probs, strict=True)]
        for server, weights in replies
        if server.option_log_probs and weights.option_log_probs
    ]
    return Parity(
        Rate.exact(
            sum(server.choice == weights.choice for server, weights in replies), len(replies)
        ),
        len(probes),
        len(differences),
        max((abs_difference for row in differences for abs_difference in row), default=None),
    )
