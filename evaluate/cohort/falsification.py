"""Falsification by external models: a rule that fires on them is not evidence of contamination."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

ALPHA = 0.01
_RULE = ["rule", "benchmark"]


def falsify(
    results: pd.DataFrame, external: Collection[str], *, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return every result with its status and the external models on which its rule fires.

    Parameters
    ----------
    results : DataFrame
        What a ``rule`` (a detector or a statistic) found for each ``model`` on a ``benchmark``:
        ``p``, raw or corrected as the caller decides, in the same way for every model; or ``flag``
        for rules without a p-value. Both are missing if there was no test.

    Returns
    -------
    DataFrame
        The same rows with three columns more: ``external``; ``status``, "artefact_suspected" for
        every model of a benchmark on which the rule fires on an external model, whatever the
        model's own p, else "significant", "unchecked" (significant, but the rule was tested on no
        external model), "not_significant" or "not_tested"; and ``fires_on``, the external models.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4.10. The paper applies it to the order trend and the
    tail; here it applies to any rule. With several external models at level alpha, one may fire by
    chance; the rule is then called an artefact wrongly, which withholds a verdict and makes none.
    """
    frame = results.assign(external=results["model"].isin(list(external)))
    tested = frame["p"].notna() | frame["flag"].notna()
    fires = frame["p"].lt(alpha) | (frame["p"].isna() & frame["flag"].eq(True))
    is_checked = (tested & frame["external"]).groupby([frame[c] for c in _RULE]).transform("any")
    external_fires = frame[fires & frame["external"]].groupby(_RULE)["model"].agg(sorted)
    fires_on = [tuple(external_fires.get(key, ())) for key in frame[_RULE].itertuples(index=False)]
    status = np.select(
        [~tested, [bool(models) for models in fires_on], ~fires, is_checked],
        ["not_tested", "artefact_suspected", "not_significant", "significant"],
        "unchecked",
    )
    return frame.assign(status=status, fires_on=pd.Series(fires_on, frame.index, dtype=object))


def count_external(falsified: pd.DataFrame) -> tuple[int, str]:
    """Return on how many rules and benchmarks an external model fired, and that as a headline.

    >>> rules = pd.DataFrame({"rule": ["tail", "top-k"], "p": [0.001, 0.2], "flag": None})
    >>> count_external(falsify(rules.assign(benchmark="b", model="base"), {"base"}))
    (1, '1 of 2 rules fired on external baselines')
    """
    tested = falsified[falsified["status"] != "not_tested"]
    by_rule = tested.assign(fires=tested["fires_on"].map(bool)).groupby(_RULE)
    rules = by_rule[["external", "fires"]].any()
    n_fired, n_checked = int(rules["fires"].sum()), int(rules["external"].sum())
    text = f"{n_fired} of {n_checked} rules fired on external baselines"
    n_unchecked = len(rules) - n_checked
    return n_fired, f"{text}; {n_unchecked} without one" if n_unchecked else text
