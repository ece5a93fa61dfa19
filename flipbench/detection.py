"""``flipbench detect``: one model, one paired benchmark, one page with a verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from transformers.utils import logging as transformers_logging

from flipbench.config import load_config
from flipbench.engine import Answers, answers_by_model
from flipbench.errors import ConfigError, DataError, nearest
from flipbench.evaluate.constat import ConStat
from flipbench.evaluate.detector import Detector
from flipbench.evaluate.detectors import DETECTORS
from flipbench.evaluate.grid import UNTOUCHED, GridModel
from flipbench.evaluate.pipeline import Subject, evaluate, probes_for
from flipbench.evaluate.tables import GAP
from flipbench.evaluate.verdict import Evidence, Finding, find
from flipbench.evaluate.verdict_page import VerdictPage, write_verdict
from flipbench.models.huggingface import (
    HuggingFaceVLM,
    check_card,
    fingerprint,
    resolve_path,
)
from flipbench.models.protocols import Capability
from flipbench.paired import PairedBenchmark
from flipbench.prompts import Asking
from flipbench.records import Item, JsonDict
from flipbench.run import Run, environment
from flipbench.stage import StageReport

_FAMILY = "detect"
_CONSTAT = "constat"  # takes several references, so it is no `Detector`; its probes are the gap's
_UNTOLD_NAMES = re.compile(r"(epoch|checkpoint|step)[-_]?\d+|final|merged|adapter|model", re.I)
_NEVER = {
    "kernel_divergence": "it compares the model before and after it is trained on the items;"
    " detect only asks"
}


@dataclass(frozen=True)
class Detection:
    """A model to be judged, clean models to compare with, and how they are asked.

    ``subject`` stands in its grid as if it were contaminated and the references as if they were
    clean, since that is the question; nothing but an item's suspicion is reckoned by it.
    """

    benchmark: PairedBenchmark
    subject: Subject
    references: tuple[Subject, ...]
    detectors: tuple[Detector, ...]
    asking: Asking
    run: Run
    constat: bool = False
    not_asked: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 64
    progress: bool = True
    command: str = ""

    @property
    def grid(self) -> list[GridModel]:
        """The model, then its references."""
        return [s.model for s in (self.subject, *self.references)]


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

    >>> from flipbench.images import ImageStore
    >>> pairs = PairedBenchmark("shapes-vqa", (), ImageStore(Path("images")))
    >>> default_run("org/model-7b", pairs).as_posix()
    'runs/detect-org-model-7b-shapes-vqa'
    """
    words = re.sub(r"[^\w.]+", "-", f"{name_of(model)}-{benchmark.name}").strip("-")
    return Path("runs") / f"detect-{words}"


def plan(
    benchmark: PairedBenchmark,
    model: str,
    references: Sequence[str],
    run: Run,
    *,
    detectors: Sequence[str] = (),
    asking: Asking | None = None,
    dtype: str = "float32",
    device: str = "auto",
    batch_size: int = 64,
    progress: bool = True,
    command: str = "",
    can: frozenset[Capability] = HuggingFaceVLM.can,
) -> Detection:
    """Check what is asked for, before anything is loaded.

    Parameters
    ----------
    detectors : sequence of str
        Names; all by default. The perturbation gap is always among them: the verdict is its.
    can : frozenset of str
        What the models can do; detectors that need more are not asked.

    Raises
    ------
    ConfigError
        Where a detector is unknown, or a reference is the model itself or was trained on the
        benchmark's items on purpose.
    """
    chosen = _chosen(detectors)
    lacking = {d.about.name: d.about.needs - can for d in chosen}
    not_asked = {
        name: f"it needs {', '.join(sorted(needs))}, which {name_of(model)} does not give"
        for name, needs in lacking.items()
        if needs
    }
    if not detectors:
        not_asked |= _NEVER
    weights = fingerprint(resolve_path(model), dtype)
    subject = GridModel(name_of(model), weights, _FAMILY, "asked about", 0, 1)
    clean = [
        GridModel(name_of(path), fingerprint(resolve_path(path), dtype), _FAMILY, UNTOUCHED, 0, 0)
        for path in references
    ]
    _check_references(benchmark, subject, clean, references)
    return Detection(
        benchmark=benchmark,
        subject=Subject(subject, model, dtype, device),
        references=tuple(
            Subject(m, path, dtype, device) for m, path in zip(clean, references, strict=True)
        ),
        detectors=tuple(d for d in chosen if d.about.name not in not_asked),
        asking=asking or Asking(),
        run=run,
        constat=not detectors or _CONSTAT in detectors,
        not_asked=not_asked,
        batch_size=batch_size,
        progress=progress,
        command=command,
    )


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


def detect(detection: Detection) -> tuple[Finding, Path, list[StageReport]]:
    """Ask, score and write the page; answers that the run holds already are not asked again."""
    transformers_logging.disable_progress_bar()
    detection = replace(detection, benchmark=_with_own_images(detection))
    settings = _settings(detection)
    detection.run.keep_provenance(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    benchmark, asking = detection.benchmark, detection.asking
    scores, reports = evaluate(
        benchmark,
        [detection.subject, *detection.references],
        detection.detectors,
        asking,
        detection.run,
        batch_size=detection.batch_size,
        progress=detection.progress,
    )
    names = {model.fingerprint: model.name for model in detection.grid}
    subject, *others = answers_by_model(detection.run, names).values()
    mine = [s for s in scores if s.model_fingerprint == subject.fingerprint]
    for other in others[1:]:  # with the first one `evaluate` has compared
        for detector in detection.detectors:
            mine += detector.score(benchmark, asking, subject, other)
    mine = list({score.id: score for score in mine}.values())
    if detection.constat:
        mine += ConStat().score(benchmark, asking, subject, others)
    choices = _choices(detection, subject)
    evidence = Evidence(
        benchmark=benchmark,
        model=subject.model,
        scores=mine,
        references={
            o.model: [s for s in scores if s.model_fingerprint == o.fingerprint] for o in others
        },
        fell_back=_fell_back(benchmark, choices),
        not_asked=detection.not_asked,
    )
    page = VerdictPage(
        find(evidence),
        evidence,
        detection.grid,
        {
            p.original.name: (_said(p.original, choices), _said(p.perturbed, choices))
            for p in benchmark.pairs
        },
        settings,
        _notes(detection),
    )
    return page.finding, write_verdict(page, detection.run.path / "report"), reports


def _chosen(names: Sequence[str]) -> list[Detector]:
    """Return the detectors by name, all of them by default, the perturbation gap first."""
    known = [*DETECTORS, _CONSTAT]
    for name in names:
        if name not in known:
            raise ConfigError(f"--detectors: no detector {name!r}{nearest(name, known)}")
    wanted = dict.fromkeys([GAP, *(names or DETECTORS)])
    return [DETECTORS[name] for name in wanted if name != _CONSTAT]


def _card(path: str) -> JsonDict:
    where = Path(resolve_path(path))
    return check_card(where) if where.is_dir() else {}


def _trained_on(card: JsonDict, benchmark: PairedBenchmark) -> int:
    """Return how many of a benchmark's originals a card says a model was trained on."""
    doses = card.get("doses", {})
    return sum(doses.get(item.id, 0) > 0 for item in benchmark.originals)


def _check_references(
    benchmark: PairedBenchmark,
    subject: GridModel,
    clean: Sequence[GridModel],
    paths: Sequence[str],
) -> None:
    seen = {subject.fingerprint: subject.name}
    for model, path in zip(clean, paths, strict=True):
        if model.fingerprint in seen:
            raise ConfigError(
                f"--reference {path}: the same weights as {seen[model.fingerprint]}; a model"
                " cannot be its own reference, and each reference is given once"
            )
        seen[model.fingerprint] = model.name
        if n := _trained_on(_card(path), benchmark):
            raise ConfigError(
                f"--reference {path}: its card says that it was trained on {n} items of"
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


def _choices(detection: Detection, answers: Answers) -> dict[str, int]:
    """Return the option that the model chose, by item id; items without an answer are left out."""
    items = [*detection.benchmark.originals, *detection.benchmark.perturbed]
    found = {
        item.id: answers.to(detection.asking.probe(item, "")) for item in items if item.options
    }
    return {name: reply.choice for name, reply in found.items() if reply is not None}


def _said(item: Item, choices: Mapping[str, int]) -> str:
    choice = choices.get(item.id)
    if choice is None:
        return "nothing: asking failed"
    return item.options[choice] if item.options and choice >= 0 else "no option"


def _fell_back(benchmark: PairedBenchmark, choices: Mapping[str, int]) -> tuple[int, int]:
    """Count falls that had the original's answer on the twin, where another was wrong as well."""
    fell = [
        (pair, choices.get(pair.perturbed.id, -1))
        for pair in benchmark.pairs
        if len(pair.original.options or ()) > 2
        and choices.get(pair.original.id) == pair.original.answer
    ]
    fell = [(p, choice) for p, choice in fell if choice >= 0 and choice != p.perturbed.answer]
    return sum(choice == pair.original.answer for pair, choice in fell), len(fell)


def _notes(detection: Detection) -> list[str]:
    """Return what the model's own card says; the verdict does not know it."""
    card, benchmark = _card(detection.subject.path), detection.benchmark
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
        "model": f"{subject.path} ({subject.model.fingerprint})",
        **{f"reference {r.model.name}": r.model.fingerprint for r in detection.references},
        "precision": subject.dtype,
        "asked by": detection.asking.ask,
        "pairs": f"{len(detection.benchmark.pairs):,}",
        "made by": ", ".join(f"{k} {v}" for k, v in detection.benchmark.made_by.items()),
        "flipbench": str(found["flipbench"]),
        "python": str(found["python"]),
        **{name: str(v) for name, v in found["packages"].items() if v},
    }
    return {name: value for name, value in rows.items() if value}
