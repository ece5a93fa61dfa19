"""The loop: generate, filter, contaminate, evaluate; all of it; the demo."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    assemble,
    finish,
    say,
)
from flipbench.commands.people import doubtful_edits
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.pipelines.evaluation import Evaluated


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
    assembly = assemble(config, overrides, limit, quiet, workers=workers, worker=worker)
    from flipbench.pipelines import generation
    from flipbench.pipelines.filtering import has_pairs, make_pairs

    if has_pairs(assembly):
        pairs, _ = make_pairs(assembly)
        raise typer.Exit(say(f"{len(pairs.pairs)} pairs that exist already; nothing to generate"))
    if dry_run:
        raise typer.Exit(say("\n".join(generation.plan_generation(assembly))))
    finish(generation.generate(assembly)[1], quiet=worker is not None)


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
    assembly = assemble(config, overrides, limit, quiet)
    from flipbench.pipelines.filtering import (
        has_pairs,
        make_pairs,
        plan_filtering,
        rebuild_kept,
        spent_on_verdicts,
    )

    if dry_run and not has_pairs(assembly):
        raise typer.Exit(say("\n".join(plan_filtering(assembly))))
    benchmark, reports = rebuild_kept(assembly, kept) if kept else make_pairs(assembly)
    say("  ".join(f"{stage} {n}" for stage, n in benchmark.funnel.items()))
    for rater, spent in spent_on_verdicts(assembly.run).items():
        say(f"{rater}: {spent}")
    run = assembly.run.path
    if not kept and not has_pairs(assembly) and (n := len(doubtful_edits(run))):
        say(f"{n} doubtful: 'flipbench review {run} --doubtful' shows them to people")
    finish(reports)


@app.command(rich_help_panel=STAGES)
def agreement(
    config: ConfigPath,
    reference: Annotated[str, typer.Argument(help="a rater's name, people, or policy")] = "people",
    overrides: Overrides = None,
) -> None:
    """Hold the raters of edited pairs against one of them: kappa, precision, recall."""
    assembly = assemble(config, overrides)
    from flipbench.pipelines.raters import compare_raters_of

    policy, seed = assembly.config.filter.policy, assembly.config.seed
    text, page = compare_raters_of(
        assembly.run, assembly.pairs, reference, policy=policy, seed=seed
    )
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
    assembly = assemble(
        config, overrides, None, quiet, workers=workers, worker=worker, together=True
    )
    from flipbench.core.processes import is_main
    from flipbench.pipelines import contamination

    benchmark = assembly.pairs
    if export:
        lines, n_refused = contamination.export_training(assembly, benchmark, *export)
        raise typer.Exit(max(say("\n".join(lines)), int(n_refused > 0)))
    if is_main():
        say("\n".join(contamination.plan_contamination(assembly, benchmark)))
    if dry_run:
        return
    trained = contamination.contaminate(assembly, benchmark)
    if not is_main():
        return
    for _, checkpoints in trained:
        for checkpoint in checkpoints:
            say(f"{checkpoint.model}  dose {checkpoint.dose}  {checkpoint.path}")
    if failures := contamination.training_failures(assembly.run, trained):
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
    assembly = assemble(config, overrides, None, quiet, workers=workers, worker=worker)
    from flipbench.pipelines import evaluation
    from flipbench.pipelines.contamination import contaminate

    benchmark = assembly.pairs
    if dry_run:
        raise typer.Exit(say("\n".join(evaluation.count_work(assembly, benchmark))))
    trained = contaminate(assembly, benchmark, replace(assembly.workers, share=None))
    show_report(evaluation.evaluate(assembly, benchmark, trained))


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
    assembly = assemble(config, overrides, limit, quiet, workers=workers)
    from flipbench.pipelines.loop import plan_all, run_all

    if dry_run:
        raise typer.Exit(say("\n".join(plan_all(assembly))))
    show_report(run_all(assembly))


def show_report(evaluated: Evaluated) -> None:
    """Print the table of gaps and where the page lies; a worker has neither."""
    if page := evaluated.page:
        say((page.parent / "gap.md").read_text() + f"\n{page}")
    finish(evaluated.reports, quiet=page is None)
