"""Evidence that is valid whenever one looks: e-processes for paired differences.

Under the null hypothesis each difference is as likely to be negative as positive, given its size,
and an e-process exceeds 1/alpha with probability alpha at most, at any time (Ville's inequality).
"""

from __future__ import annotations

import numpy as np
from scipy import special

from .resampling import Array

RATES = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
"""How strongly the differences are weighted, in 1 / nat; evidence is averaged over them."""
_MOST = 700.0
"""Largest logarithm of evidence that a float holds."""


def running_evidence(differences: Array) -> Array:
    """Return the evidence for "differences are negative" after each pair, shape (N,).

    Right-or-wrong answers (-1, 0 or 1) are bets on a coin whose bias towards falls is uniform
    between 1/2 and 1; other differences, such as of log-probabilities, are weighed by size.

    Parameters
    ----------
    differences : float array, shape (N,)
        In the order in which the pairs were drawn, which must not depend on the answers; NaN where
        a pair says nothing.

    Examples
    --------
    >>> running_evidence(np.array([-1.0, -1, -1, -1, -1, -1, -1])).round(2).tolist()
    [1.5, 2.33, 3.75, 6.2, 10.5, 18.14, 31.88]

    References
    ----------
    Ramdas, Grünwald, Vovk and Shafer, Game-theoretic statistics and safe anytime-valid inference,
    Statistical Science 38 (2023), 576-601.
    """
    values = np.nan_to_num(differences)
    if np.isin(values, (-1.0, 0.0, 1.0)).all():
        falls, rises = np.cumsum(values < 0), np.cumsum(values > 0)
        a, b = falls + 1.0, rises + 1.0
        with np.errstate(divide="ignore"):  # after many rises no evidence is left
            upper = np.log1p(-special.betainc(a, b, 0.5))
        log_evidence = np.log(2) + special.betaln(a, b) + upper + (falls + rises) * np.log(2)
        return np.asarray(np.exp(np.clip(log_evidence, -_MOST, _MOST)))
    weighted = RATES[:, None] * values
    log_cosh = np.logaddexp(weighted, -weighted) - np.log(2)
    logs = np.cumsum(-weighted - log_cosh, axis=1)
    log_evidence = special.logsumexp(logs, axis=0) - np.log(len(RATES))
    return np.asarray(np.exp(np.clip(log_evidence, -_MOST, _MOST)))


def pairs_until(evidence: Array, alpha: float) -> int | None:
    """Return after how many pairs the evidence reaches 1/alpha; None if it does not."""
    reached = np.flatnonzero(evidence >= 1 / alpha)
    return int(reached[0]) + 1 if len(reached) else None
