"""A share over items compared with a fixed value, and with a reference model's share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import About, Answers
from ..protocol.rules import Verdict
from ..statistics.resampling import bootstrap_interval, label_swap_p
from .conditions import Settings
from .likelihood import dropped_warning
from .scores import cluster_of, make_score, no_reference_warning


def share_scores(
    about: About,
    benchmark: PairedBenchmark,
    answers: Answers,
    values: Mapping[str, float],
    reference: Answers | None,
    reference_values: Mapping[str, float],
    *,
    rule: str,
    settings: Settings,
    missing: str = "",
    details: JsonDict | None = None,
) -> tuple[Score, Score]:
    """Return the scores of ``rule`` (mean above 1/2) and ``relative`` (mean above the reference's).

    Parameters
    ----------
    values, reference_values : mapping of item id to float
        In [0, 1], for the original items that have a value.
    missing : str
        What the model lacks; if not empty, both rules are not applicable.

    Notes
    -----
    Both p-values swap signs item by item (image by image, if items share one): of value - 1/2, and
    of value - the reference's value on the items that have both.
    """
    ids = [item.id for item in benchmark.originals if item.id in values]
    above_half = {i: values[i] - 0.5 for i in ids}
    absolute = _score(
        about, benchmark, answers, rule, above_half, 0.5, None, settings, missing, details
    )
    between = {i: values[i] - reference_values[i] for i in ids if i in reference_values}
    lacks_reference = not missing and reference is None
    missing = no_reference_warning("relative", answers) if lacks_reference else missing
    relative = _score(
        about, benchmark, answers, "relative", between, 0.0, reference, settings, missing, details
    ).model_copy(update={"lacks_reference": lacks_reference})
    if reference is not None and between:
        mean = sum(reference_values[i] for i in between) / len(between)
        result = ReferenceResult(model=reference.model, statistic=mean, n=len(between))
        relative = relative.model_copy(update={"reference": result})
    return absolute, relative


def _score(
    about: About,
    benchmark: PairedBenchmark,
    answers: Answers,
    rule: str,
    values: Mapping[str, float],
    offset: float,
    reference: Answers | None,
    settings: Settings,
    missing: str,
    details: JsonDict | None,
) -> Score:
    """Return the score of "the mean of values is above 0"; ``offset`` is added to what it shows."""
    items = [item for item in benchmark.originals if item.id in values]
    score = partial(
        make_score,
        about.name,
        benchmark,
        answers,
        rule,
        settings,
        reference_answers=reference,
        direction="rises",
        n_dropped=len(benchmark.pairs) - len(items),
    )
    if missing:
        return score(verdict="not_applicable", warnings=[missing])
    numbers = np.array([values[item.id] for item in items])
    rng = generator(settings.seed, answers.fingerprint, f"{about.name} {rule}")
    clusters = [cluster_of(item) for item in items]
    interval, p_value = None, None
    if items:
        interval = bootstrap_interval(
            numbers, rng, clusters=clusters, n_bootstrap=settings.n_bootstrap
        )
        p_value = label_swap_p(
            -numbers, rng, clusters=clusters, n_permutations=settings.n_permutations
        )
    refusal = rules.too_few_warning(len(set(clusters)), settings.alpha)
    verdict: Verdict = "inconclusive"
    if refusal is None and p_value is not None:
        verdict = rules.significant(p_value, settings.alpha)
    if interval is not None:
        bounds = {"low": interval.low + offset, "high": interval.high + offset}
        interval = interval.model_copy(update=bounds)
    return score(
        verdict=verdict,
        statistic=float(numbers.mean()) + offset if items else None,
        interval=interval,
        p_value=p_value,
        n=len(items),
        details={"total": float(numbers.sum()) + offset * len(items), **(details or {})},
        per_item={i: value + offset for i, value in values.items()},
        warnings=[
            *dropped_warning(len(benchmark.pairs) - len(items), len(benchmark.pairs)),
            *([refusal] if refusal else []),
        ],
    )
