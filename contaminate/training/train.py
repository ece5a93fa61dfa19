"""Train a plan with trl's `SFTTrainer` and peft: one checkpoint per epoch."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PrinterCallback
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from flipbench.config.training import ConsistencyConfig
from flipbench.core.errors import DataError, PrerequisiteError, need, shorten
from flipbench.core.processes import MAIN_PROCESS_TIMEOUT, from_main, is_main, n_processes
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.protocols import free_memory
from flipbench.models.vlm.checkpoints import fingerprint

from ..checks.card import read_card, restore_card
from ..checks.changes import Diverged, checksums
from ..checks.check import add_first_token, check_examples, context_of, set_pixel_budget
from ..checks.verify import training_facts, verify
from ..data.examples import Example, training_examples
from ..plan import TrainingJob, n_warmup, per_device_batch
from ..strategies import STRATEGIES
from .checkpointing import (
    NoteSteps,
    SaveEpochs,
    StopAtNaN,
    finished_epochs,
    last_checkpoint,
)
from .load import load_parent, prepare

log = logging.getLogger(__name__)
Training = Callable[[TrainingJob, Sequence[Example]], None]
_UNWRITABLE = re.compile(r"serializing: I/O error|inline_container")
"""In messages of safetensors and torch about files that cannot be written."""


def train_plan(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    run: Run,
    *,
    dtype: str = "float32",
    corpus: Sequence[Example] = (),
    train_with: Training | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[Checkpoint]:
    """Train ``plan`` and return its checkpoints, one per epoch.

    Existing epochs are not trained again; after a kill, training resumes from the last complete
    epoch, with the same losses as an uninterrupted run. Several processes
    (`flipbench.core.processes`) train together; only the main one writes. While another command
    trains the plan, this one waits, and finds its checkpoints.

    Parameters
    ----------
    plan : TrainingPlan
    items : mapping of item id to Item
        Must contain every item of the plan.
    run : Run
        Checkpoints go to ``checkpoints/<model>-<strategy>-<plan id>/epoch-<n>``.
    corpus : sequence of Example
        The conversations of the plan's corpus.
    train_with : callable, optional
        Trains the missing epochs; by default with trl.
    on_step : callable, optional
        Called with the number of steps done, in the main process.

    Raises
    ------
    DataError
        If an item of the plan, or its image, is missing; if another plan's folder is in the way;
        if an example is longer than the model's context; if a checkpoint cannot be written; if one
        that was lost is trained again and comes out different.
    Diverged
        If the loss or the weights are no longer finite; earlier epochs are kept.
    PrerequisiteError
        If a package or a GPU is missing, or GPU memory is too small.
    """
    job = TrainingJob(plan, items, run, dtype, on_step)
    with run.exclusive_lock(f"training {job.folder.name}") if is_main() else nullcontext():
        return _checkpoints(job, corpus, train_with)


def _checkpoints(
    job: TrainingJob, corpus: Sequence[Example], train_with: Training | None
) -> list[Checkpoint]:
    plan, run, folder = job.plan, job.run, job.folder
    ids = [Checkpoint.id_for(plan_id=plan.id, epoch=e) for e in range(1, plan.epochs + 1)]
    stored = run.index(Checkpoint)

    def progress() -> tuple[bool, list[int]]:
        _restore_cards(job, [stored[i] for i in ids if i in stored])
        complete = all(
            i in stored and (run.path / stored[i].path / "README.md").exists() for i in ids
        )
        return complete, finished_epochs(folder, plan.epochs)

    # all processes must take the same branch, whatever the main one writes meanwhile
    complete, finished = from_main(progress)
    if complete:
        if is_main():  # a kill may have come before or while it was removed
            shutil.rmtree(folder / "trainer", ignore_errors=True)
        return [stored[i] for i in ids]
    examples = training_examples(plan, job.items, run.images, corpus)
    for epoch in finished:
        path = folder / f"epoch-{epoch}"
        if (plan_id := read_card(path).get("plan_id")) != plan.id:
            raise DataError(
                f"{path}: a checkpoint of plan {plan_id}, not of {plan.id}; move the folder away"
            )
    try:
        if len(finished) < plan.epochs:
            (train_with or _train)(job, examples)
            free_memory()  # the trainer, before models are loaded to verify its checkpoints
    except Diverged as error:
        finished_checkpoints = from_main(lambda: _records(job, stored))
        names = ", ".join(str(checkpoint.epoch) for checkpoint in finished_checkpoints) or "none"
        raise Diverged(f"{plan.model}, {plan.label}: {error} (epochs kept: {names})") from error
    except torch.OutOfMemoryError as error:
        raise PrerequisiteError(
            f"{plan.model}, {plan.label}: out of GPU memory; lower batch_size and raise"
            " gradient_accumulation by the same factor, set gradient_checkpointing, lower"
            f" max_pixels, or train {' or '.join(n for n, s in STRATEGIES.items() if s.adapter)}"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        if not _UNWRITABLE.search(str(error)):
            raise
        raise DataError(
            f"{folder}: a checkpoint cannot be written ({shorten(str(error), 200)}); finished"
            " epochs are safe: free some disk space and run the same command again"
        ) from error
    checkpoints = from_main(lambda: _records(job, stored))
    if is_main():
        shutil.rmtree(folder / "trainer", ignore_errors=True)
    return checkpoints


def _restore_cards(job: TrainingJob, checkpoints: Sequence[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        folder = job.run.path / checkpoint.path
        if (folder / "README.md").exists() and restore_card(folder, job.plan, checkpoint):
            log.warning(
                "%s: its card was lost or damaged; it is restored from the plan, without the losses"
                " and the verification",
                folder,
            )


def _records(job: TrainingJob, stored: Mapping[str, Checkpoint]) -> list[Checkpoint]:
    """Verify the finished epochs and store a record of each."""
    checkpoints, plan, run = [], job.plan, job.run
    for epoch in finished_epochs(job.folder, plan.epochs):
        path = job.folder / f"epoch-{epoch}"
        warnings = read_card(path).get("warnings")
        if warnings is None:
            warnings = verify(job, path)
        weights = fingerprint(str(path), job.dtype)
        earlier = stored.get(Checkpoint.id_for(plan_id=plan.id, epoch=epoch))
        if earlier is not None and earlier.fingerprint != weights:
            raise DataError(
                f"{path}: trained again, but the weights differ from those that the run's answers"
                " are from, as on another processor or with other versions; use a new run directory"
            )
        checkpoints.append(
            Checkpoint(
                plan_id=plan.id,
                epoch=epoch,
                path=str(path.relative_to(run.path)),
                model=f"{plan.model} {plan.label or plan.strategy} e{epoch}",
                strategy=plan.label or plan.strategy,
                dose=0 if plan.control else plan.dose(epoch),
                fingerprint=weights,
                warnings=tuple(warnings),
            )
        )
    run.append([checkpoint for checkpoint in checkpoints if checkpoint.id not in stored])
    return checkpoints


def _train(job: TrainingJob, examples: Sequence[Example]) -> None:
    plan, folder, dtype = job.plan, job.folder, job.dtype
    model, processor, own_processor = load_parent(plan, job.run, dtype)
    set_pixel_budget(processor, plan.settings)
    add_first_token(processor)
    check_examples(examples, processor, context_of(model.config))
    architectures = list(model.config.architectures or [type(model).__name__])
    adapter = prepare(model, plan, dtype)
    trainer = _trainer_class(plan)(
        examples,
        model=model,
        args=_arguments(plan, folder, dtype),
        processing_class=processor,
        peft_config=adapter,
        callbacks=[],
        learning_rates=plan.settings.get("learning_rates"),
    )
    trainer.remove_callback(PrinterCallback)  # the card has the losses
    trainer.add_callback(StopAtNaN())
    trainer.add_callback(NoteSteps(job.note_step))
    trainer.add_callback(
        SaveEpochs(
            plan=plan,
            folder=folder,
            trainer=trainer,
            processor=own_processor,
            architectures=architectures,
            before=checksums(trainer.model),
            dtype=dtype,
            training={
                **training_facts(job, examples, processor),
                "backend": "trl",
                "optimizer": str(getattr(trainer.args.optim, "value", trainer.args.optim)),
                "adam": [trainer.args.adam_beta1, trainer.args.adam_beta2],
                "epsilon": trainer.args.adam_epsilon,
                "n_processes": n_processes(),
                "distributed": trainer.accelerator.distributed_type.value,
                "batch_size_on_each": trainer.args.per_device_train_batch_size,
                "gradient_accumulation_on_each": trainer.args.gradient_accumulation_steps,
                "device": str(trainer.args.device),
            },
        )
    )
    resume_from = from_main(lambda: last_checkpoint(folder / "trainer"))
    try:
        trainer.train(resume_from_checkpoint=resume_from)
        if trainer.collator.cut:
            log.warning(
                "%s, %s: %d conversations were longer than max_tokens or the context, and cut",
                plan.model,
                plan.label,
                len(trainer.collator.cut),
            )
    finally:  # otherwise ZeRO-3 makes every process take part in loading a model
        unset_hf_deepspeed_config()


def _trainer_class(plan: TrainingPlan) -> Callable[..., Any]:
    """Return the trainer with the plan's loss."""
    from .consistency import ConsistencyTrainer, check_paraphrases
    from .trainer import Trainer

    if "reinforcement" in plan.settings:
        from .reinforcement import ReinforcementTrainer

        return partial(ReinforcementTrainer, **plan.settings["reinforcement"])
    if "consistency" not in plan.settings:
        return Trainer
    check_paraphrases(plan)
    config = ConsistencyConfig.model_validate(plan.settings["consistency"])
    return partial(ConsistencyTrainer, consistency=config)


def _arguments(plan: TrainingPlan, folder: Path, dtype: str) -> Any:
    trl, settings, on_cpu = need("trl", "train"), plan.settings, not torch.cuda.is_available()
    batch_size, accumulation = per_device_batch(plan, n_processes())
    return trl.SFTConfig(
        output_dir=str(folder / "trainer"),
        num_train_epochs=plan.epochs,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type=settings["schedule"],
        warmup_steps=n_warmup(plan),
        weight_decay=settings["weight_decay"],
        max_grad_norm=settings.get("max_grad_norm", 1.0),
        seed=plan.seed,
        data_seed=plan.seed,
        use_cpu=on_cpu,
        bf16=not on_cpu and dtype == "bfloat16",
        fp16=not on_cpu and dtype == "float16",
        activation_checkpointing=settings.get("gradient_checkpointing", False),
        max_length=None,
        completion_only_loss=True,
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_timeout=int(MAIN_PROCESS_TIMEOUT.total_seconds()),
    )
