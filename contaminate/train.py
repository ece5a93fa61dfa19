"""Carry out a training plan with trl's `SFTTrainer` and peft: one checkpoint for each epoch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Image, List
from transformers import AutoModelForImageTextToText, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from flipbench.contaminate.card import write_card
from flipbench.contaminate.strategies import lora_config, select_parameters
from flipbench.errors import DataError, need
from flipbench.images import ImageStore
from flipbench.models.huggingface import fingerprint, has_first_token, resolve_path
from flipbench.models.processors import load_processor
from flipbench.prompts import LETTERS, choice_prompt
from flipbench.records import Checkpoint, Item, TrainingPlan
from flipbench.run import Run


def carry_out(
    plan: TrainingPlan, items: Mapping[str, Item], run: Run, *, dtype: str = "float32"
) -> list[Checkpoint]:
    """Train ``plan`` and return its checkpoints, one for each epoch.

    Epochs that are there already are not trained again; a run that was killed goes on from the
    last whole epoch, with the losses of an undisturbed run.

    Parameters
    ----------
    plan : TrainingPlan
    items : mapping of item id to Item
        Must hold every item of the plan.
    run : Run
        Checkpoints go to ``checkpoints/<model>-<strategy>-<plan id>/epoch-<n>``.

    Raises
    ------
    DataError
        Where an item of the plan, or its image, is missing.
    """
    folder = checkpoint_folder(plan)
    wanted = [Checkpoint.id_for(plan_id=plan.id, epoch=e) for e in range(1, plan.epochs + 1)]
    done = run.index(Checkpoint)
    if all(i in done and (run.path / done[i].path / "README.md").exists() for i in wanted):
        return [done[i] for i in wanted]
    _train(plan, training_rows(plan, items, run.images), run.path / folder, dtype)
    made = []
    for epoch in range(1, plan.epochs + 1):
        relative = folder / f"epoch-{epoch}"
        made.append(
            Checkpoint(
                plan_id=plan.id,
                epoch=epoch,
                path=str(relative),
                model=f"{plan.model} {plan.label or plan.strategy} e{epoch}",
                strategy=plan.label or plan.strategy,
                dose=plan.copies * epoch,
                fingerprint=fingerprint(str(run.path / relative), dtype),
            )
        )
    run.append([checkpoint for checkpoint in made if checkpoint.id not in done])
    shutil.rmtree(run.path / folder / "trainer", ignore_errors=True)
    return made


def checkpoint_folder(plan: TrainingPlan) -> Path:
    """Return a plan's folder, relative to the run directory."""
    safe = "".join(c if c.isalnum() or c in "-+." else "-" for c in f"{plan.model}-{plan.strategy}")
    return Path("checkpoints") / f"{safe}-{plan.id[:8]}"


def training_rows(
    plan: TrainingPlan, items: Mapping[str, Item], images: ImageStore
) -> list[dict[str, Any]]:
    """Return the rows that trl trains on: every item ``plan.copies`` times, answer as a letter.

    The prompt is the one that evaluation uses (`flipbench.prompts.choice_prompt`).
    """
    rows = []
    for item_id in plan.item_ids:
        item = items.get(item_id)
        if item is None:
            raise DataError(f"plan {plan.id} trains on item {item_id}, which the benchmark lacks")
        if item.options is None or item.answer is None:
            raise DataError(f"{item.benchmark} {item.name} is free-form; it has no letter to train")
        for ref in item.images:
            if not images.path(ref).exists():
                raise DataError(
                    f"{item.benchmark} {item.name}: its image {images.path(ref)} is missing"
                )
        parts: list[dict[str, str]] = [{"type": "image"}] * len(item.images)
        text = choice_prompt(item.question, item.options, plan.prompt)
        rows.append(
            {
                "images": [str(images.path(ref)) for ref in item.images],
                "prompt": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
                "completion": [
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": LETTERS[item.answer]}],
                    }
                ],
            }
        )
    return rows * plan.copies


def _train(plan: TrainingPlan, rows: list[dict[str, Any]], folder: Path, dtype: str) -> None:
    trl = need("trl", "train")
    settings = plan.settings
    where = resolve_path(plan.parent)
    at = {"revision": settings["revision"]} if "revision" in settings else {}
    processor = load_processor(where, **at)
    _write_out_first_token(processor)
    model = AutoModelForImageTextToText.from_pretrained(
        where, dtype=getattr(torch, dtype), use_safetensors=True, **at
    )
    architectures = list(model.config.architectures or [type(model).__name__])
    select_parameters(model, plan.strategy)  # type: ignore[arg-type]
    adapter = None
    if plan.strategy == "lora":
        adapter = lora_config(
            model, settings["lora_rank"], settings["lora_alpha"], settings["lora_dropout"]
        )
    on_cpu = not torch.cuda.is_available()
    config = trl.SFTConfig(
        output_dir=str(folder / "trainer"),
        num_train_epochs=plan.epochs,
        per_device_train_batch_size=settings["batch_size"],
        gradient_accumulation_steps=settings["gradient_accumulation"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type=settings["schedule"],
        warmup_steps=settings["warmup_steps"],
        weight_decay=settings["weight_decay"],
        max_grad_norm=1.0,
        seed=plan.seed,
        data_seed=plan.seed,
        use_cpu=on_cpu,
        bf16=not on_cpu and dtype == "bfloat16",
        **{_checkpointing_option(trl.SFTConfig): False},
        max_length=None,
        completion_only_loss=True,
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    dataset = Dataset.from_list(rows).cast_column("images", List(Image()))
    trainer = trl.SFTTrainer(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=processor,
        peft_config=adapter,
        callbacks=[],
    )
    _quiet(trainer)
    trainer.add_callback(_KeepEpochs(plan, folder, trainer, processor, architectures))
    trainer.train(resume_from_checkpoint=_last_whole_checkpoint(folder / "trainer"))


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


def _write_out_first_token(processor: Any) -> None:
    """Let the chat template say the first token that the tokenizer would add by itself.

    trl tokenises rendered chats without adding any; evaluation has it added.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    rendered = processor.apply_chat_template(chat, tokenize=False)
    adds_it = tokenizer("?")["input_ids"][0] == tokenizer.bos_token_id
    if adds_it and not has_first_token(rendered, tokenizer):
        processor.chat_template = tokenizer.bos_token + processor.chat_template


def _checkpointing_option(config: Any) -> str:
    """Return what this version calls the trade of time for memory (renamed in transformers 5)."""
    new = "activation_checkpointing"
    return new if new in config.__dataclass_fields__ else "gradient_checkpointing"


class _KeepEpochs(TrainerCallback):  # type: ignore[misc]
    """Save a checkpoint named by its epoch, whole or not at all, with its card."""

    def __init__(
        self,
        plan: TrainingPlan,
        folder: Path,
        trainer: Any,
        processor: Any,
        architectures: list[str],
    ) -> None:
        self.plan, self.folder, self.trainer = plan, folder, trainer
        self.processor, self.architectures = processor, architectures

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epoch = round(state.epoch)
        final = self.folder / f"epoch-{epoch}"
        if final.exists():
            return
        partial = self.folder / f".epoch-{epoch}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        model = self.trainer.model
        model.save_pretrained(partial)
        self.processor.save_pretrained(partial)
        write_card(
            partial,
            self.plan,
            epoch=epoch,
            architectures=self.architectures,
            trainable=[(n, p.numel()) for n, p in model.named_parameters() if p.requires_grad],
            losses=[
                {key: entry[key] for key in ("step", "epoch", "loss", "learning_rate")}
                for entry in state.log_history
                if "loss" in entry
            ],
        )
        os.replace(partial, final)


def _quiet(trainer: Any) -> None:
    """Take away the callback that prints every logged step; the card keeps the losses."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
