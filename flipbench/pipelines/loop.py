"""The whole loop: every stage in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.core.paired import PairedBenchmark
from flipbench.core.stage import StageReport
from flipbench.pipelines.contamination import make_checkpoints, plan_contamination
from flipbench.pipelines.evaluation import (
    count_work,
    make_report,
    make_scores,
    subjects_of,
    warnings_of,
)
from flipbench.pipelines.experiment import Experiment
from flipbench.pipelines.pairs import has_twins, make_pairs, plan_filtering


def run_all(experiment: Experiment, notes: Sequence[str] = ()) -> tuple[Path, list[StageReport]]:
    """Do every stage in order; return the report's page and what each stage did."""
    benchmark, reports = make_pairs(experiment)
    trained = make_checkpoints(experiment, benchmark)
    subjects = subjects_of(experiment, trained)
    scores, asked = make_scores(experiment, benchmark, subjects)
    page = make_report(experiment, benchmark, subjects, scores, [*warnings_of(trained), *notes])
    return page, [*reports, *asked]


def plan_all(experiment: Experiment) -> list[str]:
    """Return what is left to do in every stage and what it would take, for ``--dry-run``.

    Training and questions depend on which pairs are kept, so they are counted where pairs are.
    """
    twins = has_twins(experiment)
    lines = ["the pairs exist already"] if twins else plan_filtering(experiment)
    if not experiment.benchmark_folder.exists():
        return [*lines, "training and questions: counted once 'flipbench filter' has kept pairs"]
    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    work = count_work(experiment, benchmark)
    asked = [f"{n:>9,}  {what}" for what, n in work.items()]
    return [*lines, *plan_contamination(experiment, benchmark), *asked]
