"""Detectors and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flipbench.commands import (
    MODELS,
    Again,
    ConfigPath,
    DryRun,
    Limit,
    Overrides,
    Quiet,
    Trust,
    app,
    assemble,
    command_line,
    finish,
    say,
    say_aligned,
    say_markdown,
    say_next,
)
from flipbench.core.errors import ConfigError, DataError

JudgedBy = Annotated[
    str, typer.Option(help="who judged that the perturbed images show their new answers")
]
Columns = Annotated[
    list[str] | None, typer.Option(help="a column that the files name differently, e.g. id=qid")
]
Scoring = Annotated[
    Literal["auto", "parse", "file"],
    typer.Option(
        help="auto: our parser if there are replies and right letters, else the file's own marks"
    ),
]


@app.command(rich_help_panel=MODELS)
def detectors(
    names: Annotated[
        list[str] | None, typer.Argument(help="names or import paths; all of them by default")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the table of docs/papers.md")
    ] = False,
) -> None:
    """List the detectors; with names: papers, rules, what they need and how they differ."""
    import flipbench as fb

    table = fb.detectors(names or ())
    if markdown or names:
        raise typer.Exit(say(table.markdown() if markdown else str(table)))
    say_aligned(table.overview())
    say_next({"flipbench detectors NAME": "says more of one"})


@app.command(rich_help_panel=MODELS)
def power(
    changed: Annotated[float, typer.Option(help="items right in one version only, in percent")],
    gap: Annotated[
        float | None, typer.Option(help="expected gap in points, e.g. -5; part of --changed")
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="power of a benchmark this size")] = None,
    alpha: Annotated[float, typer.Option(help="level of the one-sided exact test")] = 0.05,
) -> None:
    """Say how many pairs the McNemar test needs to see a gap, or how often it would see it.

    With --pairs and no --gap: the smallest gap that so many pairs see four times in five, if a
    clean model gets --changed percent of the items right in one version only.
    """
    import flipbench as fb

    if gap is None:
        if pairs is None:
            raise ConfigError("give --gap (pairs needed), --pairs (gap that is seen), or both")
        least = fb.detectable_gap(pairs, changed / 100, alpha=alpha)
        seen = "no gap" if least is None else f"a gap of {100 * least:.1f} points"
        raise typer.Exit(say(f"{pairs} pairs: {seen} is seen four times in five"))
    if gap >= 0:
        raise ConfigError(f"--gap {gap:g}: a fall is negative, e.g. -5")
    if not -gap <= changed <= 100:
        raise ConfigError(
            f"--changed {changed:g}: a gap of {gap:g} points needs {-gap:g} to 100 % of the items"
            " right in one version only"
        )
    design = gap / 100, changed / 100
    if pairs is not None:
        raise typer.Exit(say(f"{pairs} pairs: power {fb.power(*design, pairs, alpha):.3f}"))
    for level in (0.8, 0.9, 0.95):
        needed = fb.pairs_needed(*design, level, alpha)
        say(f"power {level:.2f}: {'out of reach' if needed is None else f'{needed:,} pairs'}")


@app.command(rich_help_panel=MODELS)
def gap(
    original: Annotated[Path, typer.Argument(help="predictions on the original items")],
    perturbed: Annotated[Path, typer.Argument(help="predictions on the perturbed items")],
    model: Annotated[str, typer.Option(help="name of the model in tables")] = "",
    benchmark: Annotated[str, typer.Option(help="name of the benchmark in tables")] = "",
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGINAL,PERTURBED",
            help="the same two files of a clean model, separated by a comma; may be repeated",
        ),
    ] = None,
    column: Columns = None,
    scoring: Scoring = "auto",
    scorer: Annotated[str, typer.Option(help="which scorer of an Inspect log")] = "",
    epoch: Annotated[int | None, typer.Option(help="which epoch of an Inspect log")] = None,
    keep: Annotated[Path | None, typer.Option(help="a file of item ids to compare")] = None,
    judged_by: JudgedBy = "",
    exchangeable: Annotated[
        bool | None,
        typer.Option(
            "--exchangeable/--found",
            help="neither version is harder by construction; or the pairs were found. By default"
            " the perturbed versions are edits",
        ),
    ] = None,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="more items will follow: evidence valid at every look"),
    ] = False,
    sign: Annotated[bool, typer.Option("--sign", help="show the paper's sign rule too")] = False,
    form: Annotated[
        str, typer.Option("--format", help="markdown, csv, latex or json")
    ] = "markdown",
) -> None:
    """Compare predictions made before, by VLMEvalKit, lmms-eval, Inspect or in a table."""
    import flipbench as fb

    result = fb.gap(
        original,
        perturbed,
        model=model,
        benchmark=benchmark,
        reference=[_two_files(pair) for pair in reference or ()],
        columns=_columns(column),
        scoring=scoring,
        scorer=scorer,
        epoch=epoch,
        keep=keep,
        judged_by=judged_by,
        exchangeable=exchangeable,
        sequential=sequential,
        sign=sign,
    )
    (say_markdown if form == "markdown" else say)(result.content.text(form))


def _two_files(pair: str) -> tuple[Path, Path]:
    """Return the two files of ``--reference``."""
    original, comma, perturbed = pair.partition(",")
    if not (original and comma and perturbed):
        raise ConfigError(
            f"--reference {pair}: give a clean model's two files, separated by a comma:"
            " --reference ORIGINAL,PERTURBED"
        )
    return Path(original), Path(perturbed)


@app.command("judge-reasoning", rich_help_panel=MODELS)
def judge_reasoning(
    cases: Annotated[Path, typer.Argument(help="JSONL: question, answer, prediction, rationale")],
    judge: Annotated[Path, typer.Option(help="a YAML file with the judge: chat or local")],
    out: Annotated[Path, typer.Option(help="folder of the replies and tables")],
    people: Annotated[
        Path | None, typer.Option(help="steps-to-rate.csv with people's ratings filled in")
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="how often to ask for a verdict")] = 3,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Judge the steps of rationales, and case discussions: how often a right answer is reasoned."""
    from flipbench.api.stages import reasoning

    config = reasoning.read_judge(judge, trust=trust)
    if dry_run:
        lines = reasoning.cost_of_judging(cases, config, limit)
        raise typer.Exit(say("\n".join(lines)))
    import flipbench as fb

    result = fb.judge_reasoning(
        cases,
        config.model_dump(mode="json"),
        out,
        people=people,
        limit=limit,
        n_attempts=attempts,
        progress=not quiet,
    )
    say_markdown(result.page.read_text())
    say(str(result))
    given = ["--judge", judge, "--out", out, "--people", out / "steps-to-rate.csv"]
    rated = command_line("judge-reasoning", cases, *given)
    then = {} if people else {rated: "the judge against people, once they have filled that in"}
    finish(result.content.reports, then=then)


@app.command(rich_help_panel=MODELS)
def hints(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Ask models with images only, with hints, with a summary, and with texts of their own."""
    assembly = assemble(config, overrides, limit, quiet, store=not dry_run, trust=trust)
    if dry_run:
        from flipbench.api.stages import reasoning

        raise typer.Exit(say("\n".join(reasoning.plan_hints(assembly))))
    import flipbench as fb

    result = fb.hint_ablation(assembly)
    say(f"{result}\n{result.page}")
    then = {Again(config, overrides, limit)("evaluate"): "all detectors on these models"}
    finish(result.content.reports, then=then)


@app.command(rich_help_panel=MODELS)
def validate(
    models: Annotated[
        Path,
        typer.Argument(
            help="a table of models: model, family, strategy, dose, files; or the folder of a"
            " population study"
        ),
    ],
    items: Annotated[
        Path | None, typer.Option(help="a long table of values: model, item, condition, correct")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write a report into this folder")] = None,
    benchmark: Annotated[str, typer.Option(help="name of the benchmark in tables")] = "",
    column: Columns = None,
    scoring: Scoring = "auto",
    form: Annotated[str, typer.Option("--format", help="markdown or csv")] = "markdown",
    example: Annotated[
        bool, typer.Option("--example", help="write two example tables into the folder MODELS")
    ] = False,
) -> None:
    """Say which detectors can be trusted, from the answers of models of known dose.

    The table of models names each model's files of predictions (or of log-probabilities), as for
    `flipbench gap`; or --items has the values of all models. Prints false alarms, power and AUROC.
    """
    import flipbench as fb

    if example:
        from flipbench.evaluate.predictions.models_table import write_example

        first, second = write_example(models)
        say(f"{first}\n{second}")
        reads = command_line("validate", first, "--items", second)
        raise typer.Exit(say_next({reads: "reads these tables"}))
    if form not in ("markdown", "csv"):
        raise ConfigError(f"unknown format {form!r}: choose markdown or csv")
    if models.is_dir():
        raise ConfigError(
            f"{models}: a folder, not a table of models; for a population study's tables, run"
            f" `python -m studies.population.page {models}` in a checkout"
        )
    result = fb.validate(
        models,
        items,
        benchmark=benchmark,
        columns=_columns(column),
        scoring=scoring,
        out=out,
    )
    if form == "csv":
        from flipbench.reporting.writers import frame_csv

        say(frame_csv(result.to_frame()))
    else:
        say_markdown(result.markdown())
        if result.page:
            say(str(result.page))


@app.command(rich_help_panel=MODELS)
def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...", help="a checkpoint folder, or CSV files of printed results"
        ),
    ] = None,
) -> None:
    """Show the environment; of a checkpoint, its contamination card; of a table, its errors.

    A CSV of published results is examined for percentages that no count gives, gaps that are not
    the difference of their figures, and figures that cannot be of the same items; several files are
    also compared with each other. Exit status 1 where something cannot be true.
    """
    tables = [path for path in paths or () if path.suffix == ".csv"]
    if tables and len(tables) == len(paths or ()):
        from flipbench.evaluate.published.doctor import examination

        text, is_wrong = examination(tables)
        say(text)
        raise typer.Exit(1 if is_wrong else 0)
    if len(paths or ()) > 1:
        raise ConfigError("give one checkpoint folder, or CSV files only")
    if not paths:
        import json

        from flipbench.core.run import environment

        raise typer.Exit(say(json.dumps(environment(), indent=2)))
    if not paths[0].is_dir():
        raise DataError(
            f"{paths[0]}: no such folder; give a checkpoint's, or CSV files of printed results"
        )
    from flipbench.contaminate.checks.card import history_of

    say(f"{paths[0]}: {history_of(paths[0])}")


@app.command(rich_help_panel=MODELS)
def claims(
    path: Annotated[Path, typer.Argument(help="a claims file, e.g. claims.yaml")],
    out: Annotated[
        Path | None, typer.Option(help="folder for the table as Markdown and CSV")
    ] = None,
) -> None:
    """Check a text's claims against the result files they rest on.

    Exit status 1 unless every claim has the outcome that the file names ("supported" by default).
    Paths are relative to the folder of the claims file.
    """
    from flipbench.evaluate.published.claims import check_claims, claims_table, read_claims
    from flipbench.reporting import writers

    checked = check_claims(read_claims(path), path.parent)
    table = claims_table(checked)
    say_markdown(writers.markdown(table))
    if out is not None:
        say(str(writers.write_tables([table], out, "claims.md", "Claims and their evidence")))
    raise typer.Exit(0 if all(one.as_known for one in checked) else 1)


def _columns(given: list[str] | None) -> dict[str, str]:
    columns = dict(one.split("=", 1) for one in given or () if "=" in one)
    if len(columns) != len(given or ()):
        raise ConfigError("--column: write NAME=COLUMN, e.g. id=qid")
    return columns
