"""The audit of a configured benchmark: the models it names, the checks, the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.benchmarks import PairsSpec, load_benchmark
from flipbench.config.audit import AuditSettings
from flipbench.config.experiment import BenchmarkSpec, ShapesSpec
from flipbench.core.errors import ConfigError, nearest
from flipbench.core.records import Item
from flipbench.filters.audit.audit import AuditReport, audit
from flipbench.filters.audit.page import write_audit
from flipbench.filters.audit.text_only import BlindVLM
from flipbench.models.chat.api import ChatAPI
from flipbench.models.protocols import VLM
from flipbench.models.vlm.loading import as_vlm
from flipbench.pipelines.backends import model_without_weights
from flipbench.pipelines.experiment import Experiment
from flipbench.pipelines.pairs import read_benchmark


def audit_benchmark(experiment: Experiment) -> tuple[AuditReport, Path]:
    """Run the hygiene checks; return what they found and the page that tells it."""
    config, run = experiment.config, experiment.run
    spec = config.audit

    def loaded(names: Sequence[str]) -> list[VLM]:
        for name in names:
            if name not in config.models:
                raise ConfigError(f"audit: no model {name!r}{nearest(name, list(config.models))}")
        chosen = [(name, config.models[name]) for name in names]
        return [
            as_vlm(
                model_without_weights(name, m) or m.path,
                name,
                dtype=m.dtype,
                device=m.device,
                revision=m.revision,
                trust_remote_code=m.trust_remote_code,
                quantization=m.quantization,
            )
            for name, m in chosen
        ]

    report = audit(
        read_benchmark(experiment),
        run,
        AuditSettings.model_validate(
            spec.model_dump(include=set(AuditSettings.model_fields)) | {"seed": config.seed}
        ),
        text_models=[BlindVLM(vlm) for vlm in loaded(spec.text_models)],
        held_out=[BlindVLM(vlm) for vlm in loaded(spec.held_out)],
        reader=ChatAPI(spec.reader) if spec.reader else None,
        vlms=loaded(spec.vlms),
        train=_items_of(spec.train, experiment) if spec.train else None,
        progress=experiment.progress,
    )
    return report, write_audit(report, run.path / "audit")


def _items_of(spec: BenchmarkSpec, experiment: Experiment) -> list[Item]:
    if isinstance(spec, ShapesSpec | PairsSpec):
        raise ConfigError("audit.train: give a benchmark file, not shapes or pairs")
    return load_benchmark(spec, experiment.run.images).items
