"""The loop: generate, filter, contaminate, evaluate; all of it; the demo."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flipbench.commands import (
    STAGES,
    ConfigPath,
    DryRun,
    Kept,
    Limit,
    Overrides,
    Quiet,
    Worker,
    Workers,
    app,
    finish,
    open_experiment,
    say,
)
from flipbench.commands.people import doubtful_edits
from flipbench.core.errors import ConfigError


@app.command(rich_help_panel=STAGES)
def demo(
    out: Annotated[Path, typer.Option(help="run directory")] = Path("runs/demo"),
    small: Annotated[
        bool, typer.Option("--small", help="a tenth of the grid, for a quick look")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole loop with every detector on the embedded world, and write a page about it."""
    from flipbench.pipelines.demo import run_demo

    status = run_demo(out, small=small, progress=not quiet)
    raise typer.Exit(status)


@app.command(rich_help_panel=STAGES)
def generate(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    worker: Worker = None,
) -> None:
    """Make an answer-flipped twin: new answer, caption, redrawn image."""
    experiment = open_experiment(config, overrides, limit, quiet, workers=workers, worker=worker)
    from flipbench.pipelines.pairs import has_twins, make_candidates, make_pairs, plan_generation

    if has_twins(experiment):
        pairs, _ = make_pairs(experiment)
        raise typer.Exit(say(f"{len(pairs.pairs)} pairs that exist already; nothing to generate"))
    if dry_run:
        raise typer.Exit(say("\n".join(plan_generation(experiment))))
    finish(make_candidates(experiment)[1], quiet=worker is not None)


@app.command("filter", rich_help_panel=STAGES)
def filter_(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    kept: Kept = None,
    quiet: Quiet = False,
) -> None:
    """Judge the edited pairs and keep the valid ones, or those of a list."""
    if dry_run and kept:
        raise ConfigError("--kept has nobody judge: there is nothing that --dry-run could count")
    experiment = open_experiment(config, overrides, limit, quiet)
    from flipbench.pipelines.pairs import (
        has_twins,
        make_pairs,
        plan_filtering,
        rebuild_kept,
        spent_on_verdicts,
    )

    if dry_run and not has_twins(experiment):
        raise typer.Exit(say("\n".join(plan_filtering(experiment))))
    benchmark, reports = rebuild_kept(experiment, kept) if kept else make_pairs(experiment)
    say("  ".join(f"{stage} {n}" for stage, n in benchmark.funnel.items()))
    for rater, spent in spent_on_verdicts(experiment).items():
        say(f"{rater}: {spent}")
    run = experiment.run.path
    if not kept and not has_twins(experiment) and (n := len(doubtful_edits(run))):
        say(f"{n} doubtful: 'flipbench review {run} --doubtful' shows them to people")
    finish(reports)


@app.command(rich_help_panel=STAGES)
def agreement(
    config: ConfigPath,
    reference: Annotated[str, typer.Argument(help="a rater's name, people, or policy")] = "people",
    overrides: Overrides = None,
) -> None:
    """Hold the raters of edited pairs against one of them: kappa, precision, recall."""
    experiment = open_experiment(config, overrides)
    from flipbench.pipelines.raters import compare_raters_of

    text, page = compare_raters_of(experiment, reference)
    say(f"{text}\n{page}")


@app.command(rich_help_panel=STAGES)
def contaminate(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    worker: Worker = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="FORM FOLDER",
            help="write the training data for another trainer (llava or llamafactory), and train"
            " nothing",
        ),
    ] = None,
) -> None:
    """Train checkpoints of known contamination, one for each epoch, each with its card.

    One model on several GPUs: accelerate launch --config_file configs/accelerate/fsdp.yaml -m
    flipbench.cli contaminate CONFIG.
    """
    experiment = open_experiment(
        config, overrides, None, quiet, workers=workers, worker=worker, together=True
    )
    from flipbench.core.paired import PairedBenchmark
    from flipbench.core.processes import is_main
    from flipbench.pipelines.contamination import (
        make_checkpoints,
        plan_contamination,
        training_failures,
    )

    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    if export:
        from flipbench.pipelines.training_exports import export_training

        lines, n_refused = export_training(experiment, benchmark, *export)
        raise typer.Exit(max(say("\n".join(lines)), int(n_refused > 0)))
    if is_main():
        say("\n".join(plan_contamination(experiment, benchmark)))
    if dry_run:
        return
    trained = make_checkpoints(experiment, benchmark)
    if not is_main():
        return
    for _, checkpoints in trained:
        for checkpoint in checkpoints:
            say(f"{checkpoint.model}  dose {checkpoint.dose}  {checkpoint.path}")
    if failures := training_failures(experiment, trained):
        print(f"{len(failures)} plans failed; see failures/ in the run directory", file=sys.stderr)
        raise typer.Exit(1)


@app.command(rich_help_panel=STAGES)
def evaluate(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    worker: Worker = None,
) -> None:
    """Put every detector's questions to every model, and write the report."""
    experiment = open_experiment(config, overrides, None, quiet, workers=workers, worker=worker)
    from flipbench.core.paired import PairedBenchmark
    from flipbench.pipelines.contamination import make_checkpoints
    from flipbench.pipelines.evaluation import (
        ask_share,
        count_work,
        make_report,
        make_scores,
        subjects_of,
        warnings_of,
    )

    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    if dry_run:
        work = count_work(experiment, benchmark)
        raise typer.Exit(say("\n".join(f"{n:>9,}  {what}" for what, n in work.items())))
    trained = make_checkpoints(replace(experiment, share=None), benchmark)
    subjects = subjects_of(experiment, trained)
    if experiment.share:
        finish(ask_share(experiment, benchmark, subjects), quiet=True)
        return
    scores, reports = make_scores(experiment, benchmark, subjects)
    page = make_report(experiment, benchmark, subjects, scores, warnings_of(trained))
    say((page.parent / "gap.md").read_text() + f"\n{page}")
    finish(reports)


@app.command(rich_help_panel=STAGES)
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
) -> None:
    """Do all stages: generate, filter, contaminate, evaluate, report."""
    experiment = open_experiment(config, overrides, limit, quiet, workers=workers)
    from flipbench.pipelines.loop import plan_all, run_all

    if dry_run:
        raise typer.Exit(say("\n".join(plan_all(experiment))))
    page, reports = run_all(experiment)
    say((page.parent / "gap.md").read_text() + f"\n{page}")
    finish(reports)
