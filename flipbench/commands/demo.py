"""The demo, and the few lines that its result comes to on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipbench.commands import STAGES, DryRun, Quiet, app, finish, say, say_aligned

if TYPE_CHECKING:
    from flipbench.api import EvaluationResult
    from flipbench.core.records import Score
    from flipbench.evaluate.protocol.grid import GridModel
    from flipbench.reporting.tables import Table
    from flipbench.shapes.demos import Demo


@app.command(rich_help_panel=STAGES)
def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="run directory: runs/demo, runs/demo-small or runs/demo-diffusion"),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="three models and seven detectors, in two minutes")
    ] = False,
    diffusion: Annotated[
        bool,
        typer.Option("--diffusion", help="a tiny Flux with a ControlNet draws the pictures"),
    ] = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole loop with many detectors on the embedded world, and write a page about it."""
    from flipbench.shapes.demos import demo_of

    chosen = demo_of(small=small, diffusion=diffusion)
    say("\n".join(_description(chosen, out or Path(chosen.folder))))
    if dry_run:
        return
    import flipbench as fb

    start = time.time()
    result = fb.demo(out, small=small, diffusion=diffusion, progress=not quiet)
    say("")
    say_gaps(result)
    say(f"{time.time() - start:.0f} s: {result.page}")
    n_failed = [report for report in result.reports if report.n_failed]
    finish(n_failed, then={"flipbench init MYBENCH.tsv": "a configuration for your own benchmark"})


def say_gaps(result: EvaluationResult) -> None:
    """Print a line for each model and what the exact test made of them, in 80 columns."""
    from flipbench.evaluate.page.report_page import headline
    from flipbench.evaluate.report.score_frame import score_frame

    grid = [entry.model for entry in result.evaluated.models]
    tests = [score for score in result.scores if (score.detector, score.rule) == _DECIDES]
    if tests:
        say_aligned(_gaps(grid, tests))
        say("")
    say(" ".join(headline(score_frame(tests, grid))))


_DECIDES = "perturbation_gap", "mcnemar"
_FLAGGED = {"contaminated": "yes", "not_detected": "no"}


def _description(demo: Demo, out: Path) -> list[str]:
    """Return what the demo does, how long it takes, and where it writes."""
    from flipbench.config.experiment import ShapesSpec, load_config

    config = load_config(demo.file, demo.overrides)
    assert isinstance(config.benchmark, ShapesSpec)
    grid, n_models = config.contaminate, len(config.models)
    n_trained = n_models * len(grid.strategies)
    n_asked = n_models + 2 * n_trained * grid.epochs
    drawn_by = "a diffusion model" if "--diffusion" in demo.options else "a template"
    return [
        f"1. {config.benchmark.n_items} questions about drawn scenes, redrawn by {drawn_by} so that"
        " another answer is right",
        f"2. tiny models fine-tuned: {n_trained} on these questions, {n_trained} on others as"
        f" controls ({', '.join(grid.strategies)})",
        f"3. {n_asked} models asked by {len(config.evaluate.detectors)} detectors, and a page:"
        f" {out}/report/index.html",
        f"Takes {demo.takes}; no GPU, key or download.",
    ]


def _gaps(grid: Sequence[GridModel], tests: Sequence[Score]) -> Table:
    """Return each model's answers to both versions, in columns that fit a narrow terminal."""
    from flipbench.evaluate.report.titles import families
    from flipbench.reporting import formats
    from flipbench.reporting.tables import Cell, Column, Row, Table

    def known(model: GridModel) -> str:
        if model.dose is None:
            return model.name
        if model.contaminated:
            return "trained on the benchmark"
        return "trained on other questions" if model.clean_finetune else "untouched"

    score_of = {score.model_fingerprint: score for score in tests}
    models = [m for family in families(grid).values() for m in family if m.fingerprint in score_of]
    words = [known(model) for model in models]
    rows = []
    for model, text in zip(models, words, strict=True):
        score = score_of[model.fingerprint]
        counts = [score.accuracies.get(side) for side in ("original", "perturbed")]
        gap = formats.points(score.statistic) if score.statistic is not None else formats.NOTHING
        cells = [
            *(Cell(f"{count.k}/{count.n}" if count else formats.NOTHING) for count in counts),
            Cell(gap, formats.interval(score.interval)),
            Cell(_FLAGGED.get(score.verdict, score.verdict.replace("_", " "))),
        ]
        rows.append(Row(text if words.count(text) == 1 else model.name, tuple(cells)))
    columns = (
        Column("original"),
        Column("redrawn"),
        Column("gap, points [95 %]"),
        Column("flagged"),
    )
    return Table("gaps", "", "right answers of a model", columns, (("", tuple(rows)),))
