"""The tables of judged reasoning, and its steps as rows that people can rate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from .cases import SECTIONS, Outcome
from .counts import ERROR_TYPES, StepCounts, clustered_rate, count_steps
from .judge import JudgedCase
from .replies import MAX_POINTS, RUBRICS

OUTCOMES: tuple[Outcome, ...] = ("right", "wrong", "unparsed")
_INTERVALS = "95 % intervals: a bootstrap over cases, since the steps of a case are not independent"


def reasoning_tables(judged: Sequence[JudgedCase], judge: str) -> list[Table]:
    """Return the tables of one judge's verdicts; those without any case are left out."""
    with_steps = [one for one in judged if one.steps]
    with_discussion = [one for one in judged if one.sentences]
    tables = []
    if with_steps:
        tables += [_steps(with_steps, judge), _errors(with_steps), symptom_table(judged)]
    if with_discussion:
        tables += [_sentences(with_discussion, judge), _rubrics(with_discussion)]
    return [*tables, _left_out(judged)]


def with_wrong_steps(judged: Sequence[JudgedCase], outcome: Outcome) -> tuple[Rate, Rate, int]:
    """Return the shares of cases with a wrong and a wrong critical step, and how many are left out.

    Of the cases with this outcome, only those whose steps all have a verdict count; the number is
    that of the others, without steps or without a verdict on one.
    """
    cases = [one for one in judged if one.case.outcome == outcome]
    counts = [count_steps(one.by_step) for one in cases if one.steps and None not in one.by_step]
    return (
        Rate.wilson(sum(c.errors > 0 for c in counts), len(counts)),
        Rate.wilson(sum(c.critical_errors > 0 for c in counts), len(counts)),
        len(cases) - len(counts),
    )


def symptom_table(judged: Sequence[JudgedCase]) -> Table:
    """Return how many right answers come with wrong steps, beside wrong answers.

    Only cases whose steps all have a verdict count.
    """
    rows = []
    for model, cases in _by_model(judged).items():
        for outcome in OUTCOMES[:2]:
            wrong, critical, n_left_out = with_wrong_steps(cases, outcome)
            rates = (rate_cell(wrong), rate_cell(critical))
            rows.append(Row(model, (Cell(outcome), *rates, Cell(str(n_left_out)))))
    return Table(
        "reasoning_symptom",
        "Answers that come with wrong steps, in percent of the cases whose steps all have a verdict"
        " (Wilson intervals). A right answer with a wrong critical step does not follow from what"
        " is said: a symptom of a memorised or guessed answer, but no proof, since a model may also"
        " know the answer and explain it badly.",
        "Model",
        (
            Column("Answer", numeric=False),
            Column("With a wrong step"),
            Column("With a wrong critical step"),
            Column("Left out"),
        ),
        (("", tuple(rows)),),
    )


def step_rows(judged: Sequence[JudgedCase]) -> list[JsonDict]:
    """Return one row for each step; ``person`` and ``factual`` are for people to fill in."""
    return [
        {
            "case": one.case.id,
            "model": one.case.model,
            "step": number,
            "text": text,
            "person": "",
            "factual": "",
        }
        for one in judged
        for number, text in enumerate(one.steps, 1)
    ]


def verdict_rows(judged: Sequence[JudgedCase]) -> list[JsonDict]:
    """Return one row for each step with the judge's verdict; empty where it is missing."""
    rows = []
    for one in judged:
        for number, (text, verdict) in enumerate(zip(one.steps, one.by_step, strict=True), 1):
            rows.append(
                {
                    "case": one.case.id,
                    "model": one.case.model,
                    "outcome": one.case.outcome,
                    "step": number,
                    "text": text,
                    "factual": "" if verdict is None else verdict.factual,
                    "critical": "" if verdict is None else verdict.critical,
                    "error_types": " ".join(sorted(verdict.error_types)) if verdict else "",
                    "explanation": verdict.explanation if verdict else "",
                }
            )
    return rows


def _by_model(judged: Sequence[JudgedCase]) -> dict[str, list[JudgedCase]]:
    groups = defaultdict(list)
    for one in judged:
        groups[one.case.model or "(no name)"].append(one)
    return dict(groups)


def _steps(judged: Sequence[JudgedCase], judge: str) -> Table:
    rows = []
    for model, cases in _by_model(judged).items():
        for outcome in OUTCOMES:
            counts = {
                o.case.key: count_steps(o.by_step) for o in cases if o.case.outcome == outcome
            }
            if counts:
                rows.append(Row(model, (Cell(outcome), *_step_cells(counts))))
    return Table(
        "reasoning_steps",
        f"Steps that {judge} finds factual, in percent of the steps with a verdict, by whether the"
        f" answer is right. {_INTERVALS}. A judge of the same family as a model may be lenient with"
        " it.",
        "Model",
        (
            Column("Answer", numeric=False),
            Column("Cases"),
            Column("Factual steps"),
            Column("Factual critical steps"),
            Column("No verdict"),
        ),
        (("", tuple(rows)),),
    )


def _step_cells(counts: dict[str, StepCounts]) -> list[Cell]:
    def rate(part: Callable[[StepCounts], tuple[int, int]]) -> Cell:
        return rate_cell(clustered_rate({key: part(c) for key, c in counts.items()}))

    total = reduce(add, counts.values())
    return [
        Cell(str(len(counts))),
        rate(lambda c: (c.true, c.steps)),
        rate(lambda c: (c.critical_true, c.critical)),
        Cell(f"{total.missing}/{total.missing + total.steps}"),
    ]


def _of(rate: Rate) -> tuple[int, int]:
    return rate.k, rate.n


def _errors(judged: Sequence[JudgedCase]) -> Table:
    rows = []
    for model, cases in _by_model(judged).items():
        counts = {one.case.key: count_steps(one.by_step) for one in cases}
        for key, title in ERROR_TYPES.items():
            rates = [
                clustered_rate(
                    {case: _of(c.coverage(key, critical=only)) for case, c in counts.items()}
                )
                for only in (False, True)
            ]
            rows.append(Row(model, (Cell(title), *map(rate_cell, rates))))
        untyped = clustered_rate({case: (c.untyped, c.errors) for case, c in counts.items()})
        rows.append(Row(model, (Cell("none of these"), rate_cell(untyped), Cell(formats.NOTHING))))
    return Table(
        "reasoning_errors",
        f"Types of error, in percent of wrong steps. {_INTERVALS}. A step may have several, so the"
        " shares may sum to more than 100.",
        "Model",
        (Column("Error", numeric=False), Column("Wrong steps"), Column("Wrong critical steps")),
        (("", tuple(rows)),),
    )


def _sentences(judged: Sequence[JudgedCase], judge: str) -> Table:
    rows = []
    for model, cases in _by_model(judged).items():
        cells = []
        for section in (*SECTIONS, ""):
            by_case = {}
            for one in cases:
                verdicts = [
                    one.sentence_verdicts[number].factual
                    for number, (name, _) in one.sentences.items()
                    if number in one.sentence_verdicts and section in (name, "")
                ]
                by_case[one.case.key] = sum(verdicts), len(verdicts)
            cells.append(rate_cell(clustered_rate(by_case)))
        rows.append(Row(model, tuple(cells)))
    return Table(
        "discussion_sentences",
        f"Sentences of case discussions that {judge} finds factual, in percent of those with a"
        f" verdict. {_INTERVALS}.",
        "Model",
        (*map(Column, SECTIONS), Column("All")),
        (("", tuple(rows)),),
    )


def _rubrics(judged: Sequence[JudgedCase]) -> Table:
    rows = []
    for model, cases in _by_model(judged).items():
        rubrics = [one.rubric for one in cases if one.rubric is not None]
        points = {name: [getattr(rubric, name).points for rubric in rubrics] for name in RUBRICS}
        points["total"] = [rubric.sum for rubric in rubrics]
        means = (sum(values) / len(values) if values else None for values in points.values())
        cells = (Cell(formats.NOTHING if m is None else formats.decimals(m)) for m in means)
        rows.append(Row(model, (Cell(f"{len(rubrics)}/{len(cases)}"), *cells)))
    return Table(
        "discussion_rubrics",
        f"Mean points of case discussions, 0 to {MAX_POINTS} for each rubric. Totals are"
        " recomputed; a reply whose own total differs is asked for again, then left out.",
        "Model",
        (Column("Rated"), *(Column(name.capitalize()) for name in (*RUBRICS, "total"))),
        (("", tuple(rows)),),
    )


def _left_out(judged: Sequence[JudgedCase]) -> Table:
    rows = []
    for model, cases in _by_model(judged).items():
        problems = Counter(problem for one in cases for problem in one.problems)
        rows += [Row(model, (Cell(why), Cell(str(n)))) for why, n in sorted(problems.items())]
    return Table(
        "reasoning_left_out",
        f"What is left out of the tables of {len(judged)} cases, after all attempts. Nothing here"
        " counts as wrong.",
        "Model",
        (Column("Why", numeric=False), Column("Number")),
        (("", tuple(rows)),),
    )
