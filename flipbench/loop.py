"""The whole loop: every stage in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.contamination import make_checkpoints
from flipbench.evaluation import make_report, make_scores, subjects_of, warnings_of
from flipbench.experiment import Experiment
from flipbench.stage import StageReport
from flipbench.twins import make_pairs


def run_all(experiment: Experiment, notes: Sequence[str] = ()) -> tuple[Path, list[StageReport]]:
    """Do every stage in order; return the report's page and what each stage did."""
    benchmark, reports = make_pairs(experiment)
    trained = make_checkpoints(experiment, benchmark)
    subjects = subjects_of(experiment, trained)
    scores, asked = make_scores(experiment, benchmark, subjects)
    page = make_report(experiment, benchmark, subjects, scores, [*warnings_of(trained), *notes])
    return page, [*reports, *asked]
