"""The stage contaminate of a configured experiment: a paired benchmark in, checkpoints out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from flipbench.contaminate.backends.export import check_export_format, write_plans
from flipbench.contaminate.backends.llamafactory import (
    LlamaFactory,
    find_llamafactory,
    lacks_merged,
)
from flipbench.contaminate.backends.llamafactory_data import check_plan
from flipbench.contaminate.checks.changes import Diverged
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand, per_device_batch
from flipbench.contaminate.training import estimate as estimating
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import ConfigError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.processes import is_main, main_first, n_processes
from flipbench.core.records import Checkpoint, Failure, TrainingPlan
from flipbench.core.run import Run
from flipbench.core.workers import Workers
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.grid import Trained

log = logging.getLogger(__name__)
_STAGE = "train"
_N_SAMPLED = 512  # examples that an estimate looks at


def contaminate(
    assembly: Assembly, benchmark: PairedBenchmark, workers: Workers | None = None
) -> list[Trained]:
    """Train every plan of the grid; what is trained already is not trained again.

    A plan that diverges keeps its good epochs, is named in the log and kept as a failure; the
    others go on. Several processes (`flipbench.core.processes`) do all plans together; ``workers``
    share them out, by default the assembly's.

    Raises
    ------
    PrerequisiteError
        Where the disk is too small for what is to do.
    """
    run, grid = assembly.run, assembly.config.contaminate
    workers = workers or assembly.workers
    regimes = main_first(lambda: assembly.training_data.prepare(benchmark, write=True))
    plans = _plans(assembly, regimes)
    done = run.ids(Checkpoint)
    todo = [plan for plan in plans if _last_id(plan) not in done]
    trainer = _llamafactory(assembly, todo) if grid.backend == "llamafactory" else None
    if is_main():
        known = run.ids(TrainingPlan)
        run.append([plan for plan in plans if plan.id not in known])
    for plan in todo:
        per_device_batch(plan, n_processes())  # refused before anything is trained
    if todo and is_main():
        if workers.share is None:
            estimating.check_disk(run.path, _estimates(assembly, regimes, todo))
        n_epochs = run.count(Checkpoint) + sum(plan.epochs for plan in todo)
        workers.start("contaminate", Checkpoint, n_epochs, "train")
    merge = grid.llamafactory.merge
    return train(plans, regimes, run, assembly.dtypes, workers, trainer, merge=merge)


def train(
    plans: Sequence[TrainingPlan],
    regimes: Mapping[str, RegimeData],
    run: Run,
    dtypes: Mapping[str, str],
    workers: Workers,
    trainer: LlamaFactory | None = None,
    *,
    merge: bool = False,
) -> list[Trained]:
    """Train the plans one by one, or this worker's share of them.

    Parameters
    ----------
    dtypes : mapping of str to str
        Precision of the weights, by model.
    trainer : LlamaFactory, optional
        What trains instead of trl.
    merge : bool
        Whether ``trainer`` also writes adapters merged into their model.
    """
    trained: list[Trained] = []
    failed: set[str] = set()
    numbers = _numbers(plans)
    for number, plan in enumerate(plans, 1):
        if not workers.have(numbers[plan.id]):
            continue
        if plan.after in failed:
            log.error("%s, %s: not washed, since it diverged before", plan.model, plan.label)
            continue
        if workers.progress and workers.n_workers == 1:
            log.info("training %d of %d: %s", number, len(plans), _in_words(plan))
        items, corpus = regimes[plan.data].training_inputs(plan)
        dtype, train_with = dtypes[plan.model], trainer.train if trainer else None
        try:
            checkpoints = train_plan(
                plan, items, run, dtype=dtype, corpus=corpus, train_with=train_with
            )
        except Diverged as error:
            failed.add(plan.id)
            log.error("%s", error)
            if is_main():
                run.append([_failure(plan, error)])
            checkpoints = [c for c in run.read(Checkpoint) if c.plan_id == plan.id]
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                log.warning("%s: %s", checkpoint.model, warning)
            if trainer and merge:
                trainer.merge(plan, run.path / checkpoint.path, run, dtype)
        trained.append((plan, checkpoints))
    return trained


def training_failures(run: Run, trained: Sequence[Trained]) -> list[Failure]:
    """Return the plans that diverged and still lack epochs."""
    done = {plan.id for plan, checkpoints in trained if len(checkpoints) == plan.epochs}
    tried = {plan.id for plan, _ in trained}
    return [f for f in run.open_failures(_STAGE, done) if f.record_id in tried]


def export_training(
    assembly: Assembly, benchmark: PairedBenchmark, form: str, folder: Path
) -> tuple[list[str], int]:
    """Write the grid's training data for another trainer, as `write_plans` does and returns.

    Chat models write the other wordings that the run lacks.
    """
    check_export_format(form)  # before chat models are asked for wordings
    regimes = assembly.training_data.prepare(benchmark, write=True)
    exported = []
    for plan in _plans(assembly, regimes):
        items, corpus = regimes[plan.data].training_inputs(plan)
        examples = training_examples(plan, items, assembly.run.images, corpus)
        exported.append((plan, examples, assembly.dtypes[plan.model]))
    return write_plans(exported, form, folder)


def plans_for(assembly: Assembly, benchmark: PairedBenchmark) -> list[TrainingPlan]:
    """Expand the contamination grid into plans, without asking any chat model."""
    return _plans(assembly, assembly.training_data.prepare(benchmark, write=False))


def plan_contamination(assembly: Assembly, benchmark: PairedBenchmark) -> list[str]:
    """Return the grid as a table, for ``--dry-run`` and before a run."""
    regimes = assembly.training_data.prepare(benchmark, write=False)
    plans = _plans(assembly, regimes)
    done = {c.plan_id for c in assembly.run.read(Checkpoint)}
    estimates = _estimates(assembly, regimes, plans)
    rows = [(plan, e, plan.id in done) for plan, e in zip(plans, estimates, strict=True)]
    todo = [e for plan, e, there in rows if not there]
    scratch = max((e.scratch for e in todo), default=0)
    disk = estimating.size_text(sum(e.disk for e in todo) + scratch)
    hours = estimating.time_text(sum(e.seconds for e in todo))
    return [
        estimating.table(rows),
        f"to do: {len(todo)} of {len(plans)} plans, about {hours}, at most {disk} of disk",
        *assembly.training_data.to_write(regimes.values()),
    ]


def _plans(assembly: Assembly, regimes: Mapping[str, RegimeData]) -> list[TrainingPlan]:
    config = assembly.config
    trainable = {
        name: model
        for name, model in config.models.items()
        if model.path and not model.quantization
    }
    if not trainable or not config.contaminate.strategies:
        return []
    plans = expand(
        config.contaminate,
        trainable,
        list(regimes.values()),
        instruction=config.evaluate.prompt.instruction,
        seed=config.seed,
    )
    if config.contaminate.backend == "llamafactory":
        for plan in plans:
            check_plan(plan)
    return plans


def _llamafactory(assembly: Assembly, todo: Sequence[TrainingPlan]) -> LlamaFactory | None:
    """Return what trains instead of trl, where there is work for it."""
    if n_processes() > 1:
        raise ConfigError(
            "backend: llamafactory starts processes of its own, one for each GPU; run flipbench"
            " without accelerate launch"
        )
    config, run = assembly.config.contaminate.llamafactory, assembly.run
    there = [run.path / c.path for c in run.read(Checkpoint)]
    if todo or (config.merge and any(map(lacks_merged, there))):
        return find_llamafactory(config, progress=assembly.progress)
    return None


def _estimates(
    assembly: Assembly, regimes: Mapping[str, RegimeData], plans: Sequence[TrainingPlan]
) -> list[estimating.TrainingCost]:
    """Return what each plan would take, from a sample of its examples."""
    grid, dtypes = assembly.config.contaminate, [assembly.dtypes[plan.model] for plan in plans]
    merge = grid.backend == "llamafactory" and grid.llamafactory.merge
    speeds = {dtype: estimating.measured_speed(dtype) for dtype in dict.fromkeys(dtypes)}
    out = []
    for plan, dtype in zip(plans, dtypes, strict=True):
        items, corpus = regimes[plan.data].training_inputs(plan)
        once = plan.model_copy(update={"copies": min(plan.copies, 1)})
        examples = training_examples(once, items, assembly.run.images, corpus)
        sample = examples[:: -(-len(examples) // _N_SAMPLED) or 1]
        speed = speeds[dtype]
        out.append(estimating.estimate(plan, sample, dtype=dtype, speed=speed, merge=merge))
    return out


def _numbers(plans: Sequence[TrainingPlan]) -> dict[str, int]:
    """Number the plans for sharing them out; a washing is its contamination's worker's."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers[plan.id] = numbers.get(plan.after, len(numbers))
    return numbers


def _last_id(plan: TrainingPlan) -> str:
    return Checkpoint.id_for(plan_id=plan.id, epoch=plan.epochs)


def _in_words(plan: TrainingPlan) -> str:
    if plan.after:
        return f"{plan.model}, {plan.label}, {plan.epochs} epochs of clean data"
    return (
        f"{plan.model}, {plan.label}, {len(plan.item_ids)} items x {plan.copies} copies x"
        f" {plan.epochs} epochs"
    )


def _failure(plan: TrainingPlan, error: Exception) -> Failure:
    return Failure(
        stage=_STAGE,
        record_id=plan.id,
        subject=f"{plan.model}, {plan.label}",
        error=type(error).__name__,
        message=str(error),
    )
