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
    In,
    InProcessExecutor,
    Processed,
    Stage,
    failed,
    process_batch,
)

log = logging.getLogger(__name__)
_PER_ACTOR = 2  # batches at an actor, so that the next one is there when it has done the first
_DEATHS = 3  # of actors over a batch, before it is tried item by item, and an item given up
_PATIENCE = 30.0  # seconds without an actor before it is said what they wait for


class StageActor:
    """A process of the cluster that holds a stage and processes batches."""

    stage: Stage[Any]

    def ready(self, stage: Stage[Any], directory: str, folder: str) -> str:
        """Take the stage and go to the driver's directory; return what is missing there."""
        self.stage = stage
        return go_to(directory, folder)

    def process(self, batch: Batch[Any]) -> Processed:
        """Process a batch; nothing is written to the run but pictures."""
        try:
            return process_batch(self.stage, batch)
        except PrerequisiteError as error:
            return Processed(0, [], error)


def go_to(directory: str, folder: str) -> str:
    """Change to a directory, and return an error if it or a folder is not on this machine."""
    with contextlib.suppress(OSError):
        os.chdir(directory)
    if Path.cwd() == Path(directory) and Path(folder).is_dir():
        return ""
    return (
        f"{platform.node()}: {folder} is not there; put the run on a file system that all machines"
        " of the cluster share, and start flipbench from a folder of it"
    )


@dataclass
class _Lot(Generic[In]):
    """A batch, how many actors have died over it, and when it was handed out."""

    batch: Batch[In]
    n_deaths: int = 0
    order: int = 0


@dataclass
class _Pool(Generic[In]):
    """The actors of one stage, and what each of them does."""

    ray: Any
    actors: list[Any]
    lots: deque[_Lot[In]]
    prepared_with: Sequence[Any]

    def __post_init__(self) -> None:
        self.at_work: dict[Any, tuple[int, _Lot[In]]] = {}
        self.starting: dict[Any, int] = {}
        self.n_handed_out = 0
        self.ready: set[int] = set()
        for number in range(len(self.actors)):
            self.start(number)

    def start(self, number: int) -> None:
        """Wait until an actor is there, again."""
        self.ready.discard(number)
        if number not in self.starting.values():
            ready = self.actors[number].ready.options(max_task_retries=-1)
            self.starting[ready.remote(*self.prepared_with)] = number

    def take_back(self, number: int) -> list[_Lot[In]]:
        """Return an actor's batches; it began the first, since it processes them in order."""
        refs = [ref for ref, (at, _) in self.at_work.items() if at == number]
        refs.sort(key=lambda ref: self.at_work[ref][1].order)
        return [self.at_work.pop(ref)[1] for ref in refs]

    def hand_out(self) -> None:
        """Give each actor that is there its next batches, one round after the other."""
        n_held = dict.fromkeys(self.ready, 0)
        for number, _ in self.at_work.values():
            if number in n_held:
                n_held[number] += 1
        for level in range(_PER_ACTOR):
            for number in sorted(self.ready):
                if self.lots and n_held[number] <= level:
                    lot = self.lots.popleft()
                    self.n_handed_out += 1
                    lot.order = self.n_handed_out
                    self.at_work[self.actors[number].process.remote(lot.batch)] = number, lot
                    n_held[number] += 1

    def wait(self, seconds: float) -> list[Any]:
        """Return what has ended, waiting for the first of it."""
        known = [*self.starting, *self.at_work]
        first, _ = self.ray.wait(known, num_returns=1, timeout=seconds)
        more, _ = self.ray.wait(known, num_returns=len(known), timeout=0) if first else ([], [])
        return list({*first, *more})


class RayCluster:
    """Process the batches of a stage on a Ray cluster.

    The stage is sent to actors as it is, without the weights that it loads when it is first used.
    An actor that dies, or whose machine is lost, is started again by Ray; its batches go to the
    next actor. Nothing is written here: `run_stage` appends what comes back, so ids, kill-safety
    and continuing are as in one process. At most two batches for each actor are lost by a kill.

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

    def process(self, stage: Stage[In], batches: Sequence[Batch[In]]) -> Iterator[Processed]:
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
            sent = ray.put(stage)
        except TypeError as error:
            why = shorten(str(error).strip().splitlines()[0])
            log.warning("%s stays in this process, since it cannot be sent (%s)", stage.name, why)
            yield from InProcessExecutor().process(stage, batches)
            return
        options = self._options(ray, settings, stage.name)
        n_actors = min(self.n_actors(stage.name), len(batches))
        kind = ray.remote(StageActor).options(max_restarts=-1, **options)
        actors = [kind.remote() for _ in range(n_actors)]
        try:
            pool = _Pool(ray, actors, deque(map(_Lot, batches)), (sent, *self._place))
            yield from _work(stage, pool, f"{stage.name}: an actor needs {_needs(options)}")
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
        remote = ray.remote(_called).options(max_retries=-1, **options)
        refs = [remote.remote(*self._place, function, call) for call in calls]
        while refs:
            done, refs = ray.wait(refs)
            for ref in done:
                if problem := _result(ray, ref):
                    raise PrerequisiteError(problem)

    def n_actors(self, stage: str) -> int:
        """Return how many actors a stage gets; 1 if it stays in this process."""
        settings = self.config.stage(stage)
        if settings is None:
            return 1
        ray = self._connected()
        return settings.actors or _room(ray, self._options(ray, settings, stage))

    @property
    def _place(self) -> tuple[str, str]:
        return os.getcwd(), str(self.folder.absolute())

    def _connected(self) -> Any:
        ray = need("ray", "ray")
        if ray.is_initialized():
            return ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.config.address
        own = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
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


def _work(stage: Stage[In], pool: _Pool[In], needs: str) -> Iterator[Processed]:
    """Hand out the batches until all are done; those of an actor that dies go to another."""
    ray, patience = pool.ray, _PATIENCE
    while pool.lots or pool.at_work:
        pool.hand_out()
        ended = pool.wait(patience)
        if not ended and not pool.ready and patience == _PATIENCE:
            log.warning("%s; waiting for the cluster (%s)", needs, _needs(ray.cluster_resources()))
            patience = 10 * _PATIENCE
        for ref in ended:
            if ref in pool.starting:
                number = pool.starting.pop(ref)
                try:
                    problem = _result(ray, ref)
                except ray.exceptions.RayError as error:
                    why = shorten(str(error))
                    raise FlipbenchError(
                        f"{stage.name}: an actor cannot be started on the cluster ({why})"
                    ) from error
                if problem:
                    raise PrerequisiteError(problem)
                pool.ready.add(number)
                continue
            if ref not in pool.at_work:  # taken back from an actor that died
                continue
            number, lot = pool.at_work.pop(ref)
            try:
                done = _result(ray, ref)
            except ray.exceptions.RayError as error:
                log.debug("%s: an actor was lost: %s", stage.name, error)
                pool.at_work[ref] = number, lot
                begun, *unbegun = pool.take_back(number)
                pool.start(number)
                pool.lots.extendleft(unbegun)
                yield from _again(stage, pool, begun)
            else:
                yield done


def _again(stage: Stage[In], pool: _Pool[In], lot: _Lot[In]) -> Iterator[Processed]:
    """Put a batch back whose actor died; an item that kills every actor is given up."""
    lot.n_deaths += 1
    if lot.n_deaths < _DEATHS:
        pool.lots.appendleft(lot)
    elif len(lot.batch) > 1:
        pool.lots.extend(_Lot([one]) for one in lot.batch)
    else:
        task_id, task = lot.batch[0]
        error = FlipbenchError(f"{_DEATHS} actors died over it; there may be too little memory")
        yield Processed(1, [failed(stage, task_id, task, error)])


def _result(ray: Any, ref: Any) -> Any:
    """Return a result; an error of the code that was called is raised as it was there."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def _called(directory: str, folder: str, function: Callable[..., Any], arguments: Any) -> str:
    if problem := go_to(directory, folder):
        return problem
    function(*arguments)
    return ""


def _room(ray: Any, options: dict[str, Any]) -> int:
    """Return how many actors the cluster has room for."""
    has = ray.cluster_resources()
    each = {"CPU": options["num_cpus"], "GPU": options["num_gpus"]}
    room = min((int(has.get(name, 0) / n) for name, n in each.items() if n), default=1)
    return max(1, room)


def _needs(resources: dict[str, Any]) -> str:
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    found = {names.get(name, name): n for name, n in resources.items()}
    return ", ".join(f"{found.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
