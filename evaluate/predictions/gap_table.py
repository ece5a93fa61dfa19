"""The perturbation gap of one model's predictions, as a sentence and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.files import without_html
from flipbench.core.rates import Rate, wilson_interval
from flipbench.core.records import Score
from flipbench.reporting import formats, writers
from flipbench.reporting.tables import Cell, Column, Content, Row, Table, as_cell, text_column

from ..protocol.rules import Verdict
from ..report.score_frame import result_columns
from ..report.titles import TEST, VERDICTS, as_header
from ..verdict.decision import Decision, GapEvidence, decide
from ..verdict.verdict_tables import memory_cell
from ..verdict.wording import qualifiers, sentence
from .prediction import listing

_SIDES = ("original", "perturbed")
SIGN_RULE = (
    " The sign rule does not control false alarms: it flags about half of all clean models with a"
    " true gap of 0."
)


@dataclass(frozen=True)
class GapTable:
    """One model's scores by rule, its verdict, and the formats they are written in.

    Attributes
    ----------
    scores : tuple of Score
        Rules sign, mcnemar and, for each reference, relative, on the same items.
    evidence : GapEvidence
        What the verdict rests on.
    show_sign : bool
        Whether tables show the paper's rule, the sign of the gap, which controls no error rate.
    """

    scores: tuple[Score, ...]
    evidence: GapEvidence
    show_sign: bool = False

    @property
    def by_rule(self) -> Mapping[str, Score]:
        """The scores by rule; of several references, the last."""
        return {score.rule: score for score in self.scores}

    @property
    def attraction(self) -> Score | None:
        """Old-answer attraction against chance; None if the files do not list the options."""
        return self.evidence.attraction

    @cached_property
    def decision(self) -> Decision:
        """The verdict and its reasons."""
        return decide(self.evidence)

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.decision.verdict

    @property
    def qualifiers(self) -> list[str]:
        """What the verdict assumes and rests on besides the gap, in sentences."""
        return qualifiers(self.decision)

    @property
    def warnings(self) -> list[str]:
        """The distinct warnings."""
        return list(dict.fromkeys(text for score in self._shown for text in score.warnings))

    @property
    def _shown(self) -> list[Score]:
        return [score for score in self.scores if self.show_sign or score.rule != "sign"]

    def sentence(self) -> str:
        """Return the verdict in words."""
        return sentence(self.decision)

    def table(self) -> Table:
        """Return a table of one row with the columns of the report's main table."""
        score, leading = self.by_rule[TEST], self.decision.leading
        assert score.statistic is not None
        fields: list[tuple[Column, Content]] = [
            *(
                (Column(f"{as_header(side)}, %"), Rate.wilson(count.k, count.n))
                for side, count in score.accuracies.items()
            ),
            (Column("Δ, pp"), _points_cell(score)),
            (Column("p"), formats.p_value(score.p_value)),
            (text_column("McNemar test"), VERDICTS[score.verdict]),
        ]
        if self.show_sign:
            sign = VERDICTS[self.by_rule["sign"].verdict]
            fields.append((text_column("Sign rule (paper)"), sign))
        if self.decision.references:
            fields.append((Column("Δ − clean model's Δ, pp"), _points_cell(leading)))
            if leading.statistic is not None:
                fields.append((text_column("vs clean"), VERDICTS[leading.verdict]))
        fields.append((text_column("Verdict"), VERDICTS[self.verdict]))
        if self.attraction is not None:
            fields += _old_answers(self.attraction)
        fields += [
            *((Column(f"No option named: {side}"), _unparsed(score, side)) for side in _SIDES),
            (Column("Items dropped"), score.n_dropped),
        ]
        columns, cells = zip(*fields, strict=True)
        return Table(
            "gap",
            "Accuracy on the original and on the perturbed version of the same items, with counts"
            " and 95 % Wilson intervals, and the gap between them (perturbed − original; negative"
            " is suspicious) with its paired 95 % interval. p: exact one-sided McNemar test. The"
            " verdict is that of the comparison with clean models if there are any, and withheld"
            " where a gap is no evidence. Old answers: wrong answers to perturbed items that are"
            " the original's answer; from memory: at least this share of the items, by these beyond"
            f" chance.{SIGN_RULE if self.show_sign else ''}",
            "Model",
            columns,
            ((score.benchmark, (Row(score.model, tuple(map(as_cell, cells))),)),),
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
        return writers.records_csv([_csv_row(score) for score in self._shown])

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


def _points_cell(score: Score) -> Content:
    if score.statistic is None:
        return None
    return Cell(formats.points(score.statistic), formats.interval(score.interval))


def _unparsed(score: Score, side: str) -> Content:
    n_unparsed = score.unparsed[side]
    if n_unparsed is None:
        return None
    return Cell(formats.percent(n_unparsed / score.n) + " %", f"{n_unparsed}/{score.n}")


def _old_answers(score: Score) -> list[tuple[Column, Content]]:
    count, by_chance = score.accuracies["old answer"], score.means["expected by chance"]
    chance = f"{(by_chance.mean or 0.0) * by_chance.n:.1f}"
    return [
        (Column("Old answers"), Cell(f"{count.k}/{count.n}", f"expected {chance}")),
        (Column("Their p"), formats.p_value(score.p_value)),
        (Column("From memory, %"), memory_cell(score)),
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
