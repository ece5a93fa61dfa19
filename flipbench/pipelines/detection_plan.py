"""What ``flipbench detect`` is asked for: the pairs, the models, the detectors; checked first."""

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
from flipbench.evaluate.protocol.detector import AnyDetector, GridDetector
from flipbench.evaluate.protocol.grid import UNTOUCHED
from flipbench.evaluate.report.tables import GAP
from flipbench.models.engine import ASK_OPTIONS
from flipbench.models.protocols import VLM
from flipbench.models.vlm.checkpoints import check_card, resolve_path
from flipbench.pipelines.detectors import ConfiguredDetectors
from flipbench.prompting.prompts import PromptSettings

_FAMILY = "detect"
_UNTOLD_NAMES = re.compile(r"(epoch|checkpoint|step)[-_]?\d+|final|merged|adapter|model", re.I)


@dataclass(frozen=True)
class Detection:
    """A model to be judged, clean models to compare with, and how they are asked.

    ``subject`` stands in its grid as if it were contaminated and the references as if they were
    clean, since that is the question; nothing but an item's suspicion is reckoned by it.
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
        """The model, then its references."""
        return [self.subject, *self.references]

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
    prompt_settings: PromptSettings | None = None,
    config: EvaluateConfig | None = None,
    dtype: str = "float32",
    device: str = "auto",
    quantization: Quantization | None = None,
    options: StageOptions = ASK_OPTIONS,
    command: str = "",
) -> Detection:
    """Check what is asked for, before anything is loaded.

    Parameters
    ----------
    model, references : str or VLM
        A checkpoint's folder, a hub id, ``shapes:llava``, or any object that keeps the `VLM`
        protocol, such as a model behind a server. The references are taken for clean.
    detectors : sequence of str
        Names or import paths; all by default. The perturbation gap is always among them, since
        the verdict rests on it. A detector that needs more than the model can do is left out, and
        so is by default one that needs a clean model where there is none; the page says so.
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

    def under_test(one: str | VLM, strategy: str, dose: int) -> ModelUnderTest:
        known = {"family": _FAMILY, "strategy": strategy, "dose": dose}
        if not isinstance(one, str):
            return ModelUnderTest.from_vlm(one, lineage=one.name, **known)
        name, loading = name_of(one), {"dtype": dtype, "device": device}
        weights = ModelConfig.model_validate({"path": one, "quantization": quantization} | loading)
        return ModelUnderTest.from_weights(weights, name, lineage=name, **known)

    subject = under_test(model, "asked about", 1)
    clean = tuple(under_test(one, UNTOUCHED, 0) for one in references)
    prompt_settings = prompt_settings or PromptSettings()
    _check_models(benchmark, prompt_settings, subject, clean)
    chosen = names_of(detectors, "--detectors")
    not_run, asked = {}, []
    for name in dict.fromkeys([GAP, *(chosen or DETECTORS)]):
        detector = DETECTORS[name]
        if detector.about.not_in_detect:
            not_run[name] = detector.about.not_in_detect
        elif lacking := detector.about.needs - subject.can:
            needs = ", ".join(sorted(lacking))
            not_run[name] = f"it needs {needs}, which this model does not give"
        elif _needs_reference(detector) and not references and name not in chosen:
            not_run[name] = (
                "not asked, since the rule compares with a clean model: give one with --reference"
            )
        else:
            asked.append(name)
    return Detection(
        benchmark=benchmark,
        subject=subject,
        references=clean,
        configured=ConfiguredDetectors.of(config or EvaluateConfig(), asked, run, 0),
        prompt_settings=prompt_settings,
        run=run,
        not_run=not_run,
        options=options,
        command=command,
    )


def _needs_reference(detector: AnyDetector) -> bool:
    """Return whether a rule compares with one clean model; of several, the score itself tells."""
    if isinstance(detector, GridDetector):
        return False
    return detector.about.needs_clean_model or default_rule(detector) == "relative"


def _check_models(
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    subject: ModelUnderTest,
    references: Sequence[ModelUnderTest],
) -> None:
    for one in (subject, *references):
        if prompt_settings.ask not in one.can:
            raise ConfigError(
                f"--ask {prompt_settings.ask}: {one.model.name} cannot be asked so; it can"
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
        if n := trained_on(card_of(reference), benchmark):
            raise ConfigError(
                f"--reference {name}: its card says that it was trained on {n} items of"
                f" {benchmark.name} on purpose; give a clean model"
            )


def card_of(one: ModelUnderTest) -> JsonDict:
    """Return the contamination card beside the weights, empty where there is none."""
    where = Path(resolve_path(one.weights.path)) if one.weights else None
    return check_card(where) if where and where.is_dir() else {}


def trained_on(card: JsonDict, benchmark: PairedBenchmark) -> int:
    """Return how many of a benchmark's originals a card says a model was trained on."""
    doses = card.get("doses", {})
    return sum(doses.get(item.id, 0) > 0 for item in benchmark.originals)
