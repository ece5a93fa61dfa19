"""A configured experiment from Python, stage by stage; `run` does all stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flipbench.api.results import (
    ContaminationResult,
    EvaluationResult,
    FilterResult,
    GenerationResult,
)

if TYPE_CHECKING:
    from flipbench.api.stages.assembly import Assembly
    from flipbench.config.experiment import Config

    ConfigLike: TypeAlias = str | Path | Mapping[str, Any] | Config | Assembly

Stage = Literal["generate", "filter", "contaminate", "evaluate", "run"]


def open_experiment(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
    *,
    store: bool = True,
) -> Assembly:
    """Return an experiment with its run directory; the parameters are those of `generate`.

    ``store`` as for `Assembly.open`.
    """
    from flipbench.api.stages.assembly import Assembly
    from flipbench.config.experiment import Config, load_config

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
        loaded,
        limit=limit,
        progress=progress,
        command=command,
        n_workers=n_workers,
        store=store,
    )


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
        If a key or a value is wrong.
    DataError, PrerequisiteError
        If no item can be used, or a key for an API is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.generate("configs/shapes.yaml", {"run": "runs/shapes"}, limit=8)  # doctest: +SKIP
    <GenerationResult: 8 of 8 items edited, in runs/shapes>
    """
    from flipbench.api.stages import filtering, generation

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
    from flipbench.api.stages import filtering
    from flipbench.filters.funnel import read_doubtful
    from flipbench.filters.pipeline import FOLDER

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
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
) -> ContaminationResult:
    """Train checkpoints of known contamination on the benchmark, one for each epoch.

    Nothing needs to be generated or filtered before. The parameters are those of `generate`.

    Raises
    ------
    ConfigError
        If a key or a value is wrong.
    DataError
        If no item can be used, or ``contaminate.items`` is kept and the run has no pairs.
    PrerequisiteError
        If the disk is too small or an optional package is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> trained = fb.contaminate("configs/contaminate/shapes.yaml")  # doctest: +SKIP
    >>> trained.to_frame()[["model", "epoch", "dose"]]  # doctest: +SKIP
    """
    from flipbench.api.stages import contamination

    experiment = open_experiment(config, overrides, limit, n_workers, progress)
    trained = contamination.contaminate(experiment)
    return ContaminationResult(trained, experiment.run)


def evaluate(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    n_workers: int = 1,
    progress: bool = True,
) -> EvaluationResult:
    """Ask all models what the configured detectors need, score them, and write the report.

    Checkpoints that the configuration plans and the run lacks are trained first. Parameters and
    errors are those of `contaminate`; a run without pairs is a DataError, too. After `run` with a
    ``limit``, give the same one: it is part of what the checkpoints are trained on.

    Examples
    --------
    >>> import flipbench as fb
    >>> result = fb.evaluate("configs/shapes.yaml", {"seed": 1})  # doctest: +SKIP
    >>> result.to_frame().query("rule == 'mcnemar'")  # doctest: +SKIP
    """
    from flipbench.api.stages import contamination, evaluation

    experiment = open_experiment(config, overrides, limit, n_workers, progress)
    pairs = experiment.kept_pairs
    alone = replace(experiment.workers, share=None)
    trained = contamination.contaminate(experiment, alone)
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

    Parameters and errors are those of `generate` and `contaminate`; if no pair is kept, that is a
    DataError before anything is trained.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.run("configs/shapes.yaml", {"benchmark.n_items": 24}).page  # doctest: +SKIP
    """
    from flipbench.api.stages.loop import run_all

    experiment = open_experiment(config, overrides, limit, n_workers, progress)
    return EvaluationResult(run_all(experiment), experiment.run.path)


def demo(
    out: str | Path | None = None,
    *,
    small: bool = False,
    diffusion: bool = False,
    progress: bool = True,
) -> EvaluationResult:
    """Run all stages with many detectors on the embedded world: eight minutes on two idle cores.

    Parameters
    ----------
    out : str or Path, optional
        The run directory: by default ``runs/demo``, ``runs/demo-small`` or ``runs/demo-diffusion``.
    small : bool
        Only one clean model, one contaminated and one control, and seven detectors: two minutes.
    diffusion : bool
        A tiny Flux with a ControlNet draws the pictures, an oracle reads them, and three
        detectors that compare the two versions judge fewer models.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.demo(small=True).page  # doctest: +SKIP
    PosixPath('runs/demo-small/report/index.html')
    """
    from flipbench.api.stages.loop import run_demo
    from flipbench.shapes.demos import demo_of

    chosen = demo_of(small=small, diffusion=diffusion)
    folder = Path(out or chosen.folder)
    evaluated = run_demo(chosen, folder, progress=progress)
    return EvaluationResult(evaluated, folder)


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
    from flipbench.api.stages import contamination, evaluation, filtering, loop
    from flipbench.core.errors import ConfigError, nearest

    on_items = {
        "generate": filtering.plan_pairs,
        "filter": filtering.plan_pairs,
        "contaminate": contamination.plan_contamination,
        "run": loop.plan_all,
    }
    if stage not in (stages := [*on_items, "evaluate"]):
        raise ConfigError(f"no stage {stage!r}{nearest(stage, stages)}")
    experiment = open_experiment(config, overrides, limit, progress=False, store=False)
    if stage in on_items:
        return on_items[stage](experiment)
    return evaluation.count_work(experiment, experiment.kept_pairs)
