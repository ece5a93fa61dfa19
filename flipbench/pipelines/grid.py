"""The models under test: those that a configuration names, and the checkpoints made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.config.local_models import ModelConfig
from flipbench.core.records import Checkpoint, TrainingPlan
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.pipelines.backends import model_without_weights

Trained = tuple[TrainingPlan, list[Checkpoint]]
"""A plan, and the checkpoints that the run holds of it."""


def model_under_test(name: str, config: ModelUnderTestConfig) -> ModelUnderTest:
    """Return a configured model: a checkpoint, one behind a server, or an object of your own."""
    known = config.model_dump(include={"family", "strategy", "dose", "lineage", "external"})
    if vlm := model_without_weights(name, config):
        return ModelUnderTest.from_vlm(vlm, **known)
    return ModelUnderTest.from_weights(config, name, **known)


def with_checkpoints(
    model: ModelUnderTest, config: ModelUnderTestConfig, trained: Sequence[Trained], folder: Path
) -> list[ModelUnderTest]:
    """Return a configured model, and then what was trained from it into the run's ``folder``."""
    grid = [model]
    for plan, checkpoints in trained:
        if plan.model == model.model.name:
            grid += _checkpoints(model.model, config, plan, checkpoints, folder)
    return grid


def _checkpoints(
    parent: GridModel,
    config: ModelUnderTestConfig,
    plan: TrainingPlan,
    checkpoints: Sequence[Checkpoint],
    folder: Path,
) -> list[ModelUnderTest]:
    """Return each epoch of a plan; its dose comes on top of its parent's.

    A control was trained on another benchmark, which is no dose of this one.
    """
    began = _weights_before(plan, checkpoints)
    loading = config.model_dump(include={"dtype", "device", "trust_remote_code", "quantization"})
    found = []
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
            trained_from=began.get(c.epoch, ""),
            warnings=c.warnings,
        )
        weights = ModelConfig(path=str(folder / c.path), **loading)
        found.append(ModelUnderTest(model, weights))
    return found


def _weights_before(plan: TrainingPlan, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
    """Return the weights each epoch began with, of a plan that trains on all items."""
    if plan.held_out_ids or plan.control or not plan.copies:
        return {}
    after = {c.epoch: c.fingerprint for c in checkpoints}
    return {epoch + 1: weights for epoch, weights in ({0: plan.parent_fingerprint} | after).items()}


def warnings_of(trained: Sequence[Trained]) -> list[str]:
    """Return what tables made from these checkpoints must say, each once with its models."""
    found: dict[str, list[str]] = {}
    for _, checkpoints in trained:
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                found.setdefault(warning, []).append(checkpoint.model)
    return [f"{warning} ({', '.join(models)})" for warning, models in found.items()]
