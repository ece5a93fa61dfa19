"""A share over items against a fixed value, and against a reference model's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, JsonDict, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import About, Answers
from ..protocol.rules import Verdict
from ..statistics.resampling import bootstrap_interval, label_swap_p
from .comparison import cluster_of
from .conditions import Settings
from .likelihood import dropped_warning, lacks_reference, make_score


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
    why: str = "",
    details: JsonDict | None = None,
) -> tuple[Score, Score]:
    """Return the scores of ``rule`` (mean above 1/2) and ``relative`` (mean above the reference's).

    Parameters
    ----------
    values, reference_values : mapping of item id to float
        In [0, 1], of the original items that have one.
    why : str
        What the model lacks; both rules are then not applicable.

    Notes
    -----
    Both p-values swap signs item by item (image by image, where items share one): of value - 1/2,
    and of value - the reference's value on items that both have.
    """
    items = {item.id: item for item in benchmark.originals}
    half = {i: values[i] - 0.5 for i in items if i in values}
    alone = _score(about, benchmark, answers, rule, half, 0.5, None, settings, why, details)
    between = {i: values[i] - reference_values[i] for i in half if i in reference_values}
    missing = why or ("" if reference else lacks_reference("relative", answers))
    relative = _score(
        about, benchmark, answers, "relative", between, 0.0, reference, settings, missing, details
    )
    if reference is not None and between:
        mean = sum(reference_values[i] for i in between) / len(between)
        result = ReferenceResult(model=reference.model, statistic=mean, n=len(between))
        relative = relative.model_copy(update={"reference": result})
    return alone, relative


def _score(
    about: About,
    benchmark: PairedBenchmark,
    answers: Answers,
    rule: str,
    values: Mapping[str, float],
    against: float,
    reference: Answers | None,
    settings: Settings,
    why: str,
    details: JsonDict | None,
) -> Score:
    """Return the score of "the mean of values lies above 0", stated around ``against``."""
    items = [item for item in benchmark.originals if item.id in values]
    n_dropped = len(benchmark.pairs) - len(items)
    if why:
        return make_score(
            about,
            benchmark,
            answers,
            rule,
            verdict="not_applicable",
            direction="rises",
            settings=settings,
            n_dropped=n_dropped,
            reference=reference,
            warnings=[why],
        )
    numbers = np.array([values[item.id] for item in items])
    rng = generator(settings.seed, answers.fingerprint, f"{about.name} {rule}")
    shared = [cluster_of(item) for item in items]
    interval, p_value = None, None
    if items:
        interval = bootstrap_interval(
            numbers, rng, clusters=shared, n_bootstrap=settings.n_bootstrap
        )
        p_value = label_swap_p(
            -numbers, rng, clusters=shared, n_permutations=settings.n_permutations
        )
    refusal = rules.too_few_warning(len(set(shared)), settings.alpha)
    verdict: Verdict = "inconclusive"
    if refusal is None and p_value is not None:
        verdict = rules.significant(p_value, settings.alpha)
    if interval is not None:
        moved = {"low": interval.low + against, "high": interval.high + against}
        interval = interval.model_copy(update=moved)
    return make_score(
        about,
        benchmark,
        answers,
        rule,
        verdict=verdict,
        direction="rises",
        settings=settings,
        statistic=float(numbers.mean()) + against if items else None,
        interval=interval,
        p_value=p_value,
        n=len(items),
        n_dropped=n_dropped,
        reference=reference,
        details={"total": float(numbers.sum()) + against * len(items), **(details or {})},
        per_item={i: value + against for i, value in values.items()},
        warnings=[
            *dropped_warning(n_dropped, len(benchmark.pairs)),
            *([refusal] if refusal else []),
        ],
    )


def answered(items: Sequence[Item], values: Sequence[float | None]) -> dict[str, float]:
    """Return values by item id, without what is missing."""
    return {i.id: v for i, v in zip(items, values, strict=True) if v is not None}
