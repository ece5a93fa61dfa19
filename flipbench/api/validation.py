"""Detectors validated on models that somebody else has trained and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flipbench.api.options import Option
from flipbench.api.predictions import Columns, Scoring
from flipbench.api.stages import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.benchmarks.tables import Row
    from flipbench.core.records import Score
    from flipbench.evaluate.protocol.grid import GridModel, Requirements
    from flipbench.evaluate.validation.validation import Validation
    from flipbench.reporting.tables import Table

    Rows = str | Path | pd.DataFrame | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, repr=False)
class ValidationResult(display.Result):
    """Error rates of detectors on models of known dose; a notebook shows them as tables.

    Attributes
    ----------
    grid, scores : sequence
        The models, and the scores of each by every rule.
    validations, requirements : sequence
        One for each rule of each detector.
    page : Path or None
        The report, if a folder was given.
    files : sequence of Path
        The example tables, if they were written.
    """

    grid: Sequence[GridModel]
    scores: Sequence[Score]
    validations: Sequence[Validation]
    requirements: Sequence[Requirements]
    page: Path | None = None
    files: Sequence[Path] = ()

    @property
    def tables(self) -> list[Table]:
        """One row per detector, error rates of every rule, and requirements."""
        from flipbench.evaluate.report import validation_tables as made

        tables = [
            made.detectors_table(self.validations, self.grid, self.scores),
            made.validation_table(self.validations),
            made.controls_table(self.validations),
            made.requirements_table(self.requirements),
        ]
        return [t for t in tables if t is not None and any(rows for _, rows in t.groups)]

    @property
    def warnings(self) -> list[str]:
        """The distinct warnings of the scores, each with the number of scores that have it."""
        from flipbench.evaluate.page.report_page import warnings_of

        return [f"{text} ({len(about)} scores)" for text, about in warnings_of(self.scores)]

    def markdown(self) -> str:
        """Return the tables and the warnings."""
        from flipbench.reporting import writers

        parts = [str(self), *map(writers.markdown, self.tables)]
        return "\n\n".join([*parts, "\n".join(f"- Note: {text}" for text in self.warnings)])

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each rule and quantity: value, k, n, interval, p."""
        from flipbench.evaluate.report.validation_tables import validation_frame

        return validation_frame(self.validations).infer_objects()

    def __str__(self) -> str:
        kinds = {
            "contaminated": [m for m in self.grid if m.contaminated],
            "clean": [m for m in self.grid if m.clean],
            "of unknown dose": [m for m in self.grid if m.dose is None],
        }
        counts = [f"{len(models)} {kind}" for kind, models in kinds.items() if models]
        n_lineages = len({m.cluster for m in self.grid})
        lineages = "lineage" if n_lineages == 1 else "lineages"
        n = f"{len(self.grid)} models of {n_lineages} {lineages}: {', '.join(counts)}"
        return f"{n}; report: {self.page}" if self.page else n

    def _repr_html_(self) -> str:
        return display.html(str(self), self.tables, self.page)


def validate(
    models: Rows,
    items: Annotated[Rows | None, Option("--items")] = None,
    *,
    benchmark: str = "",
    columns: Columns = None,
    scoring: Scoring = "auto",
    out: str | Path | None = None,
    example: bool = False,
    seed: int = 0,
) -> ValidationResult:
    """Say which detectors can be trusted, from the answers of models of known dose.

    The table of models names each model's files of predictions (or of log-probabilities), as for
    `flipbench gap`; or a second table has the values of all models. The result has false alarms,
    power and AUROC.

    Parameters
    ----------
    models : str, Path, DataFrame or sequence of mappings
        A table of models: model, family, strategy, dose, files.

        One row per model: ``model``, ``family``, ``dose`` (copies of each item x epochs; 0 clean,
        empty unknown), and optionally ``strategy`` ("clean" for the model as released),
        ``lineage`` (if a family has several clean models), ``external`` (1 if it cannot have seen
        the benchmark) and ``kind`` (what training showed, as "letters"). Without ``items``:
        ``original`` and ``perturbed``, files that `gap` reads, and ``logprobs``, a table with
        ``item`` and ``logprob``.
    items : str, Path, DataFrame or sequence of mappings, optional
        A long table of values: model, item, condition, correct.

        One row per value: ``model``, ``item``, ``condition`` (original or perturbed), and
        ``correct`` (1, 0 or nothing), ``logprob`` (of the right answer, in nats) or both;
        ``group`` if items share an image.
    benchmark : str
        Name of the benchmark in tables.
    columns : mapping of str to str, optional
        A column that the files name differently.
    scoring : {"auto", "parse", "file"}
        Auto: our parser if there are replies and right letters, else the file's own marks.
    out : str or Path, optional
        Write a report into this folder.
    example : bool
        Write two example tables into the folder MODELS, and read these.
    seed : int
        Seed of the bootstraps.

    Raises
    ------
    DataError
        If a table or file cannot be read, or does not fit the others; the message names the row.

    Examples
    --------
    >>> import flipbench as fb
    >>> models = [{"model": "base", "family": "f", "dose": 0}]
    >>> models += [{"model": "tuned", "family": "f", "dose": 2}]
    >>> right = {("base", "original"): 6, ("base", "perturbed"): 6, ("tuned", "original"): 9}
    >>> right["tuned", "perturbed"] = 1
    >>> items = [
    ...     {"model": model, "item": i, "condition": side, "correct": int(i < n)}
    ...     for (model, side), n in right.items()
    ...     for i in range(10)
    ... ]
    >>> result = fb.validate(models, items)
    >>> print(result)
    2 models of 1 lineage: 1 contaminated, 1 clean
    >>> {v.rule: str(v.detected.k) + "/" + str(v.detected.n) for v in result.validations}
    {'sign': '1/1', 'mcnemar': '1/1', 'relative': '1/1'}
    """
    from flipbench.core.errors import ConfigError
    from flipbench.evaluate.detectors.registry import DETECTORS
    from flipbench.evaluate.page.report_page import ReportData, write_report
    from flipbench.evaluate.predictions.grid_scores import scores_of_models
    from flipbench.evaluate.predictions.models_table import listed_models, write_example
    from flipbench.evaluate.predictions.read import ReadOptions
    from flipbench.evaluate.scoring.comparison import Settings
    from flipbench.evaluate.validation.requirements import requirements
    from flipbench.evaluate.validation.validation import validate as error_rates

    files: tuple[Path, ...] = ()
    if example:
        if not isinstance(models, str | Path):
            raise ConfigError("example: give the folder to write the two tables into")
        models, items = files = write_example(Path(models))
    elif isinstance(models, str | Path) and Path(models).is_dir():
        raise ConfigError(
            f"{models}: a folder, not a table of models; for a population study's tables, run"
            f" `python -m studies.population.page {models}` in a checkout"
        )
    rows, source, folder = _rows(models, "models")
    entries = listed_models(rows, source, folder)
    name = benchmark or (Path(source).stem if isinstance(models, str | Path) else "benchmark")
    pairs, scores = scores_of_models(
        entries,
        _rows(items, "items")[:2] if items is not None else None,
        benchmark=name,
        options=ReadOptions(dict(columns or {})),
        scoring=scoring,
        settings=Settings(seed=seed),
    )
    grid = [entry.model for entry in entries]
    requirement_rows = [
        requirements(
            scores,
            grid,
            detector,
            rule,
            detector in DETECTORS and not DETECTORS[detector].about.needs_clean_model(rule),
        )
        for detector, rule in dict.fromkeys((s.detector, s.rule) for s in scores)
    ]
    page = None
    if out is not None:
        data = ReportData(
            title=f"Detectors on {name}",
            benchmark=pairs,
            grid=grid,
            scores=scores,
            requirements=requirement_rows,
            settings={"seed": str(seed)},
        )
        page = write_report(data, Path(out))
    return ValidationResult(
        grid, scores, error_rates(scores, grid, seed=seed), requirement_rows, page, files
    )


def _rows(table: Rows, name: str) -> tuple[list[Row], str, Path | None]:
    """Return the rows of a table file or of Python, its name, and the former's folder."""
    from flipbench.benchmarks.tables import Row, read_rows

    if isinstance(table, str | Path):
        return read_rows(Path(table)), str(table), Path(table).parent
    records: Sequence[Any] = table if isinstance(table, Sequence) else table.to_dict("records")
    rows = [Row(f"{name}, row {n}", {**cells}) for n, cells in enumerate(records, 1)]
    return rows, name, None
