"""A configured experiment from Python, stage by stage; `run` does all stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flipbench.api import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.config.experiment import Config
    from flipbench.core.paired import Candidate, PairedBenchmark
    from flipbench.core.records import Failure, Score
    from flipbench.core.run import Run
    from flipbench.core.stage import StageReport
    from flipbench.models.chat.cost import Spent
    from flipbench.pipelines.assembly import Assembly
    from flipbench.pipelines.evaluation import Evaluated
    from flipbench.pipelines.grid import Trained

    ConfigLike = str | Path | Mapping[str, Any] | Config | Assembly

Stage = Literal["generate", "filter", "contaminate", "evaluate", "run"]


def open_experiment(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
) -> Assembly:
    """Return an experiment with its run directory; the parameters are those of `generate`."""
    from flipbench.config.experiment import Config, load_config
    from flipbench.pipelines.assembly import Assembly

    if isinstance(config, Assembly):
        return config
    changes = [
        f"{key}={json.dumps(value, default=str)}" for key, value in (overrides or {}).items()
    ]
    if isinstance(config, Config):
        loaded = load_config(config.model_dump(mode="json"), changes) if changes else config
    else:
        loaded = load_config(config, changes)
    command = "flipbench in Python"
    return Assembly.open(
        loaded, limit=limit, progress=progress, command=command, n_workers=n_workers
    )


@dataclass(frozen=True, repr=False)
class GenerationResult:
    """Items on their way to become pairs.

    Attributes
    ----------
    candidates : sequence of Candidate
        Each item with its new answer, caption and edited image, as far as they were made.
    found : PairedBenchmark or None
        The configured benchmark where it consists of pairs that exist already: nothing is made.
    """

    candidates: Sequence[Candidate]
    reports: Sequence[StageReport]
    run: Path
    found: PairedBenchmark | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each item: name, question, answer, new answer, caption, edited."""
        import pandas as pd

        rows = [
            {
                "item": c.item.name,
                "question": c.item.question,
                "answer": c.item.answer_text,
                "new answer": c.flip.new_text if c.flip else None,
                "caption": c.caption.text if c.caption else None,
                "edited": c.edit is not None,
            }
            for c in self.candidates
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        """Return one line for people."""
        if self.found is not None:
            return f"{len(self.found.pairs)} pairs that exist already; nothing to generate"
        n_edited = sum(c.edit is not None for c in self.candidates)
        return f"{n_edited:,} of {len(self.candidates):,} items edited, in {self.run}"

    def __repr__(self) -> str:
        """Return one line for people."""
        return f"<GenerationResult: {self}>"


@dataclass(frozen=True, repr=False)
class FilterResult:
    """The paired benchmark, and how many items were left after each step; a notebook shows these.

    Attributes
    ----------
    n_doubtful : int
        Edited pairs that the policy left undecided, for people to review.
    spent : mapping of str to Spent
        What each rater's verdicts have cost.
    """

    pairs: PairedBenchmark
    reports: Sequence[StageReport]
    run: Path
    n_doubtful: int = 0
    spent: Mapping[str, Spent] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return the funnel: one row for each step, with the number of items left after it."""
        import pandas as pd

        return pd.DataFrame(
            {"step": list(self.pairs.funnel), "n": list(self.pairs.funnel.values())}
        )

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{len(self.pairs.pairs):,} pairs of {self.pairs.name} kept, in {self.run}/benchmark"

    def __repr__(self) -> str:
        """Return one line for people."""
        return f"<FilterResult: {self}>"

    def _repr_html_(self) -> str:
        caption = "Items that were left after each step."
        return display.html(str(self), [display.frame_table("funnel", caption, self.to_frame())])


@dataclass(frozen=True, repr=False)
class ContaminationResult:
    """Checkpoints of known contamination, with the plans they were trained by."""

    trained: Sequence[Trained]
    run: Run

    @cached_property
    def failures(self) -> Sequence[Failure]:
        """The plans whose training diverged and that still lack epochs."""
        from flipbench.pipelines.contamination import training_failures

        return training_failures(self.run, self.trained)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each checkpoint: model, strategy, data, epoch, dose, path."""
        import pandas as pd

        rows = [
            {
                "model": checkpoint.model,
                "strategy": checkpoint.strategy,
                "data": plan.data,
                "epoch": checkpoint.epoch,
                "dose": checkpoint.dose,
                "path": str(self.run.path / checkpoint.path),
            }
            for plan, checkpoints in self.trained
            for checkpoint in checkpoints
        ]
        return pd.DataFrame(rows, columns=["model", "strategy", "data", "epoch", "dose", "path"])

    def __str__(self) -> str:
        """Return one line for people."""
        n_checkpoints = sum(len(checkpoints) for _, checkpoints in self.trained)
        return f"{n_checkpoints:,} checkpoints of {len(self.trained):,} plans, in {self.run.path}"

    def __repr__(self) -> str:
        """Return one line for people."""
        return f"<ContaminationResult: {self}>"

    def _repr_html_(self) -> str:
        caption = "Dose: copies x epochs of the benchmark's items; 0 for a control."
        table = display.frame_table("checkpoints", caption, self.to_frame())
        return display.html(str(self), [table])


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """All scores of a grid of models, and the report; a notebook shows the table of gaps."""

    evaluated: Evaluated
    run: Path

    @property
    def scores(self) -> Sequence[Score]:
        """The scores of all models by all detectors and rules."""
        return self.evaluated.scores

    @property
    def reports(self) -> Sequence[StageReport]:
        """How many answers were given, were there before, and failed."""
        return self.evaluated.reports

    @property
    def page(self) -> Path | None:
        """The report; None in a worker process, which only asks its share."""
        return self.evaluated.page

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each model, detector and rule."""
        return display.scores_frame(self.scores)

    def __str__(self) -> str:
        """Return one line for people."""
        detectors = {score.detector for score in self.scores}
        counts = {"model": self.evaluated.models, "detector": detectors, "score": self.scores}
        words = [f"{len(n):,} {what}{'' if len(n) == 1 else 's'}" for what, n in counts.items()]
        return f"{', '.join(words)}; report: {self.page}"

    def __repr__(self) -> str:
        """Return one line for people."""
        return f"<EvaluationResult: {self}>"

    def _repr_html_(self) -> str:
        from flipbench.evaluate.report.report import headline
        from flipbench.evaluate.report.tables import gap_table, is_gap

        grid = [one.model for one in self.evaluated.models]
        if not any(is_gap(score) for score in self.scores):
            return display.html(str(self), [], self.page)
        text = " ".join(headline(grid, self.scores))
        return display.html(text, [gap_table(grid, list(self.scores))], self.page)


def generate(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
) -> GenerationResult:
    """Draw a new answer for each item, caption it, and redraw the image.

    What the run directory (``run`` in the configuration) holds is not done again, here and in all
    other stages.

    Parameters
    ----------
    config : str, Path, mapping or Config
        A configuration file, what such a file holds, or a checked configuration.
    overrides : mapping, optional
        Values by dotted key, e.g. ``{"seed": 1, "contaminate.epochs": 2}``.
    limit : int, optional
        Take the benchmark's first items only.
    n_workers : int
        Processes that share the work, one for each GPU.
    progress : bool
        Whether to show progress bars.

    Raises
    ------
    ConfigError
        Where a key or a value is wrong.
    DataError, PrerequisiteError
        Where no item can be used, or a key for an API is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.generate("configs/shapes.yaml", {"run": "runs/shapes"}, limit=8)  # doctest: +SKIP
    <GenerationResult: 8 of 8 items edited, in runs/shapes>
    """
    from flipbench.pipelines import filtering, generation

    experiment = open_experiment(config, overrides, limit, n_workers, progress)
    if experiment.has_pairs:
        found, reports = filtering.make_pairs(experiment)
        return GenerationResult([], reports, experiment.run.path, found)
    candidates, reports = generation.generate(experiment)
    return GenerationResult(candidates, reports, experiment.run.path)


def filter(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    kept: str | Path | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> FilterResult:
    """Judge the edited pairs and keep the valid ones; what is not generated yet is generated.

    Parameters
    ----------
    kept : str or Path, optional
        A ``kept.csv``: make exactly these pairs, and judge none.
    config, overrides, limit, progress
        As in `generate`, errors included.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.filter("configs/shapes.yaml", {"run": "runs/shapes"}, limit=8)  # doctest: +SKIP
    <FilterResult: 8 pairs of shapes-vqa kept, in runs/shapes/benchmark>
    """
    from flipbench.filters.funnel import read_doubtful
    from flipbench.filters.pipeline import FOLDER
    from flipbench.pipelines import filtering

    experiment = open_experiment(config, overrides, limit, progress=progress)
    run = experiment.run
    if kept is not None:
        pairs, reports = filtering.rebuild_kept(experiment, Path(kept))
    else:
        pairs, reports = filtering.make_pairs(experiment)
    is_judged = kept is None and not experiment.has_pairs
    doubtful = read_doubtful(run.path / FOLDER / "reasons.csv") if is_judged else ()
    spent = filtering.spent_on_verdicts(run)
    return FilterResult(pairs, reports, run.path, len(doubtful), spent)


def contaminate(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    n_workers: int = 1,
    progress: bool = True,
) -> ContaminationResult:
    """Train checkpoints of known contamination on the run's pairs, one for each epoch.

    The parameters are those of `generate`.

    Raises
    ------
    ConfigError
        Where a key or a value is wrong.
    DataError
        Where the run has no pairs yet.
    PrerequisiteError
        Where the disk is too small or an optional package is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> trained = fb.contaminate("configs/contaminate/shapes.yaml")  # doctest: +SKIP
    >>> trained.to_frame()[["model", "epoch", "dose"]]  # doctest: +SKIP
    """
    from flipbench.pipelines import contamination

    experiment = open_experiment(config, overrides, None, n_workers, progress)
    trained = contamination.contaminate(experiment, experiment.pairs)
    return ContaminationResult(trained, experiment.run)


def evaluate(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    n_workers: int = 1,
    progress: bool = True,
) -> EvaluationResult:
    """Ask all models what the configured detectors need, score them, and write the report.

    Checkpoints that the configuration plans and the run lacks are trained first. Parameters and
    errors are those of `contaminate`.

    Examples
    --------
    >>> import flipbench as fb
    >>> result = fb.evaluate("configs/shapes.yaml", {"seed": 1})  # doctest: +SKIP
    >>> result.to_frame().query("rule == 'mcnemar'")  # doctest: +SKIP
    """
    from flipbench.pipelines import contamination, evaluation

    experiment = open_experiment(config, overrides, None, n_workers, progress)
    pairs = experiment.pairs
    alone = replace(experiment.workers, share=None)
    trained = contamination.contaminate(experiment, pairs, alone)
    return EvaluationResult(evaluation.evaluate(experiment, pairs, trained), experiment.run.path)


def run(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
) -> EvaluationResult:
    """Do all stages: generate, filter, contaminate, evaluate.

    Parameters and errors are those of `generate` and `contaminate`.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.run("configs/shapes.yaml", {"benchmark.n_items": 24}).page  # doctest: +SKIP
    """
    from flipbench.pipelines.loop import run_all

    experiment = open_experiment(config, overrides, limit, n_workers, progress)
    return EvaluationResult(run_all(experiment), experiment.run.path)


def demo(
    out: str | Path = "runs/demo", *, small: bool = False, progress: bool = True
) -> EvaluationResult:
    """Run all stages with every detector on the embedded world: a quarter of an hour on two cores.

    Parameters
    ----------
    out : str or Path
        The run directory.
    small : bool
        Do a tenth of the grid.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.demo(small=True).page  # doctest: +SKIP
    PosixPath('runs/demo/report/index.html')
    """
    from flipbench.pipelines.demo import run_demo

    return EvaluationResult(run_demo(Path(out), small=small, progress=progress), Path(out))


def dry_run(
    config: ConfigLike,
    stage: Stage = "run",
    overrides: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
) -> list[str]:
    """Return what a stage would do and cost, in lines of text; nothing is asked or made.

    Parameters and errors are those of the stage.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.dry_run("configs/shapes.yaml", "generate", limit=8)  # doctest: +SKIP
    ['would flip, caption and edit 8 items']
    """
    from flipbench.core.errors import ConfigError, nearest
    from flipbench.pipelines import contamination, evaluation, filtering, generation, loop

    on_items = {
        "generate": generation.plan_generation,
        "filter": filtering.plan_filtering,
        "run": loop.plan_all,
    }
    on_pairs = {
        "contaminate": contamination.plan_contamination,
        "evaluate": evaluation.count_work,
    }
    if stage not in (stages := [*on_items, *on_pairs]):
        raise ConfigError(f"no stage {stage!r}{nearest(stage, stages)}")
    experiment = open_experiment(config, overrides, limit, progress=False)
    if stage in on_items:
        return on_items[stage](experiment)
    return on_pairs[stage](experiment, experiment.pairs)
