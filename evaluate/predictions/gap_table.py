"""The perturbation gap of one model's predictions, as a sentence and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.rates import Rate, wilson_interval
from flipbench.core.records import Score
from flipbench.reporting import formats, writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from ..report.table_files import result_columns
from ..report.tables import TEST, VERDICTS, as_header
from .prediction import listing

_SIDES = ("original", "perturbed")
_CONCLUSIONS = {
    "contaminated": "the model is flagged as contaminated",
    "not_detected": "contamination is not detected, which does not show that the model is clean",
    "inconclusive": "no verdict is possible",
    "not_applicable": "the test does not apply",
}


@dataclass(frozen=True)
class GapTable:
    """One model's scores by rule, and the formats they are written in.

    Attributes
    ----------
    scores : tuple of Score
        Rules sign, mcnemar and, with a reference, relative, on the same items.
    """

    scores: tuple[Score, ...]

    @property
    def by_rule(self) -> Mapping[str, Score]:
        """The scores by rule."""
        return {score.rule: score for score in self.scores}

    @property
    def warnings(self) -> list[str]:
        """The distinct warnings."""
        return list(dict.fromkeys(text for score in self.scores for text in score.warnings))

    def sentence(self) -> str:
        """Return the gap and the McNemar test's verdict in words."""
        score = self.by_rule[TEST]
        assert score.statistic is not None and score.p_value is not None
        moves = "falls" if score.statistic < 0 else "rises" if score.statistic > 0 else "stays"
        by = "" if moves == "stays" else f" by {abs(100 * score.statistic):.1f} points"
        between = f" {formats.interval(score.interval)}" if score.interval else ""
        p = formats.p_equation(score.p_value)
        return (
            f"{score.model} on {score.benchmark}: accuracy {moves}{by}{between} from original to"
            f" perturbed, on {score.n} items answered in both (exact one-sided McNemar {p}):"
            f" {_CONCLUSIONS[score.verdict]}."
        )

    def table(self) -> Table:
        """Return a table of one row with the columns of the report's main table."""
        score, sign = self.by_rule[TEST], self.by_rule["sign"]
        assert score.statistic is not None and score.p_value is not None
        gap = formats.interval(score.interval)
        fields = [
            *(
                (Column(f"{as_header(side)}, %"), rate_cell(Rate.wilson(c.k, c.n)))
                for side, c in score.accuracies.items()
            ),
            (Column("Δ, pp"), Cell(formats.points(score.statistic), gap)),
            (Column("p"), Cell(formats.p_value(score.p_value))),
            (Column("McNemar test", numeric=False), Cell(VERDICTS[score.verdict])),
            (Column("Sign rule (paper)", numeric=False), Cell(VERDICTS[sign.verdict])),
        ]
        if "relative" in self.by_rule:
            fields += _relative(self.by_rule["relative"])
        fields += [
            *((Column(f"No option named: {side}"), _unparsed(score, side)) for side in _SIDES),
            (Column("Items dropped"), Cell(str(score.n_dropped))),
        ]
        columns, cells = zip(*fields, strict=True)
        return Table(
            "gap",
            "Accuracy on the original and on the perturbed version of the same items, with counts"
            " and 95 % Wilson intervals, and the gap between them (perturbed − original; negative"
            " is suspicious) with its paired 95 % interval. p: exact one-sided McNemar test. The"
            " sign rule does not control false alarms: it flags about half of all clean models with"
            " a true gap of 0.",
            "Model",
            columns,
            ((score.benchmark, (Row(score.model, cells),)),),
        )

    def markdown(self) -> str:
        """Return the sentence, the table, the suspect items and the warnings."""
        suspects = self.scores[0].suspects
        assert suspects is not None
        names = f" ({listing(suspects.names, 10)})" if suspects.k else ""
        parts = [self.sentence(), "", writers.markdown(self.table())]
        parts.append(
            f"Right on the original and wrong on the perturbed version: {suspects.k}/{suspects.n}"
            f"{names}."
        )
        parts += ["", *(f"- Note: {text}" for text in self.warnings)] if self.warnings else []
        return "\n".join(parts) + "\n"

    def latex(self) -> str:
        """Return the table for LaTeX with booktabs."""
        return writers.latex_document([self.table()])

    def csv(self) -> str:
        """Return one row per rule, in full precision."""
        return writers.records_csv([_csv_row(score) for score in self.scores])

    def json(self) -> str:
        """Return the full scores, including per-item values."""
        return json.dumps([s.model_dump(mode="json") for s in self.scores], indent=2) + "\n"

    def text(self, layout: str) -> str:
        """Return the table as "markdown", "csv", "latex" or "json".

        Raises
        ------
        ConfigError
            If the format is unknown.
        """
        write = {"markdown": self.markdown, "csv": self.csv, "latex": self.latex, "json": self.json}
        if layout not in write:
            raise ConfigError(f"unknown format {layout!r}: choose markdown, csv, latex or json")
        return write[layout]()


def _unparsed(score: Score, side: str) -> Cell:
    n_unparsed = score.unparsed[side]
    if n_unparsed is None:
        return Cell(formats.NOTHING)
    return Cell(formats.percent(n_unparsed / score.n) + " %", f"{n_unparsed}/{score.n}")


def _relative(score: Score) -> list[tuple[Column, Cell]]:
    if score.statistic is None:
        return [(Column("Δ − clean model's Δ, pp"), Cell(formats.NOTHING))]
    between = formats.interval(score.interval)
    return [
        (Column("Δ − clean model's Δ, pp"), Cell(formats.points(score.statistic), between)),
        (Column("vs clean", numeric=False), Cell(VERDICTS[score.verdict])),
    ]


def _csv_row(score: Score) -> dict[str, Any]:
    about = ("model", "benchmark", "detector", "rule", "n", "n_dropped")
    row: dict[str, Any] = {name: getattr(score, name) for name in about}
    for side in _SIDES:
        count = score.accuracies[side]
        between = wilson_interval(count.k, count.n)
        row |= {f"k_{side}": count.k, f"accuracy_{side}": count.k / count.n}
        row |= {f"low_{side}": between.low, f"high_{side}": between.high}
        row[f"unparsed_{side}"] = score.unparsed[side]
    result = {name: value for name, value in result_columns(score).items() if name != "unit"}
    return row | result | {"warnings": "; ".join(score.warnings)}
