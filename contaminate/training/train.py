"""Carry out a training plan with trl's `SFTTrainer` and peft: one checkpoint for each epoch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer_utils import get_last_checkpoint

from flipbench.config.training import ConsistencyConfig
from flipbench.core.errors import DataError, PrerequisiteError, need
from flipbench.core.processes import MAIN_PROCESS_TIMEOUT, from_main, is_main, n_processes
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import fingerprint

from ..checks.card import read_card
from ..checks.changes import Diverged, sums
from ..checks.check import (
    check_examples,
    pixel_budget,
    set_pixel_budget,
    write_out_first_token,
)
from ..checks.verify import prompt_as_rendered, verify
from ..data.examples import Example, training_examples
from ..plan import batch_of, n_warmup, per_device_batch
from ..strategies import STRATEGIES
from .checkpointing import KeepEpochs, StopAtNaN, finished_epochs
from .load import load_parent, prepare

Training = Callable[[TrainingPlan, Sequence[Example], Mapping[str, Item], Run, Path, str], None]


def train_plan(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    run: Run,
    *,
    dtype: str = "float32",
    corpus: Sequence[Example] = (),
    train_with: Training | None = None,
) -> list[Checkpoint]:
    """Train ``plan`` and return its checkpoints, one for each epoch.

    Epochs that are there already are not trained again; a run that was killed goes on from the
    last whole epoch, with the losses of an undisturbed run. Several processes
    (`flipbench.core.processes`) train together; the main one writes.

    Parameters
    ----------
    plan : TrainingPlan
    items : mapping of item id to Item
        Must hold every item of the plan.
    run : Run
        Checkpoints go to ``checkpoints/<model>-<strategy>-<plan id>/epoch-<n>``.
    corpus : sequence of Example
        The conversations that the plan names.
    train_with : callable, optional
        What trains the epochs that a folder lacks, with trl by default.

    Raises
    ------
    DataError
        Where an item of the plan, or its image, is missing; where a folder of another plan is in
        the way; where an example is longer than the model's context.
    Diverged
        Where the loss or the weights are no longer numbers; the epochs before are kept.
    PrerequisiteError
        Where a package or a GPU is missing or too small.
    """
    folder = run.path / checkpoint_folder(plan)
    wanted = [Checkpoint.id_for(plan_id=plan.id, epoch=e) for e in range(1, plan.epochs + 1)]
    done = run.index(Checkpoint)

    def what_is_there() -> tuple[bool, list[int]]:
        whole = all(i in done and (run.path / done[i].path / "README.md").exists() for i in wanted)
        return whole, finished_epochs(folder, plan.epochs)

    # all processes must go the same way, whatever the main one writes meanwhile
    whole, finished = from_main(what_is_there)
    if whole:
        return [done[i] for i in wanted]
    examples = training_examples(plan, items, run.images, corpus)
    for epoch in finished:
        if (found := read_card(folder / f"epoch-{epoch}").get("plan_id")) != plan.id:
            raise DataError(
                f"{folder / f'epoch-{epoch}'}: a checkpoint of plan {found}, not of {plan.id}; move"
                " the folder away"
            )
    try:
        if len(finished) < plan.epochs:
            (train_with or _train)(plan, examples, items, run, folder, dtype)
    except Diverged as error:
        kept = from_main(lambda: _records(plan, items, run, folder, dtype, done))
        names = ", ".join(str(checkpoint.epoch) for checkpoint in kept) or "none"
        raise Diverged(f"{plan.model}, {plan.label}: {error} (epochs kept: {names})") from error
    except torch.OutOfMemoryError as error:
        raise PrerequisiteError(
            f"{plan.model}, {plan.label}: the GPU's memory is too small; lower batch_size and raise"
            " gradient_accumulation by as much, set gradient_checkpointing, lower max_pixels, or"
            f" train {' or '.join(n for n, row in STRATEGIES.items() if row.adapter)}"
        ) from error
    made = from_main(lambda: _records(plan, items, run, folder, dtype, done))
    if is_main():
        shutil.rmtree(folder / "trainer", ignore_errors=True)
    return made


def _records(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    run: Run,
    folder: Path,
    dtype: str,
    done: Mapping[str, Checkpoint],
) -> list[Checkpoint]:
    """Verify the finished epochs and keep a record of each."""
    made = []
    for epoch in finished_epochs(folder, plan.epochs):
        path = folder / f"epoch-{epoch}"
        warnings = read_card(path).get("warnings")
        if warnings is None:
            warnings = verify(plan, path, items, run, dtype=dtype)
        made.append(
            Checkpoint(
                plan_id=plan.id,
                epoch=epoch,
                path=str(path.relative_to(run.path)),
                model=f"{plan.model} {plan.label or plan.strategy} e{epoch}",
                strategy=plan.label or plan.strategy,
                dose=0 if plan.control else plan.dose(epoch),
                fingerprint=fingerprint(str(path), dtype),
                warnings=tuple(warnings),
            )
        )
    run.append([checkpoint for checkpoint in made if checkpoint.id not in done])
    return made


def checkpoint_folder(plan: TrainingPlan) -> Path:
    """Return a plan's folder, relative to the run directory."""
    safe = "".join(c if c.isalnum() or c in "-+." else "-" for c in f"{plan.model}-{plan.strategy}")
    return Path("checkpoints") / f"{safe}-{plan.id[:8]}"


def _train(
    plan: TrainingPlan,
    examples: Sequence[Example],
    items: Mapping[str, Item],
    run: Run,
    folder: Path,
    dtype: str,
) -> None:
    trl = need("trl", "train")
    settings = plan.settings
    model, processor, own_processor = load_parent(plan, run, dtype)
    set_pixel_budget(processor, settings.get("min_pixels"), settings.get("max_pixels"))
    prompt = prompt_as_rendered(plan, items, run, processor)
    write_out_first_token(processor)
    text_config = model.config.get_text_config()
    others = [other for example in examples for other in example.in_other_words()]
    context = getattr(text_config, "max_position_embeddings", None)
    check_examples([*examples, *others], processor, context)
    architectures = list(model.config.architectures or [type(model).__name__])
    adapter = prepare(model, plan, dtype)
    trainer = _trainer_class(plan)(
        examples,
        model=model,
        args=_arguments(trl, plan, folder, dtype),
        processing_class=processor,
        peft_config=adapter,
        callbacks=[],
    )
    trainer.remove_callback(PrinterCallback)  # the card keeps the losses
    trainer.add_callback(StopAtNaN())
    trainer.add_callback(
        KeepEpochs(
            plan=plan,
            folder=folder,
            trainer=trainer,
            processor=own_processor,
            architectures=architectures,
            before=sums(trainer.model),
            dtype=dtype,
            training={
                "backend": "trl",
                "optimizer": str(getattr(trainer.args.optim, "value", trainer.args.optim)),
                "adam": [trainer.args.adam_beta1, trainer.args.adam_beta2],
                "epsilon": trainer.args.adam_epsilon,
                "warmup_steps": n_warmup(plan),
                "n_examples": len(examples),
                "n_processes": n_processes(),
                "distributed": trainer.accelerator.distributed_type.value,
                "batch_size_on_each": trainer.args.per_device_train_batch_size,
                "gradient_accumulation_on_each": trainer.args.gradient_accumulation_steps,
                "effective_batch": batch_of(plan),
                "dtype": dtype,
                "device": str(trainer.args.device),
                "pixel_budget": pixel_budget(processor),
                "prompt_example": prompt,
                "chat_template": processor.chat_template,
            },
        )
    )
    last = from_main(lambda: _last_whole_checkpoint(folder / "trainer"))
    try:
        trainer.train(resume_from_checkpoint=last)
    finally:  # ZeRO-3 would have every process take part in loading a model
        unset_hf_deepspeed_config()


def _trainer_class(plan: TrainingPlan) -> Callable[..., Any]:
    """Return the trainer with the plan's loss."""
    from .consistency import ConsistencyTrainer, check_paraphrases
    from .trainer import Trainer

    if "consistency" not in plan.settings:
        return Trainer
    check_paraphrases(plan)
    config = ConsistencyConfig.model_validate(plan.settings["consistency"])
    return partial(ConsistencyTrainer, consistency=config)


def _arguments(trl: Any, plan: TrainingPlan, folder: Path, dtype: str) -> Any:
    settings = plan.settings
    on_cpu = not torch.cuda.is_available()
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
        **{_checkpointing_option(trl.SFTConfig): settings.get("gradient_checkpointing", False)},
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


def _last_whole_checkpoint(folder: Path) -> str | None:
    """Return where the trainer goes on; what a kill left half-written is removed.

    The trainer writes ``trainer_state.json`` last.
    """
    while folder.is_dir() and (last := get_last_checkpoint(str(folder))):
        try:
            json.loads((Path(last) / "trainer_state.json").read_text())
        except (OSError, ValueError):
            shutil.rmtree(last)
        else:
            return str(last)
    return None


def _checkpointing_option(config: Any) -> str:
    """Return what this version calls the trade of time for memory (renamed in transformers 5)."""
    new = "activation_checkpointing"
    return new if new in config.__dataclass_fields__ else "gradient_checkpointing"
