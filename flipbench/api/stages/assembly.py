"""The parts of a configured experiment: each is built here, once, and handed to the stages."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flipbench.api.stages.backends import Servers, backend_context, build_writer, runs_here
from flipbench.api.stages.detectors import ConfiguredDetectors
from flipbench.api.stages.grid import TrainedPlan, checkpoint_models, model_under_test
from flipbench.api.stages.training_data import TrainingData
from flipbench.benchmarks import Benchmark, HuggingFaceSpec, PairsSpec, load_benchmark, load_pairs
from flipbench.config.experiment import (
    Config,
    ModelConfig,
    ModelUnderTestConfig,
    ShapesSpec,
)
from flipbench.config.kinds import Context, EditorSpec, JudgeSpec
from flipbench.config.trust import note_trusted, settings_to_trust
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.locks import Share
from flipbench.core.paired import PairedBenchmark
from flipbench.core.processes import is_main
from flipbench.core.records import Flip, Item, TrainingPlan, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions
from flipbench.distributed.cluster import RayCluster
from flipbench.distributed.slurm import SlurmArray
from flipbench.distributed.workers import Workers
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.export.recipe import expected_edits
from flipbench.filters.funnel import read_doubtful
from flipbench.filters.judges.api import APIJudgeSpec, LocalJudgeSpec
from flipbench.filters.pipeline import FOLDER
from flipbench.generate.captioners.api import APICaptioner
from flipbench.generate.flip import UNIFORM, read_new_answers
from flipbench.generate.letters import matched_letters
from flipbench.generate.pictures import (
    ByChat,
    ByModel,
    ByPosition,
    ChoosePictureStage,
    Chooser,
    Largest,
)
from flipbench.generate.pipeline import Generator
from flipbench.generate.propose import ProposeStage
from flipbench.models.protocols import Captioner, Editor, Judge
from flipbench.models.vlm.checkpoints import check_hub
from flipbench.shapes.benchmark import Edition, is_shapes_item, shapes_vqa

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assembly:
    """A configuration, its run directory, and the parts built from it on first use.

    Attributes
    ----------
    limit : int, optional
        Use only the benchmark's first ``limit`` items.
    command : str
        The command line, for reports.
    """

    config: Config
    run: Run
    workers: Workers
    limit: int | None = None
    progress: bool = True
    command: str = ""

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        limit: int | None = None,
        progress: bool = True,
        command: str = "",
        n_workers: int = 1,
        share: Share | None = None,
        slurm: bool = False,
        store: bool = True,
    ) -> Assembly:
        """Open the run directory; only the main process stores the configuration there.

        ``n_workers`` and ``share`` are those of `Workers`, which ``slurm`` makes jobs of an array.
        Without ``store``, the stored configuration stays that of the results: nothing is made.
        """
        if config.executor.kind == "ray" and (n_workers > 1 or share is not None):
            raise ConfigError(
                "executor: ray shares the work out itself; drop --workers, or set executor=local"
            )
        launcher = SlurmArray(config.executor.slurm, config.run) if slurm else None
        if launcher:
            launcher.check(n_workers)
        quiet_libraries()
        run = Run(config.run, share)
        workers = Workers(run, n_workers, share, limit, progress, launcher)
        assembly = cls(config, run, workers, limit, progress, command)
        if share is None and is_main() and store:
            assembly.store_config()
        return assembly

    def store_config(self) -> None:
        """Store the configuration in the run, and note outside of it that this user made it."""
        self.run.write_provenance(self.config.to_yaml())
        note_trusted(self.run.path, settings_to_trust(self.config))

    def options(self, batch_size: int = DEFAULTS.batch_size) -> StageOptions:
        """Return the options of a stage."""
        return StageOptions(
            batch_size=batch_size,
            progress=self.progress,
            executor=self.cluster or DEFAULTS.executor,
        )

    @cached_property
    def cluster(self) -> RayCluster | None:
        """The Ray cluster that stages run on; None if they run here."""
        config = self.config.executor
        return RayCluster(config, self.run.path) if config.kind == "ray" else None

    @property
    def benchmark_folder(self) -> Path:
        """The folder of the paired benchmark."""
        return self.run.path / "benchmark"

    @property
    def has_pairs(self) -> bool:
        """Whether the configured benchmark consists of pairs that exist already."""
        return isinstance(self.config.benchmark, PairsSpec)

    @property
    def pairs(self) -> PairedBenchmark:
        """The run's paired benchmark."""
        return PairedBenchmark.load(self.benchmark_folder)

    @property
    def kept_pairs(self) -> PairedBenchmark:
        """The run's paired benchmark."""
        if (benchmark := self.pairs).pairs:
            return benchmark
        reasons = self.run.path / FOLDER / "reasons.csv"
        losses = ", ".join(f"{step} {n}" for step, n in benchmark.funnel.items())
        remedy = f"the reasons are in {reasons}"
        if reasons.exists() and (n := len(read_doubtful(reasons))):
            review = shlex.join(["flipbench", "review", str(self.run.path), "--doubtful"])
            remedy = f"{n} are doubtful: people judge them with '{review}', then 'flipbench filter'"
        raise DataError(f"{self.benchmark_folder}: no pair was kept ({losses}); {remedy}")

    @cached_property
    def whole_benchmark(self) -> Benchmark:
        """The configured benchmark; of the embedded world, as many items as are needed."""
        spec = self.config.benchmark
        if isinstance(spec, ShapesSpec):
            edition = Edition(spec.seed, spec.level, spec.per_picture)
            n_items = min(spec.n_items, self.limit or spec.n_items)
            items = shapes_vqa(self.run.images, n_items, edition)
            return Benchmark(name=edition.name, items=items, problems=[], n_rows=len(items))
        if isinstance(spec, PairsSpec):
            raise ConfigError("benchmark.format: pairs: the pairs exist already; nothing to make")
        if isinstance(spec, HuggingFaceSpec) and not Path(spec.path).exists():
            check_hub()
        return load_benchmark(spec, self.run.images)

    @cached_property
    def benchmark(self) -> Benchmark:
        """The configured benchmark, or its first items."""
        whole = self.whole_benchmark
        return whole if self.limit is None else whole.first(self.limit)

    @cached_property
    def new_letters(self) -> Mapping[str, int | None] | None:
        """New answers with letters as frequent as the old ones; None if drawn uniformly.

        They are those of the whole benchmark, so a limit does not change them. A run that holds
        uniform flips keeps to these.
        """
        setting = self.config.generate.new_letters
        if setting is None:
            setting = "uniform" if isinstance(self.config.benchmark, ShapesSpec) else "matched"
        if setting == "uniform" or any(flip.method == UNIFORM for flip in self.run.read(Flip)):
            return None
        return matched_letters(self.whole_benchmark.items, self.config.seed, self.reachable_answers)

    @cached_property
    def reachable_answers(self) -> Mapping[str, Sequence[int]] | None:
        """By item id, the options that the editor can make true; None if it takes any."""
        reachable = getattr(self.config.generate.editor, "reachable_answers", None)
        return None if reachable is None else reachable(self.whole_benchmark.items)

    @cached_property
    def originals(self) -> list[Item]:
        """The usable items of the whole benchmark, whichever pairs the filter keeps.

        Problems of the others are logged. Nothing needs to be generated yet.
        """
        if isinstance(spec := self.config.benchmark, PairsSpec):
            if self.benchmark_folder.exists():
                return self.pairs.originals[: self.limit]
            return load_pairs(spec, self.run.images).benchmark.originals[: self.limit]
        if self.benchmark.problems:
            log.warning("%s", self.benchmark.summary())
        if not self.benchmark.items:
            raise DataError(
                "the benchmark has no usable item; 'flipbench import' reports the problem of each"
            )
        return self.benchmark.items

    @cached_property
    def items(self) -> list[Item]:
        """The items to generate from: `originals`, with the parts that these need."""
        self._check_shapes(self.benchmark.items)
        self._check_caption()
        return self.originals

    @cached_property
    def new_answers(self) -> dict[str, str]:
        """The new answers from the configured file, by item name."""
        path = self.config.generate.new_answers
        return read_new_answers(path, {item.name for item in self.items}) if path else {}

    @cached_property
    def captioner(self) -> Captioner:
        """Describes the scene in which the new answer is correct."""
        captioner: Captioner = self.config.generate.captioner.build(self._context)
        return captioner

    @cached_property
    def editor(self) -> Editor:
        """Redraws the images."""
        editor: Editor = self.config.generate.editor.build(self._context)
        return editor

    def build_editor(self, spec: EditorSpec) -> Editor:
        """Return the editor of a later attempt."""
        editor: Editor = spec.build(self._context)
        return editor

    @cached_property
    def generator(self) -> Generator:
        """The steps from an item to its perturbed version."""
        captioner, proposing, share = self.captioner, None, self.workers.share
        # a share of one is a rebuild, which asks nobody
        helps = (
            share is not None and share.n_workers > 1 and runs_here(self.config.generate.captioner)
        )
        if isinstance(captioner, APICaptioner):
            prompt = captioner.counterfactual_prompt
            proposing = ProposeStage(captioner.chat, self.run.images, prompt)
        return Generator(
            captioner,
            self.editor,
            self.run,
            self.config.seed,
            self.new_answers,
            proposing,
            self._choosing,
            asks=share is None or helps,
            share=share,
            expected=expected_edits(self.run),
            letters=self.new_letters,
            reachable=self.reachable_answers,
        )

    @property
    def _choosing(self) -> ChoosePictureStage | None:
        """Chooses the images to redraw; None for the first, which needs no record."""
        picture, captioner = self.config.generate.picture, self.captioner
        chooser: Chooser
        if picture.by == "captioner":
            if not isinstance(captioner, APICaptioner):
                raise ConfigError(
                    "generate.picture: by: captioner needs a captioner of kind api or local, which"
                    f" can be asked, not {self.config.generate.captioner.kind}; choose by position,"
                    " largest or model"
                )
            chooser = ByChat(captioner.chat, picture.prompt)
        elif picture.by == "model":
            chooser = self._asking(picture.model)
        elif picture.by == "largest":
            chooser = Largest()
        elif picture.position == 1:
            return None
        else:
            chooser = ByPosition(picture.position)
        return ChoosePictureStage(chooser, self.run.images)

    def _asking(self, name: str) -> ByModel:
        """Return the chooser that asks a configured model; weights are loaded when it is used."""
        from flipbench.models.vlm.huggingface import lazy_vlm

        if name not in self.config.models:
            close = nearest(name, list(self.config.models))
            raise ConfigError(
                f"generate.picture.model: {name!r} is not under 'models'{close or '; add it there'}"
            )
        model = self.model(name)
        if model.weights is None:
            return ByModel(model.load(), self.config.evaluate.prompt, name)
        fields = model.weights.model_dump(include=set(ModelConfig.model_fields))
        return ByModel(lazy_vlm(ModelConfig(**fields)), self.config.evaluate.prompt, name)

    @cached_property
    def judges(self) -> list[Judge]:
        """The judges of pairs, in the configured order."""
        return [self.judge(spec) for spec in self.config.filter.judges]

    def judge(self, spec: JudgeSpec) -> Judge:
        """Return one of them; with the prompt of its verdicts here, if the default is newer."""
        judge: Judge = spec.build(self._context)
        if isinstance(spec, APIJudgeSpec | LocalJudgeSpec) and spec.prompt is None:
            earlier: Judge = spec.earlier.build(self._context)
            if earlier.name in self._raters and judge.name not in self._raters:
                return earlier
        return judge

    @cached_property
    def _raters(self) -> set[str]:
        """Who has judged pairs of the run."""
        return {verdict.rater for verdict in self.run.read(Verdict)}

    @cached_property
    def training_data(self) -> TrainingData:
        """The data regimes of the contamination grid, with the writers of their wordings."""
        regimes, uses_kept = self.config.contaminate.data, self.config.contaminate.items == "kept"
        writers = {
            name: build_writer(data.rewrite, self._context, self.run.images)
            for name, data in regimes.items()
            if data.rewrite is not None
        }
        return TrainingData(
            originals=lambda: self.originals,
            items=lambda: self.pairs.originals if uses_kept else self.originals,
            configs=regimes,
            writers=writers,
            run=self.run,
            seed=self.config.seed,
            options=self.options(),
        )

    def regimes(self, *, write: bool) -> dict[str, RegimeData]:
        """Return what each regime trains on; an empty grid needs no benchmark."""
        return self.training_data.prepare(write=write) if self._trainable else {}

    def plans(self, regimes: Mapping[str, RegimeData] | None = None) -> list[TrainingPlan]:
        """Return the plans of every model, strategy and regime.

        Without ``regimes``, wordings that are still to be written are placeholders.
        """
        if regimes is None:
            regimes = self.regimes(write=False)
        if not self._trainable:
            return []
        plans = expand(
            self.config.contaminate,
            self._trainable,
            list(regimes.values()),
            instruction=self.config.evaluate.prompt.instruction,
            seed=self.config.seed,
        )
        if self.config.contaminate.backend == "llamafactory":
            from flipbench.contaminate.backends.llamafactory_data import check_plan

            for plan in plans:
                check_plan(plan)
        return plans

    @property
    def _trainable(self) -> dict[str, ModelUnderTestConfig]:
        """The models that the grid trains; none without a strategy."""
        models = self.config.models if self.config.contaminate.strategies else {}
        return {name: m for name, m in models.items() if m.path and not m.quantization}

    @property
    def dtypes(self) -> dict[str, str]:
        """The precision of each model's weights."""
        return {name: model.dtype for name, model in self.config.models.items()}

    @cached_property
    def detectors(self) -> ConfiguredDetectors:
        """The configured detectors, with their rewording and judge models."""
        spec = self.config.evaluate
        return ConfiguredDetectors.build(spec, spec.detectors, self.run, self.config.seed)

    @cached_property
    def servers(self) -> Servers:
        """The servers that are started for models."""
        return Servers(self.run)

    def model(self, name: str) -> ModelUnderTest:
        """Return a configured model; its files are hashed but not loaded."""
        configs = self.config.models
        if name not in configs:
            raise ConfigError(f"no model {name!r} under 'models'{nearest(name, list(configs))}")
        return model_under_test(name, configs[name], self.servers)

    def grid(
        self, plans: Sequence[TrainedPlan] = (), *, dry_run: bool = False
    ) -> list[ModelUnderTest]:
        """Return the models under test: each configured model, followed by its checkpoints.

        In a dry run without those that are objects of the user's own.
        """
        models, folder = [], self.run.path
        for name, config in self.config.models.items():
            if dry_run and config.python:
                continue
            models.append(parent := self.model(name))
            for plan, checkpoints in plans:
                if plan.model == name:
                    models += checkpoint_models(
                        parent.model, config, plan, checkpoints, folder, self.servers
                    )
        return models

    @property
    def _context(self) -> Context:
        return backend_context(self.run, self.config.seed)

    def _check_caption(self) -> None:
        """Refuse a captioner that writes what the editor does not read."""
        captioner, editor = self.config.generate.captioner, self.config.generate.editor
        writes, reads = getattr(captioner, "writes", None), getattr(editor, "reads", None)
        if writes and reads and writes != reads:
            texts = {
                "caption": "captions of the whole picture",
                "instruction": "instructions that say what to change",
            }
            prompt = {"caption": "caption-release-v1", "instruction": "instruction-v1"}[reads]
            raise ConfigError(
                f"generate.captioner writes {texts[writes]}, but generate.editor reads"
                f" {texts[reads]}; set generate.captioner.prompt={prompt}"
            )

    def _check_shapes(self, items: Sequence[Item]) -> None:
        foreign = [item for item in items if not is_shapes_item(item)]
        config = self.config
        kinds = {
            "generate.captioner": config.generate.captioner.kind,
            "generate.editor": config.generate.editor.kind,
            **{f"filter.judges.{i}": judge.kind for i, judge in enumerate(config.filter.judges)},
        }
        shapes_parts = [name for name, kind in kinds.items() if kind == "shapes"]
        if foreign and shapes_parts:
            raise ConfigError(
                f"{' and '.join(shapes_parts)}: 'shapes' draws and judges only shapes-vqa, but"
                f" {foreign[0].benchmark} {foreign[0].name} is a real picture; configs/generate/"
                " has captioners and editors for those, and judges may be empty ([])"
            )


def quiet_libraries() -> None:
    """Silence other libraries' progress bars and warnings, whether imported already or not yet."""
    os.environ.update(
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_DATASETS_DISABLE_PROGRESS_BARS="1",
        TRANSFORMERS_VERBOSITY="error",
    )
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
    if "datasets" in sys.modules:
        from datasets import disable_progress_bars

        disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    libraries = r"(accelerate|datasets|diffusers|huggingface_hub|peft|torch|transformers|trl)\."
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=libraries)
