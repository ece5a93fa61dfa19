"""LLaMA-Factory's input and output: the parent's folder, and each epoch's weights.

The weights are read back and compared with the parent's before they become a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from flipbench.core.errors import need
from flipbench.core.files import write_atomically
from flipbench.core.records import TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import padding_of, resolve_path
from flipbench.models.vlm.loading import load_model
from flipbench.models.vlm.processors import load_processor

from ..checks.changes import WrongParameters, check_changes, checksums
from ..checks.check import set_pixel_budget
from ..plan import loading_options
from ..strategies import select_parameters, strategy_of
from ..training.checkpointing import complete_checkpoints, finished_epochs, write_checkpoint
from ..training.load import load_parent, prepare, skeleton_of

_PROCESSOR = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Parent:
    """A folder that LLaMA-Factory can train from, and its model without weights."""

    path: Path
    skeleton: Any


@contextmanager
def parent_folder(plan: TrainingPlan, run: Run, dtype: str, folder: Path) -> Iterator[Parent]:
    """Prepare a temporary folder with the plan's parent model, precision, padding, pixel budget.

    LLaMA-Factory reads all of these from the folder; the other files are links. For
    a washing plan, the full weights are saved, with adapters merged.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings, source = plan.settings, resolve_path(plan.parent)
    try:
        if plan.after or (Path(source) / "adapter_config.json").exists():
            model, _, processor = load_parent(plan, run, dtype)
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
            del model
        else:
            if not Path(source).is_dir():
                source = snapshot_download(source, revision=settings.get("revision"))
            for file in Path(source).iterdir():
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((folder / "config.json").read_text())
        # replaces the link, not the parent's file
        write_atomically(folder / "config.json", json.dumps(_with_dtype(config, dtype), indent=2))
        options = loading_options(plan)
        padded = padding_of(str(folder), options["image_padding"]) == "square"
        if padded or settings.get("min_pixels") or settings.get("max_pixels"):
            processor = load_processor(folder, image_padding=options["image_padding"])
            set_pixel_budget(processor, settings)
            for name in _PROCESSOR:
                (folder / name).unlink(missing_ok=True)
            processor.save_pretrained(folder / "changed")
            for file in (folder / "changed").iterdir():
                os.replace(file, folder / file.name)  # likewise
        yield Parent(folder.resolve(), skeleton_of(str(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    parts = {k: _with_dtype(v, dtype) if isinstance(v, dict) else v for k, v in config.items()}
    return {k: dtype if k in ("dtype", "torch_dtype") else v for k, v in parts.items()} | (
        {"dtype": dtype} if "architectures" in config else {}
    )


@dataclass
class CheckpointImporter:
    """Converts LLaMA-Factory's complete checkpoints to ours, each time it is called.

    Each is loaded as evaluation loads it, compared with the parent parameter by parameter, and
    saved with its card. Of LLaMA-Factory's own checkpoints only the last is kept, to resume from.

    Raises
    ------
    WrongParameters
        If other parameters were trained than planned, or none.
    Diverged
        If a weight is not finite.
    """

    plan: TrainingPlan
    run: Run
    folder: Path
    dtype: str
    versions: Mapping[str, str]
    training: dict[str, Any]
    before: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    processor: Any = field(default=None, init=False)
    start: float = field(default_factory=time.monotonic, init=False)

    def __call__(self) -> None:
        """Import complete checkpoints that are not imported yet."""
        finished = finished_epochs(self.folder, self.plan.epochs)
        complete = complete_checkpoints(self.folder / "llamafactory" / "trainer")
        for path, state in complete:
            if round(state["epoch"]) not in finished:
                self._import(path, state)
        for path, _ in complete[:-1]:
            shutil.rmtree(path)

    def warn(self, warning: str) -> None:
        """Add a warning to the cards of later checkpoints."""
        self.training["warnings"] = [*self.training["warnings"], warning]

    def _import(self, path: Path, state: dict[str, Any]) -> None:
        model, trainable = self._read(path)
        unchanged = check_changes(model, self.before, [name for name, _ in trainable])
        if all(name in unchanged for name, _ in trainable if ".lora_A." not in name):
            raise WrongParameters(
                "LLaMA-Factory changed no weight: the learning rate is too small, or the warm-up is"
                " longer than the training"
            )
        adapter = strategy_of(self.plan.strategy).adapter
        base = model.get_base_model() if adapter else model
        architectures = list(base.config.architectures or [type(base).__name__])
        if adapter and self.plan.after:
            model = model.merge_and_unload()
        write_checkpoint(
            self.folder,
            self.plan,
            state,
            save_weights=model.save_pretrained,
            processor=self.processor,
            architectures=architectures,
            trainable=trainable,
            unchanged=unchanged,
            start=self.start,
            training=self.training,
            versions=self.versions,
        )

    def _read(self, path: Path) -> tuple[Any, list[tuple[str, int]]]:
        """Return the trained model, and name and size of each trainable parameter."""
        adapter = strategy_of(self.plan.strategy).adapter
        if adapter or not self.before:
            model, _, self.processor = load_parent(self.plan, self.run, self.dtype)
        if adapter:
            model = self._with_adapter(model, path)
        else:
            self.before = self.before or checksums(model)
            model = load_model(str(path), self.dtype)
            select_parameters(model, self.plan.strategy)
        parameters = model.named_parameters()
        return model, [(name, p.numel()) for name, p in parameters if p.requires_grad]

    def _with_adapter(self, model: Any, path: Path) -> Any:
        """Load LLaMA-Factory's adapter, which must cover exactly the plan's layers."""
        peft = need("peft", "train")
        with torch.random.fork_rng():
            torch.manual_seed(self.plan.seed)  # LLaMA-Factory's initial weights, on a CPU
            model = peft.get_peft_model(model, prepare(model, self.plan, self.dtype))
        self.before = checksums(model)
        weights = load_file(path / "adapter_model.safetensors")
        own_weights = peft.get_peft_model_state_dict(model)
        if different := sorted(own_weights.keys() ^ weights.keys()):
            raise WrongParameters(
                f"LLaMA-Factory trained other adapters than planned: {len(different)} differ, e.g."
                f" {different[0]}"
            )
        peft.set_peft_model_state_dict(model, weights)
        return model
