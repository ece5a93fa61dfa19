"""The command line: every command is derived from its function in ``api``, which it calls."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from flipbench import __version__
from flipbench.api.calls import Call, called, dry_run
from flipbench.api.experiment import Experiment
from flipbench.commands.derive import Parameter, parameters_of, summary
from flipbench.commands.printing import command_line, say
from flipbench.core.locks import Share
from flipbench.core.processes import exit_with_parent, is_main

START, VARIANT, CONTAMINATE, MEASURE = (
    "All of it",
    "Make a variant of a benchmark",
    "Contaminate models",
    "Measure contamination",
)
"""The panels of ``--help``."""
GONE = {
    "adjudicate": "use `flipbench review RUN --flagged`",
    "agreement": "use `flipbench review RUN --agreement`",
    "claims": "use `flipbench doctor CLAIMS.yaml`",
    "hints": "use `flipbench reasoning CONFIG`",
    "judge-reasoning": "use `flipbench reasoning CASES --judge JUDGE --out FOLDER`",
    "simulate-confound": "in a checkout, run `python -m studies.confound`",
}
"""Commands of earlier versions, and what to use in their place."""
GONE_OPTIONS = {
    ("contaminate", "--export"): "use `flipbench export CONFIG OUT --format llava`",
}
"""Options of earlier versions, in the same way."""
READING = ("config", "overrides", "trust")
WORKING = (*READING, "limit", "progress")
SHARED = (*WORKING, "n_workers", "slurm")
"""The parameters of an `Experiment` that a command takes."""


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] and (remedy := GONE.get(args[0])):
            ctx.fail(f"{args[0]} is no command any more; {remedy}")
        for argument in args[1:]:
            if remedy := GONE_OPTIONS.get((args[0], argument)):
                ctx.fail(f"{args[0]} {argument} is no option any more; {remedy}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)  # in the order of this package


app = typer.Typer(
    cls=_Commands,
    help="""Answer-flipped benchmarks, controlled contamination, contamination detectors.

    Start with `flipbench demo`: everything on a laptop, in minutes, without weights, key or GPU.
    Then `flipbench init MYBENCH.tsv` writes a configuration, and `flipbench run` does what it says.

    A run directory holds all results. The same command again continues where it stopped.
    Exit status: 0 done, 1 some items failed, 2 wrong use.""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"flipbench {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    pass


@dataclass(frozen=True)
class Invocation:
    """A command as it was typed, for what is printed after it.

    Attributes
    ----------
    typed : mapping of str to object
        The values by parameter.
    experiment : Experiment, optional
        The experiment, of a command that works on one.
    start : float
        When the command began, in seconds.
    """

    typed: Mapping[str, Any] = field(default_factory=dict)
    experiment: Experiment | None = None
    start: float = field(default_factory=time.monotonic)

    def again(self, command: str, *arguments: object, limit: bool = True) -> str:
        """Return a command line on the same configuration."""
        typed = self.typed
        if limit and typed.get("limit") is not None:
            arguments = (*arguments, "--limit", typed["limit"])
        overrides = typed.get("overrides")
        return command_line(command, typed["config"], *arguments, overrides=overrides)

    def with_pairs(self) -> dict[str, str]:
        """Return the commands that come next when there are pairs."""
        assert self.experiment is not None
        config = self.experiment.parts.config
        if config.models and config.contaminate.strategies:
            command = self.again("contaminate", "--dry-run")
            return {command: "plans, hours and disk of the training"}
        if config.models:
            return {self.again("evaluate", "--dry-run"): "the questions to the models"}
        export = self.again("export", "OUT", "--format", "vlmeval", limit=False)
        return {
            export: "the pairs for another kit",
            "flipbench detect --model MODEL --benchmark " + shlex.quote(str(config.run)): (
                "was this model trained on the originals?"
            ),
        }


Shows = Callable[..., int | None]
"""Prints a job's result, given it and an `Invocation`; returns the exit status, None for 0."""


def command(
    job: Callable[..., Any],
    panel: str,
    name: str = "",
    *,
    takes: Sequence[str] = WORKING,
    announces: bool = False,
) -> Callable[[Shows], Shows]:
    """Register a function of ``api``, or a method of `Experiment`, as a command.

    What is decorated prints the result; its own keyword-only parameters are options, too.

    Parameters
    ----------
    name : str
        By default the function's.
    takes : sequence of str
        The parameters of an `Experiment` that it takes, if it works on one.
    announces : bool
        Whether it first says what it is going to do, as its dry run does.
    """
    is_method = getattr(Experiment, job.__name__, None) is job
    of_job = parameters_of(job)
    of_experiment = [p for p in parameters_of(Experiment) if is_method and p.name in takes]

    def register(show: Shows) -> Shows:
        of_show = [p for p in parameters_of(show) if p.name not in ("result", "invocation")]
        arguments = [p for p in (*of_experiment, *of_job) if p.is_argument]
        arguments.sort(key=lambda p: p.is_many)  # which take all that is left
        options = [p for p in (*of_job, *of_show, *of_experiment) if not p.is_argument]
        signature = [parameter.typer_parameter() for parameter in (*arguments, *options)]
        if getattr(job, "has_dry_run", False):
            flag = typer.Option("--dry-run", help="count the work, do nothing")
            signature.append(_keyword("dry_run", Annotated[bool, flag], False))
        if is_method and "n_workers" in takes:  # i/n, set by the parent process
            hidden = typer.Option(hidden=True)
            signature.append(_keyword("worker", Annotated[str | None, hidden], None))

        def callback(**typed: Any) -> NoReturn:
            start = time.monotonic()
            share = Share.parse(typed["worker"]) if typed.get("worker") else None
            _prepare_process(share)

            def values(parameters: list[Parameter]) -> dict[str, Any]:
                return {p.name: p.value(typed[p.name]) for p in parameters}

            with called(Call("flipbench " + shlex.join(sys.argv[1:]), share)):
                experiment, function = None, job
                if is_method:
                    experiment = Experiment(**values(of_experiment))
                    function = getattr(experiment, job.__name__)
                if typed.get("dry_run"):
                    say("\n".join(dry_run(function, **values(of_job))))
                    raise typer.Exit()
                is_alone = share is None and is_main()
                if announces and is_alone:
                    say("\n".join(dry_run(function, **values(of_job))))
                result = function(**values(of_job))
                if not is_alone:  # the parent process tells, and tries once more what failed
                    raise typer.Exit(1 if share and result.n_failed else 0)
                status = show(result, Invocation(typed, experiment, start), **values(of_show))
            raise typer.Exit(status or 0)

        callback.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        callback.__annotations__ = {}
        callback.__doc__ = summary(inspect.getdoc(job) or "")
        app.command(name or job.__name__, rich_help_panel=panel)(callback)
        return show

    return register


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _prepare_process(share: Share | None) -> None:
    """Let only the process that people started speak, and no worker outlive it."""
    if share is not None:
        from flipbench.distributed.workers import WORKER_VARIABLE

        if os.environ.get(WORKER_VARIABLE):
            exit_with_parent()
            logging.getLogger().setLevel(logging.ERROR)
    if not is_main():
        logging.getLogger().setLevel(logging.CRITICAL)
