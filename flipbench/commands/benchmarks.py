"""Benchmarks in and out, and a look at them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipbench.commands import (
    BENCHMARKS,
    Again,
    ConfigPath,
    DryRun,
    Kept,
    Limit,
    Overrides,
    Quiet,
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
from flipbench.core.errors import ConfigError, LicenceError
from flipbench.core.files import remove_partials

if TYPE_CHECKING:
    from flipbench.benchmarks import Problem


@app.command(rich_help_panel=BENCHMARKS)
def init(
    benchmark: Annotated[
        str,
        typer.Argument(help="a .tsv, .jsonl, .json or .parquet file, or a dataset's id on the Hub"),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the configuration to write; beside the file if not given")
    ] = None,
) -> None:
    """Write a commented configuration for a benchmark of your own, and say what to run next."""
    from flipbench.benchmarks.guess import guess_spec
    from flipbench.config.starter import starter

    guess = guess_spec(benchmark)
    name = Path(benchmark).stem
    beside = Path(benchmark).parent if Path(benchmark).exists() else Path()
    out = out or beside / f"{name}.yaml"
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(starter(name, guess.spec, guess.notes))
    except FileExistsError as error:
        raise ConfigError(f"{out} exists already; choose another name with --out") from error
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from error
    say(f"{out}: {'; '.join(guess.notes)}")
    again = Again(out)
    say_next(
        {
            again("import"): "reads it and reports every rejected row",
            again("generate", "--dry-run"): "what the pairs would take and cost",
            again("run"): "everything, to the report",
        }
    )


@app.command("import", rich_help_panel=BENCHMARKS)
def import_(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Read the configured benchmark and name every row that is odd or cannot be used.

    The full list is written to import/problems.csv in the run directory.
    """
    assembly = assemble(config, overrides, limit, quiet, trust=trust)
    from flipbench.benchmarks import PairsSpec, load_pairs

    spec = assembly.config.benchmark
    if isinstance(spec, PairsSpec):
        found = load_pairs(spec, assembly.run.images)
        summary, unpaired, failed = found.summary(), found.unpaired, bool(found.unpaired)
        problems = [problem for side in found.sides for problem in side.problems]
    else:
        benchmark, unpaired = assembly.benchmark, []
        summary, problems = benchmark.summary(), benchmark.problems
        failed = any(problem.fatal for problem in problems)
    say(summary)
    path = assembly.run.path / "import" / "problems.csv"
    _write_problems(path, problems, unpaired)
    if problems or unpaired:
        say(f"all {len(problems) + len(unpaired)}: {path}")
    again = Again(config, overrides, limit)
    if isinstance(spec, PairsSpec):
        say_next(again.then(assembly.config))
    elif benchmark.items:
        say_next({again("generate", "--dry-run"): "what the pairs would take and cost"})
    raise typer.Exit(1 if failed else 0)


def _write_problems(path: Path, problems: Sequence[Problem], unpaired: Sequence[str]) -> None:
    """Write one line for each problem of a row, then for each item without a partner."""
    from flipbench.core.files import write_atomically
    from flipbench.reporting.writers import rows_csv

    lines: list[Sequence[object]] = [
        (
            "" if problem.row is None else problem.row,
            problem.name,
            problem.where,
            "refused" if problem.fatal else "odd",
            problem.kind,
            problem.what,
            problem.remedy,
        )
        for problem in problems
    ]
    lines += [("", "", "", "refused", "unpaired", line, "") for line in unpaired]
    headers = ("row", "name", "where", "result", "kind", "problem", "remedy")
    write_atomically(path, rows_csv(headers, lines))


@app.command(rich_help_panel=BENCHMARKS)
def audit(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    workers: Workers = 1,
    worker: Worker = None,
    trust: Trust = False,
) -> None:
    """Check a benchmark's hygiene, its pictures against a corpus, and models beside others.

    With --workers, the corpus is embedded by several processes, one for each GPU.
    """
    assembly = assemble(
        config,
        overrides,
        limit,
        quiet,
        workers=workers,
        worker=worker,
        store=not dry_run,
        trust=trust,
    )
    if dry_run:
        from flipbench.api.stages.audit import plan_audit

        raise typer.Exit(say("\n".join(plan_audit(assembly))))
    if worker:
        from flipbench.api.stages.audit_corpus import embed_share

        if corpus := assembly.config.audit.corpus:
            embed_share(assembly, corpus)
        raise typer.Exit()
    from flipbench.api.stages.audit import audit_benchmark

    audited = audit_benchmark(assembly)
    say(f"{audited.headline}\n{audited.page}")
    again = Again(config, overrides)
    if assembly.config.audit.corpus:
        then = {again("adjudicate"): "people say how flagged pictures relate"}
    else:
        then = {again("generate", "--dry-run"): "what the pairs would take and cost"}
    finish(audited.report.reports, then=then)


@app.command(rich_help_panel=BENCHMARKS)
def export(
    config: ConfigPath,
    out: Annotated[Path, typer.Argument(help="folder to write")],
    overrides: Overrides = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", help="jsonl, parquet, vlmeval, lmms-eval, inspect, huggingface or recipe"
        ),
    ] = "jsonl",
    share_anyway: Annotated[
        str, typer.Option(help="the name of a benchmark whose licence forbids edited pictures")
    ] = "",
    licence: Annotated[
        str, typer.Option(help="of the export, where its items state none or several (huggingface)")
    ] = "",
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="also eval.yaml, for the Hub (huggingface)")
    ] = False,
    trust: Trust = False,
) -> None:
    """Write the paired benchmark of a run, original and perturbed, for other tools.

    --format huggingface is for publishing: a data card, Croissant metadata, and a licence, which
    must be known. A source whose licence forbids derivatives gives a recipe without pictures, from
    which `flipbench rebuild` draws them again; --share-anyway NAME overrides that.
    """
    assembly = assemble(config, overrides, store=False, trust=trust)
    from flipbench.export import FORMATS, forbids_derivatives, write_huggingface, write_recipe

    benchmark = assembly.kept_pairs
    if form not in (*FORMATS, "recipe"):
        known = ", ".join((*FORMATS, "recipe"))
        raise ConfigError(f"--format {form}: no such format; choose one of {known}")
    if (licence or leaderboard) and form != "huggingface":
        raise ConfigError("--licence and --leaderboard are for --format huggingface")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file; name a folder to write into")
    if share_anyway and share_anyway != benchmark.name:
        raise LicenceError(f"--share-anyway {share_anyway}: this benchmark is {benchmark.name!r}")
    found = benchmark.exchangeable is False  # nobody edited these pictures
    barred = sorted({i.licence for i in benchmark.originals if forbids_derivatives(i.licence)})
    if barred and form != "recipe" and not share_anyway and not found:
        say(
            f"{benchmark.name} is {', '.join(barred)}, which forbids to share edited pictures:"
            f" writing a recipe instead (--share-anyway {benchmark.name!r} overrides)"
        )
        form = "recipe"
    if form == "recipe":
        written = write_recipe(benchmark, assembly.run, out)
    elif form == "lmms-eval":
        from flipbench.export.lmms_eval import write_lmms_eval
        from flipbench.models.vlm.checkpoints import resolve_path

        named = {name: model.path for name, model in assembly.config.models.items() if model.path}
        paths = {name: Path(resolve_path(path)) for name, path in named.items()}
        written = write_lmms_eval(benchmark, out, paths)
    elif form == "huggingface":
        written = write_huggingface(benchmark, out, licence, leaderboard=leaderboard)
        if not any(path.name == "croissant.json" for path in written):
            say("croissant.json is left out: pip install 'flipbench[publish]' for it")
    else:
        written = FORMATS[form](benchmark, out)
    for folder in {path.parent for path in written}:
        remove_partials(folder)  # it may be published
    say(f"{len(benchmark.pairs)} pairs:\n" + "\n".join(f"  {path}" for path in written))
    if form == "recipe":
        say_next(
            {
                command_line(
                    "rebuild", written[0].parent
                ): "draws the pictures again, for whoever has it"
            }
        )
    else:
        compared = "flipbench gap ORIGINAL PERTURBED"
        say_next({compared: "compares a model's predictions on both, once another kit has them"})


@app.command(rich_help_panel=BENCHMARKS)
def rebuild(
    recipe: Annotated[Path, typer.Argument(help="a folder that export --format recipe wrote")],
    overrides: Overrides = None,
    kept: Kept = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Draw the pictures of a recipe again, and say how many are equal to the published ones.

    With --kept, only those of a list are drawn, and they have to be equal to the list's. With
    run=FOLDER, everything is written there, and the recipe stays as it is.
    """
    if not all((recipe / name).exists() for name in ("config.yaml", "expected.jsonl")):
        raise ConfigError(
            f"{recipe}: no recipe; name the folder that 'flipbench export --format recipe' wrote"
        )
    changes = [f"run={recipe}", *(overrides or [])]
    if dry_run:  # what the recipe has is not copied into another run
        changes = [change for change in changes[1:] if not change.startswith("run=")] + changes[:1]
    assembly = assemble(recipe / "config.yaml", changes, quiet=quiet, worker="0/1", trust=trust)
    from flipbench.api.stages.filtering import judge, plan_pairs, rebuild_kept
    from flipbench.api.stages.generation import generate
    from flipbench.export.recipe import compare_with_recipe, copy_recipe

    if dry_run:
        raise typer.Exit(say("\n".join(plan_pairs(assembly))))
    if assembly.run.path.resolve() != recipe.resolve():
        copy_recipe(recipe, assembly.run)
        assembly.store_config()
    if kept:
        benchmark, reports = rebuild_kept(assembly, kept)
    else:
        candidates, made = generate(assembly)
        say(str(compare_with_recipe(recipe, [c.edit for c in candidates if c.edit])))
        benchmark, judged = judge(assembly, candidates)
        reports = [*made, *judged]
    say(f"{len(benchmark.pairs)} pairs in {assembly.benchmark_folder}")
    drawn = command_line("show", assembly.run.path / "config.yaml", "pairs.png")
    finish(reports, then={drawn: "some pairs beside each other"})


@app.command(rich_help_panel=BENCHMARKS)
def show(
    config: ConfigPath,
    out: Annotated[Path, typer.Argument(help="picture to write, e.g. pairs.png")],
    overrides: Overrides = None,
    pairs: Annotated[int, typer.Option(min=1, help="how many pairs or edits")] = 6,
    edits: Annotated[
        bool,
        typer.Option("--edits", help="edits, kept or not, with control, caption and verdicts"),
    ] = False,
    trust: Trust = False,
) -> None:
    """Draw some pairs of a run, original beside perturbed, into one picture.

    These are the kept pairs; before flipbench filter has run, all edited ones.
    """
    assembly = assemble(config, overrides, store=False, trust=trust)
    from flipbench.core.paired import UNJUDGED, PairedBenchmark
    from flipbench.core.records import Verdict
    from flipbench.filters.pipeline import edited_in, filtered_in
    from flipbench.reporting.contact_sheet import contact_sheet, edit_sheet

    run = assembly.run
    if edits:
        edit_sheet(filtered_in(run) or edited_in(run), run.read(Verdict), run.images, out, pairs)
    elif not assembly.benchmark_folder.exists() and (edited := edited_in(run)):
        redrawn = [candidate.pair(UNJUDGED) for candidate in edited if candidate.is_redrawn]
        if n_same := len(edited) - len(redrawn):
            left_out = f"{n_same} of {len(edited)} edited images, the originals byte for byte"
            say_error(f"not shown: {left_out}; --edits shows them")
        contact_sheet(PairedBenchmark("", tuple(redrawn), run.images, {}), out, pairs)
    else:
        contact_sheet(assembly.pairs, out, pairs)
    say(str(out))
    say_next({command_line("review", assembly.run.path): "people judge the pairs in the browser"})
