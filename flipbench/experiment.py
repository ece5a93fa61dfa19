"""One function for each stage of a configured experiment; the command line and the demo call them.

Beside `flipbench.cli` this is the only file that knows all stages.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from flipbench.benchmarks import Benchmark, load_benchmark
from flipbench.config import Config, ShapesSpec
from flipbench.contaminate.plan import expand
from flipbench.contaminate.train import carry_out
from flipbench.errors import ConfigError, DataError, nearest
from flipbench.evaluate.detector import Detector
from flipbench.evaluate.detectors import DETECTORS
from flipbench.evaluate.grid import GridModel, Requirements
from flipbench.evaluate.pipeline import Subject, evaluate, probes_for
from flipbench.evaluate.report import ReportData, write_report
from flipbench.evaluate.validation import requirements
from flipbench.filters.pipeline import keep_valid
from flipbench.generate.pipeline import generate
from flipbench.models.huggingface import fingerprint, resolve_path
from flipbench.paired import Candidate, PairedBenchmark
from flipbench.records import Checkpoint, Item, Score, TrainingPlan
from flipbench.run import Run, environment
from flipbench.shapes.backends import SceneCaptioner, SceneEditor, SceneJudge
from flipbench.shapes.benchmark import NAME as SHAPES_NAME
from flipbench.shapes.benchmark import shapes_vqa
from flipbench.stage import StageReport

log = logging.getLogger(__name__)


@dataclass
class Experiment:
    """A resolved configuration, its run directory, and how the stages are to go about it."""

    config: Config
    run: Run
    limit: int | None = None
    progress: bool = True
    command: str = ""

    @classmethod
    def open(
        cls, config: Config, *, limit: int | None = None, progress: bool = True, command: str = ""
    ) -> Experiment:
        """Open the run directory and keep configuration and environment with it."""
        _quiet_libraries()
        run = Run(config.run)
        run.keep_provenance(config.to_yaml())
        return cls(config, run, limit, progress, command)

    @property
    def benchmark_folder(self) -> Path:
        """Where the paired benchmark lies."""
        return self.run.path / "benchmark"


def read_benchmark(experiment: Experiment) -> Benchmark:
    """Read the configured benchmark; ``limit`` keeps its first items."""
    spec = experiment.config.benchmark
    if isinstance(spec, ShapesSpec):
        items = shapes_vqa(experiment.run.images, min(spec.n_items, experiment.limit or 10**9))
        return Benchmark(name=SHAPES_NAME, items=items, problems=[], n_rows=len(items))
    benchmark = load_benchmark(spec, experiment.run.images)
    if experiment.limit is not None:
        del benchmark.items[experiment.limit :]
    return benchmark


def make_candidates(experiment: Experiment) -> tuple[list[Candidate], list[StageReport]]:
    """Flip, caption and edit.

    Raises
    ------
    DataError
        Where the benchmark has no item.
    """
    benchmark = read_benchmark(experiment)
    if benchmark.problems:
        log.warning("%s", benchmark.summary())
    items = benchmark.items
    if not items:
        raise DataError(
            "the benchmark has no item that can be used; 'flipbench import' names what is wrong"
        )
    _needs_shapes(experiment, items)
    return generate(
        items,
        SceneCaptioner(),
        SceneEditor(),
        experiment.run,
        seed=experiment.config.seed,
        batch_size=experiment.config.generate.batch_size,
        progress=experiment.progress,
    )


def make_paired_benchmark(
    experiment: Experiment, candidates: Sequence[Candidate]
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Judge the candidates and keep the valid pairs, also on disk."""
    benchmark, reports = keep_valid(
        candidates[0].item.benchmark,
        candidates,
        [SceneJudge() for _ in experiment.config.filter.judges],
        experiment.run,
        progress=experiment.progress,
    )
    benchmark.save(experiment.benchmark_folder)
    return benchmark, reports


def plans_for(experiment: Experiment, benchmark: PairedBenchmark) -> list[TrainingPlan]:
    """Expand the contamination grid into plans."""
    config = experiment.config
    return expand(
        config.contaminate,
        config.models,
        benchmark.originals,
        instruction=config.evaluate.asking.instruction,
        seed=config.seed,
    )


def make_checkpoints(
    experiment: Experiment, benchmark: PairedBenchmark
) -> list[tuple[TrainingPlan, list[Checkpoint]]]:
    """Train every plan; what is trained already is not trained again."""
    plans = plans_for(experiment, benchmark)
    items = {item.id: item for item in benchmark.originals}
    known = experiment.run.ids(TrainingPlan)
    experiment.run.append([plan for plan in plans if plan.id not in known])
    made = []
    for number, plan in enumerate(plans, 1):
        if experiment.progress:
            log.info(
                "training %d of %d: %s, %s, %d items x %d copies x %d epochs",
                number,
                len(plans),
                plan.model,
                plan.strategy,
                len(plan.item_ids),
                plan.copies,
                plan.epochs,
            )
        dtype = experiment.config.models[plan.model].dtype
        made.append((plan, carry_out(plan, items, experiment.run, dtype=dtype)))
    return made


def subjects_of(
    experiment: Experiment, trained: Sequence[tuple[TrainingPlan, Sequence[Checkpoint]]]
) -> list[Subject]:
    """Return the grid: each configured model, clean, and then its checkpoints."""
    subjects = []
    for name, model in experiment.config.models.items():
        settings = {
            "dtype": model.dtype,
            "device": model.device,
            "trust_remote_code": model.trust_remote_code,
        }
        weights = fingerprint(resolve_path(model.path), model.dtype, model.revision)
        clean = GridModel(name, weights, name, "clean", 0, 0)
        subjects.append(Subject(clean, model.path, revision=model.revision, **settings))  # type: ignore[arg-type]
        for plan, checkpoints in trained:
            for c in checkpoints if plan.model == name else ():
                grid_model = GridModel(c.model, c.fingerprint, name, c.strategy, c.epoch, c.dose)
                path = str(experiment.run.path / c.path)
                subjects.append(Subject(grid_model, path, **settings))  # type: ignore[arg-type]
    return subjects


def detectors_of(experiment: Experiment) -> list[Detector]:
    """Return the configured detectors.

    Raises
    ------
    ConfigError
        Where a name is unknown.
    """
    for name in experiment.config.evaluate.detectors:
        if name not in DETECTORS:
            raise ConfigError(
                f"evaluate.detectors: no detector {name!r}{nearest(name, list(DETECTORS))}"
            )
    return [DETECTORS[name] for name in experiment.config.evaluate.detectors]


def make_scores(
    experiment: Experiment, benchmark: PairedBenchmark, subjects: Sequence[Subject]
) -> tuple[list[Score], list[StageReport]]:
    """Ask all models and score their answers."""
    config = experiment.config.evaluate
    return evaluate(
        benchmark,
        subjects,
        detectors_of(experiment),
        config.asking,
        experiment.run,
        batch_size=config.batch_size,
        progress=experiment.progress,
    )


def make_report(
    experiment: Experiment,
    benchmark: PairedBenchmark,
    subjects: Sequence[Subject],
    scores: Sequence[Score],
    notes: Sequence[str] = (),
) -> Path:
    """Write tables, figures and the page; return the page's path."""
    grid = [subject.model for subject in subjects]
    needed: list[Requirements] = []
    for detector in detectors_of(experiment):
        about = detector.about
        rules = dict.fromkeys(s.rule for s in scores if s.detector == about.name)
        needed += [requirements(scores, grid, about.name, rule, about.practical) for rule in rules]
    found = environment()
    data = ReportData(
        title=experiment.config.title,
        benchmark=benchmark,
        grid=grid,
        scores=list(scores),
        requirements=needed,
        settings={
            "command": experiment.command,
            "seed": str(experiment.config.seed),
            "python": found["python"],
            **{name: str(version) for name, version in found["packages"].items() if version},
        },
        notes=list(notes),
    )
    folder = experiment.run.path / "report"
    page = write_report(data, folder)
    rows = [json.loads(s.model_dump_json()) for s in scores]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return page


def count_work(experiment: Experiment, benchmark: PairedBenchmark) -> dict[str, int]:
    """Return what contamination and evaluation of ``benchmark`` would take, for ``--dry-run``."""
    plans = plans_for(experiment, benchmark)
    models = len(experiment.config.models) + sum(plan.epochs for plan in plans)
    probes = len(probes_for(detectors_of(experiment), benchmark, experiment.config.evaluate.asking))
    return {
        "training plans": len(plans),
        "training examples": sum(len(p.item_ids) * p.copies * p.epochs for p in plans),
        "models to evaluate": models,
        "distinct probes": probes,
        "answers": probes * models,
    }


def _quiet_libraries() -> None:
    """Leave the terminal to our own progress bars."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")


def _needs_shapes(experiment: Experiment, items: Sequence[Item]) -> None:
    """Refuse real benchmarks where only the embedded world's captioner and editor are set."""
    foreign = [item for item in items if "family" not in item.extra]
    if foreign:
        raise ConfigError(
            f"generate.captioner and generate.editor are 'shapes', which draw only shapes-vqa;"
            f" {foreign[0].benchmark} {foreign[0].name} is a real picture"
        )


def run_all(experiment: Experiment, notes: Sequence[str] = ()) -> tuple[Path, list[StageReport]]:
    """Do every stage in order; return the report's page and what each stage did."""
    candidates, reports = make_candidates(experiment)
    benchmark, judged = make_paired_benchmark(experiment, candidates)
    subjects = subjects_of(experiment, make_checkpoints(experiment, benchmark))
    scores, asked = make_scores(experiment, benchmark, subjects)
    page = make_report(experiment, benchmark, subjects, scores, notes)
    return page, [*reports, *judged, *asked]
