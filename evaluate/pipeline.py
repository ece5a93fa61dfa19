"""A paired benchmark and a grid of models in, scores out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from flipbench.config.raters import Quantization
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.models.engine import Answers, answers_of, ask
from flipbench.models.protocols import VLM, Capability, needs_of
from flipbench.models.vlm.families import EVERYTHING
from flipbench.models.vlm.loading import as_vlm, capabilities
from flipbench.prompting.prompts import Asking

from .protocol.detector import AnyDetector, by_kind
from .protocol.grid import GridModel, reference_of


@dataclass(frozen=True)
class Subject:
    """A model of the grid and where its weights are, or, as ``api``, a model that can be asked."""

    model: GridModel
    path: str = ""
    dtype: str = "float32"
    device: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: Quantization | None = None
    api: VLM | None = None

    @cached_property
    def can(self) -> frozenset[Capability]:
        """What it can be asked for."""
        if self.api:
            return self.api.can
        trust = {"trust_remote_code": self.trust_remote_code}
        return capabilities(self.path, self.revision, **trust)

    def load(self) -> VLM:
        """Load the weights, or return the model that needs none."""
        return as_vlm(
            self.api or self.path,
            self.model.name,
            dtype=self.dtype,
            device=self.device,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            quantization=self.quantization,
        )


def probes_for(
    detectors: Sequence[AnyDetector], benchmark: PairedBenchmark, asking: Asking
) -> list[Probe]:
    """Return the union of all detectors' probes, each distinct one once."""
    distinct: dict[str, Probe] = {}
    for detector in detectors:
        for probe in detector.probes(benchmark, asking):
            distinct.setdefault(probe.id, probe)
    return list(distinct.values())


def keep_probes(
    detectors: Sequence[AnyDetector], benchmark: PairedBenchmark, asking: Asking, run: Run
) -> list[Probe]:
    """Return the union of all probes, and keep them with the run."""
    probes = probes_for(detectors, benchmark, asking)
    known = run.ids(Probe)
    run.append([probe for probe in probes if probe.id not in known])
    return probes


def ask_all(
    benchmark: PairedBenchmark,
    subjects: Sequence[Subject],
    detectors: Sequence[AnyDetector],
    asking: Asking,
    run: Run,
    *,
    batch_size: int = 64,
    progress: bool = True,
) -> list[StageReport]:
    """Ask every model every distinct probe once.

    A model whose answers are all there is not even loaded, and nothing is asked of it that it
    cannot do.
    """
    probes = keep_probes(detectors, benchmark, asking, run)
    reports = []
    for subject in subjects:
        fingerprint = subject.model.fingerprint
        able = [probe for probe in probes if needs_of(probe) <= subject.can]
        ids = [Response.id_for(probe_id=p.id, model_fingerprint=fingerprint) for p in able]
        if run.ids(Response, fingerprint).issuperset(ids):
            reports.append(StageReport(f"ask {subject.model.name}", n_skipped=len(ids)))
            continue
        reports.append(
            ask(
                able,
                subject.load(),
                run,
                benchmark.images,
                batch_size=batch_size,
                progress=progress,
            )
        )
    return reports


def score(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    detectors: Sequence[AnyDetector],
    asking: Asking,
    run: Run,
    can: Mapping[str, frozenset[Capability]] | None = None,
) -> list[Score]:
    """Score the answers that are there, asking nothing.

    At most two models' answers are in memory at once. ``can`` is what models can be asked, by
    fingerprint (None: all of them everything); of a detector that needs more, no rule applies.
    """

    @lru_cache(maxsize=2)
    def answers(model: GridModel) -> Answers:
        return answers_of(model.name, model.fingerprint, run)

    alone, among_others = by_kind(detectors)
    scores = []
    for model in grid:
        clean = reference_of(model, grid)
        reference = answers(clean) if clean else None
        mine = answers(model)
        for detector in alone:
            found = detector.score(benchmark, asking, mine, reference)
            lacking = detector.about.needs - (can[model.fingerprint] if can else EVERYTHING)
            scores += [_not_applicable(s, lacking) for s in found] if lacking else found
    for grid_detector in among_others:
        scores += grid_detector.score_grid(benchmark, asking, grid, answers)
    return scores


def _not_applicable(score: Score, lacking: frozenset[Capability]) -> Score:
    """Return the score of a model that cannot be asked what the detector needs."""
    why = f"it needs {', '.join(sorted(lacking))}, which this model does not give"
    nothing = {"statistic": None, "interval": None, "p_value": None}
    return score.model_copy(update={**nothing, "verdict": "not_applicable", "warnings": (why,)})
