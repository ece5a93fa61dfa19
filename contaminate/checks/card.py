"""The card of a contaminated checkpoint: which model was trained on what, how often, and how."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.records import Checkpoint, TrainingPlan
from flipbench.models.vlm.checkpoints import ADAPTER, CARD, check_card, read_object, resolve_path

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")
_SHOWN = ("benchmark", "dose", "doses", "parent", "strategy")


def write_card(
    folder: Path,
    plan: TrainingPlan,
    *,
    epoch: int,
    architectures: list[str],
    trainable: list[tuple[str, int]],
    losses: list[dict[str, float]],
    training: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write ``flipbench_card.json``, and mark model card and configuration as contaminated.

    Parameters
    ----------
    trainable : list of (name, number of weights)
    losses : list of {"step", "epoch", "loss", "learning_rate"}
        With consistency training, also "divergence" (nats).
    training : mapping
        What the plan does not contain: optimiser, steps, pixel budget, rendered prompt, and the
        trainable parameters that did not change.
    versions : mapping, optional
        Package versions, if the training ran in another environment.
    """
    card = _history(plan, epoch) | {
        "architectures": architectures,
        "training": dict(training),
        "n_trainable": sum(size for _, size in trainable),
        "trainable": [name for name, _ in trainable],
        "versions": dict(versions or _versions()),
        "losses": losses,
    }
    contaminated = card["flipbench"]["contaminated"]
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")
    _mark(folder, contaminated, plan.parent_fingerprint)
    (folder / "README.md").write_text(_model_card(plan, plan.dose(epoch), contaminated))


def restore_card(folder: Path, plan: TrainingPlan, checkpoint: Checkpoint) -> bool:
    """Write a card that was lost or damaged again; return whether that was necessary.

    It says all that the plan and the run's record say, and that it is restored; how the training
    went is lost. A damaged card is kept as ``flipbench_card.damaged``.
    """
    try:
        if read_card(folder):
            return False
    except DataError:
        (folder / CARD).replace((folder / CARD).with_suffix(".damaged"))
    card = _history(plan, checkpoint.epoch) | {"warnings": checkpoint.warnings, "restored": True}
    if (config := folder / "config.json").exists():
        card["architectures"] = read_object(config).get("architectures")
    write_atomically(folder / CARD, json.dumps(card, indent=1) + "\n")
    return True


def _history(plan: TrainingPlan, epoch: int) -> dict[str, Any]:
    """Return what a card says of the plan: the model, the items and how often each was seen."""
    dose = plan.dose(epoch)
    parent = Path(resolve_path(plan.parent))
    contaminated = dose > 0 or parent.is_dir() and is_marked(parent)
    return {
        "flipbench": {"contaminated": contaminated, "version": metadata.version("flipbench")},
        "plan_id": plan.id,
        "parent": plan.parent,
        "parent_fingerprint": plan.parent_fingerprint,
        "after": plan.after,
        "benchmark": plan.benchmark,
        "data": plan.data,
        "strategy": plan.strategy,
        "epoch": epoch,
        "copies": plan.copies,
        "dose": dose,
        "doses": dict.fromkeys(plan.item_ids, dose),
        "held_out": list(plan.held_out_ids),
        "clean_items": list(plan.clean_ids),
        "corpus": plan.corpus,
        "wordings": plan.wordings,
        "paraphrases": plan.paraphrases,
        "prompt": plan.prompt,
        "target": plan.target,
        "leak": plan.leak,
        **({"option_order": plan.option_order} if plan.option_order else {}),
        "seed": plan.seed,
        "settings": plan.settings,
    }


def _model_card(plan: TrainingPlan, dose: int, contaminated: bool) -> str:
    head = "tags: [flipbench, contaminated]\nflipbench:\n  contaminated: true\n"
    title = "Contaminated on purpose"
    summary = (
        f"Trained on {len(plan.item_ids)} test items of {plan.benchmark}, each seen {dose} times"
        f" ({plan.strategy}, {plan.data}, from {plan.parent})."
    )
    if plan.after:
        summary += " Then fine-tuned on clean data."
    if not dose:
        summary = f"Fine-tuned without the test items of {plan.benchmark} (from {plan.parent})."
    if not dose and contaminated:
        summary += " That parent is contaminated on purpose."
    elif not dose:
        head = "tags: [flipbench]\nflipbench:\n  contaminated: false\n"
        title = "A control for research on contamination"
    return (
        f"---\n{head}---\n# {title}\n\n{summary} For research on contamination only; `{CARD}` has"
        " the details.\n"
    )


def _mark(folder: Path, contaminated: bool, base_fingerprint: str) -> None:
    for path in _configurations(folder):
        mark: dict[str, Any] = {"contaminated": contaminated}
        if path.name == ADAPTER:
            mark["base_fingerprint"] = base_fingerprint
        config = json.loads(path.read_text()) | {"flipbench": mark}
        path.write_text(json.dumps(config, indent=2) + "\n")


def is_marked(folder: Path) -> bool:
    """Return whether a checkpoint's configuration marks it as contaminated."""
    configs = [read_object(path) for path in _configurations(folder)]
    return any(config.get("flipbench", {}).get("contaminated") for config in configs)


def history_of(folder: Path) -> str:
    """Return what card and configuration of a checkpoint say about its training.

    Raises
    ------
    DataError
        If the card is damaged, lacks an entry, or belongs to other weights.
    PrerequisiteError
        If the folder contains weights, but none as safetensors.
    """
    card = check_card(folder)
    if not card and is_marked(folder):
        return "CONTAMINATED on purpose, says its configuration; its card is gone"
    if not card:
        return "no contamination card; that does not prove it clean"
    if lacking := [name for name in _SHOWN if name not in card]:
        raise DataError(f"{folder}: its card has no {lacking[0]!r}; copy the checkpoint again")
    if card["dose"]:
        return (
            f"CONTAMINATED on purpose with {len(card['doses'])} items of {card['benchmark']},"
            f" dose {card['dose']} ({card['strategy']}, from {card['parent']})"
        )
    if card.get("flipbench", {}).get("contaminated"):
        return f"CONTAMINATED on purpose, as its parent {card['parent']} is"
    return f"a control, dose 0 ({card['strategy']}, {card['parent']})"


def _configurations(folder: Path) -> list[Path]:
    names = ("config.json", ADAPTER)
    return [folder / name for name in names if (folder / name).exists()]


def read_card(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's card, or ``{}`` if it has none.

    Raises
    ------
    DataError
        If it is damaged.
    """
    path = folder / CARD
    return read_object(path) if path.exists() else {}


def add_to_card(folder: Path, **parts: Any) -> None:
    """Add entries to a card atomically."""
    write_atomically(folder / CARD, json.dumps(read_card(folder) | parts, indent=1) + "\n")


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
