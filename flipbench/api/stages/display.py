"""How results are shown: scores as a data frame, and a few tables as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.core.records import Score
    from flipbench.core.stage import StageReport
    from flipbench.evaluate.verdict.decision import Decision
    from flipbench.reporting.tables import Table

_TEMPLATES = Path(__file__).parent / "templates"


class Result:
    """A result, shown by its class and its text."""

    @property
    def n_failed(self) -> int:
        """How many items failed; the same call tries them again."""
        reports: Sequence[StageReport] = getattr(self, "reports", ())
        return sum(report.n_failed for report in reports)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


def html(headline: str, tables: Sequence[Table], page: Path | None = None) -> str:
    """Return a headline and tables as HTML that needs nothing else and changes nothing else.

    ``page`` is the full report, named below the tables.
    """
    from flipbench.reporting.pages import environment

    template = environment(_TEMPLATES).get_template("result.html.jinja")
    return template.render(headline=headline, tables=tables, page=page)


def frame_table(key: str, caption: str, frame: pd.DataFrame) -> Table:
    """Return a data frame as a table; its first column heads the rows."""
    from flipbench.reporting.tables import Cell, Column, Row, Table

    stub, *headers = map(str, frame.columns)
    columns = tuple(Column(name, numeric=frame[name].dtype.kind in "iuf") for name in headers)
    rows = tuple(
        Row(str(header), tuple(Cell(f"{value}") for value in values))
        for header, *values in frame.itertuples(index=False)
    )
    return Table(key, caption, stub, columns, (("", rows),))


def scores_frame(
    scores: Iterable[Score], decisions: Iterable[Decision], *, sign: bool = False
) -> pd.DataFrame:
    """Return one row for each score.

    Parameters
    ----------
    decisions : iterable of Decision
        The verdicts on the models of the scores.
    sign : bool
        Whether to include the paper's rule, the sign of the gap, which flags about half of all
        clean models with a true gap of 0.

    Returns
    -------
    DataFrame of shape (n_scores, 14)
        ``statistic``, ``low`` and ``high`` (its confidence interval) are in ``unit``, fractions
        where that is "fraction"; ``k/n`` has the right answers of each condition; ``reference`` is
        the clean model that a rule compares with. ``decides`` marks the rows that the verdict rests
        on; ``verdict`` is there the verdict itself, elsewhere what the rule alone says, and
        ``reason`` why a verdict is withheld.
    """
    from flipbench.evaluate.report.score_frame import score_frame

    listed_scores = [score for score in scores if sign or score.rule != "sign"]
    frame = score_frame(listed_scores, decided=[decision.final for decision in decisions])
    columns = ["model", "detector", "rule", "statistic", "low", "high", "unit", "p_value"]
    columns += ["decides", "verdict", "reason", "k/n", "n", "reference"]
    return frame.reindex(columns=columns).infer_objects()
