"""What goes into LLaMA-Factory and what comes out: the parent's folder, and each epoch's weights.

What comes out is read back and held against the parent before it becomes a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from flipbench.core.errors import need
from flipbench.core.files import replace_folder, write_atomically
from flipbench.core.records import TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import load_model, resolve_path
from flipbench.models.vlm.processors import load_processor

from ..checks.card import write_card
from ..checks.changes import WrongParameters, check_changes, sums
from ..checks.check import set_pixel_budget
from ..strategies import select_parameters, strategy_of
from ..training.checkpointing import finished_epochs
from ..training.estimate import skeleton_of
from ..training.load import load_parent, prepare

_PROCESSOR = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Parent:
    """A folder that LLaMA-Factory can train from, and its model without weights."""

    path: Path
    skeleton: Any


@contextmanager
def lay_out_parent(plan: TrainingPlan, run: Run, dtype: str, folder: Path) -> Iterator[Parent]:
    """Lay out what a plan starts from: links to its files, but the plan's precision and pixels.

    LLaMA-Factory reads both off the folder. What a washing starts from is written out whole,
    adapters merged. The folder is gone afterwards.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings, where = plan.settings, resolve_path(plan.parent)
    try:
        if plan.after or (Path(where) / "adapter_config.json").exists():
            model, _, processor = load_parent(plan, run, dtype)
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
            del model
        else:
            if not Path(where).is_dir():
                where = snapshot_download(where, revision=settings.get("revision"))
            for file in Path(where).iterdir():
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((folder / "config.json").read_text())
        # puts a file in the place of the link, the parent's own stays as it is
        write_atomically(folder / "config.json", json.dumps(_with_dtype(config, dtype), indent=2))
        if settings.get("min_pixels") or settings.get("max_pixels"):
            processor = load_processor(folder)
            set_pixel_budget(processor, settings.get("min_pixels"), settings.get("max_pixels"))
            for name in _PROCESSOR:
                (folder / name).unlink(missing_ok=True)
            processor.save_pretrained(folder / "changed")
            for file in (folder / "changed").iterdir():
                os.replace(file, folder / file.name)  # never written through a link
        yield Parent(folder.resolve(), skeleton_of(str(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    parts = {k: _with_dtype(v, dtype) if isinstance(v, dict) else v for k, v in config.items()}
    return {k: dtype if k in ("dtype", "torch_dtype") else v for k, v in parts.items()} | (
        {"dtype": dtype} if "architectures" in config else {}
    )


class CheckpointImporter:
    """Called again and again: turn LLaMA-Factory's whole checkpoints into ours.

    Each is read back as evaluation reads it, compared with the parent parameter by parameter, and
    saved with its card, whole or not at all. Of LLaMA-Factory's own only the last stays, from which
    a killed training goes on.

    Raises
    ------
    WrongParameters
        Where something else was trained than the plan says, or nothing.
    Diverged
        Where a weight is no number.
    """

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        run: Run,
        folder: Path,
        dtype: str,
        versions: Mapping[str, str],
        training: dict[str, Any],
    ) -> None:
        self.plan, self.run, self.folder, self.dtype = plan, run, folder, dtype
        self.versions, self.training = versions, training
        self.before: dict[str, tuple[int, int]] = {}
        self.processor: Any = None
        self.start = time.monotonic()

    def __call__(self) -> None:
        """Take over what is whole and not there yet."""
        there = finished_epochs(self.folder, self.plan.epochs)
        whole = whole_checkpoints(self.folder / "llamafactory" / "trainer")
        for path, state in whole:
            if (epoch := round(state["epoch"])) not in there:
                self._keep(path, state, epoch)
        for path, _ in whole[:-1]:
            shutil.rmtree(path)

    def warn(self, warning: str) -> None:
        """Put a warning on the cards to come."""
        self.training["warnings"] = [*self.training["warnings"], warning]

    def _keep(self, path: Path, state: dict[str, Any], epoch: int) -> None:
        model, trainable = self._read(path)
        changes = check_changes(model, self.before, [name for name, _ in trainable])
        if all(name in changes.unchanged for name, _ in trainable if ".lora_A." not in name):
            raise WrongParameters(
                "LLaMA-Factory changed no weight: the learning rate is too small, or the warm-up is"
                " longer than the training"
            )
        partial = self.folder / f".epoch-{epoch}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        adapter = strategy_of(self.plan.strategy).adapter
        base = model.get_base_model() if adapter else model
        architectures = list(base.config.architectures or [type(base).__name__])
        if adapter and self.plan.after:
            model = model.merge_and_unload()
        model.save_pretrained(partial)
        self.processor.save_pretrained(partial)
        write_card(
            partial,
            self.plan,
            epoch=epoch,
            architectures=architectures,
            trainable=trainable,
            losses=[
                {key: entry[key] for key in ("step", "epoch", "loss", "learning_rate")}
                for entry in state["log_history"]
                if "loss" in entry
            ],
            training=self.training
            | {
                "n_steps": state["global_step"],
                "seconds": round(time.monotonic() - self.start, 1),
                "n_changed": changes.n_changed,
                "unchanged": list(changes.unchanged),
            },
            versions=self.versions,
        )
        replace_folder(partial, self.folder / f"epoch-{epoch}")

    def _read(self, path: Path) -> tuple[Any, list[tuple[str, int]]]:
        """Return the trained model, and name and size of each parameter that trains."""
        adapter = strategy_of(self.plan.strategy).adapter
        if adapter or not self.before:
            model, _, self.processor = load_parent(self.plan, self.run, self.dtype)
        if adapter:
            model = self._with_adapter(model, path)
        else:
            self.before = self.before or sums(model)
            model = load_model(str(path), self.dtype)
            select_parameters(model, self.plan.strategy)
        parameters = model.named_parameters()
        return model, [(name, p.numel()) for name, p in parameters if p.requires_grad]

    def _with_adapter(self, model: Any, path: Path) -> Any:
        """Put an adapter on the plan's own places; it must be for exactly those."""
        peft = need("peft", "train")
        with torch.random.fork_rng():
            torch.manual_seed(self.plan.seed)  # LLaMA-Factory draws the same start on a CPU
            model = peft.get_peft_model(model, prepare(model, self.plan, self.dtype))
        self.before = sums(model)
        weights = load_file(path / "adapter_model.safetensors")
        wanted = peft.get_peft_model_state_dict(model)
        if odd := sorted(wanted.keys() ^ weights.keys()):
            raise WrongParameters(
                f"LLaMA-Factory trained other adapters than the plan says: {len(odd)} differ, e.g."
                f" {odd[0]}"
            )
        peft.set_peft_model_state_dict(model, weights)
        return model


def whole_checkpoints(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return a trainer's whole checkpoints with their states, in order.

    The trainer writes ``trainer_state.json`` last.
    """
    found = []
    for path in folder.glob("checkpoint-*"):
        try:
            found.append((path, json.loads((path / "trainer_state.json").read_text())))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda pair: int(pair[1]["global_step"]))


def last_checkpoint(folder: Path) -> str | None:
    """Return where a trainer goes on; what a kill left half-written is removed."""
    whole = [path for path, _ in whole_checkpoints(folder)]
    for path in set(folder.glob("checkpoint-*")) - set(whole):
        shutil.rmtree(path)
    return str(whole[-1]) if whole else None
