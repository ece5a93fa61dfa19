"""The commands that contaminate models, and those that measure contamination."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import flipbench as fb
from flipbench.commands.app import CONTAMINATE, MEASURE, READING, SHARED, Invocation, command
from flipbench.commands.printing import (
    command_line,
    finish,
    say,
    say_aligned,
    say_error,
    say_markdown,
    say_next,
)
from flipbench.commands.whole import show_report
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.api.detection import DetectionResult
    from flipbench.api.listing import DetectorTable, PowerResult
    from flipbench.api.predictions import GapResult
    from flipbench.api.published import CardResult, DoctorResult
    from flipbench.api.stages.results import ContaminationResult, ReasoningResult
    from flipbench.api.validation import ValidationResult


@command(fb.Experiment.contaminate, CONTAMINATE, takes=SHARED, announces=True)
def show_checkpoints(result: ContaminationResult, invocation: Invocation) -> int:
    """Print the checkpoints, and what diverged."""
    for _, checkpoints in result.trained:
        for checkpoint in checkpoints:
            say(f"{checkpoint.model}  dose {checkpoint.dose}  {checkpoint.path}")
    say(result)
    if n := result.n_failed:
        say_error(f"{n} plans failed; see failures/ in the run directory")
        return 1
    assert invocation.experiment is not None
    if invocation.experiment.parts.benchmark_folder.exists():
        say_next({invocation.again("evaluate"): "ask all models, and write the report"})
    else:
        run = invocation.again("run")
        say_next({run: "make the pairs, ask all models, and write the report"})
    return 0


command(fb.Experiment.evaluate, MEASURE, takes=SHARED)(show_report)
command(fb.Experiment.report, MEASURE, takes=(*READING, "limit"))(show_report)


@command(fb.detect, MEASURE)
def show_detection(result: DetectionResult, invocation: Invocation) -> int:
    """Print the verdict, what speaks for or against it, and the page."""
    remarks = [*result.qualifiers, *result.notes]
    say("\n".join([str(result), *(f"- {text}" for text in remarks), str(result.page)]))
    same_command = shlex.join(["flipbench", *sys.argv[1:]])
    steps = {}
    if not invocation.typed["references"]:
        steps[f"{same_command} --reference CLEAN"] = (
            "compares with a model that cannot have seen it"
        )
    if not invocation.typed["diagnose"]:
        steps[f"{same_command} --diagnose"] = "asks about the items that fell"
    return finish(result.reports, steps)


@command(fb.gap, MEASURE)
def show_gap(
    result: GapResult,
    invocation: Invocation,
    *,
    format: str = "markdown",
) -> None:
    """Print the table.

    Parameters
    ----------
    format : str
        How to write the table: markdown, csv, latex or json.
    """
    (say_markdown if format == "markdown" else say)(result.content.text(format))


@command(fb.validate, MEASURE)
def show_validation(
    result: ValidationResult,
    invocation: Invocation,
    *,
    format: str = "markdown",
) -> None:
    """Print the tables.

    Parameters
    ----------
    format : str
        How to write the tables: markdown or csv.
    """
    if format not in ("markdown", "csv"):
        raise ConfigError(f"unknown format {format!r}: choose markdown or csv")
    if result.files:
        say("\n".join(map(str, result.files)))
        models, items = result.files
        reads = command_line("validate", models, "--items", items)
        say_next({reads: "reads these tables"})
        return
    if format == "csv":
        from flipbench.reporting.writers import frame_csv

        say(frame_csv(result.to_frame()))
        return
    say_markdown(result.markdown())
    if result.page:
        say(result.page)


@command(fb.reasoning, MEASURE)
def show_reasoning(result: ReasoningResult, invocation: Invocation) -> int:
    """Print the tables, and how people can rate the judge."""
    say_markdown(result.page.read_text())
    say(result)
    typed = invocation.typed
    if typed["judge"] is None:
        evaluate = command_line("evaluate", typed["source"], overrides=typed["overrides"])
        return finish(result.reports, {evaluate: "all detectors on these models"})
    if typed["people"] is not None:
        return finish(result.reports)
    ratings = result.page.parent / "steps-to-rate.csv"
    options = ["--judge", typed["judge"], "--out", typed["out"], "--people", ratings]
    with_ratings = command_line("reasoning", typed["source"], *options)
    return finish(
        result.reports, {with_ratings: "the judge against people, once they have filled it in"}
    )


@command(fb.detectors, MEASURE)
def show_detectors(
    result: DetectorTable, invocation: Invocation, *, markdown: bool = False
) -> None:
    """Print a line for each, or all about those that are named.

    Parameters
    ----------
    markdown : bool
        Print the table of docs/papers.md.
    """
    if markdown or invocation.typed["names"]:
        say(result.markdown() if markdown else result)
    else:
        say_aligned(result.overview())
        say_next({"flipbench detectors NAME": "says more of one"})


@command(fb.power, MEASURE)
def show_power(result: PowerResult, invocation: Invocation) -> None:
    """Print the numbers."""
    say(result)


@command(fb.card, MEASURE)
def show_card(result: CardResult, invocation: Invocation) -> None:
    """Print the verdict and the files."""
    say(result)
    say("\n".join(map(str, result.files)))
    if result.content.rates is None:
        with_rates = command_line("card", invocation.typed["run"], "--rates", "REPORT")
        say_next({with_rates: "states the error rates of a study of models of known history"})


@command(fb.doctor, MEASURE)
def show_examination(result: DoctorResult, invocation: Invocation) -> int:
    """Print what was examined."""
    (say_markdown if result.is_markdown else say)(result.text)
    return result.n_failed
