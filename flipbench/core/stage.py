"""Run a stage: skip what is done, batch the rest, append the results, continue after failures."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TextIO, TypeAlias, TypeVar

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from flipbench.core.errors import ConfigError, FlipbenchError, PrerequisiteError, shorten
from flipbench.core.records import Failure, Record
from flipbench.core.run import Run

log = logging.getLogger(__name__)
In_contra = TypeVar("In_contra", contravariant=True)
In = TypeVar("In")
Batch: TypeAlias = Sequence[tuple[str, In]]
"""Inputs with the ids of their records."""


class Stage(Protocol[In_contra]):
    """A step that maps each input to one record.

    The constructor loads what is needed. ``__call__`` takes a batch and returns a record or an
    exception for each input, in order.
    """

    name: str
    record: type[Record]

    def id_of(self, task: In_contra, /) -> str:
        """Return the id of the task's record."""

    def subject(self, task: In_contra, /) -> str:
        """Return the task's item (benchmark and name), for messages."""

    def __call__(self, tasks: Sequence[In_contra], /) -> Sequence[Record | Exception]:
        """Process a batch."""


class BatchResult(NamedTuple):
    """What became of a batch: its number of inputs, the records, and what stops the stage."""

    n_inputs: int
    records: list[Record]
    stop: PrerequisiteError | None = None


class Executor(Protocol):
    """Where batches are processed; records are written by `run_stage` alone."""

    def batch_size(self, stage: str, configured: int) -> int:
        """Return the number of inputs in a batch of a stage."""

    def process(self, stage: Stage[In], batches: Sequence[Batch[In]]) -> Iterator[BatchResult]:
        """Yield what became of each batch, in any order."""


class InProcessExecutor:
    """The executor of one process: one batch after the other, in order."""

    def batch_size(self, stage: str, configured: int) -> int:
        """Return the configured size."""
        return configured

    def process(self, stage: Stage[In], batches: Sequence[Batch[In]]) -> Iterator[BatchResult]:
        """Yield what became of each batch, before the next begins."""
        return (process_batch(stage, batch) for batch in batches)


@dataclass
class StageReport:
    """Counts of what a stage did, and its failures."""

    stage: str
    n_done: int = 0
    n_skipped: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def n_failed(self) -> int:
        """Number of inputs without a record."""
        return len(self.failures)

    def followed_by(self, later: StageReport) -> StageReport:
        """Return the report of this call and of a later one whose inputs include these."""
        return StageReport(
            self.stage,
            self.n_done + later.n_done,
            max(0, later.n_skipped - self.n_done),
            later.failures,
        )

    def __str__(self) -> str:
        """Return the counts, then the first failures."""
        text = f"{self.stage}: {self.n_done} done, {self.n_skipped} already there,"
        text += f" {self.n_failed} failed"
        for failure in self.failures[:3]:
            text += f"\n  {failure.subject}: {failure.message}"
        if self.n_failed > 3:
            text += f"\n  ... and {self.n_failed - 3} more (see failures/ in the run directory)"
        return text


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """How a stage is run.

    Attributes
    ----------
    batch_size : int
        Inputs between two writes to disk.
    progress : bool
        Whether to show a progress bar.
    partition : str
        The partition that holds the stage's records, if there is only one.
    executor : Executor
        Where batches are processed; by default here.

    Raises
    ------
    ConfigError
        If ``batch_size`` is under 1.
    """

    batch_size: int = 16
    progress: bool = True
    partition: str = ""
    executor: Executor = InProcessExecutor()

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {self.batch_size}")


DEFAULTS = StageOptions()


def run_stage(
    stage: Stage[In], inputs: Iterable[In], run: Run, options: StageOptions = DEFAULTS
) -> StageReport:
    """Run ``stage`` over ``inputs`` and append its records to ``run``.

    Inputs whose record exists are skipped; a repeated input is processed once. While another
    command is at this stage of the run, this one waits, and finds its records. An input that fails
    becomes a `Failure` and does not stop the others: a batch that raises is retried one by one.
    `PrerequisiteError` (a missing program, a wrong key), raised or returned, and errors of the run
    directory itself stop the stage, since they would affect every item.

    Raises
    ------
    ValueError
        If the stage violates its protocol: too few or too many results, or a result whose id is
        not that of ``id_of`` and which would therefore be redone on every run.
    """
    with run.exclusive_lock(f"{stage.name} {options.partition}".strip()):
        return _run(stage, inputs, run, options)


def _run(stage: Stage[In], inputs: Iterable[In], run: Run, options: StageOptions) -> StageReport:
    report = StageReport(stage.name)
    done_ids = run.ids(stage.record, options.partition)
    todo: dict[str, In] = {}
    for task in inputs:
        task_id = stage.id_of(task)
        if task_id in done_ids:
            report.n_skipped += 1
        else:
            todo.setdefault(task_id, task)
    total, shows_bar = len(todo) + report.n_skipped, options.progress and bool(todo)
    bar = progress_bar(stage.name, total, initial=report.n_skipped, is_shown=shows_bar)
    with bar, messages_above(bar):
        tasks = list(todo.items())
        size = options.executor.batch_size(stage.name, options.batch_size)
        batches = [tasks[start : start + size] for start in range(0, len(tasks), size)]
        for n_inputs, records, stop in options.executor.process(stage, batches):
            run.append(records)
            if stop:
                raise stop
            failures = [r for r in records if isinstance(r, Failure)]
            report.failures += failures
            report.n_done += len(records) - len(failures)
            bar.update(n_inputs)
            if report.failures:
                bar.set_postfix(failed=len(report.failures))
    return report


def progress_bar(
    label: str, total: int | None, *, unit: str = "rec", initial: int = 0, is_shown: bool = True
) -> tqdm[Any]:
    """Return a bar with rate and time left; none unless standard error is a terminal."""
    return tqdm(
        total=total,
        initial=initial,
        desc=label,
        unit=unit,
        disable=None if is_shown else True,
        file=sys.stderr,
        dynamic_ncols=True,
    )


@contextlib.contextmanager
def messages_above(bar: tqdm[Any]) -> Iterator[None]:
    """Print log messages and warnings on lines of their own, above a progress bar."""
    if bar.disable:
        yield
        return
    show, warnings.showwarning = warnings.showwarning, _log_warning
    try:
        with logging_redirect_tqdm():
            yield
    finally:
        warnings.showwarning = show


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    log.warning("%s: %s", category.__name__, shorten(str(message), 300))


def process_batch(stage: Stage[In], batch: Batch[In]) -> BatchResult:
    """Return what becomes of a batch: one that raises is retried one by one.

    Raises
    ------
    PrerequisiteError
        If the stage raises it.
    ValueError
        If the stage violates its protocol; see `run_stage`.
    """
    return _batch_result(stage, batch, _attempt(stage, [task for _, task in batch]))


def _attempt(stage: Stage[In], batch: Sequence[In]) -> Sequence[Record | Exception]:
    try:
        return stage(batch)
    except PrerequisiteError:
        raise
    except Exception as error:
        if len(batch) == 1:
            return [error]
        log.debug("a batch of %s failed (%s); trying its items one by one", stage.name, error)
    return [_attempt(stage, [task])[0] for task in batch]


def _batch_result(
    stage: Stage[In], batch: Batch[In], results: Sequence[Record | Exception]
) -> BatchResult:
    records: list[Record] = []
    stop: PrerequisiteError | None = None
    for (task_id, task), result in zip(batch, results, strict=True):
        if isinstance(result, PrerequisiteError):
            stop = stop or result
        elif isinstance(result, Exception):
            records.append(failure_of(stage, task_id, task, result))
        elif isinstance(result, Failure) or result.id == task_id:
            records.append(result)
        else:
            raise ValueError(
                f"{stage.name}: {stage.subject(task)} should become {stage.record.kind} {task_id},"
                f" but the stage returned {result.kind} {result.id}; fix its id_of"
            )
    return BatchResult(len(batch), records, stop)


def failure_of(stage: Stage[In], task_id: str, task: In, error: Exception) -> Failure:
    """Return the record of an input that failed."""
    name = type(error).__name__
    message = str(error) if isinstance(error, FlipbenchError) else f"{name}: {error}"
    return Failure(
        stage=stage.name,
        record_id=task_id,
        subject=stage.subject(task),
        error=name,
        message=message.encode(errors="backslashreplace").decode(),  # half a surrogate pair
    )
