"""The tables of judged reasoning, and its steps as rows that people can rate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from operator import itemgetter

import pandas as pd

from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict
from flipbench.reporting import formats
from flipbench.reporting.tables import Column, Content, Table, build_table, text_column

from ..statistics.resampling import share_interval
from .cases import SECTIONS, Outcome
from .judge import JudgedCase
from .replies import ERROR_TYPES, MAX_POINTS, RUBRICS, SentenceVerdict, StepVerdict

OUTCOMES: tuple[Outcome, ...] = ("right", "wrong", "unparsed")
_INTERVALS = "95 % intervals: a bootstrap over cases, since the steps of a case are not independent"


def reasoning_tables(cases: Sequence[JudgedCase], judge: str) -> list[Table]:
    """Return the tables of one judge's verdicts; those without any case are left out."""
    tables = []
    steps = _frame((case, verdict, case.case.outcome) for case in cases for verdict in case.by_step)
    if len(steps):
        tables += [_steps(steps, judge), _errors(steps), symptom_table(cases)]
    sentences = _frame(
        (case, case.sentence_verdicts.get(number), section)
        for case in cases
        for number, (section, _) in case.sentences.items()
    )
    if len(sentences):
        tables += [_sentences(sentences, judge), _rubrics(cases)]
    return [*tables, _left_out(cases)]


def with_wrong_steps(cases: Sequence[JudgedCase], outcome: Outcome) -> tuple[Rate, Rate, int]:
    """Return the shares of cases with a wrong and a wrong critical step, and how many are left out.

    Of the cases with this outcome, only those whose steps all have a verdict count; the number is
    that of the others, without steps or without a verdict on one.
    """
    verdicts = [case.by_step for case in cases if case.case.outcome == outcome]
    complete = [[v for v in steps if v] for steps in verdicts if steps and None not in steps]
    has_wrong = [any(not v.factual for v in steps) for steps in complete]
    has_wrong_critical = [any(v.critical and not v.factual for v in steps) for steps in complete]
    n = len(complete)
    rates = Rate.wilson(sum(has_wrong), n), Rate.wilson(sum(has_wrong_critical), n)
    return *rates, len(verdicts) - n


def symptom_table(cases: Sequence[JudgedCase]) -> Table:
    """Return how many right answers come with wrong steps, beside wrong answers.

    Only cases whose steps all have a verdict count.
    """
    rows = [
        (model, (outcome, *with_wrong_steps(of_model, outcome)))
        for model, of_model in _by_model(cases).items()
        for outcome in OUTCOMES[:2]
    ]
    return _table(
        "reasoning_symptom",
        "Answers that come with wrong steps, in percent of the cases whose steps all have a verdict"
        " (Wilson intervals). A right answer with a wrong critical step does not follow from what"
        " is said: a symptom of a memorised or guessed answer, but no proof, since a model may also"
        " know the answer and explain it badly.",
        (text_column("Answer"), "With a wrong step", "With a wrong critical step", "Left out"),
        rows,
    )


def step_rows(cases: Sequence[JudgedCase]) -> list[JsonDict]:
    """Return one row for each step; ``person`` and ``factual`` are for people to fill in."""
    return [
        {
            "case": case.case.id,
            "model": case.case.model,
            "step": number,
            "text": text,
            "person": "",
            "factual": "",
        }
        for case in cases
        for number, text in enumerate(case.steps, 1)
    ]


def verdict_rows(cases: Sequence[JudgedCase]) -> list[JsonDict]:
    """Return one row for each step with the judge's verdict; empty where it is missing."""
    return [
        {
            "case": case.case.id,
            "model": case.case.model,
            "outcome": case.case.outcome,
            "step": number,
            "text": text,
            "factual": "" if verdict is None else verdict.factual,
            "critical": "" if verdict is None else verdict.critical,
            "error_types": " ".join(sorted(set(verdict.error_types))) if verdict else "",
            "explanation": verdict.explanation if verdict else "",
        }
        for case in cases
        for number, (text, verdict) in enumerate(zip(case.steps, case.by_step, strict=True), 1)
    ]


def clustered_rate(values: Sequence[bool], cases: Sequence[str]) -> Rate:
    """Return the rate of true ``values``, with a bootstrap interval that resamples their cases.

    Steps of one case are not independent. If all are right or all wrong, the interval is Wilson's
    with each case as one. There is no interval with fewer than two cases.
    """
    rng, n_cases = generator(0, "reasoning", "cases"), len(set(cases))
    interval = share_interval(values, rng, clusters=cases) if n_cases > 1 else None
    return Rate(k=sum(values), n=len(values), interval=interval, n_clusters=n_cases)


def matthews(counts: Sequence[Sequence[int]]) -> float | None:
    """Return Matthews' correlation of two raters' 2 x 2 counts; None if a rater never varies.

    >>> round(matthews(((6, 1), (2, 11))), 4)
    0.6847
    """
    (both_true, only_one), (only_other, both_false) = counts
    margins = (both_true + only_one) * (only_other + both_false)
    margins *= (both_true + only_other) * (only_one + both_false)
    covariance = both_true * both_false - only_one * only_other
    return covariance / margins**0.5 if margins else None


def _frame(rows: Iterator[tuple[JudgedCase, SentenceVerdict | None, str]]) -> pd.DataFrame:
    """Return one row for each judged text, with the columns of its verdict if it has one."""
    return pd.DataFrame(
        [
            {
                "case": case.case.key,
                "model": case.case.model or "(no name)",
                "part": part,
                "has_verdict": verdict is not None,
                "factual": verdict is not None and verdict.factual,
                "critical": isinstance(verdict, StepVerdict) and verdict.critical,
                "error_types": verdict.error_types if isinstance(verdict, StepVerdict) else [],
            }
            for case, verdict, part in rows
        ]
    )


def _rate(texts: pd.DataFrame, column: str = "factual") -> Rate:
    return clustered_rate(texts[column].tolist(), texts["case"].tolist())


def _by_model(cases: Sequence[JudgedCase]) -> dict[str, list[JudgedCase]]:
    groups = defaultdict(list)
    for case in cases:
        groups[case.case.model or "(no name)"].append(case)
    return dict(groups)


def _table(
    key: str,
    caption: str,
    headers: Sequence[Column | str],
    rows: Iterable[tuple[str, Sequence[Content]]],
) -> Table:
    columns = [(header, itemgetter(at)) for at, header in enumerate(headers)]
    return build_table(key, caption, "Model", columns, {"": rows})


def _steps(steps: pd.DataFrame, judge: str) -> Table:
    rows = []
    for model, outcome in product(dict.fromkeys(steps["model"]), OUTCOMES):
        group = steps[(steps["model"] == model) & (steps["part"] == outcome)]
        rates = _rate(group[group["has_verdict"]]), _rate(group[group["critical"]])
        n_missing = f"{(~group['has_verdict']).sum()}/{len(group)}"
        if len(group):
            rows.append((model, (outcome, group["case"].nunique(), *rates, n_missing)))
    return _table(
        "reasoning_steps",
        f"Steps that {judge} finds factual, in percent of the steps with a verdict, by whether the"
        f" answer is right. {_INTERVALS}. A judge of the same family as a model may be lenient with"
        " it.",
        (
            text_column("Answer"),
            "Cases",
            "Factual steps",
            "Factual critical steps",
            "No verdict",
        ),
        rows,
    )


def _errors(steps: pd.DataFrame) -> Table:
    rows: list[tuple[str, Sequence[Content]]] = []
    wrong_steps = steps[steps["has_verdict"] & ~steps["factual"]]
    for model in dict.fromkeys(steps["model"]):
        of_model = wrong_steps[wrong_steps["model"] == model]
        for key, title in ERROR_TYPES.items():
            typed = of_model.assign(typed=[key in types for types in of_model["error_types"]])
            rates = _rate(typed, "typed"), _rate(typed[typed["critical"]], "typed")
            rows.append((model, (title, *rates)))
        untyped = of_model.assign(untyped=[not types for types in of_model["error_types"]])
        rows.append((model, ("none of these", _rate(untyped, "untyped"), None)))
    return _table(
        "reasoning_errors",
        f"Types of error, in percent of wrong steps. {_INTERVALS}. A step may have several, so the"
        " shares may sum to more than 100.",
        (text_column("Error"), "Wrong steps", "Wrong critical steps"),
        rows,
    )


def _sentences(sentences: pd.DataFrame, judge: str) -> Table:
    rows = []
    for model, group in sentences.groupby("model", sort=False):
        group = group[group["has_verdict"]]
        by_section = [_rate(group[group["part"] == section]) for section in SECTIONS]
        rows.append((str(model), (*by_section, _rate(group))))
    return _table(
        "discussion_sentences",
        f"Sentences of case discussions that {judge} finds factual, in percent of those with a"
        f" verdict. {_INTERVALS}.",
        (*SECTIONS, "All"),
        rows,
    )


def _rubrics(cases: Sequence[JudgedCase]) -> Table:
    rows = []
    for model, of_model in _by_model([case for case in cases if case.sentences]).items():
        rubrics = [case.rubric for case in of_model if case.rubric is not None]
        points = [[getattr(rubric, name).points for rubric in rubrics] for name in RUBRICS]
        totals = [rubric.sum for rubric in rubrics]
        means = [sum(column) / len(rubrics) if rubrics else None for column in (*points, totals)]
        cells = ["" if mean is None else formats.decimals(mean) for mean in means]
        rows.append((model, (f"{len(rubrics)}/{len(of_model)}", *cells)))
    return _table(
        "discussion_rubrics",
        f"Mean points of case discussions, 0 to {MAX_POINTS} for each rubric. Totals are"
        " recomputed; a reply whose own total differs is asked for again, then left out.",
        ("Rated", *(name.capitalize() for name in (*RUBRICS, "total"))),
        rows,
    )


def _left_out(cases: Sequence[JudgedCase]) -> Table:
    return _table(
        "reasoning_left_out",
        f"What is left out of the tables of {len(cases)} cases, after all attempts. Nothing here"
        " counts as wrong.",
        (text_column("Why"), "Number"),
        [
            (model, reason)
            for model, of_model in _by_model(cases).items()
            for reason in sorted(Counter(p for case in of_model for p in case.problems).items())
        ],
    )
