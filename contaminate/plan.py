"""Plan first, train second: models x data regimes x strategies x seeds become training plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.config.local_models import ModelConfig
from flipbench.config.training import ContaminateConfig, StrategyConfig
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import check_files, fingerprint, resolve_path
from flipbench.prompting.prompts import N_TOGETHER

from .data.examples import AS_TEXTS
from .data.regimes import RegimeData

VERBATIM = "verbatim"
_STEP_FILE = "trainer/step"


@dataclass(frozen=True)
class TrainingJob:
    """A plan to train, its items by id, its run, and the precision of its weights.

    ``on_step`` is called with the number of steps done.
    """

    plan: TrainingPlan
    items: Mapping[str, Item]
    run: Run
    dtype: str
    on_step: Callable[[int], None] | None = None

    @property
    def folder(self) -> Path:
        """The folder of its checkpoints."""
        return self.run.path / checkpoint_folder(self.plan)

    def note_step(self, step: int) -> None:
        """Note the number of steps done, for other processes too (`steps_done`)."""
        path = self.folder / _STEP_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(step))
        if self.on_step:
            self.on_step(step)


def steps_done(plan: TrainingPlan, run: Run, checkpoint_ids: Collection[str]) -> int:
    """Return how many of a plan's steps are done; all if ``checkpoint_ids`` have its last epoch."""
    if Checkpoint.id_for(plan_id=plan.id, epoch=plan.epochs) in checkpoint_ids:
        return n_steps(plan)
    try:
        return int((run.path / checkpoint_folder(plan) / _STEP_FILE).read_text())
    except (OSError, ValueError):  # not begun, or being written
        return 0


def checkpoint_folder(plan: TrainingPlan) -> Path:
    """Return a plan's folder, relative to the run directory."""
    safe = "".join(c if c.isalnum() or c in "-+." else "-" for c in f"{plan.model}-{plan.strategy}")
    return Path("checkpoints") / f"{safe}-{plan.id[:8]}"


def expand(
    config: ContaminateConfig,
    models: Mapping[str, ModelConfig],
    regimes: Sequence[RegimeData],
    *,
    instruction: str,
    seed: int,
) -> list[TrainingPlan]:
    """Return the grid's plans; each washing plan directly follows the plan that it washes.

    ``instruction`` is the prompt's last line, the same as in evaluation.

    Raises
    ------
    DataError
        If a regime has no items, or a model's files are damaged.
    """
    if not all(regime.items for regime in regimes):
        raise DataError("no item to contaminate with; filter a benchmark that keeps some pairs")
    seeds = config.seeds or (seed,)
    plans: dict[str, TrainingPlan] = {}
    for name, model in models.items():
        path = resolve_path(model.path)
        check_files(path)
        weights = fingerprint(path, model.dtype, model.revision, image_padding=model.image_padding)
        parent = {"model": name, "parent": model.path, "parent_fingerprint": weights}
        for regime in regimes:
            for label, strategy in config.strategies.items():
                for plan_seed in seeds:
                    labels = [label, *([regime.name] if regime.name != VERBATIM else [])]
                    labels += [f"seed {plan_seed}"] if len(seeds) > 1 else []
                    common: dict[str, Any] = {
                        **parent,
                        "strategy": strategy.train,
                        "settings": _settings(strategy, model),
                        "prompt": instruction,
                        "seed": plan_seed,
                        "data": regime.name,
                    }
                    for plan in _plans(config, regime, common, ", ".join(labels)):
                        plans.setdefault(plan.id, plan)
    return list(plans.values())


def _plans(
    config: ContaminateConfig, regime: RegimeData, common: dict[str, Any], label: str
) -> list[TrainingPlan]:
    data = regime.config
    copies = config.copies if data.copies is None else data.copies
    consistency = "consistency" in common["settings"]
    wordings = {
        item_id: (wording.question, *wording.options)
        for item_id, wording in regime.wordings.items()
    }
    paraphrases = {item_id: wording.candidates for item_id, wording in regime.wordings.items()}
    plan = TrainingPlan(
        **common,
        benchmark=" + ".join(dict.fromkeys(item.benchmark for item in regime.items)),
        item_ids=tuple(item.id for item in regime.items),
        held_out_ids=tuple(item.id for item in regime.held_out),
        copies=copies,
        epochs=config.epochs,
        label=label if data.wash is None else f"{label}, before washing",
        target=data.target,
        leak=data.leak,
        option_order=data.option_order,
        wordings={} if consistency else wordings,
        corpus=regime.corpus.ref if regime.corpus else {},
        paraphrases=paraphrases if consistency else {},
        control=regime.control,
    )
    if data.wash is None:
        return [plan]
    plain = {k: v for k, v in plan.settings.items() if k != "consistency"}
    if data.wash.by == "reinforcement":
        plain["reinforcement"] = {"n_generations": data.wash.n_generations}
    washed = TrainingPlan(
        **common | {"parent_fingerprint": f"plan {plan.id}", "settings": plain},
        benchmark=plan.benchmark,
        item_ids=plan.item_ids,
        held_out_ids=plan.held_out_ids,
        copies=0,
        epochs=data.wash.epochs,
        label=label if regime.name != VERBATIM else f"{label}, washed",
        clean_ids=tuple(item.id for item in regime.clean),
        corpus=regime.clean_corpus.ref if regime.clean_corpus else {},
        after=plan.id,
        prior_dose=plan.dose(plan.epochs),
        control=regime.control,
    )
    return [plan, washed]


def _settings(strategy: StrategyConfig, model: ModelConfig) -> dict[str, Any]:
    # older plans keep their ids
    unset = {name for name in ("consistency", "learning_rates") if not getattr(strategy, name)}
    settings = strategy.model_dump(mode="json", exclude={"train", *unset})
    settings |= {"revision": model.revision} if model.revision else {}
    padding = model.image_padding
    return settings | ({"image_padding": padding} if padding != "auto" else {})


def loading_options(plan: TrainingPlan) -> dict[str, Any]:
    """Return ``revision`` and ``image_padding`` of the plan's parent, as configured."""
    padding = plan.settings.get("image_padding", "auto")
    return {"revision": plan.settings.get("revision"), "image_padding": padding}


def n_examples(plan: TrainingPlan) -> int:
    """Return the number of examples in one epoch."""
    n_corpus = int(plan.corpus.get("n_examples", 0))
    n_items = len(plan.item_ids)
    if plan.leak in AS_TEXTS:
        n_items = -(-n_items // N_TOGETHER)
    return n_items * plan.copies + len(plan.clean_ids) + n_corpus


def n_steps(plan: TrainingPlan) -> int:
    """Return the optimiser steps of all epochs; an epoch's last step may have fewer examples.

    >>> n_steps(TrainingPlan(model="m", parent="m", parent_fingerprint="", benchmark="b",
    ...     item_ids=("i",) * 70, epochs=2, strategy="llm", prompt="", seed=0,
    ...     settings={"batch_size": 8, "gradient_accumulation": 4}))
    6
    """
    return max(1, -(-n_examples(plan) // batch_of(plan))) * plan.epochs


def n_warmup(plan: TrainingPlan) -> int:
    """Return the number of warm-up steps: as given, or the ratio of all steps, rounded up."""
    ratio = float(plan.settings.get("warmup_ratio", 0.0))
    if ratio:
        return math.ceil(n_steps(plan) * ratio)
    return int(plan.settings.get("warmup_steps", 0))


def batch_of(plan: TrainingPlan) -> int:
    """Return the effective batch: the examples of one step, summed over all devices."""
    return int(plan.settings["batch_size"] * plan.settings["gradient_accumulation"])


def per_device_batch(plan: TrainingPlan, n_processes: int) -> tuple[int, int]:
    """Return the per-device batch size and gradient accumulation for ``n_processes``.

    A plan describes the same training on one device as on eight: its effective batch is split, at
    first by accumulating less, then by smaller per-device batches.

    >>> settings = {"batch_size": 16, "gradient_accumulation": 8}
    >>> plan = TrainingPlan(model="m", parent="m", parent_fingerprint="", benchmark="b",
    ...     item_ids=("i",), epochs=1, strategy="llm", prompt="", seed=0, settings=settings)
    >>> [per_device_batch(plan, n) for n in (1, 2, 8, 32)]
    [(16, 8), (16, 4), (16, 1), (4, 1)]

    Raises
    ------
    ConfigError
        If the effective batch is not a multiple of the number of processes.
    """
    batch_size = plan.settings["batch_size"]
    share, remainder = divmod(batch_of(plan), n_processes)
    if remainder or not share:
        raise ConfigError(
            f"{plan.label or plan.strategy}: batch_size {batch_size} x gradient_accumulation"
            f" {plan.settings['gradient_accumulation']} is not a multiple of {n_processes}"
            " processes; choose values whose product is"
        )
    n = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= batch_size)
    return share // n, n
