"""A model's replies to both versions of every pair, and how far they could be misread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flipbench.core.paired import PairedBenchmark
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

from ..statistics.resampling import Array
from .scores import cluster_of

Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]
Reading = Literal["as read", "kindest", "harshest"]
"""What a reply that cannot be read, or is missing, counts as.

"as read": unreadable is wrong, and a pair with a missing reply is left out. "kindest" and
"harshest": whatever makes the model's gap largest or smallest, so that the truth lies between.
"""
MIN_COMPARED = 20
"""Fewest replies, wrong for one model at least, by which two models are said to be the same."""
MAX_DIFFERENT = 0.01
"""Largest share of these that differs."""


@dataclass(frozen=True)
class Pairs:
    """N pairs as a verdict sees them.

    Attributes
    ----------
    ids : sequence of str, shape (N,)
        Of the originals.
    clusters : sequence of str, shape (N,)
        What each pair shares with others: its image or group.
    old, new : int array, shape (N,)
        The right options of original and perturbed version; -1 if not known.
    n_options : int array, shape (N,)
        0 if not known.
    """

    ids: Sequence[str]
    clusters: Sequence[str]
    old: Integers
    new: Integers
    n_options: Integers

    @property
    def chances(self) -> Array:
        """Accuracy of guessing, shape (N,); 0 where the number of options is not known."""
        return np.where(self.n_options > 0, 1 / np.maximum(self.n_options, 1), 0.0)

    @classmethod
    def of(cls, benchmark: PairedBenchmark) -> Pairs:
        """Return the multiple-choice pairs of a benchmark."""
        pairs = [pair for pair in benchmark.pairs if pair.original.options is not None]
        return cls(
            [pair.original.id for pair in pairs],
            [cluster_of(pair.original) for pair in pairs],
            _integers([pair.original.answer for pair in pairs]),
            _integers([pair.perturbed.answer for pair in pairs]),
            _integers([len(pair.original.options or ()) for pair in pairs]),
        )


@dataclass(frozen=True)
class Replies:
    """One model's replies to one version of N pairs, arrays of shape (N,).

    Attributes
    ----------
    right, unreadable, missing : bool array
        At most one of them is true; if none is, the reply names a wrong option.
    choices : int array
        The option named; -1 if there is none or it is not known.
    """

    right: Bools
    unreadable: Bools
    missing: Bools
    choices: Integers

    @classmethod
    def of_choices(cls, choices: Sequence[int | None], gold: Integers) -> Replies:
        """Return the replies that name options: -1 is unreadable, None is missing."""
        is_missing = np.array([choice is None for choice in choices], dtype=bool)
        options = _integers([-1 if choice is None else choice for choice in choices])
        is_unreadable = (options < 0) & ~is_missing
        return cls((options == gold) & (options >= 0), is_unreadable, is_missing, options)

    @property
    def unknown(self) -> Bools:
        """Which replies are unreadable or missing."""
        return self.unreadable | self.missing

    @property
    def wrong(self) -> Bools:
        """Which replies name a wrong option."""
        return ~(self.right | self.unknown)


@dataclass(frozen=True)
class PairedReplies:
    """One model's replies to both versions of N pairs."""

    model: str
    fingerprint: str
    original: Replies
    perturbed: Replies

    @classmethod
    def read(
        cls, benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
    ) -> PairedReplies:
        """Return a model's answers to the multiple-choice pairs of a benchmark."""
        pairs = [pair for pair in benchmark.pairs if pair.original.options is not None]
        options = Pairs.of(benchmark)

        def replies(version: Literal["original", "perturbed"], gold: Integers) -> Replies:
            probes = [prompt_settings.probe(getattr(p, version), version) for p in pairs]
            return Replies.of_choices(answers.choices(probes), gold)

        return cls(
            answers.model,
            answers.fingerprint,
            replies("original", options.old),
            replies("perturbed", options.new),
        )

    @cached_property
    def n_unknown(self) -> tuple[int, int]:
        """Unreadable and missing replies to originals, and to perturbed versions."""
        return int(self.original.unknown.sum()), int(self.perturbed.unknown.sum())

    def changes(self, reading: Reading = "as read") -> Array:
        """Return right on the perturbed version - right on the original, shape (N,).

        NaN where the pair says nothing: as read, if a reply is missing; otherwise, if neither
        version has a readable reply.
        """
        originals, perturbed = self.original, self.perturbed
        original_right, perturbed_right = (
            originals.right.astype(float),
            perturbed.right.astype(float),
        )
        if reading == "as read":
            empty = originals.missing | perturbed.missing
        else:
            original_right[originals.unknown], perturbed_right[perturbed.unknown] = (
                (0, 1) if reading == "kindest" else (1, 0)
            )
            empty = originals.unknown & perturbed.unknown
        return np.where(empty, np.nan, perturbed_right - original_right)

    def outcomes(self) -> Array:
        """Return right answers to originals and perturbed versions, shape (2, N), or NaN."""
        sides = (self.original, self.perturbed)
        return np.array([np.where(side.missing, np.nan, side.right) for side in sides])

    def accuracy(self) -> float:
        """Return the share of right answers to originals that have a reply; NaN without any."""
        is_answered = ~self.original.missing
        return float(self.original.right[is_answered].mean()) if is_answered.any() else float("nan")

    def is_same_as(self, model: PairedReplies) -> bool:
        """Return whether another model's replies are so alike that it must be the same model.

        Where both are right, models agree anyway; so only replies that one of them gets wrong are
        compared, and at least `MIN_COMPARED` of these.
        """
        n_different = n_compared = 0
        for own_replies, replies in (
            (self.original, model.original),
            (self.perturbed, model.perturbed),
        ):
            is_compared = ~(own_replies.right & replies.right)
            different = (own_replies.choices != replies.choices) | (
                own_replies.right != replies.right
            )
            n_compared += int(is_compared.sum())
            n_different += int((is_compared & different).sum())
        return n_compared >= MIN_COMPARED and n_different <= MAX_DIFFERENT * n_compared


def _integers(values: Sequence[int | None]) -> Integers:
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)
