"""Judging the reasoning in a file, and asking models with hints and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.api.experiments import ConfigLike
    from flipbench.api.stages.reasoning import HintAblation, JudgedReasoning


@dataclass(frozen=True, repr=False)
class ReasoningResult:
    """What a judge says about rationales and case discussions.

    Attributes
    ----------
    content : JudgedReasoning
        The judged cases, the page of tables, and reports of what failed.
    """

    content: JudgedReasoning

    @property
    def page(self) -> Path:
        """The Markdown page with the tables."""
        return self.content.page

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each step; ``factual`` is empty where the verdict is missing."""
        import pandas as pd

        from flipbench.evaluate.reasoning.tables import verdict_rows

        return pd.DataFrame(verdict_rows(self.content.judged))

    def __str__(self) -> str:
        """Return how many right answers come with a wrong critical step."""
        from flipbench.evaluate.reasoning.tables import with_wrong_steps
        from flipbench.reporting.tables import rate_cell

        _, critical, n_left_out = with_wrong_steps(self.content.judged, "right")
        return (
            f"Right answers with a wrong critical step, in percent: {rate_cell(critical).plain()};"
            f" {n_left_out} left out, as a verdict is missing. Tables: {self.page}"
        )

    __repr__ = __str__


def judge_reasoning(
    cases: str | Path,
    judge: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    people: str | Path | None = None,
    limit: int | None = None,
    n_attempts: int = 3,
    progress: bool = True,
) -> ReasoningResult:
    """Judge the steps of rationales, and case discussions; see docs/predictions.md.

    Parameters
    ----------
    cases : path
        JSONL with ``id``, ``question``, ``answer``, ``prediction``, ``rationale`` and more.
    judge : path or mapping
        YAML file, or what it holds: ``chat`` (a server's model) or ``local``, and ``batch``.
    out : path
        Folder of the replies and tables; what is there is not asked again.
    people : path, optional
        ``steps-to-rate.csv`` of an earlier call, filled in: adds their agreement with the judge.
    n_attempts : int
        How often a missing verdict is asked for, in all; then it is left out.

    Raises
    ------
    ConfigError, DataError
        If a file is invalid; the message names the line.

    Examples
    --------
    >>> import flipbench as fb
    >>> judge = {"chat": {"model": "gpt-5"}}
    >>> print(fb.judge_reasoning("cases.jsonl", judge, "runs/judged"))  # doctest: +SKIP
    """
    from flipbench.api.stages import reasoning

    config = reasoning.read_judge(judge if isinstance(judge, Mapping) else Path(judge))
    return ReasoningResult(
        reasoning.judge_reasoning(
            Path(cases),
            config,
            Path(out),
            people=None if people is None else Path(people),
            limit=limit,
            n_attempts=n_attempts,
            progress=progress,
        )
    )


@dataclass(frozen=True, repr=False)
class HintResults:
    """Accuracies with images only, with hints, with a summary, and with models' own texts.

    Attributes
    ----------
    content : HintAblation
        The results, the page with the table, and reports of what failed.
    """

    content: HintAblation

    @property
    def page(self) -> Path:
        """The Markdown page with the table."""
        return self.content.page

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each model and variant; accuracies and differences are fractions."""
        import pandas as pd

        rows = []
        for result in self.content.results:
            paired = result.paired
            rows.append(
                {
                    "model": result.model,
                    "variant": result.variant,
                    "n": paired.n,
                    "k": paired.k_perturbed,
                    "k_images_only": paired.k_original,
                    "difference": paired.gap,
                    "low": paired.interval.low if paired.interval else None,
                    "high": paired.interval.high if paired.interval else None,
                    "p_value": paired.p_two_sided,
                    "p_holm": result.p_holm,
                    "text_names_answer": result.reveals.k,
                    "n_unparsed": result.n_unparsed,
                    "n_left_out": paired.n_dropped,
                }
            )
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        """Return the page's text."""
        return self.page.read_text()

    __repr__ = __str__


def hint_ablation(
    config: ConfigLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    progress: bool = True,
) -> HintResults:
    """Ask models with images only, with hints, with a summary, and with texts of their own.

    Parameters
    ----------
    config : str, Path, mapping or Config
        A configuration with ``benchmark`` and ``models``; ``evaluate.hints`` names the texts.
    overrides, limit, progress
        As in `generate`.

    Raises
    ------
    ConfigError
        If no model is configured, or a key is wrong.
    DataError
        If no item has a text, and models shall not write any.

    Examples
    --------
    >>> import flipbench as fb
    >>> print(fb.hint_ablation("cases.yaml"))  # doctest: +SKIP
    """
    from flipbench.api.experiments import open_experiment
    from flipbench.api.stages import reasoning

    experiment = open_experiment(config, overrides, limit, progress=progress)
    return HintResults(reasoning.hint_ablation(experiment))
