"""Plan ``flipbench detect``: choose and check pairs, models and detectors before loading any."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flipbench.config.experiment import EvaluateConfig, load_config
from flipbench.config.local_models import ModelConfig, Quantization
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import JsonDict
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.evaluate.detectors.registry import DETECTORS, default_rule, names_of
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.protocol.detector import AnyDetector, GridDetector, needs_when
from flipbench.evaluate.protocol.grid import UNTOUCHED
from flipbench.evaluate.report.tables import GAP
from flipbench.models.engine import ASK_OPTIONS
from flipbench.models.protocols import VLM
from flipbench.models.vlm.checkpoints import check_card, resolve_path
from flipbench.models.vlm.loading import as_vlm
from flipbench.pipelines.detectors import ConfiguredDetectors
from flipbench.prompting.prompts import PromptSettings

_FAMILY = "detect"
_GENERIC_NAMES = re.compile(r"(epoch|checkpoint|step)[-_]?\d+|final|merged|adapter|model", re.I)


@dataclass(frozen=True)
class Detection:
    """The model to examine, clean models to compare it with, and how they are queried.

    In the grid, ``subject`` has dose 1 and the references dose 0; only the suspicion of single
    items depends on that.
    """

    benchmark: PairedBenchmark
    subject: ModelUnderTest
    references: tuple[ModelUnderTest, ...]
    configured: ConfiguredDetectors
    prompt_settings: PromptSettings
    run: Run
    not_run: Mapping[str, str] = field(default_factory=dict)
    options: StageOptions = ASK_OPTIONS
    command: str = ""

    @property
    def models(self) -> list[ModelUnderTest]:
        """The subject, then its references."""
        return [self.subject, *self.references]

    @property
    def detectors(self) -> list[AnyDetector]:
        """The detectors to run, with the wordings and judgements stored in the run."""
        return self.configured.detectors(self.benchmark)


def read_paired(where: Path, limit: int | None = None) -> PairedBenchmark:
    """Read a paired benchmark: its folder, a run directory that has one, or its configuration.

    Raises
    ------
    DataError
        If there is none, or it has no pairs.
    """
    if where.suffix in (".yaml", ".yml"):
        where = load_config(where).run
    inside = where / "benchmark"
    benchmark = PairedBenchmark.load(inside if inside.is_dir() else where)
    if not benchmark.pairs:
        raise DataError(f"{where}: the paired benchmark has no pairs; run 'flipbench filter'")
    return replace(benchmark, pairs=benchmark.pairs[:limit]) if limit else benchmark


def evaluate_part(where: Path) -> EvaluateConfig:
    """Return the ``evaluate`` part of a configuration file; for a folder, the defaults."""
    return load_config(where).evaluate if where.suffix in (".yaml", ".yml") else EvaluateConfig()


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


def plan(
    benchmark: PairedBenchmark,
    model: str | VLM,
    references: Sequence[str | VLM],
    run: Run,
    *,
    detectors: Sequence[str] = (),
    prompt_settings: PromptSettings | None = None,
    config: EvaluateConfig | None = None,
    dtype: str = "float32",
    device: str = "auto",
    quantization: Quantization | None = None,
    options: StageOptions = ASK_OPTIONS,
    command: str = "",
) -> Detection:
    """Check models and detectors before anything is loaded.

    Parameters
    ----------
    model, references : str or VLM
        A checkpoint's folder, a hub id, ``shapes:llava``, or any object that keeps the `VLM`
        protocol, such as a model behind a server. The references are assumed to be clean.
    detectors : sequence of str
        Names or import paths; all by default. The perturbation gap always runs, since the verdict
        is based on it. Detectors that need more than the model supports are left out and listed
        on the page, as are, unless named here, those that need a clean model if none is given.
    config : EvaluateConfig, optional
        Rewording, judge and parameters of the detectors; other settings are ignored.
    dtype, device, quantization : str
        How the weights of model and references are loaded.

    Raises
    ------
    ConfigError
        If a detector is unknown, a model does not support the way of asking, or a reference is
        the model itself or was trained on the benchmark's items on purpose.
    """

    def under_test(source: str | VLM, strategy: str, dose: int) -> ModelUnderTest:
        known = {"family": _FAMILY, "strategy": strategy, "dose": dose}
        if not isinstance(source, str):
            vlm = as_vlm(source)
            return ModelUnderTest.from_vlm(vlm, lineage=vlm.name, **known)
        name, loading = name_of(source), {"dtype": dtype, "device": device}
        weights = ModelConfig.model_validate(
            {"path": source, "quantization": quantization} | loading
        )
        return ModelUnderTest.from_weights(weights, name, lineage=name, **known)

    subject = under_test(model, "asked about", 1)
    clean = tuple(under_test(source, UNTOUCHED, 0) for source in references)
    prompt_settings = prompt_settings or PromptSettings()
    _check_models(benchmark, prompt_settings, subject, clean)
    chosen = names_of(detectors, "--detectors")
    not_run, selected = {}, []
    for name in dict.fromkeys([GAP, *(chosen or DETECTORS)]):
        detector = DETECTORS[name]
        if detector.about.not_in_detect:
            not_run[name] = detector.about.not_in_detect
        elif lacking := needs_when(detector.about, prompt_settings) - subject.can:
            needs = ", ".join(sorted(lacking))
            not_run[name] = f"it needs {needs}, which this model does not support"
        elif _needs_reference(detector) and not references and name not in chosen:
            not_run[name] = "its rule compares with a clean model: give one with --reference"
        else:
            selected.append(name)
    return Detection(
        benchmark=benchmark,
        subject=subject,
        references=clean,
        configured=ConfiguredDetectors.build(config or EvaluateConfig(), selected, run, 0),
        prompt_settings=prompt_settings,
        run=run,
        not_run=not_run,
        options=options,
        command=command,
    )


def _needs_reference(detector: AnyDetector) -> bool:
    """Return whether the default rule compares with one clean model."""
    if isinstance(detector, GridDetector):  # needs several, which its score reports
        return False
    return detector.about.needs_clean_model or default_rule(detector) == "relative"


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
    seen = {subject.model.fingerprint: subject.model.name}
    for reference in references:
        name, weights = reference.model.name, reference.model.fingerprint
        if weights in seen:
            raise ConfigError(
                f"--reference {name}: the same weights as {seen[weights]}; give each reference"
                " once, and not the model itself"
            )
        if name in seen.values():
            raise ConfigError(f"--reference {name}: two models have this name; rename a folder")
        seen[weights] = name
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
