"""How a job is called: from Python or the command line, for real or to see what it would do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.core.locks import Share

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """Who calls.

    Attributes
    ----------
    command : str
        The command, as reports show it.
    share : Share, optional
        The share of the work, in a worker process.
    is_dry_run : bool
        Whether the job only says what it would do.
    """

    command: str = "flipbench in Python"
    share: Share | None = None
    is_dry_run: bool = False


_current: ContextVar[Call] = ContextVar("call")


def current_call() -> Call:
    """Return how the running job was called."""
    return _current.get(Call())


@contextlib.contextmanager
def called(call: Call) -> Iterator[None]:
    """Call jobs in this way until the block ends."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


class Plan(Exception):
    """What a job would do, in lines: a job raises it instead of doing it in a dry run."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def has_dry_run(job: Callable[P, T]) -> Callable[P, T]:
    """Mark a job that raises its `Plan` in a dry run, before it makes or asks anything."""
    vars(job)["has_dry_run"] = True
    return job


def dry_run(job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> list[str]:
    """Return what a job would do and cost, in lines of text; nothing is asked or made.

    Parameters
    ----------
    job : callable
        A function or method of an `Experiment` that works long; its arguments follow.

    Raises
    ------
    ConfigError
        If the job has no dry run, or its arguments are wrong.

    Examples
    --------
    >>> import flipbench as fb
    >>> experiment = fb.Experiment("configs/shapes.yaml", limit=8)  # doctest: +SKIP
    >>> fb.dry_run(experiment.generate)  # doctest: +SKIP
    ['would flip, caption and edit 8 items']
    """
    if not getattr(job, "has_dry_run", False):
        raise ConfigError(
            f"{getattr(job, '__name__', job)}: no dry run; give a job that works long, as in"
            " fb.dry_run(fb.Experiment(config).generate) or fb.dry_run(fb.detect, model, pairs)"
        )
    with called(replace(current_call(), is_dry_run=True)):
        try:
            job(*args, **kwargs)
        except Plan as plan:
            return plan.lines
    raise AssertionError(f"{job}: it did not stop in a dry run")
