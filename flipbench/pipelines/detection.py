"""``flipbench detect``: one model, one paired benchmark, one page with a verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from transformers.utils import logging as transformers_logging

from flipbench.config.experiment import EvaluateConfig, load_config
from flipbench.config.raters import Quantization
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import JsonDict, Score
from flipbench.core.run import Run, environment
from flipbench.core.stage import StageReport
from flipbench.evaluate.detectors.registry import DETECTORS, default_rule, names_of
from flipbench.evaluate.pipeline import Subject, ask_all, probes_for
from flipbench.evaluate.protocol.detector import AnyDetector, Detector, GridDetector, by_kind
from flipbench.evaluate.protocol.grid import UNTOUCHED, GridModel
from flipbench.evaluate.report.tables import GAP
from flipbench.evaluate.verdict.page import VerdictPage, write_verdict
from flipbench.evaluate.verdict.replies import replies_of
from flipbench.evaluate.verdict.verdict import DetectionVerdict, Evidence, find
from flipbench.models.engine import Answers, answers_of
from flipbench.models.protocols import VLM
from flipbench.models.vlm.checkpoints import check_card, fingerprint, resolve_path
from flipbench.models.vlm.loading import as_vlm
from flipbench.models.vlm.served import APIVLM
from flipbench.pipelines.detectors import ConfiguredDetectors
from flipbench.prompting.prompts import Asking

_FAMILY = "detect"
_UNTOLD_NAMES = re.compile(r"(epoch|checkpoint|step)[-_]?\d+|final|merged|adapter|model", re.I)


@dataclass(frozen=True)
class Detection:
    """A model to be judged, clean models to compare with, and how they are asked.

    ``subject`` stands in its grid as if it were contaminated and the references as if they were
    clean, since that is the question; nothing but an item's suspicion is reckoned by it.
    """

    benchmark: PairedBenchmark
    subject: Subject
    references: tuple[Subject, ...]
    configured: ConfiguredDetectors
    asking: Asking
    run: Run
    not_asked: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 64
    progress: bool = True
    command: str = ""

    @property
    def grid(self) -> list[GridModel]:
        """The model, then its references."""
        return [s.model for s in (self.subject, *self.references)]

    @property
    def detectors(self) -> list[AnyDetector]:
        """Those that are asked, with what the run holds of their helpers' work."""
        return self.configured.detectors(self.benchmark)


def read_paired(where: Path, limit: int | None = None) -> PairedBenchmark:
    """Read a paired benchmark: its folder, a run directory that has one, or its configuration.

    Raises
    ------
    DataError
        Where there is none, or it has no pairs.
    """
    if where.suffix in (".yaml", ".yml"):
        where = load_config(where).run
    inside = where / "benchmark"
    benchmark = PairedBenchmark.load(inside if inside.is_dir() else where)
    if not benchmark.pairs:
        raise DataError(
            f"{where}: the paired benchmark has no pairs; 'flipbench filter' keeps some"
        )
    return replace(benchmark, pairs=benchmark.pairs[:limit]) if limit else benchmark


def evaluate_part(where: Path) -> EvaluateConfig:
    """Return what a configuration says of evaluation: who rewords; the defaults of a folder."""
    return load_config(where).evaluate if where.suffix in (".yaml", ".yml") else EvaluateConfig()


def name_of(path: str) -> str:
    """Return what tables call a model: a folder by its name, a hub id as it is.

    >>> name_of("shapes:llava"), name_of("org/model-7b")
    ('shapes:llava', 'org/model-7b')
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    folder = folder.resolve()
    told = not _UNTOLD_NAMES.fullmatch(folder.name)
    return folder.name if told else f"{folder.parent.name}/{folder.name}"


def default_run(model: str, benchmark: PairedBenchmark) -> Path:
    """Return the run directory of a model and a benchmark, where none is named.

    >>> from flipbench.core.images import ImageStore
    >>> pairs = PairedBenchmark("shapes-vqa", (), ImageStore(Path("images")))
    >>> default_run("org/model-7b", pairs).as_posix()
    'runs/detect-org-model-7b-shapes-vqa'
    """
    words = re.sub(r"[^\w.]+", "-", f"{name_of(model)}-{benchmark.name}").strip("-")
    return Path("runs") / f"detect-{words}"


def plan(
    benchmark: PairedBenchmark,
    model: str | VLM,
    references: Sequence[str | VLM],
    run: Run,
    *,
    detectors: Sequence[str] = (),
    asking: Asking | None = None,
    config: EvaluateConfig | None = None,
    dtype: str = "float32",
    device: str = "auto",
    quantization: Quantization | None = None,
    batch_size: int = 64,
    progress: bool = True,
    command: str = "",
) -> Detection:
    """Check what is asked for, before anything is loaded.

    Parameters
    ----------
    model, references : str or VLM
        A checkpoint's folder, a hub id, ``shapes:llava``, or an object that keeps the protocol
        `VLM`, such as a model behind a server. The references are taken for clean.
    detectors : sequence of str
        Names or import paths; all by default. The perturbation gap is always among them: the
        verdict is its. What the model cannot be asked for is left out, and so is by default what
        compares with a clean model where there is none; the page says so.
    config : EvaluateConfig, optional
        Who helps the detectors, and their parameters; nothing else of it is used.
    dtype, device, quantization : str
        How weights are loaded, the model's and the references'.

    Raises
    ------
    ConfigError
        Where a detector is unknown, a model cannot be asked in this way, or a reference is the
        model itself or was trained on the benchmark's items on purpose.
    """
    loading = {"dtype": dtype, "device": device, "quantization": quantization}
    subject = _subject(model, "asked about", 1, loading)
    clean = tuple(_subject(one, UNTOUCHED, 0, loading) for one in references)
    asking = asking or Asking()
    _check_subjects(benchmark, asking, subject, clean)
    chosen = names_of(detectors, "--detectors")
    not_asked, asked = {}, []
    for name in dict.fromkeys([GAP, *(chosen or DETECTORS)]):
        detector = DETECTORS[name]
        if detector.about.not_in_detect:
            not_asked[name] = detector.about.not_in_detect
        elif lacking := detector.about.needs - subject.can:
            needs = ", ".join(sorted(lacking))
            not_asked[name] = f"it needs {needs}, which this model does not give"
        elif _needs_reference(detector) and not references and name not in chosen:
            not_asked[name] = (
                "not asked, since the rule compares with a clean model: give one with --reference"
            )
        else:
            asked.append(name)
    return Detection(
        benchmark=benchmark,
        subject=subject,
        references=clean,
        configured=ConfiguredDetectors.of(config or EvaluateConfig(), asked, run, 0),
        asking=asking,
        run=run,
        not_asked=not_asked,
        batch_size=batch_size,
        progress=progress,
        command=command,
    )


def _needs_reference(detector: AnyDetector) -> bool:
    """Return whether a rule compares with one clean model; of several, the score itself tells."""
    if isinstance(detector, GridDetector):
        return False
    return detector.about.needs_clean_model or default_rule(detector) == "relative"


def _subject(model: str | VLM, strategy: str, dose: int, loading: Mapping[str, Any]) -> Subject:
    if not isinstance(model, str):
        model = as_vlm(model)
        about = GridModel(
            model.name, model.fingerprint, _FAMILY, strategy, 0, dose, lineage=model.name
        )
        return Subject(about, api=model)
    where, name = resolve_path(model), name_of(model)
    weights = fingerprint(where, loading["dtype"], quantization=loading["quantization"])
    about = GridModel(name, weights, _FAMILY, strategy, 0, dose, lineage=name)
    return Subject(about, model, **loading)


def count_work(detection: Detection) -> dict[str, int]:
    """Return what would be asked, for ``--dry-run``."""
    benchmark = _with_own_images(detection)
    probes = len(probes_for(detection.detectors, benchmark, detection.asking))
    models = len(detection.grid)
    return {
        "pairs": len(detection.benchmark.pairs),
        "detectors": len(detection.detectors),
        "distinct probes": probes,
        "models to ask": models,
        "answers": probes * models,
    }


def detect(detection: Detection) -> tuple[DetectionVerdict, Path, list[StageReport]]:
    """Ask, score and write the page; answers that the run holds already are not asked again."""
    transformers_logging.disable_progress_bar()
    detection = replace(detection, benchmark=_with_own_images(detection))
    settings = _settings(detection)
    detection.run.keep_provenance(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    benchmark, asking = detection.benchmark, detection.asking
    configured, progress = detection.configured, detection.progress
    reports = configured.reword(benchmark, progress)
    reports += ask_all(
        benchmark,
        [detection.subject, *detection.references],
        detection.detectors,
        asking,
        detection.run,
        batch_size=detection.batch_size,
        progress=progress,
    )
    subject, *others = (_answers(detection, model) for model in detection.grid)
    reports += configured.judge_replies(benchmark, (subject, *others), progress)
    alone, among_others = by_kind(detection.detectors)
    mine = _scores(alone, detection, subject, others or [None])
    for detector in among_others:
        every = detector.score_grid(benchmark, asking, detection.grid, partial(_answers, detection))
        own = [score for score in every if score.model_fingerprint == subject.fingerprint]
        mine += configured.identified(own)
    replies = replies_of(benchmark, asking, subject)
    evidence = Evidence(
        benchmark=benchmark,
        model=subject.model,
        scores=mine,
        references={other.model: _scores(alone, detection, other, [None]) for other in others},
        not_asked=detection.not_asked,
    )
    page = VerdictPage(
        find(evidence),
        evidence,
        detection.grid,
        {reply.pair.original.name: reply.words for reply in replies},
        settings,
        [*_notes(detection), *configured.notes()],
    )
    written = write_verdict(page, detection.run.path / "report")
    return page.finding, written, reports


def _answers(detection: Detection, model: GridModel) -> Answers:
    return answers_of(model.name, model.fingerprint, detection.run)


def _scores(
    detectors: Sequence[Detector],
    detection: Detection,
    model: Answers,
    references: Sequence[Answers | None],
) -> list[Score]:
    """Return what detectors say of a model beside each reference; a rule without one, once."""
    found: dict[str, Score] = {}
    for detector in detectors:
        for reference in references:
            scores = detector.score(detection.benchmark, detection.asking, model, reference)
            found |= {score.id: score for score in detection.configured.identified(scores)}
    return list(found.values())


def _card(subject: Subject) -> JsonDict:
    where = Path(resolve_path(subject.path))
    return check_card(where) if subject.path and where.is_dir() else {}


def _trained_on(card: JsonDict, benchmark: PairedBenchmark) -> int:
    """Return how many of a benchmark's originals a card says a model was trained on."""
    doses = card.get("doses", {})
    return sum(doses.get(item.id, 0) > 0 for item in benchmark.originals)


def _check_subjects(
    benchmark: PairedBenchmark, asking: Asking, subject: Subject, references: Sequence[Subject]
) -> None:
    for one in (subject, *references):
        if asking.ask not in one.can:
            raise ConfigError(
                f"--ask {asking.ask}: {one.model.name} cannot be asked so; it can"
                f" {', '.join(sorted(one.can))}"
            )
    seen = {subject.model.fingerprint: subject.model.name}
    for reference in references:
        name, weights = reference.model.name, reference.model.fingerprint
        if weights in seen:
            raise ConfigError(
                f"--reference {name}: the same weights as {seen[weights]}; a model cannot be its"
                " own reference, and each reference is given once"
            )
        if name in seen.values():
            raise ConfigError(f"--reference {name}: two models have this name; rename a folder")
        seen[weights] = name
        if n := _trained_on(_card(reference), benchmark):
            raise ConfigError(
                f"--reference {name}: its card says that it was trained on {n} items of"
                f" {benchmark.name} on purpose; give a clean model"
            )


def _with_own_images(detection: Detection) -> PairedBenchmark:
    """Return the benchmark with its images in the run's store, linked or else copied.

    Some detectors put derived images beside the originals; another's folder stays as it is.
    """
    benchmark, store = detection.benchmark, detection.run.images
    store.folder.mkdir(parents=True, exist_ok=True)
    for item in (*benchmark.originals, *benchmark.perturbed):
        for ref in item.images:
            source, target = benchmark.images.path(ref), store.path(ref)
            if target.exists():
                continue
            try:
                os.link(source, target)
            except FileNotFoundError as error:
                raise DataError(
                    f"{benchmark.name} {item.name}: its image {source} is gone; make the"
                    " benchmark anew"
                ) from error
            except OSError:
                store.put(source.read_bytes(), f"{benchmark.name} {item.name}")
    return replace(benchmark, images=store)


def _notes(detection: Detection) -> list[str]:
    """Return what the model's own card says; the verdict does not know it."""
    card, benchmark = _card(detection.subject), detection.benchmark
    if not card:
        return []
    n = _trained_on(card, benchmark)
    said = f"{n:,} of these {len(benchmark.pairs):,} items, dose {card['dose']}" if n else "none"
    return [
        f"The contamination card beside the weights says that it was trained on purpose on {said}"
        f"{'' if n else ' of these items'} ({card['strategy']}, from {card['parent']}). The verdict"
        " was reached without the card."
    ]


def _settings(detection: Detection) -> dict[str, str]:
    found, subject = environment(), detection.subject
    rows = {
        "command": detection.command,
        "model": f"{subject.path or _kind_of(subject)} ({subject.model.fingerprint})",
        **{f"reference {r.model.name}": r.model.fingerprint for r in detection.references},
        "precision": "" if subject.api else subject.quantization or subject.dtype,
        "asked by": detection.asking.ask,
        "pairs": f"{len(detection.benchmark.pairs):,}",
        "made by": ", ".join(f"{k} {v}" for k, v in detection.benchmark.made_by.items()),
        "flipbench": str(found["flipbench"]),
        "python": str(found["python"]),
        **{name: str(v) for name, v in found["packages"].items() if v},
    }
    return {name: value for name, value in rows.items() if value}


def _kind_of(subject: Subject) -> str:
    return "a server" if isinstance(subject.api, APIVLM) else "a Python object"
