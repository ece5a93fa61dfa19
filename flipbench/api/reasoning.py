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
    if current_call().is_dry_run:
        raise Plan(stage.cost_of_judging(Path(source), config, limit))
    from flipbench.api.stages.backends import backend_context, build_chat
    from flipbench.api.stages.results import ReasoningResult
    from flipbench.core.files import write_atomically
    from flipbench.core.run import Run
    from flipbench.evaluate.reasoning import tables as reasoning_tables
    from flipbench.evaluate.reasoning.cases import read_cases
    from flipbench.evaluate.reasoning.judge import ReasoningJudge
    from flipbench.reporting.tables import rate_cell
    from flipbench.reporting.writers import records_csv, write_tables

    folder, cases = Path(out), read_cases(Path(source))[:limit]
    batch_size = None if config.batch else 16
    with Run(folder) as run:
        chat = build_chat(config, backend_context(run, 0))
        judging = ReasoningJudge(
            chat, run, n_attempts=attempts, progress=progress, batch_size=batch_size
        )
        judged_cases = judging(cases)
    tables = reasoning_tables.reasoning_tables(judged_cases, chat.name)
    if people is not None:
        tables.append(stage.agreement_table(judged_cases, Path(people), chat.name))
    rows = reasoning_tables.verdict_rows(judged_cases)
    write_atomically(folder / "verdicts.csv", records_csv(rows))
    steps = reasoning_tables.step_rows(judged_cases)
    write_atomically(folder / stage.TO_RATE, records_csv(steps))
    page = write_tables(tables, folder, "reasoning.md", "Reasoning")
    _, critical, n_left_out = reasoning_tables.with_wrong_steps(judged_cases, "right")
    sentence = (
        f"Right answers with a wrong critical step, in percent: {rate_cell(critical).plain()};"
        f" {n_left_out} left out, as a verdict is missing. Tables: {page}"
    )
    return ReasoningResult(sentence, page, judging.reports, rows, judged_cases)
