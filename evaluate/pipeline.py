"""A paired benchmark and a grid of models in, scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from flipbench.config.local_models import ModelConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport
from flipbench.models.engine import ASK_OPTIONS, Answers, answers_of, ask
from flipbench.models.protocols import VLM, Capability, needs_of
from flipbench.models.vlm.checkpoints import fingerprint, resolve_path
from flipbench.models.vlm.families import EVERYTHING
from flipbench.models.vlm.loading import as_vlm, capabilities
from flipbench.prompting.prompts import PromptSettings

from .protocol.detector import AnyDetector, by_kind
from .protocol.grid import UNTOUCHED, GridModel, reference_of

_HISTORIES = {0: UNTOUCHED, None: "history unknown"}


@dataclass(frozen=True)
class ModelUnderTest:
    """A model of the grid, and what answers for it: weights to be loaded, or any `VLM`.

    Attributes
    ----------
    model : GridModel
    weights : ModelConfig, optional
        Where they are and how they are loaded, once something is to be asked.
    vlm : VLM, optional
        An object that answers, such as a model behind a server, instead of weights.

    Raises
    ------
    ValueError
        Where both or neither are given.
    """

    model: GridModel
    weights: ModelConfig | None = None
    vlm: VLM | None = None

    def __post_init__(self) -> None:
        """Refuse a model that nothing, or two things, would answer for."""
        if (self.weights is None) == (self.vlm is None):
            raise ValueError(f"{self.model.name}: give weights or a VLM, and not both")

    @classmethod
    def from_vlm(cls, vlm: VLM, **known: Any) -> ModelUnderTest:
        """Take any object that keeps the `VLM` protocol.

        ``known`` is what is known of it: family, strategy, dose, lineage, external, as `GridModel`
        has them. Without any, its history is unknown.
        """
        vlm = as_vlm(vlm)
        return cls(_grid_model(vlm.name, vlm.fingerprint, **known), vlm=vlm)

    @classmethod
    def from_weights(cls, weights: ModelConfig, name: str, **known: Any) -> ModelUnderTest:
        """Take a checkpoint's folder or a hub id; only its files are hashed, nothing is loaded."""
        found = fingerprint(
            resolve_path(weights.path), weights.dtype, weights.revision, weights.quantization
        )
        return cls(_grid_model(name, found, **known), weights)

    @cached_property
    def can(self) -> frozenset[Capability]:
        """What it can be asked for."""
        if self.weights is None:
            return self.load().can
        trust = {"trust_remote_code": self.weights.trust_remote_code}
        return capabilities(self.weights.path, self.weights.revision, **trust)

    def load(self) -> VLM:
        """Load the weights, or return the object that answers."""
        if self.weights is None:
            assert self.vlm is not None
            return self.vlm
        settings = self.weights.model_dump(include=set(ModelConfig.model_fields) - {"path"})
        return as_vlm(self.weights.path, self.model.name, **settings)


def _grid_model(
    name: str,
    weights: str,
    *,
    family: str = "",
    strategy: str = "",
    dose: int | None = None,
    lineage: str = "",
    external: bool = False,
) -> GridModel:
    strategy = strategy or _HISTORIES.get(dose, "trained elsewhere")
    return GridModel(name, weights, family or name, strategy, 0, dose, lineage, external)


def probes_for(
    detectors: Sequence[AnyDetector], benchmark: PairedBenchmark, prompt_settings: PromptSettings
) -> list[Probe]:
    """Return the union of all detectors' probes, each distinct one once."""
    distinct: dict[str, Probe] = {}
    for detector in detectors:
        for probe in detector.probes(benchmark, prompt_settings):
            distinct.setdefault(probe.id, probe)
    return list(distinct.values())


def keep_probes(
    detectors: Sequence[AnyDetector],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    run: Run,
) -> list[Probe]:
    """Return the union of all probes, and keep them with the run."""
    probes = probes_for(detectors, benchmark, prompt_settings)
    known = run.ids(Probe)
    run.append([probe for probe in probes if probe.id not in known])
    return probes


def ask_all(
    benchmark: PairedBenchmark,
    models: Sequence[ModelUnderTest],
    detectors: Sequence[AnyDetector],
    prompt_settings: PromptSettings,
    run: Run,
    options: StageOptions = ASK_OPTIONS,
) -> list[StageReport]:
    """Ask every model every distinct probe once.

    A model whose answers are all there is not even loaded, and nothing is asked of it that it
    cannot do.
    """
    probes = keep_probes(detectors, benchmark, prompt_settings, run)
    reports = []
    for one in models:
        weights = one.model.fingerprint
        able = [probe for probe in probes if needs_of(probe) <= one.can]
        ids = [Response.id_for(probe_id=p.id, model_fingerprint=weights) for p in able]
        if run.ids(Response, weights).issuperset(ids):
            reports.append(StageReport(f"ask {one.model.name}", n_skipped=len(ids)))
        else:
            reports.append(ask(able, one.load(), run, benchmark.images, options))
    return reports


def score(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    detectors: Sequence[AnyDetector],
    prompt_settings: PromptSettings,
    run: Run,
    can: Mapping[str, frozenset[Capability]] | None = None,
    references: Callable[[GridModel], Sequence[GridModel | None]] | None = None,
) -> list[Score]:
    """Score the answers that are there, asking nothing.

    The answers of a model and of those it is compared with are in memory at once.

    Parameters
    ----------
    can : mapping, optional
        What models can be asked, by fingerprint (None: all of them everything); of a detector that
        needs more, no rule applies.
    references : callable, optional
        Which models a model is compared with, None for none; by default its own clean one.
    """

    @lru_cache(maxsize=2)
    def answers(model: GridModel) -> Answers:
        return answers_of(model.name, model.fingerprint, run)

    alone, among_others = by_kind(detectors)
    scores: dict[str, Score] = {}  # a rule that needs no reference scores the same beside each
    for model in grid:
        compared = references(model) if references else [reference_of(model, grid)]
        own, others = answers(model), [answers(clean) if clean else None for clean in compared]
        for detector in alone:
            lacking = detector.about.needs - (can[model.fingerprint] if can else EVERYTHING)
            for other in others:
                for one in detector.score(benchmark, prompt_settings, own, other):
                    scores[one.id] = _not_applicable(one, lacking) if lacking else one
    for grid_detector in among_others:
        for one in grid_detector.score_grid(benchmark, prompt_settings, grid, answers):
            scores[one.id] = one
    return list(scores.values())


def _not_applicable(score: Score, lacking: frozenset[Capability]) -> Score:
    """Return the score of a model that cannot be asked what the detector needs."""
    why = f"it needs {', '.join(sorted(lacking))}, which this model does not give"
    nothing = {"statistic": None, "interval": None, "p_value": None}
    return score.model_copy(update={**nothing, "verdict": "not_applicable", "warnings": (why,)})
