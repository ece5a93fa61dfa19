"""The evaluate stage of a configured experiment: pairs and models in, scores and a report out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.detectors import ConfiguredDetectors, without_plug_ins
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
from flipbench.core.records import Probe, Response, Score, Verdict
from flipbench.core.run import Run, versions
from flipbench.core.stage import StageOptions, StageReport
from flipbench.distributed.workers import Workers
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.diagnosis.diagnosis import Diagnosis, diagnose, outcomes
from flipbench.evaluate.diagnosis.questions import questions_about
from flipbench.evaluate.diagnosis.section import diagnosis_section
from flipbench.evaluate.page.explorer import Replies
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.pipeline import (
    ModelUnderTest,
    ask_all,
    ask_one,
    n_unanswered,
    probes_for,
    score,
    store_probes,
)
from flipbench.evaluate.protocol.detector import needs_when
from flipbench.evaluate.protocol.grid import GridModel, Requirements
from flipbench.evaluate.report.group_metrics import cells_of, group_metrics, group_table, has_groups
from flipbench.evaluate.report.titles import GAP
from flipbench.evaluate.validation.requirements import requirements
from flipbench.evaluate.verdict.grid_verdicts import grid_verdicts, verdicts_section
from flipbench.evaluate.verdict.letter_shares import NOTABLE_SHARE, letter_shares
from flipbench.evaluate.verdict.verdict import ModelVerdict
from flipbench.filters.effective_verdicts import effective_verdicts
from flipbench.models.engine import ASK_OPTIONS, answers_of
from flipbench.models.serving.managed import ManagedVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Table


def evaluate(
    assembly: Assembly,
    benchmark: PairedBenchmark,
    trained: Sequence[TrainedPlan] = (),
    notes: Sequence[str] = (),
    *,
    asks: bool = True,
) -> EvaluationResult:
    """Query the models and their checkpoints, score the answers, and write the report.

    A worker queries its share of the models, without a page; without ``asks``, stored answers are
    scored.

    Raises
    ------
    ConfigError
        If a model supports none of the detectors; before any question.
    """
    try:
        return _evaluate(assembly, benchmark, trained, notes, asks)
    finally:
        assembly.servers.vllm.stop()


def _evaluate(
    assembly: Assembly,
    benchmark: PairedBenchmark,
    trained: Sequence[TrainedPlan],
    notes: Sequence[str],
    asks: bool,
) -> EvaluationResult:
    models, config, workers = assembly.grid(trained), assembly.config.evaluate, assembly.workers
    options, run = assembly.options(config.batch_size), assembly.run
    share = [model for number, model in enumerate(models) if workers.owns_index(number)]
    if not asks:
        workers = replace(workers, n_workers=1)
    elif workers.n_workers == 1:
        ask_transformers(share, benchmark, config.prompt, run, options)
        _check_models(share, assembly.detectors.names, config.prompt)
    else:  # whoever asks starts the servers
        here = [model for model in share if not isinstance(model.vlm, ManagedVLM)]
        _check_models(here, assembly.detectors.names, config.prompt)
    dropped = dropped_probes(assembly, benchmark)
    if workers.share is not None:
        detectors = assembly.detectors.detectors(benchmark)
        reports = ask_all(benchmark, share, detectors, config.prompt, run, options, dropped)
        return EvaluationResult(share, reports)
    scores, reports = ask_and_score(
        benchmark,
        models,
        assembly.detectors,
        config.prompt,
        run,
        options,
        workers,
        of_clean=dropped,
        asks=asks,
    )
    diagnoses, asked = diagnose_all(
        benchmark, models, assembly.detectors, config.prompt, run, options, asks=asks
    )
    reports += asked
    known = [*warnings_of(trained), *training_notes(trained, config.prompt.instruction)]
    known += notes
    n_answers = sum(r.n_done + r.n_skipped for r in reports if r.stage.startswith("ask "))
    verdicts = grid_verdicts(
        benchmark,
        [entry.model for entry in models],
        scores,
        config.prompt,
        lambda model: answers_of(model.name, model.fingerprint, run),
    )
    page = _write_report(assembly, benchmark, models, scores, n_answers, known, diagnoses, verdicts)
    return EvaluationResult(models, reports, scores, page, verdicts)


def _check_models(
    models: Sequence[ModelUnderTest], names: Sequence[str], prompt_settings: PromptSettings
) -> None:
    """Refuse a model about which no detector can learn anything, and say what would help."""
    for entry in models:
        lacking = [needs_when(DETECTORS[n].about, prompt_settings) - entry.can for n in names]
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


def ask_and_score(
    benchmark: PairedBenchmark,
    models: Sequence[ModelUnderTest],
    configured: ConfiguredDetectors,
    prompt_settings: PromptSettings,
    run: Run,
    options: StageOptions = ASK_OPTIONS,
    workers: Workers | None = None,
    references: Callable[[GridModel], Sequence[GridModel | None]] | None = None,
    of_clean: Sequence[Probe] = (),
    asks: bool = True,
) -> tuple[list[Score], list[StageReport]]:
    """Ask the models the detectors' questions, judge the replies, and score them.

    If detectors need it, texts are reworded first. Results already stored in the run are reused.

    Parameters
    ----------
    workers : Workers, optional
        Processes that query a share of the models each; by default only this one.
    references : callable, optional
        The models that a model is compared with; by default its own clean model.
    of_clean : sequence of Probe
        Further probes, for clean models only; no detector reads them.
    asks : bool
        Whether anything is asked; else only what is stored is scored.
    """
    reports = configured.reword(benchmark, options.progress) if asks else []
    detectors = configured.detectors(benchmark)
    if workers is not None and workers.n_workers > 1:
        probes = store_probes(detectors, benchmark, prompt_settings, run, of_clean)
        workers.start("evaluate", Response, n_unanswered(models, probes, of_clean, run), "ask")
    grid = [entry.model for entry in models]
    if asks:
        reports += ask_all(benchmark, models, detectors, prompt_settings, run, options, of_clean)
        replies = (answers_of(model.name, model.fingerprint, run) for model in grid)
        reports += configured.judge_replies(detectors, benchmark, replies, options.progress)
    else:
        for model in grid:
            n_stored = len(run.ids(Response, model.fingerprint))
            reports.append(StageReport(f"ask {model.name}", n_skipped=n_stored))
    can = {entry.model.fingerprint: entry.can for entry in models}
    scores = score(benchmark, grid, detectors, prompt_settings, run, can, references)
    return configured.mark_plug_ins(scores), reports


def diagnose_all(
    benchmark: PairedBenchmark,
    models: Sequence[ModelUnderTest],
    configured: ConfiguredDetectors,
    prompt_settings: PromptSettings,
    run: Run,
    options: StageOptions,
    *,
    asks: bool = True,
) -> tuple[dict[str, Diagnosis], list[StageReport]]:
    """Ask why items fell, if so configured; return the diagnoses by the models' fingerprints.

    Raters' objections are read where the benchmark's images are, before these move to the run.
    """
    diagnoses: dict[str, Diagnosis] = {}
    reports: list[StageReport] = []
    if not configured.config.diagnose:
        return diagnoses, reports
    doubted, benchmark = objections(benchmark), benchmark.with_images_in(run.images)
    inquiry, known = configured.inquiry(benchmark), run.ids(Probe)
    for entry in models:
        name, weights = entry.model.name, entry.model.fingerprint
        fell = outcomes(benchmark, prompt_settings, answers_of(name, weights, run)).fell
        asked = questions_about(fell, benchmark, prompt_settings, inquiry)
        probes = {probe.id: probe for questions in asked for probe in questions.follow_ups}
        run.append([probe for probe in probes.values() if probe.id not in known])
        known |= probes.keys()
        if asks:
            reports.append(ask_one(entry, list(probes.values()), run, benchmark.images, options))
        answers = answers_of(name, weights, run)
        diagnoses[weights] = diagnose(benchmark, prompt_settings, answers, inquiry, doubted)
    return diagnoses, reports


def objections(benchmark: PairedBenchmark) -> dict[str, bool]:
    """Return whether a rater objects to the perturbed picture of a pair, by the original's id.

    All verdicts in the run directory that holds the benchmark's images count, whatever the policy
    made of them; pairs without any are left out.
    """
    folder = benchmark.images.folder.parent
    if not (folder / Verdict.kind).is_dir():
        return {}
    decisions: dict[str, list[str]] = {}
    for verdict in effective_verdicts(Run(folder, read_only=True).read(Verdict)):
        decisions.setdefault(verdict.image_sha256, []).append(verdict.decision)
    found = {}
    for pair in benchmark.pairs:
        about = [d for ref in pair.perturbed.images for d in decisions.get(ref.sha256, ())]
        if about:
            found[pair.original.id] = any(decision != "keep" for decision in about)
    return found


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
    asked = [(m, 1 + of_family[name], probes) for name, m in config.models.items() if m.path]
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
    return [*counts, *answering_time(asked), *not_built(plug_ins)]


def follow_ups(configured: ConfiguredDetectors, benchmark: PairedBenchmark) -> dict[str, int]:
    """Return the largest number of questions about an item that falls, for ``--dry-run``."""
    if not configured.config.diagnose:
        return {}
    most = configured.inquiry(benchmark).n_most
    return {"further questions, at most, about each item that falls": most}


def not_built(plug_ins: Sequence[str]) -> list[str]:
    """Return a line on plug-ins, which a dry run does not build; none if there are none."""
    return [f"not counted, since a dry run builds no plug-in: {', '.join(plug_ins)}"][
        : len(plug_ins)
    ]


def work_lines(counts: Mapping[str, int]) -> list[str]:
    """Return one line per count, for ``--dry-run``."""
    return [f"{n:>9,}  {what}" for what, n in counts.items()]


def _write_report(
    assembly: Assembly,
    benchmark: PairedBenchmark,
    models: Sequence[ModelUnderTest],
    scores: Sequence[Score],
    n_answers: int,
    notes: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    verdicts: Mapping[str, ModelVerdict],
) -> Path:
    """Write tables, figures, scores and the page; return the page's path."""
    config, run, grid = assembly.config, assembly.run, [entry.model for entry in models]
    prompt_settings, names = config.evaluate.prompt, assembly.detectors.names
    needed: list[Requirements] = []
    for about in (DETECTORS[name].about for name in names):
        rules = dict.fromkeys(s.rule for s in scores if s.detector == about.name)
        needed += [
            requirements(scores, grid, about.name, rule, not about.needs_clean_model(rule))
            for rule in rules
        ]
    unseen = {model.fingerprint: model.name for model in grid if model.clean}
    raters, kept = report_tables(assembly, benchmark, unseen)
    folder = run.path / "report"
    sections = [verdicts_section(grid, verdicts), diagnosis_section(grid, diagnoses, folder)]
    shown = [section for section in sections if section is not None]
    for section in shown:
        text = json.dumps(section.data, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / f"{section.key}.json", text)
    answers = {m.name: answers_of(m.name, m.fingerprint, run) for m in grid}
    shares = letter_shares(benchmark, prompt_settings, answers)
    generate = "evaluate.prompt.ask: generate"
    data = ReportData(
        title=config.title,
        benchmark=benchmark,
        grid=grid,
        scores=list(scores),
        requirements=needed,
        settings={
            "command": assembly.command,
            "seed": str(config.seed),
            **versions(),
        },
        n_answers=n_answers,
        notes=[
            *engine_notes(models, benchmark, prompt_settings, run),
            *(note for model in shares for note in model.notes(generate, NOTABLE_SHARE)),
            *assembly.detectors.notes(),
            *notes,
        ],
        raters=raters,
        kept=kept,
        groups=_groups(benchmark, grid, prompt_settings, run) if GAP in names else None,
        sections=shown,
        replies=_replies(benchmark, grid, prompt_settings, run),
    )
    page = write_report(data, folder)
    rows = [json.loads(s.model_dump_json()) for s in scores]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "scores.jsonl", lines)
    return page


def _replies(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], prompt_settings: PromptSettings, run: Run
) -> Replies:
    """Return every model's stored replies to both versions of the multiple-choice pairs."""
    asked = {
        pair.original.id: (
            prompt_settings.probe(pair.original, "original"),
            prompt_settings.probe(pair.perturbed, "perturbed"),
        )
        for pair in benchmark.pairs
        if pair.original.options is not None
    }
    replies = {}
    for model in grid:
        answers = answers_of(model.name, model.fingerprint, run)
        replies[model.fingerprint] = {
            item: (answers.to(original), answers.to(perturbed))
            for item, (original, perturbed) in asked.items()
        }
    return replies


def _groups(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], prompt_settings: PromptSettings, run: Run
) -> Table | None:
    """Return the group metrics of a benchmark that has groups."""
    if not has_groups(benchmark):
        return None
    metrics = {}
    for model in grid:
        answers = answers_of(model.name, model.fingerprint, run)
        metrics[model.fingerprint] = group_metrics(cells_of(benchmark, prompt_settings, answers))
    return group_table(grid, metrics)
