"""What a comparison of a benchmark with a corpus found, as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from flipbench.core.rates import Rate
from flipbench.core.records import Value

from .calibration import Calibration

BENCHMARK, CORPUS, CLEAN = "benchmark", "corpus", "clean benchmark"
"""Names of the distances in a result; all others are controls."""

OverlapVerdict = Literal["more", "not_more", "withheld"]


class NearPair(Value):
    """A picture of the benchmark and its nearest corpus picture, within the threshold.

    ``n_items`` is the number of the benchmark's items with this picture; ``q_value`` is from the
    comparison with a clean benchmark.
    """

    sha256: str
    key: str
    corpus_sha256: str
    corpus_key: str
    distance: float
    type: str = ""
    n_items: int | None = None
    q_value: float | None = None


class SweepRow(Value):
    """The pictures flagged at one alpha; `CorpusOverlap` describes the p-values."""

    alpha: float
    threshold: float
    flagged: Rate
    n_items: int | None
    p_value: float
    p_binomial: float


class Control(Value):
    """Pictures that cannot be in the corpus, and how many of them are flagged."""

    name: str
    flagged: Rate
    minimum: float
    p_value: float


class Hub(Value):
    """A corpus picture that is the nearest of several flagged pictures."""

    key: str
    sha256: str
    n_flagged: int


class Clean(Value):
    """The comparison with a clean benchmark; `calibration.CleanTest` describes the tests.

    ``flagged`` counts pictures with a conformal p-value of at most alpha, ``n_significant`` those
    that are significant after Benjamini-Hochberg.
    """

    name: str
    n: int
    flagged: Rate
    p_value: float
    mann_whitney_p: float
    n_significant: int


class CorpusOverlap(Value):
    """The overlap of a benchmark's pictures with a corpus.

    Attributes
    ----------
    encoder : str
    alpha, level : float
        Share of the corpus' own pictures within the threshold; significance level.
    n_corpus : int
    n_same_files : int
        Pictures whose file, byte for byte, is in the corpus.
    calibration : Calibration
    flagged : Rate
        Unique pictures within the threshold, with the Clopper-Pearson interval.
    n_items, n_items_flagged : int or None
        Items with such pictures. Never tested: items that share a picture are not independent.
    p_value : float
        One-sided, allowing for the sample that the threshold comes from: `sampled_p`.
    p_binomial : float
        As in the paper, which takes alpha as the exact rate.
    sweep : tuple of SweepRow
    controls : tuple of Control
    clean : Clean or None
    hubs : tuple of Hub
    without_hubs : Rate
        Pictures flagged if the hubs were not in the corpus, at the same threshold.
    pairs : tuple of NearPair
        The flagged pictures, the nearest first.
    distances : dict of str to tuple of float
        To the nearest corpus picture: of the benchmark, of the corpus' own sample, and of controls.
    verdict : str
        ``more`` near neighbours than expected, ``not_more``, or ``withheld`` because a control is
        flagged as well.
    sentence : str
        What was measured.
    adjudication : dict of str to int
        Flagged pairs by the label that raters gave; empty until they have.
    """

    encoder: str
    alpha: float
    level: float
    n_corpus: int
    n_same_files: int
    calibration: Calibration
    flagged: Rate
    n_items: int | None
    n_items_flagged: int | None
    p_value: float
    p_binomial: float
    sweep: tuple[SweepRow, ...]
    controls: tuple[Control, ...]
    clean: Clean | None
    hubs: tuple[Hub, ...]
    without_hubs: Rate
    pairs: tuple[NearPair, ...]
    distances: dict[str, tuple[float, ...]]
    verdict: OverlapVerdict
    sentence: str
    adjudication: dict[str, int] = {}

    def adjudicated(self, labels: Mapping[str, int]) -> CorpusOverlap:
        """Return the same result with the number of flagged pairs by label."""
        return self.model_copy(update={"adjudication": dict(labels)})
