"""The perturbation gap of one model's predictions, as a sentence and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.files import without_html
from flipbench.core.rates import Rate, wilson_interval
from flipbench.core.records import Score
from flipbench.reporting import formats, writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from ..protocol.rules import Verdict
from ..report.table_files import result_columns
from ..report.tables import TEST, VERDICTS, as_header
from ..scoring.soundness import (
    EASIER,
    Doubt,
    Guessing,
    Judged,
    attraction_sentence,
    doubts,
)
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
    """One model's scores by rule, its verdict, and the formats they are written in.

    Attributes
    ----------
    scores : tuple of Score
        Rules sign, mcnemar and, with a reference, relative, on the same items.
    judged : Judged
        Who judged the pairs.
    guessing : tuple of Guessing
        Right answers to the perturbed items, of the model and of the reference; empty if the files
        do not list all options.
    attraction : Score or None
        Old-answer attraction against chance; None if the files do not list the options.
    """

    scores: tuple[Score, ...]
    judged: Judged
    guessing: tuple[Guessing, ...] = ()
    attraction: Score | None = None

    @property
    def by_rule(self) -> Mapping[str, Score]:
        """The scores by rule."""
        return {score.rule: score for score in self.scores}

    @property
    def leading(self) -> Score:
        """The score that decides: the comparison with the clean model, else the McNemar test."""
        return self.by_rule.get("relative", self.by_rule[TEST])

    @property
    def doubts(self) -> list[Doubt]:
        """Why the verdict is withheld although the test has one."""
        return doubts(
            self.leading.verdict,
            self.judged,
            self.guessing,
            self.attraction,
            alpha=self.leading.alpha,
            has_reference="relative" in self.by_rule,
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict of the leading score, "inconclusive" if there are doubts."""
        return "inconclusive" if self.doubts else self.leading.verdict

    @property
    def qualifiers(self) -> list[str]:
        """What the verdict rests on besides the gap, in sentences."""
        verdict, is_alone = self.leading.verdict, "relative" not in self.by_rule
        lines = [
            f"{EASIER} Only a clean model (--reference) can show whether these are."
            if is_alone and verdict == "not_detected"
            else "",
            attraction_sentence(verdict, self.attraction),
            self.judged.text(),
            f"{'; '.join(one.text() for one in self.guessing)}." if self.guessing else "",
        ]
        return [line for line in lines if line]

    @property
    def warnings(self) -> list[str]:
        """The distinct warnings."""
        return list(dict.fromkeys(text for score in self.scores for text in score.warnings))

    def sentence(self) -> str:
        """Return the gap and the verdict in words."""
        score = self.by_rule[TEST]
        assert score.statistic is not None and score.p_value is not None
        moves = "falls" if score.statistic < 0 else "rises" if score.statistic > 0 else "stays"
        by = "" if moves == "stays" else f" by {abs(100 * score.statistic):.1f} points"
        between = f" {formats.interval(score.interval)}" if score.interval else ""
        p = formats.p_equation(score.p_value)
        return (
            f"{score.model} on {score.benchmark}: accuracy {moves}{by}{between} from original to"
            f" perturbed, on {score.n} items answered in both (exact one-sided McNemar"
            f" {p}){self._comparison()}: {_CONCLUSIONS[self.verdict]}{self._obstacle()}."
        )

    def _comparison(self) -> str:
        score = self.leading
        if score.reference is None or score.statistic is None or score.p_value is None:
            return ""
        side = "below" if score.statistic < 0 else "above"
        return (
            f"; that is {abs(100 * score.statistic):.1f} points {side} the gap of the clean model"
            f" {score.reference.model} {formats.interval(score.interval)}"
            f" ({formats.p_equation(score.p_value)})"
        )

    def _obstacle(self) -> str:
        """Return why there is no verdict and what to do, as the end of a sentence."""
        if found := self.doubts:
            reasons = "; moreover, ".join(doubt.reason for doubt in found)
            return f", since {reasons}. What to do: {'; and '.join(d.remedy for d in found)}"
        if self.verdict == "inconclusive" and self.leading.warnings:
            return f", since {self.leading.warnings[-1]}"
        return ""

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
        fields.append((Column("Verdict", numeric=False), Cell(VERDICTS[self.verdict])))
        if self.attraction is not None:
            fields += _old_answers(self.attraction)
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
            " a true gap of 0. The verdict is that of the comparison with a clean model if there is"
            " one, else of the McNemar test, and withheld where a gap is no evidence. Old answers:"
            " wrong answers to perturbed items that are the original's answer.",
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
        parts += ["", *(f"- {text}" for text in self.qualifiers)]
        parts += [f"- Note: {text}" for text in self.warnings]
        return without_html("\n".join(parts) + "\n")

    def latex(self) -> str:
        """Return the table for LaTeX with booktabs."""
        return writers.latex_document([self.table()])

    def csv(self) -> str:
        """Return one row per rule, in full precision."""
        return writers.records_csv([_csv_row(score) for score in self.scores])

    def json(self) -> str:
        """Return the full scores, including per-item values."""
        scores = [*self.scores, *([self.attraction] if self.attraction else [])]
        return json.dumps([s.model_dump(mode="json") for s in scores], indent=2) + "\n"

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


def _old_answers(score: Score) -> list[tuple[Column, Cell]]:
    count, expected = score.accuracies["old answer"], score.means["expected by chance"]
    chance = f"{(expected.mean or 0.0) * expected.n:.1f}"
    return [
        (Column("Old answers"), Cell(f"{count.k}/{count.n}", f"expected {chance}")),
        (Column("Their p"), Cell(formats.p_value(score.p_value))),
    ]


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
