"""The contaminate stage of a configured experiment: a benchmark in, checkpoints out."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.grid import TrainedPlan
from flipbench.contaminate.backends.export import write_plans
from flipbench.contaminate.backends.llamafactory import (
    LlamaFactory,
    find_llamafactory,
    lacks_merged,
)
from flipbench.contaminate.checks.changes import Diverged
from flipbench.contaminate.checks.verify import LEVEL, items_needed, wins_needed
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import n_steps, per_device_batch, steps_done
from flipbench.contaminate.strategies import strategy_of
from flipbench.contaminate.training import estimate as estimating
from flipbench.contaminate.training.load import check_4bit
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.processes import is_main, main_first, n_processes
from flipbench.core.records import Checkpoint, Failure, TrainingPlan
from flipbench.core.run import Run
from flipbench.core.stage import messages_above, progress_bar
from flipbench.distributed.workers import Workers
from flipbench.models.estimates import measured_speed, size_text, time_text

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger(__name__)
_STAGE = "train"
_N_SAMPLED = 512  # examples that an estimate is based on


def contaminate(assembly: Assembly, workers: Workers | None = None) -> list[TrainedPlan]:
    """Train every plan of the grid that is not trained yet.

    No pairs need to exist, except for ``contaminate.items: kept``.

    A plan that diverges keeps its good epochs, and is logged and recorded as a failure; the others
    continue. Several processes (`flipbench.core.processes`) train each plan together; ``workers``,
    by default the assembly's, divide the plans among them.
    """
    run, grid = assembly.run, assembly.config.contaminate
    workers = workers or assembly.workers
    regimes = main_first(lambda: assembly.regimes(write=True))
    plans = assembly.plans(regimes)
    checkpoint_ids = run.ids(Checkpoint)
    todo = [
        p for p in plans if Checkpoint.id_for(plan_id=p.id, epoch=p.epochs) not in checkpoint_ids
    ]
    trainer = _llamafactory(assembly, todo) if grid.backend == "llamafactory" else None
    if is_main():
        plan_ids = run.ids(TrainingPlan)
        run.append([plan for plan in plans if plan.id not in plan_ids])
    for plan in todo:
        per_device_batch(plan, n_processes())  # raises before anything is trained
        if strategy_of(plan.strategy).four_bits:
            check_4bit()
    if todo and is_main():
        if workers.share is None:
            estimating.check_disk(run.path, _estimates(assembly, regimes, todo))
        n_left = sum(map(n_steps, todo)) - _n_done(todo, run)
        workers.start("contaminate", lambda: _n_done(todo, run), n_left, "train", "step")
    shows_bar = workers.progress and workers.n_workers == 1 and trainer is None
    n_done, numbers = _n_done(plans, run), _numbers(plans)
    total = sum(n_steps(plan) for plan in plans if workers.owns_index(numbers[plan.id]))
    bar = progress_bar(
        "train", total, unit="step", initial=n_done, is_shown=shows_bar and n_done < total
    )
    with bar, messages_above(bar):
        return _train(assembly, plans, regimes, workers, trainer, bar)


def _show(bar: tqdm[Any], n_before: int, step: int) -> None:
    bar.update(n_before + step - bar.n)


def _n_done(plans: Sequence[TrainingPlan], run: Run) -> int:
    """Return how many steps of all these plans are done."""
    checkpoint_ids = run.ids(Checkpoint)
    return sum(steps_done(plan, run, checkpoint_ids) for plan in plans)


def _train(
    assembly: Assembly,
    plans: Sequence[TrainingPlan],
    regimes: Mapping[str, RegimeData],
    workers: Workers,
    trainer: LlamaFactory | None,
    bar: tqdm[Any],
) -> list[TrainedPlan]:
    """Train the plans one by one, or this worker's share of them; ``trainer`` replaces trl."""
    run, merge = assembly.run, assembly.config.contaminate.llamafactory.merge
    results: list[TrainedPlan] = []
    failed: set[str] = set()
    numbers, checkpoint_ids = _numbers(plans), run.ids(Checkpoint)
    for number, plan in enumerate(plans, 1):
        if not workers.owns_index(numbers[plan.id]):
            continue
        if plan.after in failed:
            log.error("%s, %s: not washed, since its training diverged", plan.model, plan.label)
            continue
        is_done = steps_done(plan, run, checkpoint_ids) == n_steps(plan)
        if workers.progress and workers.n_workers == 1 and not is_done:
            log.info("training %d of %d: %s", number, len(plans), _describe(plan))
        items, corpus = regimes[plan.data].training_inputs(plan)
        dtype, train_with = assembly.dtypes[plan.model], trainer.train if trainer else None
        try:
            checkpoints = train_plan(
                plan,
                items,
                run,
                dtype=dtype,
                corpus=corpus,
                train_with=train_with,
                on_step=partial(_show, bar, _n_done([p for p in plans if p != plan], run)),
            )
        except Diverged as error:
            failed.add(plan.id)
            log.error("%s", error)
            if is_main():
                failure = Failure(
                    stage=_STAGE,
                    record_id=plan.id,
                    subject=f"{plan.model}, {plan.label}",
                    error=type(error).__name__,
                    message=str(error),
                )
                run.append([failure])
            checkpoints = [c for c in run.read(Checkpoint) if c.plan_id == plan.id]
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                log.warning("%s: %s", checkpoint.model, warning)
            if trainer and merge:
                trainer.merge(plan, run.path / checkpoint.path, run, dtype)
        results.append((plan, checkpoints))
    return results


def training_failures(run: Run, results: Sequence[TrainedPlan]) -> list[Failure]:
    """Return the failures of plans that diverged and still lack epochs."""
    complete = {plan.id for plan, checkpoints in results if len(checkpoints) == plan.epochs}
    attempted = {plan.id for plan, _ in results}
    return [f for f in run.open_failures(_STAGE, complete) if f.record_id in attempted]


def trained_plans(assembly: Assembly) -> list[TrainedPlan]:
    """Return the plans of the grid that have checkpoints, without training any."""
    checkpoints: dict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint in assembly.run.read(Checkpoint):
        checkpoints[checkpoint.plan_id].append(checkpoint)
    return [(plan, checkpoints[plan.id]) for plan in assembly.plans() if plan.id in checkpoints]


def export_training(assembly: Assembly, form: str, folder: Path) -> tuple[list[str], int]:
    """Write the grid's training data for another trainer; returns as `write_plans` does.

    Missing wordings are requested from chat models.
    """
    regimes = assembly.regimes(write=True)
    exported = []
    for plan in assembly.plans(regimes):
        items, corpus = regimes[plan.data].training_inputs(plan)
        examples = training_examples(plan, items, assembly.run.images, corpus)
        exported.append((plan, examples, assembly.dtypes[plan.model]))
    return write_plans(exported, form, folder)


def plan_contamination(assembly: Assembly) -> list[str]:
    """Return the grid as a table, for ``--dry-run`` and before training."""
    regimes = assembly.regimes(write=False)
    plans = assembly.plans(regimes)
    if not plans:
        return ["no training is configured (contaminate.strategies)"]
    plan_ids = {c.plan_id for c in assembly.run.read(Checkpoint)}
    estimates = _estimates(assembly, regimes, plans)
    rows = [(plan, e, plan.id in plan_ids) for plan, e in zip(plans, estimates, strict=True)]
    todo = [e for _, e, is_done in rows if not is_done]
    scratch = max((e.scratch for e in todo), default=0)
    disk = size_text(sum(e.disk for e in todo) + scratch)
    hours = time_text(sum(e.seconds for e in todo))
    summary = f"to do: {len(todo)} of {len(plans)} plans, about {hours}, at most {disk} of disk"
    remaining = [plan for plan, _, is_done in rows if not is_done]
    notes = [*_packages_to_install(remaining), *_room_to_verify(remaining)]
    return [
        estimating.table(rows),
        "\n".join([summary, *notes]),
        *assembly.training_data.to_write(regimes.values()),
    ]


def _packages_to_install(plans: Sequence[TrainingPlan]) -> list[str]:
    """Return what the plans need that is not installed."""
    try:
        if any(strategy_of(plan.strategy).four_bits for plan in plans):
            check_4bit()
    except PrerequisiteError as error:
        return [f"before training: {error}"]
    return []


def _room_to_verify(plans: Sequence[TrainingPlan]) -> list[str]:
    """Return how many items a verified label needs, and which plans have too few for any."""
    doses = [plan for plan in plans if plan.item_ids and plan.copies and not plan.control]
    if not doses:
        return []
    counts = ", ".join(f"{items_needed(a)} at {a:.0%}" for a in (0.5, 0.75, 0.9, 0.95))
    small_plans = [plan for plan in doses if len(plan.item_ids) < wins_needed()]
    return [
        f"a verified label (p < {LEVEL}) needs at least {wins_needed()} items that the clean model"
        f" gets wrong; items for that, with power 80 %, by the clean model's accuracy: {counts}",
        *(
            f"{plan.model}, {plan.label}: {len(plan.item_ids)} items, too few for a verified label"
            for plan in small_plans
        ),
    ]


def _llamafactory(assembly: Assembly, todo: Sequence[TrainingPlan]) -> LlamaFactory | None:
    """Return LLaMA-Factory if there is something to train or merge."""
    if n_processes() > 1:
        raise ConfigError(
            "backend: llamafactory starts its own processes, one per GPU; run flipbench without"
            " accelerate launch"
        )
    config, run = assembly.config.contaminate.llamafactory, assembly.run
    folders = [run.path / c.path for c in run.read(Checkpoint)]
    if todo or (config.merge and any(map(lacks_merged, folders))):
        return find_llamafactory(config, progress=assembly.progress)
    return None


def _estimates(
    assembly: Assembly,
    regimes: Mapping[str, RegimeData],
    plans: Sequence[TrainingPlan],
) -> list[estimating.TrainingCost]:
    """Return the cost of each plan, estimated from a sample of its examples."""
    grid = assembly.config.contaminate
    merge = grid.backend == "llamafactory" and grid.llamafactory.merge
    estimates = []
    for plan in plans:
        items, corpus = regimes[plan.data].training_inputs(plan)
        single_copy = plan.model_copy(update={"copies": min(plan.copies, 1)})
        examples = training_examples(single_copy, items, assembly.run.images, corpus)
        sample = examples[:: -(-len(examples) // _N_SAMPLED) or 1]
        dtype = assembly.dtypes[plan.model]
        estimates.append(
            estimating.estimate(
                plan,
                sample,
                dtype=dtype,
                speed=measured_speed(dtype),
                merge=merge,
            )
        )
    return estimates


def _numbers(plans: Sequence[TrainingPlan]) -> dict[str, int]:
    """Number the plans for the workers; a washing has the number of its contamination."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers[plan.id] = numbers.get(plan.after, len(numbers))
    return numbers


def _describe(plan: TrainingPlan) -> str:
    if plan.after:
        return f"{plan.model}, {plan.label}, {plan.epochs} epochs of clean data"
    return (
        f"{plan.model}, {plan.label}, {len(plan.item_ids)} items x {plan.copies} copies x"
        f" {plan.epochs} epochs"
    )
