"""The models under test: the configured models, and the checkpoints trained from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flipbench.api.stages.backends import Servers, model_without_weights
from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.config.local_models import ModelConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Checkpoint, Probe, Response, TrainingPlan
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.evaluate.pipeline import ModelUnderTest, ask_one
from flipbench.evaluate.protocol.grid import GridModel, Kind
from flipbench.evaluate.protocol.parity import parity
from flipbench.models.engine import answers_of
from flipbench.models.protocols import free_memory
from flipbench.models.serving.managed import ManagedVLM, served_fingerprint
from flipbench.prompting.prompts import PromptSettings

TrainedPlan = tuple[TrainingPlan, list[Checkpoint]]
"""A plan and its checkpoints in the run."""


def model_under_test(name: str, config: ModelUnderTestConfig, servers: Servers) -> ModelUnderTest:
    """Return a configured model: a checkpoint, one behind a server, or an object of your own."""
    facts = config.model_dump(include={"family", "strategy", "dose", "lineage", "external"})
    if vlm := model_without_weights(name, config, servers):
        return ModelUnderTest.from_vlm(vlm, **facts)
    return ModelUnderTest.from_weights(config, name, **facts)


def checkpoint_models(
    parent: GridModel,
    config: ModelUnderTestConfig,
    plan: TrainingPlan,
    checkpoints: Sequence[Checkpoint],
    folder: Path,
    servers: Servers,
) -> list[ModelUnderTest]:
    """Return a model for each epoch of a plan; its dose is added to its parent's.

    A control adds no dose, since it was trained on other data. What is trained from a model with an
    engine is asked through that engine too.
    """
    engine, initial_weights = config.engine, _weights_before(plan, checkpoints)
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
        initial = initial_weights.get(c.epoch, "")
        model = GridModel(
            c.model,
            served_fingerprint(c.fingerprint, engine) if engine else c.fingerprint,
            parent.family,
            c.strategy,
            c.epoch,
            dose if dose or parent.dose is not None else None,
            parent.lineage,
            trained_from=served_fingerprint(initial, engine) if engine and initial else initial,
            warnings=c.warnings,
            kind=_kind(plan),
        )
        weights = ModelConfig(path=str(folder / c.path), **loading)
        if engine:
            vlm = servers.serve(weights, engine, c.model, c.fingerprint)
            models.append(ModelUnderTest(model, vlm=vlm))
        else:
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
    weights_by_epoch = {c.epoch: c.fingerprint for c in checkpoints}
    return {
        epoch + 1: weights
        for epoch, weights in ({0: plan.parent_fingerprint} | weights_by_epoch).items()
    }


def training_notes(results: Sequence[TrainedPlan], instruction: str) -> list[str]:
    """Return a note about contaminated models that were trained to answer evaluation's prompt."""
    plans = [(plan, len(points)) for plan, points in results if plan.copies and not plan.control]
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


def warnings_of(results: Sequence[TrainedPlan]) -> list[str]:
    """Return the distinct warnings of the checkpoints, each with the models concerned."""
    names: dict[str, list[str]] = {}
    for _, checkpoints in results:
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                names.setdefault(warning, []).append(checkpoint.model)
    return [f"{warning} ({', '.join(models)})" for warning, models in names.items()]


def ask_transformers(
    models: Sequence[ModelUnderTest],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    run: Run,
    options: StageOptions,
) -> None:
    """Ask transformers the first questions of each served model, before its server starts.

    Its answers are stored under the fingerprint of the weights, as those of any other model, and
    read by `engine_notes`.
    """
    for entry in models:
        if isinstance(vlm := entry.vlm, ManagedVLM) and vlm.engine.parity:
            probes, weights = (
                _first_questions(vlm, benchmark, prompt_settings),
                vlm.local_fingerprint,
            )
            ids = {Response.id_for(probe_id=p.id, model_fingerprint=weights) for p in probes}
            if run.ids(Response, weights).issuperset(ids):
                continue
            vlm.check()
            local = ModelUnderTest.from_weights(vlm.weights, f"{vlm.name}, transformers")
            ask_one(local, probes, run, benchmark.images, options)
            free_memory()


def engine_notes(
    models: Sequence[ModelUnderTest],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    run: Run,
) -> list[str]:
    """Return for each served model what answered, and how it compares with transformers."""
    notes = []
    for entry in models:
        if not isinstance(vlm := entry.vlm, ManagedVLM):
            continue
        versions = dict.fromkeys(f"vLLM {server['version']}" for server in vlm.servers_used)
        settings = [
            "batch-invariant" if vlm.engine.batch_invariant else "not batch-invariant",
            *(f"{key}: {value}" for key, value in vlm.engine.mm_processor_kwargs.items()),
        ]
        comparison = "not compared with transformers (parity: 0)"
        if vlm.engine.parity:
            probes = _first_questions(vlm, benchmark, prompt_settings)
            served_answers = answers_of(vlm.name, vlm.fingerprint, run)
            local_answers = answers_of(vlm.name, vlm.local_fingerprint, run)
            comparison = str(parity(probes, served_answers, local_answers))
        engines = " and ".join(versions) or "vLLM"
        notes.append(f"{vlm.name}: asked through {engines} ({', '.join(settings)}); {comparison}.")
    return notes


def _first_questions(
    vlm: ManagedVLM, benchmark: PairedBenchmark, prompt_settings: PromptSettings
) -> list[Probe]:
    originals = benchmark.originals[: vlm.engine.parity]
    return [prompt_settings.probe(item, "original") for item in originals]
