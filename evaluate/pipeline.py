"""From a paired benchmark and a grid of models to scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import DataError, PrerequisiteError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score
from flipbench.core.run import Run
from flipbench.core.stage import InProcessExecutor, StageOptions, StageReport
from flipbench.models.engine import ASK_OPTIONS, Answers, answers_of, ask
from flipbench.models.protocols import VLM, Capability, needs_of
from flipbench.models.vlm.checkpoints import check_files, fingerprint, resolve_path
from flipbench.models.vlm.families import EVERYTHING
from flipbench.prompting.prompts import PromptSettings

from .protocol.detector import AnyDetector, by_kind, required_capabilities, sampled_benchmark
from .protocol.grid import UNTOUCHED, GridModel, reference_of

log = logging.getLogger(__name__)
_HISTORIES = {0: UNTOUCHED, None: "history unknown"}


@dataclass(frozen=True)
class ModelUnderTest:
    """A model of the grid, backed by weights to load or by any `VLM`.

    Attributes
    ----------
    model : GridModel
    weights : ModelConfig, optional
        Where they are and how to load them, which happens when the model is first queried.
    vlm : VLM, optional
        An object that answers instead of weights, such as a model behind a server.

    Raises
    ------
    ValueError
        If both or neither are given.
    """

    model: GridModel
    weights: ModelConfig | None = None
    vlm: VLM | None = None

    def __post_init__(self) -> None:
        """Refuse a model with both or neither."""
        if (self.weights is None) == (self.vlm is None):
            raise ValueError(f"{self.model.name}: give either weights or a VLM")

    @classmethod
    def from_vlm(cls, vlm: VLM, **facts: Any) -> ModelUnderTest:
        """Use any object that implements the `VLM` protocol.

        ``facts`` are the fields of `GridModel` that are known: family, strategy, dose, lineage,
        external. Without a dose, its history is unknown.
        """
        return cls(_grid_model(vlm.name, vlm.fingerprint, **facts), vlm=vlm)

    @classmethod
    def from_weights(cls, weights: ModelConfig, name: str, **facts: Any) -> ModelUnderTest:
        """Use a checkpoint folder or a hub id; its files are hashed, but nothing is loaded."""
        return cls(_grid_model(name, _fingerprint(weights), **facts), weights)

    @cached_property
    def can(self) -> frozenset[Capability]:
        """What the model supports."""
        if self.weights is None:
            return self.load().can
        from flipbench.models.vlm.loading import capabilities  # imports torch: seconds

        trust = {"trust_remote_code": self.weights.trust_remote_code}
        return capabilities(self.weights.path, self.weights.revision, **trust)

    def problem(self) -> str:
        """Return why its weights cannot be loaded, without loading them; empty if they can."""
        if self.weights is None:
            return ""
        return str(result_or_error(check_files, resolve_path(self.weights.path)) or "")

    def load(self) -> VLM:
        """Load the weights, or return the `VLM` given.

        Raises
        ------
        DataError
            If they are damaged, or not those whose fingerprint the grid has.
        """
        if self.weights is None:
            assert self.vlm is not None
            return self.vlm
        from flipbench.models.vlm.huggingface import as_vlm

        if _fingerprint(self.weights) != self.model.fingerprint:
            raise DataError(
                f"{resolve_path(self.weights.path)}: not the weights that the run's record of"
                f" {self.model.name} names: a file was altered, or torchvision was installed or"
                " removed since; restore them, or delete the folder and run 'flipbench"
                " contaminate' to train it again"
            )
        settings = self.weights.model_dump(include=set(ModelConfig.model_fields) - {"path"})
        return as_vlm(self.weights.path, self.model.name, **settings)


class LazyVLM:
    """A model under test whose weights are loaded when it is first asked, in any process."""

    def __init__(self, subject: ModelUnderTest) -> None:
        self.subject, self.can = subject, subject.can
        self.name, self.fingerprint = subject.model.name, subject.model.fingerprint

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> Sequence[Response | Exception]:
        """Answer a batch, as the model does.

        Raises
        ------
        PrerequisiteError
            If the weights cannot be loaded, which concerns every probe.
        """
        return self._loaded.ask(probes, images)

    @cached_property
    def _loaded(self) -> VLM:
        vlm_or_error = result_or_error(self.subject.load)
        if isinstance(vlm_or_error, DataError):
            raise PrerequisiteError(str(vlm_or_error))
        return vlm_or_error


def _fingerprint(weights: ModelConfig) -> str:
    """Hash the files, after a check that they are whole, and the settings they are loaded with."""
    path = resolve_path(weights.path)
    check_files(path)
    return fingerprint(
        path, weights.dtype, weights.revision, weights.quantization, weights.image_padding
    )


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
    """Return all distinct probes of the detectors."""
    distinct: dict[str, Probe] = {}
    for detector in detectors:
        for probe in detector.probes(sampled_benchmark(detector, benchmark), prompt_settings):
            distinct.setdefault(probe.id, probe)
    return list(distinct.values())


def store_probes(
    detectors: Sequence[AnyDetector],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    run: Run,
    of_clean: Sequence[Probe] = (),
) -> list[Probe]:
    """Return all distinct probes and store them, and those of clean models, in the run."""
    probes, probe_ids = probes_for(detectors, benchmark, prompt_settings), run.ids(Probe)
    distinct = {probe.id: probe for probe in (*probes, *of_clean)}
    run.append([probe for probe in distinct.values() if probe.id not in probe_ids])
    return probes


def ask_all(
    benchmark: PairedBenchmark,
    models: Sequence[ModelUnderTest],
    detectors: Sequence[AnyDetector],
    prompt_settings: PromptSettings,
    run: Run,
    options: StageOptions = ASK_OPTIONS,
    of_clean: Sequence[Probe] = (),
) -> list[StageReport]:
    """Ask every model every distinct probe that it supports, once.

    A model whose answers are all stored is not loaded. ``of_clean`` are further probes, for models
    that are known to be clean.
    """
    probes = store_probes(detectors, benchmark, prompt_settings, run, of_clean)
    return [
        ask_one(subject, _probes_of(subject, probes, of_clean), run, benchmark.images, options)
        for subject in models
    ]


def n_unanswered(
    models: Sequence[ModelUnderTest], probes: Sequence[Probe], of_clean: Sequence[Probe], run: Run
) -> int:
    """Return how many answers `ask_all` has to get."""
    n_missing = 0
    for subject in models:
        _, ids = _supported(subject, _probes_of(subject, probes, of_clean))
        n_missing += len(ids - run.ids(Response, subject.model.fingerprint))
    return n_missing


def _probes_of(
    subject: ModelUnderTest, probes: Sequence[Probe], of_clean: Sequence[Probe]
) -> list[Probe]:
    distinct = {p.id: p for p in (*probes, *(of_clean if subject.model.clean else ()))}
    return list(distinct.values())


def _supported(subject: ModelUnderTest, probes: Sequence[Probe]) -> tuple[list[Probe], set[str]]:
    """Return the probes that a model supports, and the ids of its answers to them."""
    weights = subject.model.fingerprint
    supported = [probe for probe in probes if needs_of(probe) <= subject.can]
    return supported, {Response.id_for(probe_id=p.id, model_fingerprint=weights) for p in supported}


def ask_one(
    subject: ModelUnderTest,
    probes: Sequence[Probe],
    run: Run,
    images: ImageStore,
    options: StageOptions = ASK_OPTIONS,
) -> StageReport:
    """Ask a model those of the ``probes`` that it supports and has not answered yet.

    If there are none, the model is not loaded; a warning says if it could not be.
    """
    supported, ids = _supported(subject, probes)
    if run.ids(Response, subject.model.fingerprint).issuperset(ids):
        if problem := subject.problem():
            log.warning(
                "%s: its stored answers are used, but its weights could not answer anew: %s",
                subject.model.name,
                problem,
            )
        return StageReport(f"ask {subject.model.name}", n_skipped=len(ids))
    vlm = subject.load() if isinstance(options.executor, InProcessExecutor) else LazyVLM(subject)
    return ask(supported, vlm, run, images, options)


def score(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    detectors: Sequence[AnyDetector],
    prompt_settings: PromptSettings,
    run: Run,
    can: Mapping[str, frozenset[Capability]] | None = None,
    references: Callable[[GridModel], Sequence[GridModel | None]] | None = None,
) -> list[Score]:
    """Score stored answers; no model is queried.

    The answers of a model and of its references are in memory at the same time.

    Parameters
    ----------
    can : mapping, optional
        What each model supports, by fingerprint (None: every model supports everything). The rules
        of a detector that needs more are not applicable.
    references : callable, optional
        The models that a model is compared with, None for no comparison; its own clean model by
        default.
    """

    @lru_cache(maxsize=2)
    def answers(model: GridModel) -> Answers:
        return answers_of(model.name, model.fingerprint, run)

    detectors_of_one, grid_detectors = by_kind(detectors)
    scores: dict[str, Score] = {}  # a rule without a reference gives the same score for each
    for model in grid:
        clean_models = references(model) if references else [reference_of(model, grid)]
        replies = answers(model)
        clean_replies = [answers(clean) if clean else None for clean in clean_models]
        for detector in detectors_of_one:
            able = can[model.fingerprint] if can else EVERYTHING
            lacking = required_capabilities(detector.about, prompt_settings) - able
            items = sampled_benchmark(detector, benchmark)
            for reference in clean_replies:
                for result in detector.score(items, prompt_settings, replies, reference):
                    scores[result.id] = _not_applicable(result, lacking) if lacking else result
    for grid_detector in grid_detectors:
        items = sampled_benchmark(grid_detector, benchmark)
        for result in grid_detector.score_grid(items, prompt_settings, grid, answers):
            scores[result.id] = result
    return list(scores.values())


def _not_applicable(score: Score, lacking: frozenset[Capability]) -> Score:
    """Return the score of a model that lacks what the detector needs."""
    reason = f"it needs {', '.join(sorted(lacking))}, which this model does not give"
    nothing = {"statistic": None, "interval": None, "p_value": None}
    return score.model_copy(update={**nothing, "verdict": "not_applicable", "warnings": (reason,)})
