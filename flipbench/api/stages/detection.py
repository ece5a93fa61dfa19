"""``flipbench detect``: one model, one paired benchmark, one page with a verdict.

Pairs, models and detectors are chosen and checked before any of them is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from flipbench import __version__
from flipbench.api.stages.detectors import ConfiguredDetectors, without_plug_ins
from flipbench.api.stages.examination import Examination, follow_ups, not_built, work_lines
from flipbench.api.stages.model_names import named_model
from flipbench.config.experiment import EvaluateConfig, load_config
from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict
from flipbench.core.run import Run, versions
from flipbench.core.stage import StageOptions, StageReport
from flipbench.evaluate.detectors.registry import DETECTORS, names_of
from flipbench.evaluate.pipeline import ModelUnderTest, probes_for
from flipbench.evaluate.protocol.detector import AnyDetector, GridDetector, required_capabilities
from flipbench.evaluate.protocol.grid import UNTOUCHED
from flipbench.evaluate.report.titles import GAP
from flipbench.evaluate.scoring.old_answers import DETECTOR as ATTRACTION
from flipbench.evaluate.scoring.paired_replies import PairedReplies
from flipbench.evaluate.scoring.scores import cluster_of
from flipbench.evaluate.statistics.sequential import pairs_until
from flipbench.evaluate.verdict.letter_shares import letter_shares
from flipbench.evaluate.verdict.verdict import CONFIDENCE, ModelVerdict
from flipbench.evaluate.verdict.verdict_page import VerdictPage, replies_of
from flipbench.models.protocols import VLM
from flipbench.models.vlm.checkpoints import check_card, resolve_path
from flipbench.models.vlm.served import APIVLM, resolve_reference, serve_model
from flipbench.prompting.prompts import PromptSettings

if TYPE_CHECKING:
    from flipbench.models.vlm.adapters import Placement

_FAMILY = "detect"
_YAML = (".yaml", ".yml")
FIRST_LOOK = 16
"""Pairs asked before the first look with ``--sequential``."""
_GENERIC_NAMES = re.compile(r"(epoch|checkpoint|step)[-_]?\d+|final|merged|adapter|model", re.I)

Model = str | Path | VLM
"""A checkpoint's folder, a hub id, ``shapes:llava``, a name on a server, or your own object."""


@dataclass(frozen=True, kw_only=True)
class Detection(Examination):
    """The examination of one model, the first, beside clean ones.

    In the grid, it has dose 1 and the others dose 0; only the suspicion of single items depends on
    that. ``placements`` are those of the models that are adapters, by name; ``not_run`` are the
    detectors that are left out, and why.
    """

    not_run: Mapping[str, str]
    command: str
    sequential: bool = False
    placements: Mapping[str, Placement] = field(default_factory=dict)
    plug_ins: Sequence[str] = ()

    @property
    def subject(self) -> ModelUnderTest:
        """The model that is asked about."""
        return self.models[0]

    @property
    def references(self) -> Sequence[ModelUnderTest]:
        """The clean models."""
        return self.models[1:]

    @property
    def detectors(self) -> list[AnyDetector]:
        """The detectors to run, with the wordings and judgements stored in the run."""
        return self.configured.detectors(self.benchmark)


def read_pairs(
    pairs: PairedBenchmark | str | Path, limit: int | None = None, *, trust: bool = False
) -> tuple[PairedBenchmark, EvaluateConfig]:
    """Return a paired benchmark, and the settings of evaluation that a configuration has."""
    config = EvaluateConfig()
    if isinstance(pairs, PairedBenchmark):
        benchmark = pairs
    else:
        folder = Path(pairs)
        if folder.suffix in _YAML:
            experiment = load_config(folder, trust=trust)
            folder, config = experiment.run, experiment.evaluate
        subfolder = folder / "benchmark"
        benchmark = PairedBenchmark.load(subfolder if subfolder.is_dir() else folder)
        if not benchmark.pairs:
            raise DataError(f"{pairs}: the paired benchmark has no pairs; run 'flipbench filter'")
    return replace(benchmark, pairs=benchmark.pairs[:limit]) if limit else benchmark, config


def models_of(
    model: Model,
    references: Model | Sequence[Model],
    base_url: str,
    args: str,
    loading: Mapping[str, Any],
) -> tuple[ModelUnderTest, list[ModelUnderTest], int]:
    """Return the model, its references, and how many questions are asked at once.

    ``loading`` and then ``args`` say how weights are loaded. A model that is named with a server is
    asked there, even if a folder here has its name.
    """
    if isinstance(model, Path):
        model = str(model)
    if isinstance(model, str):
        if model.startswith(("http://", "https://")):
            raise ConfigError(
                f"{model}: a server; give it as base_url, and as model the name of the one there"
            )
        model_name = named_model(model, args, base_url)
        base_url, model = model_name.base_url, model_name.name
        loading = {**loading, **model_name.settings}
        if base_url:
            model = serve_model(model, base_url)
    elif base_url or args:
        raise ConfigError("base_url and model_args are for models given by their names")
    weights = {key: value for key, value in loading.items() if key != "batch_size"}

    def under_test(source: str | VLM, strategy: str, dose: int) -> ModelUnderTest:
        facts = {"family": _FAMILY, "strategy": strategy, "dose": dose}
        if isinstance(source, str):
            config = ModelConfig.model_validate({"path": source} | weights)
            name = name_of(source)
            return ModelUnderTest.from_weights(config, name, lineage=name, **facts)
        from flipbench.models.vlm.huggingface import as_vlm  # imports model libraries

        vlm = as_vlm(source)
        return ModelUnderTest.from_vlm(vlm, lineage=vlm.name, **facts)

    clean = []
    sources: Sequence[Any] = references if isinstance(references, list | tuple) else [references]
    for source in sources:
        if isinstance(source, str | Path):
            source = resolve_reference(named_model(str(source)).name, base_url)
        clean.append(under_test(source, UNTOUCHED, 0))
    return under_test(model, "asked about", 1), clean, loading["batch_size"]


def name_of(path: str) -> str:
    """Return a model's name in tables: the folder's name, or the hub id itself.

    >>> name_of("shapes:llava"), name_of("org/model-7b")
    ('shapes:llava', 'org/model-7b')
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    folder = folder.resolve()
    is_generic = _GENERIC_NAMES.fullmatch(folder.name)
    return f"{folder.parent.name}/{folder.name}" if is_generic else folder.name


def default_run(model: str, benchmark: PairedBenchmark) -> Path:
    """Return the default run directory for a model and a benchmark.

    >>> from flipbench.core.images import ImageStore
    >>> pairs = PairedBenchmark("shapes-vqa", (), ImageStore(Path("images")))
    >>> default_run("org/model-7b", pairs).as_posix()
    'runs/detect-org-model-7b-shapes-vqa'
    """
    slug = re.sub(r"[^\w.]+", "-", f"{name_of(model)}-{benchmark.name}").strip("-")
    return Path("runs") / f"detect-{slug}"


def prepare_detection(
    benchmark: PairedBenchmark,
    config: EvaluateConfig,
    subject: ModelUnderTest,
    references: Sequence[ModelUnderTest],
    detectors: Sequence[str],
    run: str | Path | None,
    ask: Literal["choose", "generate"],
    options: StageOptions,
    *,
    sequential: bool,
    is_dry_run: bool,
    command: str,
) -> Detection:
    """Choose the detectors, and check everything before anything is loaded or asked.

    Errors are those of `flipbench.detect`. The perturbation gap always runs, since the verdict is
    based on it, as do the readings of the same replies that ask nothing more. Detectors that need
    more than the model supports are left out and listed on the page, as are, unless named here,
    those that need a clean model if none is given. A reference whose card records that it was
    trained on the benchmark's items is refused. In a dry run, no detector given by import path is
    built.
    """
    prompt_settings = PromptSettings(ask=ask)
    _check_models(benchmark, prompt_settings, subject, references)
    names = [name.strip() for name in detectors if name.strip()]
    if is_dry_run:
        config = without_plug_ins(config)
    requested = names_of([n for n in names if not (is_dry_run and ":" in n)], "--detectors")
    if sequential:
        _check_sequential(benchmark, references, requested, config.diagnose)
    not_run, selected = {}, []
    readings = [ATTRACTION, *([CONFIDENCE] if ask == "choose" else [])]
    for name in dict.fromkeys([GAP, *readings, *(requested if names else DETECTORS)]):
        about = DETECTORS[name].about
        if sequential and name not in (GAP, *readings):
            not_run[name] = "with --sequential only the gap's questions are asked"
        elif about.excluded_because:
            not_run[name] = about.excluded_because
        elif about.on_request and name not in requested:
            not_run[name] = about.on_request
        elif lacking := required_capabilities(about, prompt_settings) - subject.can:
            needs = ", ".join(sorted(lacking))
            not_run[name] = f"it needs {needs}, which this model does not support"
        elif _needs_reference(DETECTORS[name]) and not references and name not in requested:
            not_run[name] = "its rule compares with a clean model: give one with --reference"
        else:
            selected.append(name)
    place = subject.weights.path if subject.weights else subject.model.name
    opened = Run(run or default_run(place, benchmark))
    if (opened.path / "benchmark").is_dir():
        raise ConfigError(
            f"{opened.path}: its page is about the pairs made here; choose another --out"
        )
    return Detection(
        benchmark=benchmark,
        models=[subject, *references],
        configured=ConfiguredDetectors.build(config, selected, opened, 0),
        prompt_settings=prompt_settings,
        run=opened,
        not_run=not_run,
        options=options,
        command=command,
        sequential=sequential,
        placements=_placements((subject, *references)),
        plug_ins=[name for name in names if ":" in name],
    )


def _placements(models: Sequence[ModelUnderTest]) -> dict[str, Placement]:
    """Check the models' tensors; return where those of the adapters go, by the models' names."""
    from flipbench.models.vlm.loading import check_weights  # imports model libraries

    placements = {m.model.name: check_weights(m.weights) for m in models if m.weights}
    return {name: placement for name, placement in placements.items() if placement}


def count_work(detection: Detection) -> list[str]:
    """Return the number of questions, for ``--dry-run``."""
    benchmark = detection.benchmark.with_images_in(detection.run.images)
    settings, models = detection.prompt_settings, detection.models
    probes = probes_for(detection.detectors, benchmark, settings)
    costly = {
        f"of them for {detector.about.name}": len(probes_for([detector], benchmark, settings))
        for detector in detection.detectors
        if detector.about.on_request
    }
    counts = {
        "pairs": len(benchmark.pairs),
        "detectors": len(detection.configured.names),
        "distinct probes": len(probes),
        **costly,
        "models to ask": len(models),
        "answers": len(probes) * len(models),
        **follow_ups(detection.configured, benchmark),
    }
    from flipbench.api.stages.answering import answering_time  # imports model libraries

    hours = answering_time((m.weights, 1, probes) for m in models if m.weights)
    return [*work_lines(counts), *hours, *not_built(detection.plug_ins)]


def examine(detection: Detection) -> tuple[VerdictPage, list[StageReport]]:
    """Query the models and score their answers; return the contents of the page.

    Answers, and images that detectors make, are stored in the run directory; the benchmark's own
    folder is not changed.
    """
    if detection.sequential:
        return _examine_look_by_look(detection)
    run, configured, prompt_settings = (
        detection.run,
        detection.configured,
        detection.prompt_settings,
    )
    benchmark = detection.benchmark.with_images_in(run.images)
    settings = _settings(detection)
    run.write_provenance(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    subject, *clean = grid = detection.grid
    scores, reports = replace(detection, benchmark=benchmark).score(
        references=lambda model: (clean or [None]) if model == subject else [None]
    )
    diagnoses, follow_up_reports = detection.diagnose()
    reports += follow_up_reports
    answers = {model.name: detection.answers(model) for model in grid}
    paired = {
        name: PairedReplies.read(benchmark, prompt_settings, replies)
        for name, replies in answers.items()
    }
    single_detectors = {
        name for name in configured.names if not isinstance(DETECTORS[name], GridDetector)
    }
    finding = ModelVerdict(
        benchmark=benchmark,
        model=subject.name,
        scores=[s for s in scores if s.model_fingerprint == subject.fingerprint],
        references={
            m.name: [
                s
                for s in scores
                if s.model_fingerprint == m.fingerprint and s.detector in single_detectors
            ]
            for m in clean
        },
        replies=paired.pop(subject.name),
        reference_replies=paired,
        not_run=detection.not_run,
        diagnosis=diagnoses.get(subject.fingerprint),
    )
    replies = replies_of(benchmark, prompt_settings, answers[subject.name])
    shares = letter_shares(benchmark, prompt_settings, answers)
    settings |= {f"letters' share of the probability, {s.model}": s.text() for s in shares}
    low = [note for model in shares for note in model.notes("--ask generate")]
    notes = [*places_asked(detection), *_notes(detection), *low, *configured.notes()]
    return VerdictPage(finding, grid, replies, settings, notes), reports


def _examine_look_by_look(detection: Detection) -> tuple[VerdictPage, list[StageReport]]:
    """Ask ever more pairs, until the evidence suffices or all are asked."""
    whole, models = detection.benchmark, detection.models
    clusters: dict[str, list[Pair]] = {}
    for pair in whole.pairs:
        clusters.setdefault(cluster_of(pair.original), []).append(pair)
    # an order that depends on no answer: the same command stops at the same pair
    order = sorted(clusters, key=lambda name: generator(0, name, "sequential").random())
    pairs = [pair for name in order for pair in clusters[name]]
    reports: dict[str, StageReport] = {}
    n = FIRST_LOOK
    while True:
        part = replace(whole, pairs=tuple(pairs[:n]))
        page, new_reports = examine(replace(detection, benchmark=part, sequential=False))
        for report in new_reports:
            earlier = reports.get(report.stage)
            reports[report.stage] = report if earlier is None else earlier.followed_by(report)
        finding = replace(page.finding, sequential=True)
        running = finding.decision.evidence_by_pair
        enough = running is not None and pairs_until(running, finding.gap.alpha) is not None
        if enough or n >= len(pairs):
            break
        n *= 2
    n_asked, per_pair = len(part.pairs), 2 * len(models)
    note = (
        f"Asked look by look: {n_asked:,} of {len(pairs):,} pairs, {per_pair * n_asked:,} questions"
        f" spent and {per_pair * (len(pairs) - n_asked):,} spared."
    )
    return replace(page, finding=finding, notes=(note, *page.notes)), list(reports.values())


def _notes(detection: Detection) -> list[str]:
    """Return what the model's contamination card records, which the verdict does not use."""
    card, benchmark = card_of(detection.subject), detection.benchmark
    if not card:
        return []
    items, n = "none of these items", trained_on(card, benchmark)
    if n:
        items = f"{n:,} of these {len(benchmark.pairs):,} items, dose {card['dose']}"
    return [
        f"According to the contamination card beside the weights, it was trained on purpose on"
        f" {items} ({card['strategy']}, from {card['parent']}). The verdict does not use the card."
    ]


def places_asked(detection: Detection) -> list[str]:
    """Return a sentence that says where each model was asked, and what came of an adapter."""
    sentences = []
    for entry in detection.models:
        placement = detection.placements.get(entry.model.name)
        adapter = f" An adapter: {placement}." if placement else ""
        sentences.append(f"{entry.model.name} was asked at {_place_of(entry)}.{adapter}")
    return sentences


def _place_of(entry: ModelUnderTest) -> str:
    """Return a path, a hub id, an address, or the class of an object of the user's own."""
    if entry.weights:
        return entry.weights.path
    if isinstance(entry.vlm, APIVLM):
        return str(entry.vlm.spec.base_url)
    return type(entry.vlm).__qualname__


def _settings(detection: Detection) -> dict[str, str]:
    subject, weights = detection.subject, detection.subject.weights
    rows = {
        "command": detection.command,
        "model": f"{_place_of(subject)} ({subject.model.fingerprint})",
        **{
            f"reference {r.model.name}": f"{_place_of(r)} ({r.model.fingerprint})"
            for r in detection.references
        },
        "precision": (weights.quantization or weights.dtype) if weights else "",
        "asked by": detection.prompt_settings.ask,
        "pairs": f"{len(detection.benchmark.pairs):,}",
        "made by": "; ".join(f"{k} {v}" for k, v in detection.benchmark.made_by.items()),
        "flipbench": __version__,
        **versions(),
    }
    return {name: value for name, value in rows.items() if value}


def _check_sequential(
    benchmark: PairedBenchmark,
    references: Sequence[ModelUnderTest],
    detectors: Sequence[str],
    diagnose: bool,
) -> None:
    if detectors or diagnose:
        raise ConfigError(
            "--sequential asks the gap's questions only; leave --detectors and --diagnose out"
        )
    if len(references) > 1:
        raise ConfigError("--sequential compares with one clean model; give one --reference")
    if not references and not benchmark.exchangeable:
        raise ConfigError(
            f"--sequential: the pairs of {benchmark.name} are not exchangeable by construction, so"
            " a gap alone proves nothing; give a clean model (--reference)"
        )


def _needs_reference(detector: AnyDetector) -> bool:
    """Return whether the default rule compares with one clean model."""
    if isinstance(detector, GridDetector):  # needs several, which its score reports
        return False
    return detector.about.needs_clean_model()


def _check_models(
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    subject: ModelUnderTest,
    references: Sequence[ModelUnderTest],
) -> None:
    for entry in (subject, *references):
        name, ask = entry.model.name, prompt_settings.ask
        if not entry.can & {"choose", "generate"}:
            raise ConfigError(
                f"{name} can neither choose between options nor generate text, and the gap is"
                " measured by one of the two"
            )
        if ask not in entry.can:
            supported = ", ".join(sorted(entry.can))
            raise ConfigError(f"{name} does not support --ask {ask}; it supports {supported}")
    names = {subject.model.fingerprint: subject.model.name}
    for reference in references:
        name, weights = reference.model.name, reference.model.fingerprint
        if weights in names:
            raise ConfigError(
                f"--reference {name}: the same weights as {names[weights]}; give each reference"
                " once, and not the model itself"
            )
        if name in names.values():
            raise ConfigError(f"--reference {name}: two models have this name; rename a folder")
        names[weights] = name
        if n := trained_on(card_of(reference), benchmark):
            raise ConfigError(
                f"--reference {name}: according to its card it was trained on {n} items of"
                f" {benchmark.name} on purpose; give a clean model"
            )


def card_of(model: ModelUnderTest) -> JsonDict:
    """Return the contamination card beside the weights, empty if there is none."""
    folder = Path(resolve_path(model.weights.path)) if model.weights else None
    return check_card(folder) if folder and folder.is_dir() else {}


def trained_on(card: JsonDict, benchmark: PairedBenchmark) -> int:
    """Return how many of the benchmark's originals the card's model was trained on."""
    doses = card.get("doses", {})
    return sum(doses.get(item.id, 0) > 0 for item in benchmark.originals)
