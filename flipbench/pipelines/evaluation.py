"""The evaluation stage of a configured experiment: models, probes, scores, report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.config.experiment import SubjectConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Checkpoint, Response, Score, TrainingPlan
from flipbench.core.run import environment
from flipbench.core.stage import StageReport
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.pipeline import (
    Subject,
    ask_all,
    keep_probes,
    probes_for,
    score,
)
from flipbench.evaluate.protocol.grid import UNTOUCHED, GridModel, Requirements
from flipbench.evaluate.report.group_metrics import cells_of, group_metrics, group_table, has_groups
from flipbench.evaluate.report.report import ReportData, write_report
from flipbench.evaluate.report.tables import GAP
from flipbench.evaluate.validation.requirements import requirements
from flipbench.models.engine import answers_of
from flipbench.models.vlm.huggingface import fingerprint, resolve_path
from flipbench.pipelines.backends import model_without_weights
from flipbench.pipelines.contamination import plans_for
from flipbench.pipelines.detectors import ConfiguredDetectors
from flipbench.pipelines.experiment import Experiment, have_workers_do
from flipbench.pipelines.raters import report_tables
from flipbench.reporting.tables import Table

_HISTORIES = {0: UNTOUCHED, None: "history unknown"}


def subjects_of(
    experiment: Experiment, trained: Sequence[tuple[TrainingPlan, Sequence[Checkpoint]]]
) -> list[Subject]:
    """Return the grid: each configured model, and then its checkpoints."""
    subjects = []
    for name, model in experiment.config.models.items():
        subjects.append(_subject(name, model))
        for plan, checkpoints in trained:
            if plan.model == name:
                mine = _checkpoints(name, model, plan, checkpoints)
                subjects += [_of_weights(m, experiment.run.path / path, model) for m, path in mine]
    return subjects


def _subject(name: str, model: SubjectConfig) -> Subject:
    vlm = model_without_weights(name, model)
    weights = (
        vlm.fingerprint
        if vlm
        else fingerprint(resolve_path(model.path), model.dtype, model.revision, model.quantization)
    )
    grid_model = GridModel(
        name,
        weights,
        model.family or name,
        model.strategy or _HISTORIES.get(model.dose, "trained elsewhere"),
        0,
        model.dose,
        model.lineage,
        model.external,
    )
    if vlm:
        return Subject(grid_model, api=vlm)
    return replace(_of_weights(grid_model, model.path, model), revision=model.revision)


def _checkpoints(
    name: str, model: SubjectConfig, plan: TrainingPlan, checkpoints: Sequence[Checkpoint]
) -> Iterator[tuple[GridModel, str]]:
    """Yield each epoch of a plan and where it lies; its dose comes on top of its parent's.

    A control was trained on another benchmark, which is no dose of this one.
    """
    began = _beginnings(plan, checkpoints)
    for c in checkpoints:
        known = (model.dose or 0) + (0 if plan.control else c.dose)
        grid_model = GridModel(
            c.model,
            c.fingerprint,
            model.family or name,
            c.strategy,
            c.epoch,
            known if known or model.dose is not None else None,
            model.lineage,
            trained_from=began.get(c.epoch, ""),
            warnings=c.warnings,
        )
        yield grid_model, c.path


def _of_weights(grid_model: GridModel, path: str | Path, model: SubjectConfig) -> Subject:
    return Subject(
        grid_model,
        str(path),
        dtype=model.dtype,
        device=model.device,
        trust_remote_code=model.trust_remote_code,
        quantization=model.quantization,
    )


def _beginnings(plan: TrainingPlan, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
    """Return the weights each epoch began with, of a plan that trains on all items."""
    if plan.held_out_ids or plan.control or not plan.copies:
        return {}
    kept = {c.epoch: c.fingerprint for c in checkpoints}
    return {epoch + 1: weights for epoch, weights in ({0: plan.parent_fingerprint} | kept).items()}


def warnings_of(
    trained: Sequence[tuple[TrainingPlan, Sequence[Checkpoint]]],
) -> list[str]:
    """Return what tables made from these checkpoints must say, each once with its models."""
    found: dict[str, list[str]] = {}
    for _, checkpoints in trained:
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                found.setdefault(warning, []).append(checkpoint.model)
    return [f"{warning} ({', '.join(models)})" for warning, models in found.items()]


def configured_detectors(experiment: Experiment) -> ConfiguredDetectors:
    """Return the configured detectors and who helps them."""
    config = experiment.config
    return ConfiguredDetectors.of(
        config.evaluate, config.evaluate.detectors, experiment.run, config.seed
    )


def make_scores(
    experiment: Experiment, benchmark: PairedBenchmark, subjects: Sequence[Subject]
) -> tuple[list[Score], list[StageReport]]:
    """Have texts put in other words, ask all models, have replies judged, score the answers."""
    config, run = experiment.config.evaluate, experiment.run
    configured = configured_detectors(experiment)
    reports = configured.reword(benchmark, experiment.progress)
    detectors = configured.detectors(benchmark)
    if experiment.n_workers > 1:
        probes = keep_probes(detectors, benchmark, config.asking, run)
        have_workers_do(experiment, "evaluate", Response, len(probes) * len(subjects), "ask")
    reports += ask_all(
        benchmark,
        subjects,
        detectors,
        config.asking,
        run,
        batch_size=config.batch_size,
        progress=experiment.progress,
    )
    grid = [subject.model for subject in subjects]
    replies = (answers_of(model.name, model.fingerprint, run) for model in grid)
    reports += configured.judge_replies(benchmark, replies, experiment.progress)
    detectors = configured.detectors(benchmark)
    can = {subject.model.fingerprint: subject.can for subject in subjects}
    scores = score(benchmark, grid, detectors, config.asking, run, can)
    return configured.identified(scores), reports


def ask_share(
    experiment: Experiment, benchmark: PairedBenchmark, subjects: Sequence[Subject]
) -> list[StageReport]:
    """Ask this worker's share of the models, and score nothing."""
    config, share = experiment.config.evaluate, experiment.share
    mine = [s for i, s in enumerate(subjects) if share is None or share.has_number(i)]
    return ask_all(
        benchmark,
        mine,
        configured_detectors(experiment).detectors(benchmark),
        config.asking,
        experiment.run,
        batch_size=config.batch_size,
        progress=experiment.progress,
    )


def make_report(
    experiment: Experiment,
    benchmark: PairedBenchmark,
    subjects: Sequence[Subject],
    scores: Sequence[Score],
    notes: Sequence[str] = (),
) -> Path:
    """Write tables, figures and the page; return the page's path."""
    grid = [subject.model for subject in subjects]
    needed: list[Requirements] = []
    configured = configured_detectors(experiment)
    for about in (DETECTORS[name].about for name in configured.names):
        rules = dict.fromkeys(s.rule for s in scores if s.detector == about.name)
        needed += [requirements(scores, grid, about.name, rule, about.practical) for rule in rules]
    unseen = {model.fingerprint: model.name for model in grid if model.clean}
    raters, kept = report_tables(experiment, benchmark, unseen)
    found = environment()
    data = ReportData(
        title=experiment.config.title,
        benchmark=benchmark,
        grid=grid,
        scores=list(scores),
        requirements=needed,
        settings={
            "command": experiment.command,
            "seed": str(experiment.config.seed),
            "python": found["python"],
            **{name: str(version) for name, version in found["packages"].items() if version},
        },
        notes=[*configured.notes(), *notes],
        raters=raters,
        kept=kept,
        groups=_groups(experiment, benchmark, grid),
    )
    folder = experiment.run.path / "report"
    page = write_report(data, folder)
    rows = [json.loads(s.model_dump_json()) for s in scores]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return page


def _groups(
    experiment: Experiment, benchmark: PairedBenchmark, grid: Sequence[GridModel]
) -> Table | None:
    """Return the group metrics of a benchmark that has groups and was asked in both versions."""
    if GAP not in experiment.config.evaluate.detectors or not has_groups(benchmark):
        return None
    asking = experiment.config.evaluate.asking
    metrics = {}
    for model in grid:
        answers = answers_of(model.name, model.fingerprint, experiment.run)
        metrics[model.fingerprint] = group_metrics(cells_of(benchmark, asking, answers))
    return group_table(grid, metrics)


def count_work(experiment: Experiment, benchmark: PairedBenchmark) -> dict[str, int]:
    """Return what contamination and evaluation of ``benchmark`` would take, for ``--dry-run``."""
    plans = plans_for(experiment, benchmark)
    models = len(experiment.config.models) + sum(plan.epochs for plan in plans)
    config = experiment.config.evaluate
    configured = configured_detectors(experiment)
    probes = len(probes_for(configured.detectors(benchmark), benchmark, config.asking))
    texts = len(benchmark.pairs) if configured.rewording else 0
    return {
        **({"texts to put in other words, then to be asked": texts} if texts else {}),
        "training plans": len(plans),
        "training examples": sum(len(p.item_ids) * p.copies * p.epochs for p in plans),
        "models to evaluate": models,
        "distinct probes": probes,
        "answers": probes * models,
    }
