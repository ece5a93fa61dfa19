"""The loop: generate, filter, contaminate, evaluate; all of it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipbench.commands import (
    STAGES,
    Again,
    ConfigPath,
    DryRun,
    Kept,
    Limit,
    Overrides,
    Quiet,
    Slurm,
    Trust,
    Worker,
    Workers,
    app,
    assemble,
    command_line,
    finish,
    say,
    say_error,
    say_next,
)
from flipbench.commands.demo import say_gaps
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.api import EvaluationResult


@app.command(rich_help_panel=STAGES)
def generate(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    slurm: Slurm = False,
    worker: Worker = None,
    trust: Trust = False,
) -> None:
    """Make perturbed candidates: new answer, caption, redrawn image."""
    assembly = assemble(
        config,
        overrides,
        limit,
        quiet,
        workers=workers,
        worker=worker,
        slurm=slurm,
        store=not dry_run,
        trust=trust,
    )
    import flipbench as fb

    if dry_run:
        raise typer.Exit(say("\n".join(fb.dry_run(assembly, "generate"))))
    result = fb.generate(assembly)
    again = Again(config, overrides, limit)
    if worker is None:
        say(str(result))
    if result.found is not None:
        raise typer.Exit(say_next(again.then(assembly.config)))
    then = {again("filter"): "judges keep the valid pairs"}
    finish(result.reports, quiet=worker is not None, then=then)


@app.command("filter", rich_help_panel=STAGES)
def filter_(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    kept: Kept = None,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Judge the edited pairs and keep the valid ones, or those of a list."""
    if dry_run and kept:
        raise ConfigError(
            "--kept judges nothing, so --dry-run has nothing to count; drop one of the two"
        )
    assembly = assemble(config, overrides, limit, quiet, store=not dry_run, trust=trust)
    import flipbench as fb

    if dry_run:
        raise typer.Exit(say("\n".join(fb.dry_run(assembly, "filter"))))
    result = fb.filter(assembly, kept=kept)
    say("  ".join(f"{stage} {n}" for stage, n in result.pairs.funnel.items()))
    for rater, spent in result.spent.items():
        say(f"{rater}: {spent}")
    say(str(result))
    then = Again(config, overrides, limit).then(assembly.config) if result.pairs.pairs else {}
    if n := result.n_doubtful:
        doubtful = command_line("review", result.run, "--doubtful")
        then = {doubtful: f"people judge the {n} doubtful pairs"} | then
    finish(result.reports, then=then)


@app.command(rich_help_panel=STAGES)
def agreement(
    config: ConfigPath,
    reference: Annotated[str, typer.Argument(help="a rater's name, people, or policy")] = "people",
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Compare the raters of edited pairs with one of them: kappa, precision, recall."""
    if "=" in reference:  # KEY=VALUE where the rater's name was left out
        reference, overrides = "people", [reference, *(overrides or [])]
    assembly = assemble(config, overrides, trust=trust)
    from flipbench.api.stages.raters import compare_raters_of

    text, page = compare_raters_of(assembly, reference)
    say(f"{text}\n{page}")
    say_next(Again(config, overrides).then(assembly.config))


@app.command(rich_help_panel=STAGES)
def contaminate(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    slurm: Slurm = False,
    worker: Worker = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="FORM FOLDER",
            help="write the training data for another trainer (llava or llamafactory), and train"
            " nothing",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train checkpoints of known contamination, one for each epoch, each with its card.

    One model on several GPUs: accelerate launch --config_file configs/accelerate/fsdp.yaml -m
    flipbench.cli contaminate CONFIG.
    """
    assembly = assemble(
        config,
        overrides,
        limit,
        quiet,
        workers=workers,
        worker=worker,
        slurm=slurm,
        together=True,
        store=not dry_run,
        trust=trust,
    )
    import flipbench as fb
    from flipbench.core.processes import is_main

    if not (assembly.config.models and assembly.config.contaminate.strategies):
        raise ConfigError(
            "nothing to train: contaminate.strategies or models is empty; configs/contaminate/ has"
            " examples"
        )
    if export:
        from flipbench.api.stages.contamination import export_training

        lines, n_refused = export_training(assembly, *export)
        raise typer.Exit(max(say("\n".join(lines)), int(n_refused > 0)))
    if is_main():
        say("\n".join(fb.dry_run(assembly, "contaminate")))
    if dry_run:
        return
    result = fb.contaminate(assembly)
    if not is_main():
        return
    if worker is None:
        for _, checkpoints in result.trained:
            for checkpoint in checkpoints:
                say(f"{checkpoint.model}  dose {checkpoint.dose}  {checkpoint.path}")
        say(str(result))
    if n := len(result.failures):
        say_error(f"{n} plans failed; see failures/ in the run directory")
        raise typer.Exit(1)
    again = Again(config, overrides, limit)
    if worker is None and assembly.benchmark_folder.exists():
        say_next({again("evaluate"): "ask all models, and write the report"})
    elif worker is None:
        say_next({again("run"): "make the pairs, ask all models, and write the report"})


@app.command(rich_help_panel=STAGES)
def evaluate(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    slurm: Slurm = False,
    worker: Worker = None,
    trust: Trust = False,
) -> None:
    """Ask every model what the detectors need, score the answers, and write the report."""
    assembly = assemble(
        config,
        overrides,
        limit,
        quiet,
        workers=workers,
        worker=worker,
        slurm=slurm,
        store=not dry_run,
        trust=trust,
    )
    import flipbench as fb

    if not assembly.config.models and assembly.benchmark_folder.exists():
        raise ConfigError("nobody to ask: name a model, e.g. models.mine.path=FOLDER")
    if dry_run:
        raise typer.Exit(say("\n".join(fb.dry_run(assembly, "evaluate"))))
    show_report(fb.evaluate(assembly), Again(config, overrides))


@app.command(rich_help_panel=STAGES)
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    slurm: Slurm = False,
    trust: Trust = False,
) -> None:
    """Do all stages: generate, filter, contaminate, evaluate, report."""
    from flipbench.config.loading import find_config, read_mapping

    if "phases" in read_mapping(find_config(config)):
        study = shlex.join(["python", "-m", "studies.population", str(config), *(overrides or ())])
        raise ConfigError(f"{config}: a population study; in a checkout, run `{study}`")
    assembly = assemble(
        config,
        overrides,
        limit,
        quiet,
        workers=workers,
        slurm=slurm,
        store=not dry_run,
        trust=trust,
    )
    import flipbench as fb

    if dry_run:
        raise typer.Exit(say("\n".join(fb.dry_run(assembly))))
    show_report(fb.run(assembly), Again(config, overrides))


def show_report(result: EvaluationResult, again: Again) -> None:
    """Print the gaps, where the page lies, and what comes next; a worker has none of it.

    On a terminal that is a line for each model, and in a file the whole table.
    """
    if page := result.page:
        if sys.stdout.isatty():
            say_gaps(result)
        else:
            say((page.parent / "gap.md").read_text())
        say(str(page))
    then = {again("export", "OUT", "--format", "vlmeval"): "the pairs for another kit"}
    finish(result.reports, quiet=page is None, then=then)
