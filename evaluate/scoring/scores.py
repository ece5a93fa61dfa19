"""What all scores share: ids, test level, seed, and the warning that a clean model is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import JsonDict, Score

from ..protocol.detector import Answers
from .conditions import Settings
from .conditions import cluster_of as cluster_of


def make_score(
    detector: str,
    benchmark: PairedBenchmark,
    answers: Answers,
    rule: str,
    settings: Settings,
    *,
    reference_answers: Answers | None = None,
    details: JsonDict | None = None,
    warnings: Sequence[str] = (),
    **fields: Any,
) -> Score:
    """Return a score with the fields that all scores share: ids, test level and seed.

    Parameters
    ----------
    reference_answers : Answers, optional
        Of the reference model that the rule compares with; a model compared with itself gets a
        warning.
    **fields
        Further fields of the `Score`.
    """
    if reference_answers and reference_answers.fingerprint == answers.fingerprint:
        own_reference = "the model is its own reference: this says nothing about false alarms"
        warnings = [own_reference, *warnings]
    return Score(
        detector=detector,
        rule=rule,
        model=answers.model,
        model_fingerprint=answers.fingerprint,
        benchmark=benchmark.name,
        benchmark_id=benchmark.id,
        reference_fingerprint=reference_answers.fingerprint if reference_answers else "",
        alpha=settings.alpha,
        details={"seed": settings.seed, **(details or {})},
        warnings=tuple(warnings),
        **{"statistic": None, "n": 0, **fields},
    )


def no_reference_warning(rule: str, answers: Answers) -> str:
    """Return the warning that a rule needs a clean model and none was given."""
    return (
        f"rule {rule!r} compares with a clean model and none was given for {answers.model}: add the"
        " model it was trained from (dose 0) to the grid, or pass its answers as reference"
    )
