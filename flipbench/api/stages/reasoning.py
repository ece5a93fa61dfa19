"""Judge the reasoning in a file, and ask models with hints and summaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.api.stages.answering import answering_time
from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.examination import not_built
from flipbench.api.stages.results import ReasoningResult
from flipbench.benchmarks.tables import numbered_rows
from flipbench.config.experiment import AnswerJudgeConfig
from flipbench.config.loading import read_trusted
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Probe
from flipbench.evaluate.pipeline import ask_one
from flipbench.evaluate.reasoning.cases import SECTIONS, Case, read_cases
from flipbench.evaluate.reasoning.hints import (
    HintedItem,
    compare_hints,
    hint_table,
    hinted_items,
    probes_for_model,
)
from flipbench.evaluate.reasoning.judge import (
    JudgedCase,
    Question,
    rubric_question,
    sentences_of,
    sentences_question,
    split_question,
    steps_question,
)
from flipbench.evaluate.reasoning.tables import (
    matthews,
)
from flipbench.filters.agreement.agreement import Agreement, Decisions, agreement
from flipbench.models.chat.batch_api import BATCH_PRICE
from flipbench.models.chat.cost import estimate_cost
from flipbench.models.chat.messages import ChatRequest
from flipbench.models.engine import answers_of
from flipbench.models.protocols import Decision
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell
from flipbench.reporting.writers import write_tables

TO_RATE = "steps-to-rate.csv"
_TYPICAL_TOKENS = {"split-steps": 300, "judge-steps": 700, "judge-sentences": 900}
_TRUTH: Mapping[str, Decision] = {"true": "keep", "false": "reject"}


def read_judge(source: Path | Mapping[str, Any], *, trust: bool = False) -> AnswerJudgeConfig:
    """Read a judge: a YAML file, or a mapping, with ``chat`` or ``local``, and ``batch``."""
    return read_trusted(AnswerJudgeConfig, source, trust=trust)


def hint_ablation(assembly: Assembly) -> ReasoningResult:
    """Ask the configured models in every variant; the table is in ``hints/`` of the run."""
    config, run = assembly.config.evaluate, assembly.run
    hinted, left_out = _hinted(assembly)
    options = assembly.options(config.batch_size)
    results, reports, lacking = [], [], {}
    for model in assembly.grid():
        name, weights = model.model.name, model.model.fingerprint
        probes, lacking[name] = probes_for_model(hinted, model.can)
        reports.append(ask_one(model, probes, run, run.images, options))
        results += compare_hints(hinted, answers_of(name, weights, run))
    table = hint_table(results, left_out, lacking)
    page = write_tables([table], run.path / "hints", "hints.md", "Hints and summaries")
    rows = [
        {
            "model": result.model,
            "variant": result.variant,
            "n": result.paired.n,
            "k": result.paired.k_perturbed,
            "k_images_only": result.paired.k_original,
            "difference": result.paired.gap,
            "low": result.paired.interval.low if result.paired.interval else None,
            "high": result.paired.interval.high if result.paired.interval else None,
            "p_value": result.paired.p_two_sided,
            "p_holm": result.p_holm,
            "text_names_answer": result.reveals.k,
            "n_unparsed": result.n_unparsed,
            "n_left_out": result.paired.n_dropped,
        }
        for result in results
    ]
    return ReasoningResult(f"Hints and summaries: {page}", page, reports, rows)


def plan_hints(assembly: Assembly) -> list[str]:
    """Return how much each model would be asked, for ``--dry-run``."""
    hinted, left_out = _hinted(assembly)
    lines = [f"would leave out {n} items {reason}" for reason, n in left_out.items()]
    questions = []
    for model in assembly.grid(dry_run=True):
        probes, lacking = probes_for_model(hinted, model.can)
        lines.append(f"{model.model.name}: {len(probes):,} questions about {len(hinted):,} items")
        lines += [f"  not {variant}: it {reason}" for variant, reason in lacking.items()]
        if model.weights is not None:
            questions.append((model.weights, 1, probes))
    plug_ins = [name for name, model in assembly.config.models.items() if model.python]
    return [*lines, *answering_time(questions), *not_built(plug_ins)]


def _hinted(assembly: Assembly) -> tuple[list[HintedItem], dict[str, int]]:
    config = assembly.config
    if not config.models:
        raise ConfigError("hints: name at least one model under 'models'")
    return hinted_items(assembly.originals, config.evaluate.prompt, config.evaluate.hints)


def cost_of_judging(cases: Path, judge: AnswerJudgeConfig, limit: int | None = None) -> list[str]:
    """Return what judging costs, without retries; steps are taken to be as long as rationales."""
    by_prompt: dict[str, list[Question]] = defaultdict(list)
    listed_cases = read_cases(cases)[:limit]
    for case in listed_cases:
        for question in _questions(case):
            by_prompt[question.prompt.name].append(question)
    n_empty = sum(not case.rationale and not case.case_discussion for case in listed_cases)
    lines, probes = (
        [f"{len(listed_cases):,} cases, {n_empty:,} without rationale or discussion"],
        [],
    )
    for name, questions in by_prompt.items():
        requests, n_tokens = [q.request for q in questions], _TYPICAL_TOKENS.get(name, 300)
        if judge.chat is None:
            noun = "question" if len(questions) == 1 else "questions"
            lines.append(f"{name}: {len(questions):,} {noun}")
            probes += [_probe(request, n_tokens) for request in requests]
            continue
        estimate = estimate_cost(
            requests,
            judge.chat,
            typical_tokens=n_tokens,
            price_factor=BATCH_PRICE if judge.batch else 1.0,
        )
        lines.append(f"{name}: {estimate}")
    if judge.local is not None:
        lines += answering_time([(judge.local.model, 1, probes)])
    return [*lines, "what is missing in a reply is asked for again, which is not counted here"]


def _probe(request: ChatRequest, n_tokens: int) -> Probe:
    """Return the request as a question to a local model, with a reply of ``n_tokens``."""
    return Probe(
        item_id=request.item_id,
        variant="judge",
        images=tuple(request.images),
        prompt=f"{request.instruction}\n\n{request.text}",
        ask="generate",
        max_new_tokens=n_tokens,
    )


def _questions(case: Case) -> list[Question]:
    questions = []
    if case.rationale:
        questions = [split_question(case), steps_question(case, {1: case.rationale}, [1])]
    if all(case.case_discussion.get(name) for name in SECTIONS):
        sentences = {i: text for i, (_, text) in enumerate(sentences_of(case.case_discussion), 1)}
        questions += [sentences_question(case, sentences, [*sentences]), rubric_question(case)]
    return questions


def agreement_table(judged_cases: Sequence[JudgedCase], people: Path, judge: str) -> Table:
    """Return the agreement of the judge with each person, and of people with each other."""
    ratings: dict[str, Decisions] = dict(_read_people(people, judged_cases))
    keys = {
        (entry.case.key, number): verdict
        for entry in judged_cases
        for number, verdict in entry.verdicts.items()
    }
    ratings[judge] = {
        _step_id(*key): _TRUTH[str(verdict.factual).lower()] for key, verdict in keys.items()
    }
    clusters = {_step_id(entry.case.key, n): entry.case.key
                for entry in judged_cases for n in range(1, len(entry.steps) + 1)}  # fmt: skip
    persons = [name for name in ratings if name != judge]
    pairs = [(judge, person) for person in persons]
    pairs += [(a, b) for i, a in enumerate(persons) for b in persons[i + 1 :]]
    agreements = [agreement(a, b, ratings, clusters=clusters) for a, b in pairs]
    return Table(
        "reasoning_agreement",
        "Raters of the same steps, factual or not. Agreement with Wilson interval; kappa and AC1"
        " with a bootstrap over cases; MCC: Matthews' correlation. Steps without a verdict by both"
        " are left out.",
        "Raters",
        tuple(map(Column, ("n", "Agreement", "Kappa", "AC1", "MCC", "By one only"))),
        (("", tuple(map(_agreement_row, agreements))),),
    )


def _agreement_row(result: Agreement) -> Row:
    estimates = (estimate_cell(e.value, e.interval) for e in (result.kappa, result.ac1))
    correlation = estimate_cell(matthews(result.counts), None)
    cells = (Cell(str(result.n)), Cell(formats.rate(result.raw)), *estimates, correlation)
    return Row(f"{result.first}, {result.second}", (*cells, Cell(str(result.n_one_only))))


def _step_id(case: str, number: int) -> str:
    return f"{case} step {number}"


def _read_people(path: Path, judged_cases: Sequence[JudgedCase]) -> dict[str, dict[str, Decision]]:
    entries = {(entry.case.id, entry.case.model): entry for entry in judged_cases}
    ratings: dict[str, dict[str, Decision]] = defaultdict(dict)
    header, rows = numbered_rows(path)
    missing_columns = sorted({"case", "model", "step", "text", "person", "factual"} - set(header))
    if missing_columns:
        raise DataError(
            f"{path}: the columns {', '.join(missing_columns)} of {TO_RATE} are missing"
        )
    for line, row in rows:
        place, answer = f"{path.name}, line {line}", row["factual"].strip().lower()
        if not answer:
            continue
        if answer not in _TRUTH:
            raise DataError(f"{place}: factual is {row['factual']!r}, not true or false")
        entry = entries.get((row["case"], row["model"]))
        number = int(row["step"]) if row["step"].isdigit() else 0
        steps = dict(enumerate(entry.steps, 1)) if entry else {}
        if entry is None or steps.get(number) != row["text"]:
            raise DataError(
                f"{place}: case {row['case']!r} has no such step {row['step']}; rate the steps of"
                f" {TO_RATE} as they are now"
            )
        person = row["person"].strip() or "person"
        ratings[person][_step_id(entry.case.key, number)] = _TRUTH[answer]
    if not ratings:
        raise DataError(f"{path}: nobody has rated a step; fill in factual with true or false")
    return dict(ratings)
