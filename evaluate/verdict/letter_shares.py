"""How much of the probability a model gives the option letters that it is asked to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from flipbench.core.paired import PairedBenchmark
from flipbench.models.chat.log_probs import LEAST_SHARE
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, right_option
from flipbench.reporting import formats

NOTABLE_SHARE = 0.9
"""Mean share below which a report says that the model tends to write something else first."""


@dataclass(frozen=True)
class LetterShares:
    """The letters' share of the probability in each of a model's replies; at least one."""

    model: str
    shares: tuple[float, ...]

    @property
    def n_low(self) -> int:
        """Replies in which letters hold too little to be read as one."""
        return sum(share < LEAST_SHARE for share in self.shares)

    def text(self) -> str:
        """Return mean and lowest share, and how many replies are below one half."""
        mean, least = formats.percent(fmean(self.shares)), formats.percent(min(self.shares))
        return (
            f"{mean} % on average, at least {least} %; below one half in {self.n_low} of"
            f" {len(self.shares)} replies"
        )

    def notes(self, ask_otherwise: str, notable: float = 0.0) -> list[str]:
        """Return a sentence if replies are unreadable, or the mean share is below ``notable``.

        Parameters
        ----------
        ask_otherwise : str
            What the user sets to let the model write its reply.
        """
        mean, n = fmean(self.shares), len(self.shares)
        if self.n_low:
            return [
                f"In {self.n_low} of {n} replies of {self.model} the option letters together hold"
                f" less than half of the probability ({formats.percent(mean)} % on average over all"
                " replies): it would write something else first, so these are unreadable; ask with"
                f" {ask_otherwise}."
            ]
        if mean < notable:
            return [
                f"In the replies of {self.model} the option letters together hold"
                f" {formats.percent(mean)} % of the probability on average, at least"
                f" {formats.percent(min(self.shares))} %: it might write something else first;"
                f" {ask_otherwise} lets it."
            ]
        return []


def letter_shares(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Mapping[str, Answers]
) -> list[LetterShares]:
    """Return the shares of each model for which they were measured, over both versions."""
    probes = [
        prompt_settings.closed_probe(item, side)
        for pair in benchmark.pairs
        for side, item in (("original", pair.original), ("perturbed", pair.perturbed))
        if right_option(item) is not None
    ]
    shares = {name: tuple(replies.letter_shares(probes)) for name, replies in answers.items()}
    return [LetterShares(name, values) for name, values in shares.items() if values]
