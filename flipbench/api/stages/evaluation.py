"""The evaluate stage of a configured experiment: pairs and models in, scores and a report out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.detectors import ConfiguredDetectors, without_plug_ins
from flipbench.api.stages.examination import Examination, follow_ups, not_built, work_lines
from flipbench.api.stages.grid import (
    TrainedPlan,
    ask_transformers,
    engine_notes,
    training_notes,
    warnings_of,
)
from flipbench.api.stages.raters import dropped_probes, report_tables
from flipbench.api.stages.results import EvaluationResult
from flipbench.core.errors import ConfigError
from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.core.run import versions
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.diagnosis.diagnosis import Diagnosis
from flipbench.evaluate.diagnosis.section import diagnosis_section
from flipbench.evaluate.page.explorer import Replies
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.pipeline import (
    ModelUnderTest,
    ask_all,
    probes_for,
)
from flipbench.evaluate.protocol.detector import required_capabilities
from flipbench.evaluate.protocol.grid import Requirements
from flipbench.evaluate.report.group_metrics import cells_of, group_metrics, group_table, has_groups
from flipbench.evaluate.report.titles import GAP
from flipbench.evaluate.validation.requirements import requirements
from flipbench.evaluate.verdict.grid_verdicts import grid_verdicts, verdicts_section
from flipbench.evaluate.verdict.letter_shares import NOTABLE_SHARE, letter_shares
from flipbench.evaluate.verdict.verdict import ModelVerdict
from flipbench.models.serving.managed import ManagedVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Table


def evaluate(
    assembly: Assembly,
    benchmark: PairedBenchmark,
    plans: Sequence[TrainedPlan] = (),
    notes: Sequence[str] = (),
    *,
    asks: bool = True,
) -> EvaluationResult:
    """Query the models and their checkpoints, score the answers, and write the report.

    A worker queries its share of the models, without a page; without ``asks``, stored answers are
    scored.
    """
    try:
        return _evaluate(assembly, benchmark, plans, notes, asks)
    finally:
        assembly.servers.vllm.stop()


def _evaluate(
    assembly: Assembly,
    benchmark: PairedBenchmark,
    plans: Sequence[TrainedPlan],
    notes: Sequence[str],
    asks: bool,
) -> EvaluationResult:
    models, config, workers = assembly.grid(plans), assembly.config.evaluate, assembly.workers
    options, run = assembly.options(config.batch_size), assembly.run
    share = [model for number, model in enumerate(models) if workers.owns_index(number)]
    if not asks:
        workers = replace(workers, n_workers=1)
    elif workers.n_workers == 1:
        ask_transformers(share, benchmark, config.prompt, run, options)
        _check_models(share, assembly.detectors.names, config.prompt)
    else:  # whoever asks starts the servers
        local_models = [model for model in share if not isinstance(model.vlm, ManagedVLM)]
        _check_models(local_models, assembly.detectors.names, config.prompt)
    extra_probes = dropped_probes(assembly, benchmark)
    if workers.share is not None:
        detectors = assembly.detectors.detectors(benchmark)
        reports = ask_all(benchmark, share, detectors, config.prompt, run, options, extra_probes)
        return EvaluationResult(share, reports)
    examination = Examination(
        benchmark, models, assembly.detectors, config.prompt, run, options, extra_probes, asks
    )
    scores, reports = examination.score(workers)
    diagnoses, follow_up_reports = examination.diagnose()
    reports += follow_up_reports
    verdicts = grid_verdicts(
        benchmark, examination.grid, scores, config.prompt, examination.answers
    )
    page = _write_report(
        assembly,
        examination,
        scores,
        sum(r.n_done + r.n_skipped for r in reports if r.stage.startswith("ask ")),
        [*warnings_of(plans), *training_notes(plans, config.prompt.instruction), *notes],
        diagnoses,
        verdicts,
    )
    return EvaluationResult(models, reports, scores, page, verdicts)


def _check_models(
    models: Sequence[ModelUnderTest], names: Sequence[str], prompt_settings: PromptSettings
) -> None:
    """Refuse a model about which no detector can learn anything, and say what would help."""
    for entry in models:
        lacking = [
            required_capabilities(DETECTORS[n].about, prompt_settings) - entry.can for n in names
        ]
        if not lacking or not all(lacking):
            continue
        needs, can = sorted(set().union(*lacking)), sorted(entry.can)
        ask = "generate" if prompt_settings.ask == "choose" else "choose"
        remedy = f"set evaluate.prompt.ask: {ask}" if ask in can else "choose other detectors"
        raise ConfigError(
            f"models.{entry.model.name}: no detector can be run on it, since they need"
            f" {', '.join(needs)}, and it supports {', '.join(can)} only; {remedy}, or leave the"
            " model out"
        )


def count_work(assembly: Assembly, benchmark: PairedBenchmark) -> list[str]:
    """Return the work that contamination and evaluation would do, for ``--dry-run``."""
    plans, config, run = assembly.plans(), assembly.config, assembly.run
    planned = without_plug_ins(config.evaluate)
    configured = ConfiguredDetectors.build(planned, planned.detectors, run, config.seed)
    n_models = len(config.models) + sum(plan.epochs for plan in plans)
    detectors = configured.detectors(benchmark)
    probes = probes_for(detectors, benchmark, config.evaluate.prompt)
    n_probes = len(probes)
    n_texts = len(benchmark.pairs) if configured.rewording else 0
    n_dropped = len(dropped_probes(assembly, benchmark))
    n_clean = sum(model.dose == 0 for model in config.models.values())
    n_clean += sum(plan.epochs for plan in plans if plan.control)
    of_family = Counter(plan.model for plan in plans for _ in range(plan.epochs))
    questions = [(m, 1 + of_family[name], probes) for name, m in config.models.items() if m.path]
    counts = work_lines(
        {
            **({"texts to reword before they are asked": n_texts} if n_texts else {}),
            "training plans": len(plans),
            "training examples": sum(len(p.item_ids) * p.copies * p.epochs for p in plans),
            "models to evaluate": n_models,
            "distinct probes": n_probes,
            "answers": n_probes * n_models,
            **({"answers about dropped items": n_dropped * n_clean} if n_dropped else {}),
            **follow_ups(configured, benchmark),
        }
    )
    from flipbench.api.stages.answering import answering_time  # imports model libraries

    plug_ins = [name for name in config.evaluate.detectors if ":" in name]
    return [*counts, *answering_time(questions), *not_built(plug_ins)]


def _write_report(
    assembly: Assembly,
    examination: Examination,
    scores: Sequence[Score],
    n_answers: int,
    notes: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    verdicts: Mapping[str, ModelVerdict],
) -> Path:
    """Write tables, figures, scores and the page; return the page's path."""
    config, run, grid = assembly.config, assembly.run, examination.grid
    benchmark, names = examination.benchmark, assembly.detectors.names
    requirement_rows: list[Requirements] = []
    for about in (DETECTORS[name].about for name in names):
        rules = dict.fromkeys(s.rule for s in scores if s.detector == about.name)
        requirement_rows += [
            requirements(scores, grid, about.name, rule, not about.needs_clean_model(rule))
            for rule in rules
        ]
    unseen = {model.fingerprint: model.name for model in grid if model.clean}
    raters, kept_tables = report_tables(assembly, benchmark, unseen)
    folder = run.path / "report"
    sections = [verdicts_section(grid, verdicts), diagnosis_section(grid, diagnoses, folder)]
    page_sections = [section for section in sections if section is not None]
    for section in page_sections:
        text = json.dumps(section.data, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / f"{section.key}.json", text)
    answers = {model.name: examination.answers(model) for model in grid}
    shares = letter_shares(benchmark, config.evaluate.prompt, answers)
    generate = "evaluate.prompt.ask: generate"
    data = ReportData(
        title=config.title,
        benchmark=benchmark,
        grid=grid,
        scores=list(scores),
        requirements=requirement_rows,
        settings={
            "command": assembly.command,
            "seed": str(config.seed),
            **versions(),
        },
        n_answers=n_answers,
        notes=[
            *engine_notes(examination.models, benchmark, config.evaluate.prompt, run),
            *(note for model in shares for note in model.notes(generate, NOTABLE_SHARE)),
            *assembly.detectors.notes(),
            *notes,
        ],
        raters=raters,
        kept=kept_tables,
        groups=_groups(examination) if GAP in names else None,
        sections=page_sections,
        replies=_replies(examination),
    )
    page = write_report(data, folder)
    rows = [json.loads(s.model_dump_json()) for s in scores]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "scores.jsonl", lines)
    return page


def _replies(examination: Examination) -> Replies:
    """Return every model's stored replies to both versions of the multiple-choice pairs."""
    settings = examination.prompt_settings
    probes = {
        pair.original.id: (
            settings.probe(pair.original, "original"),
            settings.probe(pair.perturbed, "perturbed"),
        )
        for pair in examination.benchmark.pairs
        if pair.original.options is not None
    }
    replies = {}
    for model in examination.grid:
        answers = examination.answers(model)
        replies[model.fingerprint] = {
            item_id: (answers.to(original), answers.to(perturbed))
            for item_id, (original, perturbed) in probes.items()
        }
    return replies


def _groups(examination: Examination) -> Table | None:
    """Return the group metrics of a benchmark that has groups."""
    benchmark, settings = examination.benchmark, examination.prompt_settings
    if not has_groups(benchmark):
        return None
    metrics = {
        model.fingerprint: group_metrics(cells_of(benchmark, settings, examination.answers(model)))
        for model in examination.grid
    }
    return group_table(examination.grid, metrics)
