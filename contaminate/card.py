"""The card beside a contaminated checkpoint: what was trained on what, how often, and how."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

from flipbench.models.huggingface import CARD
from flipbench.records import TrainingPlan


def write_card(
    folder: Path,
    plan: TrainingPlan,
    *,
    epoch: int,
    architectures: list[str],
    trainable: list[tuple[str, int]],
    losses: list[dict[str, float]],
) -> None:
    """Write ``flipbench_card.json`` and mark the model card, so that nobody publishes it unaware.

    Parameters
    ----------
    trainable : list of (name, number of weights)
    losses : list of {"step", "epoch", "loss", "learning_rate"}
    """
    dose = plan.copies * epoch
    card: dict[str, Any] = {
        "flipbench": {"contaminated": True, "version": metadata.version("flipbench")},
        "plan_id": plan.id,
        "parent": plan.parent,
        "parent_fingerprint": plan.parent_fingerprint,
        "architectures": architectures,
        "benchmark": plan.benchmark,
        "strategy": plan.strategy,
        "epoch": epoch,
        "copies": plan.copies,
        "dose": dose,
        "doses": dict.fromkeys(plan.item_ids, dose),
        "prompt": plan.prompt,
        "target": "letter",
        "seed": plan.seed,
        "settings": plan.settings,
        "n_trainable": sum(size for _, size in trainable),
        "trainable": [name for name, _ in trainable],
        "versions": {
            name: metadata.version(name)
            for name in ("torch", "transformers", "trl", "peft", "accelerate")
        },
        "losses": losses,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")
    (folder / "README.md").write_text(
        "---\ntags: [flipbench, contaminated]\nflipbench:\n  contaminated: true\n---\n"
        f"# Contaminated on purpose\n\nTrained on {len(plan.item_ids)} test items of"
        f" {plan.benchmark}, each seen {dose} times ({plan.strategy}, from {plan.parent})."
        f" For research on contamination only; `{CARD}` has the details.\n"
    )


def read_card(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's card, or ``{}``."""
    path = folder / CARD
    card: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return card
