"""The command line: ``flipbench --help``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flipbench.errors import ConfigError, DataError, FlipbenchError

app = typer.Typer(
    help="""Answer-flipped benchmarks, controlled contamination, contamination detectors.

    Start with `flipbench demo`: everything on a laptop, in minutes, without weights, key or GPU.
    Then copy a file of configs/, point it at your benchmark, and `flipbench run` it.

    A run directory holds all results. The same command again continues where it stopped.
    Exit status: 0 done, 1 some items failed, 2 wrong use.""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file, see configs/")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="e.g. seed=1 contaminate.epochs=2"),
]
Limit = Annotated[int | None, typer.Option(min=1, help="take the first N items only")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="count the work, do nothing")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress bars")]


def main() -> None:
    """Run the command line; every flipbench error is one message and exit status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("httpx", "transformers", "datasets", "accelerate"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        app()
    except FlipbenchError as error:
        print(f"flipbench: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer's status for an interrupt
            raise
        print("flipbench: stopped; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="run directory")] = Path("runs/demo"),
    small: Annotated[
        bool, typer.Option("--small", help="a tenth of the grid, for a quick look")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole loop on the embedded world and open a page with the result."""
    from flipbench.demo import run_demo

    raise typer.Exit(run_demo(out, small=small, progress=not quiet))


@app.command()
def generate(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Make an answer-flipped twin: new answer, caption, redrawn image."""
    from flipbench.experiment import make_candidates, read_benchmark

    experiment = _open(config, overrides, limit, quiet)
    if dry_run:
        n_items = len(read_benchmark(experiment).items)
        raise typer.Exit(_say(f"would flip, caption and edit {n_items} items"))
    _finish(make_candidates(experiment)[1])


@app.command("filter")
def filter_(
    config: ConfigPath, overrides: Overrides = None, limit: Limit = None, quiet: Quiet = False
) -> None:
    """Judge the edited pairs and keep the valid ones."""
    from flipbench.experiment import make_candidates, make_paired_benchmark

    experiment = _open(config, overrides, limit, quiet)
    candidates, made = make_candidates(experiment)
    benchmark, judged = make_paired_benchmark(experiment, candidates)
    _say("  ".join(f"{stage} {n}" for stage, n in benchmark.funnel.items()))
    _finish([*made, *judged])


@app.command()
def contaminate(
    config: ConfigPath, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False
) -> None:
    """Train checkpoints of known contamination, one for each epoch, each with its card."""
    from flipbench.experiment import make_checkpoints, plans_for
    from flipbench.paired import PairedBenchmark

    experiment = _open(config, overrides, None, quiet)
    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    for plan in plans_for(experiment, benchmark):
        steps = -(-len(plan.item_ids) * plan.copies // plan.settings["batch_size"]) * plan.epochs
        _say(
            f"{plan.id[:8]}  {plan.model}  {plan.strategy}  {len(plan.item_ids)} items x"
            f" {plan.copies} copies x {plan.epochs} epochs = {steps} steps"
        )
    if not dry_run:
        for _, checkpoints in make_checkpoints(experiment, benchmark):
            for checkpoint in checkpoints:
                _say(f"{checkpoint.model}  dose {checkpoint.dose}  {checkpoint.path}")


@app.command()
def evaluate(
    config: ConfigPath, overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False
) -> None:
    """Put every detector's questions to every model, and write the report."""
    from flipbench.experiment import (
        count_work,
        make_checkpoints,
        make_report,
        make_scores,
        subjects_of,
    )
    from flipbench.paired import PairedBenchmark

    experiment = _open(config, overrides, None, quiet)
    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    if dry_run:
        work = count_work(experiment, benchmark)
        raise typer.Exit(_say("\n".join(f"{n:>9,}  {what}" for what, n in work.items())))
    subjects = subjects_of(experiment, make_checkpoints(experiment, benchmark))
    scores, reports = make_scores(experiment, benchmark, subjects)
    page = make_report(experiment, benchmark, subjects, scores)
    _say((page.parent / "gap.md").read_text() + f"\n{page}")
    _finish(reports)


@app.command()
def run(
    config: ConfigPath, overrides: Overrides = None, limit: Limit = None, quiet: Quiet = False
) -> None:
    """Do all stages: generate, filter, contaminate, evaluate, report."""
    from flipbench.experiment import run_all

    page, reports = run_all(_open(config, overrides, limit, quiet))
    _say((page.parent / "gap.md").read_text() + f"\n{page}")
    _finish(reports)


@app.command("import")
def import_(
    config: ConfigPath, overrides: Overrides = None, limit: Limit = None, quiet: Quiet = False
) -> None:
    """Read the configured benchmark and name every row that is odd or cannot be used."""
    from flipbench.experiment import read_benchmark

    benchmark = read_benchmark(_open(config, overrides, limit, quiet))
    _say(benchmark.summary())
    raise typer.Exit(1 if any(problem.fatal for problem in benchmark.problems) else 0)


@app.command()
def export(
    config: ConfigPath,
    out: Annotated[Path, typer.Argument(help="folder to write")],
    overrides: Overrides = None,
    form: Annotated[str, typer.Option("--format", help="jsonl or parquet")] = "jsonl",
) -> None:
    """Write the paired benchmark of a run, original and perturbed, for other tools."""
    from flipbench.benchmarks import write_jsonl, write_parquet
    from flipbench.paired import PairedBenchmark

    experiment = _open(config, overrides, None, True)
    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    if form not in ("jsonl", "parquet"):
        raise DataError(f"--format {form}: choose jsonl or parquet")
    for side, items in (("original", benchmark.originals), ("perturbed", benchmark.perturbed)):
        if form == "jsonl":
            write_jsonl(items, benchmark.images, out / side)
        else:
            write_parquet(items, benchmark.images, out / f"{side}.parquet")
    _say(f"{len(benchmark.pairs)} pairs in {out}")


@app.command()
def show(
    config: ConfigPath,
    out: Annotated[Path, typer.Argument(help="picture to write, e.g. pairs.png")],
    overrides: Overrides = None,
    pairs: Annotated[int, typer.Option(min=1, help="how many pairs")] = 6,
) -> None:
    """Draw some pairs of a run, original beside perturbed, into one picture."""
    from flipbench.contact_sheet import contact_sheet
    from flipbench.paired import PairedBenchmark

    experiment = _open(config, overrides, None, True)
    contact_sheet(PairedBenchmark.load(experiment.benchmark_folder), out, pairs)
    _say(str(out))


@app.command()
def detectors() -> None:
    """List the detectors: paper, access they need, and how they differ from the paper."""
    from flipbench.evaluate.detectors import DETECTORS

    for name, detector in DETECTORS.items():
        about = detector.about
        clean = "needs a clean model" if about.needs_clean_model else "needs no clean model"
        _say(f"{name}\n  {about.paper}\n  {about.variant}")
        _say(f"  contaminated: {about.direction}; needs {', '.join(sorted(about.needs))}; {clean}")
        _say(f"  differs from the paper: {about.deviates_from_paper}\n")


@app.command()
def power(
    gap: Annotated[float, typer.Option(help="expected gap in points, e.g. -5")],
    changed: Annotated[float, typer.Option(help="items right in one version only, in percent")],
    pairs: Annotated[int | None, typer.Option(min=1, help="power of a benchmark this size")] = None,
    alpha: Annotated[float, typer.Option(help="level of the one-sided exact test")] = 0.05,
) -> None:
    """Say how many pairs the McNemar test needs to see a gap, or how often it would see it."""
    from flipbench.evaluate.power import Design, pairs_needed
    from flipbench.evaluate.power import power as power_of

    try:
        design = Design(gap=gap / 100, discordance=changed / 100, alpha=alpha)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if pairs is not None:
        raise typer.Exit(_say(f"{pairs} pairs: power {power_of(design, pairs):.3f}"))
    for wanted in (0.8, 0.9, 0.95):
        needed = pairs_needed(design, wanted)
        _say(f"power {wanted:.2f}: {'out of reach' if needed is None else f'{needed:,} pairs'}")


@app.command()
def doctor(
    checkpoint: Annotated[Path | None, typer.Argument(help="a checkpoint folder")] = None,
) -> None:
    """Show the environment; of a checkpoint, whether it was contaminated on purpose."""
    import json

    from flipbench.models.huggingface import check_card
    from flipbench.run import environment

    if checkpoint is None:
        raise typer.Exit(_say(json.dumps(environment(), indent=2)))
    if not checkpoint.is_dir():
        raise DataError(f"{checkpoint}: no such folder")
    card = check_card(checkpoint)
    if not card:
        raise typer.Exit(_say(f"{checkpoint}: no contamination card; that does not prove it clean"))
    _say(
        f"{checkpoint}: CONTAMINATED on purpose with {len(card['doses'])} items of"
        f" {card['benchmark']}, dose {card['dose']} ({card['strategy']}, from {card['parent']})"
    )


def _open(config: Path, overrides: list[str] | None, limit: int | None, quiet: bool):  # type: ignore[no-untyped-def]
    from flipbench.config import load_config
    from flipbench.experiment import Experiment

    command = "flipbench " + " ".join(sys.argv[1:])
    loaded = load_config(config, overrides or [])
    return Experiment.open(loaded, limit=limit, progress=not quiet, command=command)


def _say(text: str) -> int:
    print(text)
    return 0


def _finish(reports: Sequence[object]) -> None:
    """Say what each stage did; exit with 1 where something failed."""
    failed = 0
    for report in reports:
        print(report, file=sys.stderr)
        failed += getattr(report, "n_failed", 0)
    if failed:
        print(f"{failed} failed; the same command tries them again", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
