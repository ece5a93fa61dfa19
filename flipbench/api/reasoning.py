"""The reasoning behind answers: a judge of rationales, and models asked with hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flipbench.api.calls import Plan, current_call, has_dry_run
from flipbench.api.experiment import Experiment
from flipbench.api.options import Limit, Option, Progress, Trust
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.api.experiment import ConfigLike
    from flipbench.api.stages.results import ReasoningResult


@has_dry_run
def reasoning(
    source: Annotated[ConfigLike, Option(metavar="CASES|CONFIG")],
    overrides: Annotated[Mapping[str, Any] | Sequence[str], Option(metavar="[KEY=VALUE]...")] = (),
    *,
    judge: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    people: str | Path | None = None,
    attempts: Annotated[int, Option(min=1)] = 3,
    limit: Limit = None,
    progress: Progress = True,
    trust: Trust = False,
) -> ReasoningResult:
    """Judge the steps of rationales; or ask models with hints, summaries and texts of their own.

    With a judge, the rationales and case discussions of a file are judged: how often is a right
    answer reasoned? Otherwise the models of a configuration are asked with images only, with hints,
    with a summary, and with texts of their own (evaluate.hints).

    Parameters
    ----------
    source : str, Path, mapping or Config
        JSONL with question, answer, prediction, rationale; or a configuration.
    overrides : mapping or sequence of str, optional
        Of a configuration, e.g. seed=1.
    judge : str, Path or mapping, optional
        A YAML file with the judge: chat or local.
    out : str or Path, optional
        Folder of the judge's replies and tables.

        What is there is not asked again.
    people : str or Path, optional
        The file steps-to-rate.csv of an earlier call with people's ratings filled in.
    attempts : int
        How often to ask for a verdict.

        If it is missing after that, it is left out.
    limit, progress, trust : int or bool
        As for `Experiment`.

    Raises
    ------
    ConfigError, DataError
        If a file is invalid (the message names the line), no model is configured, or no item has
        a text and models shall not write any.

    Examples
    --------
    >>> import flipbench as fb
    >>> judge = {"chat": {"model": "gpt-5"}}
    >>> fb.reasoning("cases.jsonl", judge=judge, out="runs/judged")  # doctest: +SKIP
    >>> fb.reasoning("cases.yaml").to_frame()  # doctest: +SKIP
    """
    is_planning = current_call().is_dry_run
    if judge is None:
        if isinstance(source, str | Path) and Path(source).suffix == ".jsonl":
            raise ConfigError(f"{source}: cases to judge; name the judge, --judge JUDGE.yaml")
        if out is not None or people is not None:
            raise ConfigError("--out and --people are for the cases of a --judge")
        experiment = Experiment(source, overrides, limit=limit, progress=progress, trust=trust)
        return experiment._hints()
    from flipbench.api.stages import reasoning as stage

    if not isinstance(source, str | Path) or overrides:
        raise ConfigError("--judge reads a file of cases, and no configuration or KEY=VALUE")
    if out is None:
        raise ConfigError("--judge: name the folder of the replies and tables, --out FOLDER")
    config = stage.read_judge(judge if isinstance(judge, Mapping) else Path(judge), trust=trust)
    if is_planning:
        raise Plan(stage.cost_of_judging(Path(source), config, limit))
    return stage.judge_reasoning(
        Path(source),
        config,
        Path(out),
        people=None if people is None else Path(people),
        limit=limit,
        n_attempts=attempts,
        progress=progress,
    )
