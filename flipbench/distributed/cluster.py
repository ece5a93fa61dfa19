"""A stage as actors on a Ray cluster; Ray places them, restarts them, and moves the data."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from flipbench.config.experiment import ExecutorConfig, RayStage
from flipbench.core.errors import FlipbenchError, PrerequisiteError, need, shorten
from flipbench.core.stage import (
    Batch,
    BatchResult,
    In,
    InProcessExecutor,
    Stage,
    failure_of,
    process_batch,
)

log = logging.getLogger(__name__)
_MAX_DEATHS = 3  # of actors over a batch, before its items are tried alone, and one given up
_SECONDS_BEFORE_LOG = 30.0  # before we log that no actor is available


class StageActor:
    """A process of the cluster that holds a stage and processes batches."""

    def __init__(self, stage: Stage[Any], directory: str, folder: str) -> None:
        self.stage, self.problem = stage, change_directory(directory, folder)

    def ready(self) -> str:
        """Return what is missing on its machine; empty if nothing is."""
        return self.problem

    def process(self, batch: Batch[Any]) -> BatchResult:
        """Process a batch; nothing is written to the run but pictures."""
        try:
            return process_batch(self.stage, batch)
        except PrerequisiteError as error:
            return BatchResult(0, [], error)


@dataclass
class TrackedBatch(Generic[In]):
    """A batch, and how many actors have died over it."""

    batch: Batch[In]
    n_deaths: int = 0


def change_directory(directory: str, folder: str) -> str:
    """Change to a directory, and return an error if it or a folder is not on this machine."""
    with contextlib.suppress(OSError):
        os.chdir(directory)
    if Path.cwd() == Path(directory) and Path(folder).is_dir():
        return ""
    return (
        f"{platform.node()}: {folder} is not there; put the run on a file system that all machines"
        " of the cluster share, and start flipbench from a folder of it"
    )


class RayCluster:
    """Process the batches of a stage on a Ray cluster.

    The stage is sent to actors as it is, without the weights that it loads when it is first used.
    An actor that dies, or whose machine is lost, is started again by Ray; its batch goes to the
    next one. Nothing is written here: `run_stage` appends what comes back, so ids, kill-safety and
    continuing are as in one process. At most one batch for each actor is lost by a kill.

    Parameters
    ----------
    config : ExecutorConfig
        The cluster's address, and each stage's share of it.
    folder : Path
        The run directory, which all machines must see: actors store pictures in it.
    """

    def __init__(self, config: ExecutorConfig, folder: Path) -> None:
        self.config, self.folder = config, folder

    def batch_size(self, stage: str, configured: int) -> int:
        """Return the number of inputs in a batch of a stage."""
        settings = self.config.stage(stage)
        return (settings.batch_size if settings else None) or configured

    def process(self, stage: Stage[In], batches: Sequence[Batch[In]]) -> Iterator[BatchResult]:
        """Yield what becomes of each batch, in the order in which they end.

        A stage that the configuration does not name, or that holds what cannot be sent to another
        process, such as the connection to a server, is processed here. An input over which three
        actors die becomes a `Failure`.

        Raises
        ------
        PrerequisiteError
            If Ray is not installed, there is no cluster, or a machine lacks the run directory.
        FlipbenchError
            If an actor cannot be started.
        """
        settings = self.config.stage(stage.name)
        if settings is None or not batches:
            yield from InProcessExecutor().process(stage, batches)
            return
        ray = self._connected()
        try:
            stage_ref = ray.put(stage)
        except TypeError as error:
            reason = shorten(str(error).strip().splitlines()[0])
            log.warning(
                "%s stays in this process, since it cannot be sent (%s)", stage.name, reason
            )
            yield from InProcessExecutor().process(stage, batches)
            return
        options = self._options(ray, settings, stage.name)
        remote_class = ray.remote(StageActor).options(max_restarts=-1, **options)
        n_actors = min(self.n_actors(stage.name), len(batches))
        actors = [remote_class.remote(stage_ref, *self._place) for _ in range(n_actors)]
        try:
            yield from _hand_out(ray, stage, actors, batches, _resources_text(options))
        finally:
            for actor in actors:
                ray.kill(actor)

    def call_each(self, name: str, function: Callable[..., Any], calls: Sequence[Any]) -> None:
        """Call ``function`` with each of ``calls`` on the cluster, and wait.

        For work that writes its own files and continues by itself; a call whose machine is lost is
        made again.

        Raises
        ------
        PrerequisiteError
            As `process`.
        """
        ray, settings = self._connected(), self.config.stage(name) or RayStage()
        options = self._options(ray, settings, name)
        remote = ray.remote(_call_in_directory).options(max_retries=-1, **options)
        refs = [remote.remote(*self._place, function, call) for call in calls]
        while refs:
            finished_refs, refs = ray.wait(refs)
            for ref in finished_refs:
                if problem := _result(ray, ref):
                    raise PrerequisiteError(problem)

    def n_actors(self, stage: str) -> int:
        """Return how many actors a stage gets; 1 if it stays in this process."""
        settings = self.config.stage(stage)
        if settings is None:
            return 1
        ray = self._connected()
        return settings.actors or _n_fitting(ray, self._options(ray, settings, stage))

    @property
    def _place(self) -> tuple[str, str]:
        return os.getcwd(), str(self.folder.absolute())

    def _connected(self) -> Any:
        ray = need("ray", "ray")
        if ray.is_initialized():
            return ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.config.address
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            raise PrerequisiteError(
                f"executor.address: no Ray cluster at {address!r} ({shorten(str(error))}); start"
                " one with 'ray start --head', or set executor.address=local"
            ) from error
        return ray

    def _options(self, ray: Any, settings: RayStage, stage: str) -> dict[str, Any]:
        gpus = settings.gpus
        if gpus is None:
            gpus = float(stage != "rules" and ray.cluster_resources().get("GPU", 0) >= 1)
        return {
            "num_cpus": settings.cpus,
            "num_gpus": gpus,
            "scheduling_strategy": "SPREAD",
        }


def _hand_out(
    ray: Any, stage: Stage[In], actors: Sequence[Any], batches: Sequence[Batch[In]], needs: str
) -> Iterator[BatchResult]:
    """Give each actor a batch at a time; that of an actor that dies goes to the next one.

    `ray.util.ActorPool` neither says which batch was lost nor takes restarted actors back.
    """

    def when_ready(actor: Any) -> Any:
        return actor.ready.options(max_task_retries=-1).remote()

    waiting = deque(TrackedBatch(batch) for batch in batches)
    starting = {when_ready(actor): actor for actor in actors}
    working: dict[Any, tuple[Any, TrackedBatch[In]]] = {}
    idle: list[Any] = []
    timeout: float | None = _SECONDS_BEFORE_LOG
    while waiting or working:
        while waiting and idle:
            actor, tracked = idle.pop(), waiting.popleft()
            working[actor.process.remote(tracked.batch)] = actor, tracked
        refs, _ = ray.wait([*starting, *working], timeout=None if working else timeout)
        if not refs:
            available = _resources_text(ray.cluster_resources())
            log.warning(
                "%s: an actor needs %s; waiting for the cluster (%s)", stage.name, needs, available
            )
            timeout = None
        for ref in refs:
            if ref in starting:
                idle.append(_started(ray, stage.name, ref, starting.pop(ref)))
                continue
            actor, tracked = working.pop(ref)
            try:
                yield _result(ray, ref)
                idle.append(actor)
            except ray.exceptions.RayError as error:
                log.debug("%s: an actor was lost: %s", stage.name, error)
                starting[when_ready(actor)] = actor
                tracked.n_deaths += 1
                if tracked.n_deaths < _MAX_DEATHS:
                    waiting.appendleft(tracked)
                elif len(tracked.batch) > 1:
                    waiting.extend(TrackedBatch([task]) for task in tracked.batch)
                else:
                    [(task_id, task)] = tracked.batch
                    problem = f"{_MAX_DEATHS} actors died over it; there may be too little memory"
                    yield BatchResult(
                        1, [failure_of(stage, task_id, task, FlipbenchError(problem))]
                    )


def _started(ray: Any, stage: str, ref: Any, actor: Any) -> Any:
    """Return an actor that has started."""
    try:
        problem = _result(ray, ref)
    except ray.exceptions.RayError as error:
        raise FlipbenchError(
            f"{stage}: an actor cannot be started on the cluster ({shorten(str(error))})"
        ) from error
    if problem:
        raise PrerequisiteError(problem)
    return actor


def _result(ray: Any, ref: Any) -> Any:
    """Return a result; an error of the code that was called is raised as it was there."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def _call_in_directory(
    directory: str, folder: str, function: Callable[..., Any], arguments: Any
) -> str:
    if problem := change_directory(directory, folder):
        return problem
    function(*arguments)
    return ""


def _n_fitting(ray: Any, options: dict[str, Any]) -> int:
    """Return how many actors the cluster has room for."""
    resources = ray.cluster_resources()
    of_actor = {"CPU": options["num_cpus"], "GPU": options["num_gpus"]}
    return max(
        1, min((int(resources.get(name, 0) / n) for name, n in of_actor.items() if n), default=1)
    )


def _resources_text(resources: dict[str, Any]) -> str:
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    amounts = {names.get(name, name): n for name, n in resources.items()}
    return ", ".join(f"{amounts.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
