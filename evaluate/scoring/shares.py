"""A share over items compared with a fixed value, and with a reference model's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import Answers, Detector
from ..protocol.rules import Verdict
from ..statistics.intervals import mean_interval
from ..statistics.resampling import label_swap_p
from .conditions import Settings
from .likelihood import dropped_warning
from .scores import cluster_of, make_score, no_reference_warning


def share_scores(
    detector: Detector,
    benchmark: PairedBenchmark,
    answers: Answers,
    reference: Answers | None,
    read: Callable[[Answers], Mapping[str, float]],
    *,
    rule: str,
    relative_rule: str = "relative",
    settings: Settings,
    missing: str = "",
    n_left_out: int = 0,
    notes: Sequence[str] = (),
    details: JsonDict | None = None,
) -> tuple[Score, Score]:
    """Return the scores of ``rule`` (mean above 1/2) and ``relative_rule`` (above the reference's).

    Parameters
    ----------
    read : callable
        Returns the values of a model's answers, in [0, 1], by id of the original items that have
        one.
    missing : str
        What the model lacks; if not empty, both rules are not applicable.
    n_left_out : int
        Items without a value although they were answered; ``notes`` are warnings that say why.

    Notes
    -----
    Both p-values swap signs item by item (image by image, if items share one): of value - 1/2, and
    of value - the reference's value on the items that have both.
    """
    n_pairs = len(benchmark.pairs)

    def score(
        rule: str, above: Mapping[str, float], offset: float, missing: str, **fields: Any
    ) -> Score:
        """Return the score of "the mean is above 0"; ``offset`` is added to what it shows."""
        items = [item for item in benchmark.originals if item.id in above]
        fields |= {"direction": "rises", "n_dropped": n_pairs - len(items)}
        scored = (detector.about.name, benchmark, answers, rule, settings)
        if missing:
            return make_score(*scored, verdict="not_applicable", warnings=[missing], **fields)
        numbers = np.array([above[item.id] for item in items])
        rng = generator(settings.seed, answers.model, f"{detector.about.name} {rule}")
        clusters = [cluster_of(item) for item in items]
        refusal = rules.too_few_warning(len(set(clusters)), settings.alpha)
        verdict: Verdict = "inconclusive"
        if items:
            interval = mean_interval(
                numbers.tolist(),
                rng,
                clusters=clusters,
                n_bootstrap=settings.n_bootstrap,
                reach=offset or 1.0,
            )
            p_value = label_swap_p(
                -numbers, rng, clusters=clusters, n_permutations=settings.n_permutations
            )
            fields |= {"statistic": float(numbers.mean()) + offset, "p_value": p_value}
            if interval is not None:
                bounds = {"low": interval.low + offset, "high": interval.high + offset}
                fields["interval"] = interval.model_copy(update=bounds)
            if refusal is None:
                verdict = rules.significant(p_value, settings.alpha)
        return make_score(
            *scored,
            verdict=verdict,
            n=len(items),
            details={"total": float(numbers.sum()) + offset * len(items), **(details or {})},
            per_item={i: value + offset for i, value in above.items()},
            warnings=[
                *notes,
                *dropped_warning(n_pairs - len(items) - n_left_out, n_pairs),
                *([refusal] if refusal else []),
            ],
            **fields,
        )

    values, clean = read(answers), read(reference) if reference else {}
    ids = [item.id for item in benchmark.originals if item.id in values]
    absolute = score(rule, {i: values[i] - 0.5 for i in ids}, 0.5, missing)
    result = None
    if shared := [i for i in ids if i in clean]:
        mean = sum(clean[i] for i in shared) / len(shared)
        result = ReferenceResult(
            model=reference.model if reference else "", statistic=mean, n=len(shared)
        )
    lacks_reference = not missing and reference is None
    relative = score(
        relative_rule,
        {i: values[i] - clean[i] for i in shared},
        0.0,
        no_reference_warning(relative_rule, answers) if lacks_reference else missing,
        reference_answers=reference,
        reference=result,
        lacks_reference=lacks_reference,
    )
    return absolute, relative
