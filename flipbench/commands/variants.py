"""The commands that make a variant of a benchmark, and look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flipbench as fb
from flipbench.commands.app import READING, SHARED, VARIANT, WORKING, Invocation, command
from flipbench.commands.printing import command_line, finish, say, say_error, say_markdown, say_next

if TYPE_CHECKING:
    from flipbench.api.benchmarks import InitResult, RebuildResult
    from flipbench.api.people import ReviewResult
    from flipbench.api.stages.results import (
        AuditResult,
        ExportResult,
        FilterResult,
        GenerationResult,
        ImportResult,
        PictureResult,
    )

_PLAN = "what the pairs would take and cost"
_N_SHOWN = 20


@command(fb.init, VARIANT)
def show_init(result: InitResult, invocation: Invocation) -> None:
    """Print what was seen, and what to run next."""
    say(result)
    say_next(
        {
            command_line("import", result.path): "reads it and reports every rejected row",
            command_line("generate", result.path, "--dry-run"): _PLAN,
            command_line("run", result.path): "everything, to the report",
        }
    )


@command(fb.Experiment.read_benchmark, VARIANT, "import")
def show_import(result: ImportResult, invocation: Invocation) -> int:
    """Print the counts, the first problems, and where all of them are."""
    say(result)
    assert invocation.experiment is not None
    if invocation.experiment.parts.has_pairs:
        say_next(invocation.with_pairs())
    elif result.items:
        say_next({invocation.again("generate", "--dry-run"): _PLAN})
    return 1 if result.n_failed else 0


@command(fb.Experiment.audit, VARIANT, takes=(*WORKING, "n_workers"))
def show_audit(result: AuditResult, invocation: Invocation) -> int:
    """Print the headline and the page."""
    say(result)
    assert invocation.experiment is not None
    if invocation.experiment.parts.config.audit.corpus:
        label = command_line("review", result.run, "--flagged")
        return finish(result.reports, {label: "people say how flagged pictures relate"})
    return finish(result.reports, {invocation.again("generate", "--dry-run", limit=False): _PLAN})


@command(fb.Experiment.generate, VARIANT, takes=SHARED)
def show_generation(result: GenerationResult, invocation: Invocation) -> int:
    """Print how many items were edited."""
    say(result)
    if result.preview is not None:
        say_next({invocation.again("generate", "--dry-run"): _PLAN})
        return 0
    if result.found is not None:
        say_next(invocation.with_pairs())
        return 0
    return finish(result.reports, {invocation.again("filter"): "judges keep the valid pairs"})


@command(fb.Experiment.filter, VARIANT)
def show_filter(result: FilterResult, invocation: Invocation) -> int:
    """Print the funnel, the costs, and who is to judge the rest."""
    say("  ".join(f"{stage} {n}" for stage, n in result.pairs.funnel.items()))
    for rater, cost in result.spent.items():
        say(f"{rater}: {cost}")
    say(result)
    steps = invocation.with_pairs() if result.pairs.pairs else {}
    if n := result.n_doubtful:
        doubtful = command_line("review", result.run, "--doubtful")
        steps = {doubtful: f"people judge the {n} doubtful pairs"} | steps
    return finish(result.reports, steps)


@command(fb.review, VARIANT)
def show_review(result: ReviewResult, invocation: Invocation) -> int:
    """Print what came of it, and what people's verdicts are for."""
    run, flagged = result.run, ["--flagged"] if invocation.typed["flagged"] else []
    if result.what == "agreement":
        say_markdown(result.text)
        say(result.file)
        if result.experiment is not None:
            typed = invocation.typed["run"]
            config = typed if typed.suffix in (".yaml", ".yml") else run / "config.yaml"
            say_next(Invocation({"config": config}, result.experiment).with_pairs())
        return 0
    if result.text:
        say(result.text)
    for problem in result.problems[:_N_SHOWN]:
        say_error(f"left out: {problem}")
    if len(result.problems) > _N_SHOWN:
        say_error(f"... and {len(result.problems) - _N_SHOWN} more")
    if result.what == "export":  # Label Studio exports a new file
        file = result.file
        filled = "EXPORTED.json" if file and file.suffix == ".json" else file
        back = command_line("review", run, *flagged, "--import", filled)
        say_next({back: "reads the verdicts that people filled in"})
    elif flagged:
        agreement = command_line("review", run, *flagged, "--agreement")
        say_next({agreement: "labels, kappa and tables"})
    elif result.what != "nothing":
        filter_again = command_line("filter", run / "config.yaml")
        say_next({filter_again: "keeps the pairs by these verdicts"})
    return 1 if result.problems else 0


@command(fb.Experiment.show, VARIANT, takes=READING)
def show_picture(result: PictureResult, invocation: Invocation) -> None:
    """Print where the picture is."""
    if result.left_out:
        say_error(f"not shown: {result.left_out}; --edits shows them")
    say(result)
    assert invocation.experiment is not None
    review = command_line("review", invocation.experiment.parts.run.path)
    say_next({review: "people judge the pairs in the browser"})


@command(fb.Experiment.export, VARIANT, takes=READING)
def show_export(result: ExportResult, invocation: Invocation) -> int:
    """Print the files."""
    for note in result.notes:
        say(note)
    say(result)
    if result.form == "recipe":
        rebuild = command_line("rebuild", result.files[0].parent)
        say_next({rebuild: "draws the pictures again, for whoever has it"})
    elif result.files:
        gap = "flipbench gap ORIGINAL PERTURBED"
        say_next({gap: "compares a model's predictions on both, once another kit has them"})
    return 1 if result.n_failed else 0


@command(fb.rebuild, VARIANT)
def show_rebuild(result: RebuildResult, invocation: Invocation) -> int:
    """Print how the pictures compare."""
    say(result)
    show_pairs = command_line("show", result.run / "config.yaml", "pairs.png")
    return finish(result.reports, {show_pairs: "some pairs beside each other"})
