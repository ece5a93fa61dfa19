"""A benchmark of one's own: its configuration, and the pictures of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flipbench.api.calls import Plan, called, current_call, has_dry_run
from flipbench.api.experiment import Experiment
from flipbench.api.options import Option, Progress, Trust
from flipbench.api.stages.display import Result
from flipbench.core.errors import ConfigError
from flipbench.core.locks import Share

if TYPE_CHECKING:
    from flipbench.core.paired import PairedBenchmark
    from flipbench.core.stage import StageReport


@dataclass(frozen=True, repr=False)
class InitResult(Result):
    """A configuration that was written, and what was seen in the benchmark."""

    path: Path
    notes: Sequence[str]

    def __str__(self) -> str:
        return f"{self.path}: {'; '.join(self.notes)}"


def init(benchmark: str | Path, *, out: str | Path | None = None) -> InitResult:
    """Write a commented configuration for a benchmark of your own.

    Parameters
    ----------
    benchmark : str or Path
        A .tsv, .jsonl, .json or .parquet file, or a dataset's id on the Hub.
    out : str or Path, optional
        The configuration to write; beside the file if not given.

    Raises
    ------
    ConfigError, DataError
        If there is such a configuration already, or the file is no benchmark.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.init("MyBench.tsv").path  # doctest: +SKIP
    PosixPath('MyBench.yaml')
    """
    from flipbench.benchmarks.guess import guess_spec
    from flipbench.config.starter import starter

    guess = guess_spec(str(benchmark))
    source = Path(benchmark)
    beside = source.parent if source.exists() else Path()
    path = Path(out) if out else beside / f"{source.stem}.yaml"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(starter(source.stem, guess.spec, guess.notes))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; choose another name with --out") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return InitResult(path, guess.notes)


@dataclass(frozen=True, repr=False)
class RebuildResult(Result):
    """Pairs whose pictures were drawn again, and how they compare with the published ones."""

    pairs: PairedBenchmark
    comparison: str
    reports: Sequence[StageReport]
    run: Path

    def __str__(self) -> str:
        n = len(self.pairs.pairs)
        return "\n".join(filter(None, [self.comparison, f"{n} pairs in {self.run}/benchmark"]))


@has_dry_run
def rebuild(
    recipe: str | Path,
    overrides: Annotated[Mapping[str, Any] | Sequence[str], Option(metavar="[KEY=VALUE]...")] = (),
    *,
    kept: Annotated[str | Path | None, Option("--kept", metavar="FILE")] = None,
    progress: Progress = True,
    trust: Trust = False,
) -> RebuildResult:
    """Draw the pictures of a recipe again, and say how many are equal to the published ones.

    With a kept list, only those of the list are drawn, and they have to be equal to the list's.
    With run=FOLDER, everything is written there, and the recipe stays as it is.

    Parameters
    ----------
    recipe : str or Path
        A folder that export --format recipe wrote.
    overrides : mapping or sequence of str, optional
        E.g. seed=1 contaminate.epochs=2.
    kept : str or Path, optional
        Make exactly the pairs of this kept.csv; nobody judges.
    progress, trust : bool
        As for `Experiment`.

    Raises
    ------
    ConfigError, DataError
        If the folder is no recipe, or what it needs is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.rebuild("MyBench_recipe_0123abcd", {"run": "runs/mine"})  # doctest: +SKIP
    """
    folder, call = Path(recipe), current_call()
    if not all((folder / name).exists() for name in ("config.yaml", "expected.jsonl")):
        raise ConfigError(
            f"{folder}: no recipe; name the folder that 'flipbench export --format recipe' wrote"
        )
    if isinstance(overrides, Mapping):
        changes = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
    else:
        changes = list(overrides)
    run_override = f"run={folder}"
    if call.is_dry_run:  # what the recipe has is not copied into another run
        changes = [*(change for change in changes if not change.startswith("run=")), run_override]
    else:
        changes = [run_override, *changes]
    with called(replace(call, share=Share(0, 1))):  # which asks nobody
        experiment = Experiment(folder / "config.yaml", changes, progress=progress, trust=trust)
    from flipbench.api.stages import filtering, generation
    from flipbench.export.recipe import compare_with_recipe, copy_recipe

    parts, comparison = experiment.parts, ""
    if not getattr(parts.config.generate.editor, "repeatable", True):
        raise ConfigError(
            f"{folder}: a server drew these pictures without a seed, so they cannot be drawn again;"
            " ask its makers for the pictures, or generate others from its config.yaml"
        )
    if call.is_dry_run:
        raise Plan(filtering.plan_pairs(parts))
    if parts.run.path.resolve() != folder.resolve():
        copy_recipe(folder, parts.run)
        parts.store_config()
    if kept:
        pairs, reports = filtering.rebuild_kept(parts, Path(kept))
    else:
        candidates, reports = generation.generate(parts)
        edits = [candidate.edit for candidate in candidates if candidate.edit]
        comparison = str(compare_with_recipe(folder, edits))
        pairs, judge_reports = filtering.judge(parts, candidates)
        reports = [*reports, *judge_reports]
    return RebuildResult(pairs, comparison, reports, parts.run.path)
