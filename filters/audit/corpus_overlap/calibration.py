"""How near is near: thresholds from the corpus itself, and p-values against a clean benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from flipbench.core.errors import DataError
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import Value

ALPHAS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
EXACT = 1e-6
"""Distance up to which two pictures are the same to the encoder."""

Distances = NDArray[np.float64]


def sample_rows(
    n: int,
    m: int,
    seed: int,
    *,
    types: Sequence[str] | None = None,
    like: Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Draw corpus rows for the calibration, without replacement and in ascending order.

    Parameters
    ----------
    n, m, seed : int
        Corpus pictures, how many to draw, and the seed.
    types : sequence of str, shape (n,), optional
        Modality or view of each corpus picture.
    like : sequence of str, optional
        The types of the benchmark's pictures. The sample then has their shares; it is smaller than
        m if the corpus has too few pictures of a type.

    Raises
    ------
    DataError
        If the corpus has fewer than two pictures, or none of a type that the benchmark has.
    """
    if n < 2:
        raise DataError(f"a corpus of {n} pictures has no distances of its own; it needs two")
    rng = generator(seed, "", "corpus calibration")
    if types is None or like is None:
        return np.sort(rng.choice(n, size=min(m, n), replace=False))
    shares = {kind: count / len(like) for kind, count in Counter(like).items()}
    of_type: dict[str, list[int]] = {kind: [] for kind in shares}
    for row, kind in enumerate(types):
        if kind in of_type:
            of_type[kind].append(row)
    if lacking := sorted(kind for kind, rows in of_type.items() if not rows):
        raise DataError(
            f"the corpus has no picture of type {', '.join(map(repr, lacking))}; name the types of"
            " benchmark and corpus alike, or calibrate on a random sample"
        )
    m = min(m, *(int(len(of_type[kind]) / share) for kind, share in shares.items()))
    counts = {kind: int(m * share) for kind, share in shares.items()}
    by_remainder = sorted(shares, key=lambda kind: (counts[kind] - m * shares[kind], kind))
    for kind in by_remainder[: m - sum(counts.values())]:
        counts[kind] += len(of_type[kind]) > counts[kind]
    samples = [
        rng.choice(of_type[kind], size=max(1, count), replace=False)
        for kind, count in sorted(counts.items())
    ]
    return np.sort(np.concatenate(samples)).astype(np.int64)


def threshold(null: Distances, alpha: float) -> float:
    """Return the alpha-quantile of the calibration distances, interpolated linearly.

    >>> threshold(np.array([0, 0.01, 0.02, 0.03, 0.04]), 0.1)
    0.004
    """
    return float(np.quantile(null, alpha))


def binomial_p(k: int, n: int, alpha: float) -> float:
    """Return P(X >= k) for n independent pictures flagged at exactly the rate alpha.

    >>> round(binomial_p(4, 96, 0.01), 4), round(binomial_p(4, 451, 0.01), 3)
    (0.0161, 0.661)
    """
    return float(scipy.stats.binom.sf(k - 1, n, alpha))


def sampled_p(k: int, n: int, n_below: int, m: int) -> float:
    """Return P(X >= k) if the threshold is itself an order statistic of a sample.

    If ``n`` pictures and the ``m`` of the sample are exchangeable, the number of the former below
    the sample's (n_below + 1)-th smallest distance is beta-binomial. A threshold with ``n_below``
    sampled distances at or below it is no larger, so this p-value is at least the exact one. It
    allows for the chance in the sample, which `binomial_p` does not: with m = 5,000 and alpha 0.01
    they are close, with a few hundred they are not.

    >>> round(sampled_p(4, 96, 50, 5_000), 3), round(sampled_p(4, 96, 2, 200), 3)
    (0.018, 0.089)
    """
    if n_below >= m:
        return 1.0
    return min(1.0, float(scipy.stats.betabinom.sf(k - 1, n, n_below + 1, m - n_below)))


def conformal_p(distances: Distances, clean: Distances) -> Distances:
    """Return each picture's conformal p-value against the pictures of a clean benchmark.

    It is (1 + number of clean distances that are no larger) / (n_clean + 1).

    Parameters
    ----------
    distances : float64 array, shape (n,)
        Distances of the benchmark's pictures to their nearest corpus pictures.
    clean : float64 array, shape (n_clean,)
        Those of a benchmark of the same domain that cannot be in the corpus.

    Examples
    --------
    >>> conformal_p(np.array([0.1, 0.3]), np.array([0.2, 0.3, 0.4])).tolist()
    [0.25, 0.75]
    """
    n_at_most = np.searchsorted(np.sort(clean), distances, side="right")
    return np.asarray((n_at_most + 1) / (len(clean) + 1), np.float64)


class Clean(Value):
    """A benchmark compared with a clean one of the same domain.

    Attributes
    ----------
    name : str
        The clean benchmark's.
    n : int
        Its pictures.
    flagged : Rate
        Pictures with a conformal p-value of at most alpha.
    p_value : float
        Of ``flagged``, one-sided and exact if the pictures are exchangeable: the primary test. A
        leak puts *some* pictures at the near end, and this test looks there. The pictures share one
        clean sample, so their p-values depend on each other; see `sampled_p`.
    mann_whitney_p : float
        One-sided: distances are smaller on the whole. Secondary, since a small shift of all
        pictures, which a difference in domain gives, makes it as significant as a leak.
    n_significant : int
        Pictures that are significant after Benjamini-Hochberg. The least p-value is 1 / (n + 1), so
        k of N can be significant at a level only if n + 1 >= N / (k x level).
    """

    name: str
    n: int
    flagged: Rate
    p_value: float
    mann_whitney_p: float
    n_significant: int


def compare_with_clean(
    distances: Distances, clean: Distances, alpha: float, *, name: str = "", level: float = 0.05
) -> tuple[Clean, Distances]:
    """Test whether more pictures are near the corpus than those of a clean benchmark.

    Also returns the pictures' Benjamini-Hochberg q-values, shape (n,).

    Raises
    ------
    DataError
        If the clean benchmark is too small for any p-value of at most alpha.

    References
    ----------
    Bates, Candès, Lei, Romano and Sesia, Testing for outliers with conformal p-values, Annals of
    Statistics 51 (2023), arXiv 2104.08279: marginal p-values, and why Benjamini-Hochberg holds for
    them.
    """
    n_clean, n = len(clean), len(distances)
    rank = int(np.floor(alpha * (n_clean + 1) + 1e-9))
    if rank < 1:
        n_needed = int(np.ceil(1 / alpha - 1e-9)) - 1
        raise DataError(
            f"the clean benchmark has {n_clean} pictures; alpha = {alpha} needs at least {n_needed}"
        )
    p_values = conformal_p(distances, clean)
    q_values = np.asarray(scipy.stats.false_discovery_control(p_values), np.float64)
    k = int((p_values <= alpha + 1e-12).sum())
    test = Clean(
        name=name,
        n=n_clean,
        flagged=Rate.exact(k, n),
        p_value=sampled_p(k, n, rank - 1, n_clean),
        mann_whitney_p=float(scipy.stats.mannwhitneyu(distances, clean, alternative="less").pvalue),
        n_significant=int((q_values <= level).sum()),
    )
    return test, q_values


class Calibration(Value):
    """The corpus pictures that the threshold comes from.

    A corpus with copies of its own pictures has distances near 0, which pull the threshold down:
    fewer pictures of the benchmark are then flagged, not more.

    Attributes
    ----------
    n : int
        Pictures in the sample.
    shares : dict of str to float
        Shares of their types, those of the benchmark; empty for a random sample.
    minimum, median : float
        Of their distances to the nearest other corpus picture.
    n_exact : int
        Pictures with an exact duplicate elsewhere in the corpus.
    threshold : float
        At alpha.
    threshold_without_exact : float or None
        Without those pictures; None if nothing is left.
    """

    n: int
    shares: dict[str, float] = {}
    minimum: float
    median: float
    n_exact: int
    threshold: float
    threshold_without_exact: float | None


def describe(null: Distances, alpha: float, types: Sequence[str] = ()) -> Calibration:
    """Return the threshold at alpha and what it rests on; ``types`` are those of the sample."""
    different = null[null > EXACT]
    return Calibration(
        n=len(null),
        shares={kind: count / len(null) for kind, count in sorted(Counter(types).items())},
        minimum=float(null.min()),
        median=float(np.median(null)),
        n_exact=len(null) - len(different),
        threshold=threshold(null, alpha),
        threshold_without_exact=threshold(different, alpha) if len(different) else None,
    )
