"""The funnel from items to pairs, with every loss named and explained item by item."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.files import plain_cell
from flipbench.core.paired import Candidate
from flipbench.core.records import Failure
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from .decide import Ruling

N_NAMED = 6
HEADERS = (
    "item",
    "item_id",
    "edit_id",
    "category",
    "step",
    "decision",
    "loss",
    "decided_by",
    "reason",
)
_PART_OF = {"choose picture": "caption"}  # without the image to redraw, there is no caption
_STEPS = (("flipped", "flip"), ("captioned", "caption"), ("edited", "edit"))


@dataclass(frozen=True)
class Loss:
    """An item that did not become a pair: the step it missed, and why, in short and in full.

    ``decision`` is "reject" or "unsure" (a doubtful pair) if it was edited, else empty.
    """

    candidate: Candidate
    step: str
    loss: str
    decided_by: tuple[str, ...] = ()
    reason: str = ""
    decision: str = ""


@dataclass(frozen=True)
class Step:
    """A step of the funnel: the number left after it, and the losses before it."""

    name: str
    n: int
    losses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Funnel:
    """The steps items, flipped, captioned, edited, kept; losses explain every difference."""

    steps: tuple[Step, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number left after each step."""
        return {step.name: step.n for step in self.steps}

    def table(self) -> Table:
        """Return one row per step, preceded by one row per loss."""
        rows: list[Row] = []
        total = self.steps[0].n
        for step in self.steps:
            rows += [Row("", (Cell(loss), Cell(f"-{n}"), Cell(""))) for loss, n in step.losses]
            share = formats.percent(step.n / total) if total else formats.NOTHING
            rows.append(Row(step.name, (Cell(""), Cell(str(step.n)), Cell(share))))
        caption = "From items to pairs. Every lost item counts under exactly one loss."
        columns = (Column("lost", numeric=False), Column("n"), Column("% of items"))
        return Table("funnel", caption, "step", columns, (("", tuple(rows)),))


def losses_of(
    candidates: Sequence[Candidate], rulings: Iterable[Ruling], failures: Iterable[Failure]
) -> list[Loss]:
    """Return every item that is not kept and the reason, in the candidates' order.

    Parameters
    ----------
    candidates : sequence of Candidate, shape (N,)
        All items, whether or not they became pairs.
    rulings : iterable of Ruling
        Rulings on those with an edited image.
    failures : iterable of Failure
        The run's failures, which explain why an item was not flipped, captioned or edited.
    """
    by_item = {ruling.candidate.item.id: ruling for ruling in rulings}
    messages = {
        (_PART_OF.get(failure.stage, failure.stage), failure.subject): failure.message
        for failure in failures
    }
    losses = []
    for candidate in candidates:
        step, stage = _lost_at(candidate)
        if stage:
            message = messages.get((stage, candidate.subject), "not tried yet")
            losses.append(Loss(candidate, step, message, (), message))
            continue
        ruling = by_item[candidate.item.id]
        if not ruling.kept:
            loss = (ruling.loss, ruling.decided_by, ruling.reason, ruling.decision)
            losses.append(Loss(candidate, "kept", *loss))
    return losses


def funnel_of(candidates: Sequence[Candidate], losses: Sequence[Loss]) -> Funnel:
    """Count items per step; if a step has many different losses, the rarest are merged."""
    n = len(candidates)
    steps = [Step("items", n)]
    for name in ("flipped", "captioned", "edited", "kept"):
        counts = Counter(loss.loss for loss in losses if loss.step == name)
        n -= counts.total()
        steps.append(Step(name, n, _most_common(counts)))
    return Funnel(tuple(steps))


def loss_rows(losses: Sequence[Loss]) -> list[tuple[str, ...]]:
    """Return one row under `HEADERS` for each item that is not kept."""
    return [
        (
            loss.candidate.item.name,
            loss.candidate.item.id,
            loss.candidate.edit.id if loss.candidate.edit else "",
            loss.candidate.item.category,
            f"not {loss.step}",
            loss.decision,
            loss.loss,
            "; ".join(loss.decided_by),
            loss.reason,
        )
        for loss in losses
    ]


def read_doubtful(path: Path) -> set[str]:
    """Return the ids of the doubtful edits in ``reasons.csv``; as `read_columns`."""
    rows = read_columns(path, "edit_id", "decision")
    return {edit_id for edit_id, decision in rows if decision == "unsure"}


def read_columns(path: Path, first: str, second: str) -> list[tuple[str, str]]:
    """Return two columns of ``kept.csv`` or ``reasons.csv``, row by row.

    Raises
    ------
    DataError
        If the file cannot be read or lacks a column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return [(plain_cell(row[first] or ""), plain_cell(row[second] or "")) for row in rows]
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {error!r}; 'flipbench filter' rewrites it") from error


def loss_by_category_table(candidates: Sequence[Candidate], losses: Sequence[Loss]) -> Table:
    """Return, for each category, the number of items and where they were lost."""
    n_all: Mapping[str, int] = Counter(c.item.category for c in candidates)
    lost = Counter((loss.candidate.item.category, loss.step) for loss in losses)
    steps = ("flipped", "captioned", "edited", "kept")
    rows = []
    for category in sorted(n_all):
        n_lost = [lost[category, step] for step in steps]
        counts = (n_all[category], *n_lost, n_all[category] - sum(n_lost))
        rows.append(Row(category or "(none)", tuple(Cell(str(n)) for n in counts)))
    headers = ("items", *(f"not {step}" for step in steps), "kept")
    columns = tuple(map(Column, headers))
    return Table(
        "losses_by_category", "Losses by category.", "category", columns, (("", tuple(rows)),)
    )


def _lost_at(candidate: Candidate) -> tuple[str, str]:
    """Return the step the candidate did not reach and its stage, or two empty strings."""
    made = (candidate.flip, candidate.caption, candidate.edit)
    for (step, stage), record in zip(_STEPS, made, strict=True):
        if record is None:
            return step, stage
    return "", ""


def _most_common(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if len(ordered) <= N_NAMED + 1:
        return tuple(ordered)
    rest = ordered[N_NAMED:]
    others = f"{len(rest)} other reasons, see reasons.csv"
    return (*ordered[:N_NAMED], (others, sum(n for _, n in rest)))
