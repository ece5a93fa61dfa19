"""The commands that do everything, and the few lines that an evaluation comes to on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import flipbench as fb
from flipbench.commands.app import SHARED, START, Invocation, command
from flipbench.commands.printing import finish, say, say_aligned

if TYPE_CHECKING:
    from flipbench.api.stages.results import EvaluationResult
    from flipbench.core.records import Score
    from flipbench.evaluate.protocol.grid import GridModel
    from flipbench.reporting.tables import Table

_DECIDES = "perturbation_gap", "mcnemar"
_FLAGGED = {"contaminated": "yes", "not_detected": "no"}


@command(fb.demo, START, announces=True)
def show_demo(result: EvaluationResult, invocation: Invocation) -> int:
    """Print the gaps, how long it took, and what comes next."""
    say("")
    say_gaps(result)
    say(f"{time.monotonic() - invocation.start:.0f} s: {result.page}")
    failed = [report for report in result.reports if report.n_failed]
    return finish(failed, {"flipbench init MYBENCH.tsv": "a configuration for your own benchmark"})


@command(fb.Experiment.run, START, takes=SHARED)
def show_report(result: EvaluationResult, invocation: Invocation) -> int:
    """Print the gaps, where the page lies, and what comes next.

    On a terminal that is a line for each model, and in a file the whole table.
    """
    if page := result.page:
        if sys.stdout.isatty():
            say_gaps(result)
        else:
            say((page.parent / "gap.md").read_text())
        say(page)
    export = invocation.again("export", "OUT", "--format", "vlmeval", limit=False)
    return finish(result.reports, {export: "the pairs for another kit"})


def say_gaps(result: EvaluationResult) -> None:
    """Print a line for each model and what the exact test made of them, in 80 columns."""
    from flipbench.evaluate.page.report_page import headline
    from flipbench.evaluate.report.score_frame import score_frame

    grid = [entry.model for entry in result.models]
    tests = [score for score in result.scores if (score.detector, score.rule) == _DECIDES]
    if tests:
        say_aligned(_gap_table(grid, tests))
        say("")
    say(" ".join(headline(score_frame(tests, grid))))


def _gap_table(grid: Sequence[GridModel], tests: Sequence[Score]) -> Table:
    """Return each model's answers to both versions, in columns that fit a narrow terminal."""
    from flipbench.evaluate.report.titles import families
    from flipbench.reporting import formats
    from flipbench.reporting.tables import Cell, Column, Row, Table

    def history(model: GridModel) -> str:
        if model.dose is None:
            return model.name
        if model.contaminated:
            return "trained on the benchmark"
        return "trained on other questions" if model.clean_finetune else "untouched"

    score_of = {score.model_fingerprint: score for score in tests}
    models = [m for family in families(grid).values() for m in family if m.fingerprint in score_of]
    histories = [history(model) for model in models]
    rows = []
    for model, text in zip(models, histories, strict=True):
        score = score_of[model.fingerprint]
        counts = [score.accuracies.get(side) for side in ("original", "perturbed")]
        gap = formats.points(score.statistic) if score.statistic is not None else formats.NOTHING
        cells = [
            *(Cell(f"{count.k}/{count.n}" if count else formats.NOTHING) for count in counts),
            Cell(gap, formats.interval(score.interval)),
            Cell(_FLAGGED.get(score.verdict, score.verdict.replace("_", " "))),
        ]
        rows.append(Row(text if histories.count(text) == 1 else model.name, tuple(cells)))
    heads = ("original", "redrawn", "gap, points [95 %]", "flagged")
    columns = tuple(map(Column, heads))
    return Table("gaps", "", "right answers of a model", columns, (("", tuple(rows)),))
