"""The main figures of a report as one file, from which its tables can be printed again."""

from __future__ import annotations

from pathlib import Path

from flipbench.core.files import write_atomically
from flipbench.core.records import Score, Value
from flipbench.reporting.tables import Table

from ..protocol.grid import GridModel
from .validation_tables import DetectorResult


class Results(Value):
    """The models of a report, their gaps, and what every detector made of them.

    Attributes
    ----------
    settings : dict of str
        How the report was made: command, seed, versions.
    n_answers : int
        Of all models to the questions of all detectors.
    n_detectors, n_rules : int
        Including those that apply to none of the models.
    gaps : tuple of Score
        Those of the perturbation gap by every rule, without the items' own values.
    detectors : tuple of DetectorResult
        One for each rule; default rules first, the best AUROC first.
    tables : tuple of Table
        The table of the detectors as the report prints it.
    """

    title: str
    settings: dict[str, str]
    n_pairs: int
    n_answers: int
    n_detectors: int
    n_rules: int
    models: tuple[GridModel, ...]
    gaps: tuple[Score, ...]
    detectors: tuple[DetectorResult, ...]
    tables: tuple[Table, ...] = ()


def write_results(path: Path, results: Results) -> None:
    """Write the figures as JSON, without what has its default value."""
    write_atomically(path, results.model_dump_json(indent=1, exclude_defaults=True) + "\n")


def read_results(path: Path) -> Results:
    """Read the figures of a report."""
    return Results.model_validate_json(path.read_text(encoding="utf-8"))
