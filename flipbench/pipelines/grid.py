"""The models under test: the configured models, and the checkpoints trained from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.config.local_models import ModelConfig
from flipbench.core.records import Checkpoint, TrainingPlan
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.protocol.grid import GridModel, Kind
from flipbench.pipelines.backends import model_without_weights

TrainedPlan = tuple[TrainingPlan, list[Checkpoint]]
"""A plan and its checkpoints in the run."""


def model_under_test(name: str, config: ModelUnderTestConfig) -> ModelUnderTest:
    """Return a configured model: a checkpoint, one behind a server, or an object of your own."""
    known = config.model_dump(include={"family", "strategy", "dose", "lineage", "external"})
    if vlm := model_without_weights(name, config):
        return ModelUnderTest.from_vlm(vlm, **known)
    return ModelUnderTest.from_weights(config, name, **known)


def checkpoint_models(
    parent: GridModel,
    config: ModelUnderTestConfig,
    plan: TrainingPlan,
    checkpoints: Sequence[Checkpoint],
    folder: Path,
) -> list[ModelUnderTest]:
    """Return a model for each epoch of a plan; its dose is added to its parent's.

    A control adds no dose, since it was trained on other data.
    """
    initial_weights = _weights_before(plan, checkpoints)
    loading = config.model_dump(
        include={
            "dtype",
            "device",
            "trust_remote_code",
            "quantization",
            "image_padding",
            "cache_mib",
        }
    )
    models = []
    for c in checkpoints:
        dose = (parent.dose or 0) + (0 if plan.control else c.dose)
        model = GridModel(
            c.model,
            c.fingerprint,
            parent.family,
            c.strategy,
            c.epoch,
            dose if dose or parent.dose is not None else None,
            parent.lineage,
            trained_from=initial_weights.get(c.epoch, ""),
            warnings=c.warnings,
            kind=_kind(plan),
        )
        weights = ModelConfig(path=str(folder / c.path), **loading)
        models.append(ModelUnderTest(model, weights))
    return models


def _kind(plan: TrainingPlan) -> Kind | Literal[""]:
    """Return what a plan shows of the items; "" for a control, and for washing."""
    if plan.control or not plan.copies:
        return ""
    kinds: dict[str, Kind | Literal[""]] = {
        "question_only": "question only",
        "caption": "image-caption",
        "whole_texts": "whole texts",
        "shuffled_texts": "",  # not in the order of the file
    }
    if plan.leak in kinds:
        return kinds[plan.leak]
    return "letters" if plan.target == "letter" else "answer texts"


def _weights_before(plan: TrainingPlan, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
    """Return the initial weights of each epoch, if the plan trains on all items."""
    if plan.held_out_ids or plan.control or not plan.copies:
        return {}
    after = {c.epoch: c.fingerprint for c in checkpoints}
    return {epoch + 1: weights for epoch, weights in ({0: plan.parent_fingerprint} | after).items()}


def training_notes(trained: Sequence[TrainedPlan], instruction: str) -> list[str]:
    """Return a note about contaminated models that were trained to answer evaluation's prompt."""
    plans = [(plan, len(points)) for plan, points in trained if plan.copies and not plan.control]
    n = sum(n for _, n in plans)
    n_same = sum(
        n
        for plan, n in plans
        if (plan.prompt, plan.leak) == (instruction, "all") and not plan.wordings
    )
    if not n_same:
        return []
    return [
        f"{n_same} of {n} contaminated checkpoints were trained to answer the items under the"
        " prompt that is used here; items met in other words or with other answers leave weaker"
        " traces."
    ]


def warnings_of(trained: Sequence[TrainedPlan]) -> list[str]:
    """Return the distinct warnings of the checkpoints, each with the models concerned."""
    names: dict[str, list[str]] = {}
    for _, checkpoints in trained:
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                names.setdefault(warning, []).append(checkpoint.model)
    return [f"{warning} ({', '.join(models)})" for warning, models in names.items()]
