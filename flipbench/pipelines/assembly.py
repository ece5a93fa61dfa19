"""The parts of a configured experiment: each is built here, once, and handed to the stages.

What the stages do with them: `flipbench.pipelines.generation`, `flipbench.pipelines.filtering`,
`flipbench.pipelines.contamination`, `flipbench.pipelines.evaluation`; `flipbench.pipelines.loop`
does all in order. Only these five and this file know the configuration.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from flipbench.benchmarks import Benchmark, PairsSpec, load_benchmark
from flipbench.config.experiment import Config, ShapesSpec
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.processes import is_main
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions
from flipbench.core.workers import Share, Workers
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.generate.captioners.api import APICaptioner
from flipbench.generate.given_answers import read_new_answers
from flipbench.generate.pipeline import Generator
from flipbench.generate.propose import ProposeStage
from flipbench.models.protocols import Captioner, Editor, Judge
from flipbench.pipelines.backends import build_captioner, build_editor, build_judge
from flipbench.pipelines.detectors import ConfiguredDetectors
from flipbench.pipelines.grid import Trained, model_under_test, with_checkpoints
from flipbench.pipelines.training_data import TrainingData, writer_of
from flipbench.shapes.benchmark import NAME as SHAPES_NAME
from flipbench.shapes.benchmark import is_shapes_item, shapes_vqa

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assembly:
    """A configuration, its run directory, and the parts that are built from it when needed.

    Attributes
    ----------
    limit : int, optional
        Take the benchmark's first items only.
    command : str
        How the program was called, for reports.
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
    ) -> Assembly:
        """Open the run directory; unless this is a worker, keep the configuration there.

        ``n_workers`` and ``share`` are those of `Workers`.
        """
        _quiet_libraries()
        run = Run(config.run)
        if share is None and is_main():
            run.write_provenance(config.to_yaml())
        workers = Workers(run, n_workers, share, limit, progress)
        return cls(config, run, workers, limit, progress, command)

    def options(self, batch_size: int = DEFAULTS.batch_size) -> StageOptions:
        """Return how a stage is run."""
        return StageOptions(batch_size=batch_size, progress=self.progress)

    @property
    def benchmark_folder(self) -> Path:
        """Where the paired benchmark lies."""
        return self.run.path / "benchmark"

    @property
    def pairs(self) -> PairedBenchmark:
        """The paired benchmark that the run holds."""
        return PairedBenchmark.load(self.benchmark_folder)

    @cached_property
    def benchmark(self) -> Benchmark:
        """The configured benchmark, or its first items.

        Raises
        ------
        ConfigError
            Where it consists of pairs that exist already.
        """
        spec = self.config.benchmark
        if isinstance(spec, ShapesSpec):
            items = shapes_vqa(self.run.images, min(spec.n_items, self.limit or spec.n_items))
            return Benchmark(name=SHAPES_NAME, items=items, problems=[], n_rows=len(items))
        if isinstance(spec, PairsSpec):
            raise ConfigError(
                "benchmark.format: pairs: these items have their twins; nothing to make"
            )
        benchmark = load_benchmark(spec, self.run.images)
        if self.limit is not None:
            del benchmark.items[self.limit :]
        return benchmark

    @cached_property
    def items(self) -> list[Item]:
        """The benchmark's usable items; what is odd about others stands in the log.

        Raises
        ------
        DataError
            Where there is none.
        ConfigError
            Where only the embedded world's parts could draw or judge them, and they are not its.
        """
        if self.benchmark.problems:
            log.warning("%s", self.benchmark.summary())
        if not self.benchmark.items:
            raise DataError(
                "the benchmark has no item that can be used; 'flipbench import' names what is wrong"
            )
        self._check_shapes(self.benchmark.items)
        return self.benchmark.items

    @cached_property
    def new_answers(self) -> dict[str, str]:
        """The new answers that the configuration's file gives, by item name."""
        path = self.config.generate.new_answers
        return read_new_answers(path, {item.name for item in self.items}) if path else {}

    @cached_property
    def captioner(self) -> Captioner:
        """Who describes the scene in which the new answer is true."""
        return build_captioner(self.config.generate.captioner, self._batches, self.config.seed)

    @cached_property
    def editor(self) -> Editor:
        """Who redraws the pictures."""
        return build_editor(self.config.generate.editor, self._batches, self.config.seed)

    @cached_property
    def generator(self) -> Generator:
        """The steps from an item to its perturbed version."""
        captioner, proposing = self.captioner, None
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
            asks=self.workers.share is None,
        )

    @cached_property
    def judges(self) -> list[Judge]:
        """Who decides whether a pair is valid, in the configuration's order."""
        specs = self.config.filter.judges
        return [build_judge(spec, self._batches, self.config.seed) for spec in specs]

    @cached_property
    def training_data(self) -> TrainingData:
        """The data regimes of the contamination grid, and who writes other wordings for them."""
        config, seed = self.config, self.config.seed
        regimes = config.contaminate.data
        writers = {
            name: writer_of(data.rewrite, self.run, seed)
            for name, data in regimes.items()
            if data.rewrite is not None
        }
        return TrainingData(regimes, writers, self.run, seed, self.options())

    @property
    def dtypes(self) -> dict[str, str]:
        """The precision of each model's weights."""
        return {name: model.dtype for name, model in self.config.models.items()}

    @cached_property
    def detectors(self) -> ConfiguredDetectors:
        """The configured detectors, and the models that help them."""
        spec = self.config.evaluate
        return ConfiguredDetectors.of(spec, spec.detectors, self.run, self.config.seed)

    def model(self, name: str) -> ModelUnderTest:
        """Return a configured model; its files are hashed, nothing is loaded."""
        return model_under_test(name, self.config.models[name])

    def grid(self, trained: Sequence[Trained] = ()) -> list[ModelUnderTest]:
        """Return the models under test: each configured one, and then its checkpoints."""
        configs, folder = self.config.models, self.run.path
        return [
            one
            for name in configs
            for one in with_checkpoints(self.model(name), configs[name], trained, folder)
        ]

    @property
    def _batches(self) -> Path:
        """Where the state of Batch APIs is kept."""
        return self.run.path / "batches"

    def _check_shapes(self, items: Sequence[Item]) -> None:
        foreign = [item for item in items if not is_shapes_item(item)]
        config = self.config
        kinds = {
            "generate.captioner": config.generate.captioner.kind,
            "generate.editor": config.generate.editor.kind,
            **{f"filter.judges.{i}": judge.kind for i, judge in enumerate(config.filter.judges)},
        }
        ours = [name for name, kind in kinds.items() if kind == "shapes"]
        if foreign and ours:
            raise ConfigError(
                f"{' and '.join(ours)}: 'shapes' draws and judges only shapes-vqa, and"
                f" {foreign[0].benchmark} {foreign[0].name} is a real picture; configs/generate/"
                " has captioners and editors for those, and judges may be left empty ([])"
            )


def _quiet_libraries() -> None:
    """Leave the terminal to our own progress bars."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
