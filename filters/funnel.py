"""What became of every item: a funnel that names each loss, and the reasons item by item."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.core.errors import DataError
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
_STEPS = (("flipped", "flip"), ("captioned", "caption"), ("edited", "edit"))


@dataclass(frozen=True)
class Loss:
    """An item that is no pair in the end: after which step, why in few words, and in full.

    ``decision`` is "reject" or "unsure" (a doubtful pair) of what was edited, else empty.
    """

    candidate: Candidate
    step: str
    loss: str
    decided_by: tuple[str, ...] = ()
    reason: str = ""
    decision: str = ""


@dataclass(frozen=True)
class Step:
    """A step of the funnel: how many are left after it, and what was lost on the way to it."""

    name: str
    n: int
    losses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Funnel:
    """The steps items, flipped, captioned, edited, kept. Losses account for every difference."""

    steps: tuple[Step, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many are left after each step."""
        return {step.name: step.n for step in self.steps}

    def table(self) -> Table:
        """Return one row for each step and, before it, one for each loss."""
        rows: list[Row] = []
        total = self.steps[0].n
        for step in self.steps:
            rows += [Row("", (Cell(loss), Cell(f"-{n}"), Cell(""))) for loss, n in step.losses]
            share = formats.percent(step.n / total) if total else formats.NOTHING
            rows.append(Row(step.name, (Cell(""), Cell(str(step.n)), Cell(share))))
        caption = "From items to pairs. Every item that is lost is counted under one loss."
        columns = (Column("lost", numeric=False), Column("n"), Column("% of items"))
        return Table("funnel", caption, "step", columns, (("", tuple(rows)),))


def losses_of(
    candidates: Sequence[Candidate], rulings: Iterable[Ruling], failures: Iterable[Failure]
) -> list[Loss]:
    """Return every item that is not kept, with why, in the candidates' order.

    Parameters
    ----------
    candidates : sequence of Candidate, shape (N,)
        All items that were to become pairs.
    rulings : iterable of Ruling
        On those that have an edited image.
    failures : iterable of Failure
        Of the run; they say why an item was not flipped, captioned or edited.
    """
    by_item = {ruling.candidate.item.id: ruling for ruling in rulings}
    why = {(failure.stage, failure.subject): failure.message for failure in failures}
    losses = []
    for candidate in candidates:
        step, stage = _lost_at(candidate)
        if stage:
            message = why.get((stage, candidate.subject), "not tried yet")
            losses.append(Loss(candidate, step, message, (), message))
            continue
        ruling = by_item[candidate.item.id]
        if not ruling.kept:
            said = (ruling.loss, ruling.decided_by, ruling.reason, ruling.decision)
            losses.append(Loss(candidate, "kept", *said))
    return losses


def funnel_of(candidates: Sequence[Candidate], losses: Sequence[Loss]) -> Funnel:
    """Count the steps. The rarest of many different failures of a step are counted as one."""
    n = len(candidates)
    steps = [Step("items", n)]
    for name in ("flipped", "captioned", "edited", "kept"):
        here = Counter(loss.loss for loss in losses if loss.step == name)
        n -= here.total()
        steps.append(Step(name, n, _named(here)))
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
    """Return the ids of the edits that ``reasons.csv`` neither keeps nor rejects.

    Raises
    ------
    DataError
        If there is no such file.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return {row["edit_id"] for row in rows if row["decision"] == "unsure"}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: does not say which pairs are doubtful; 'flipbench filter' writes it anew"
        ) from error


def loss_by_category_table(candidates: Sequence[Candidate], losses: Sequence[Loss]) -> Table:
    """Return, for each category, how many items there were and where they were lost."""
    n_all: Mapping[str, int] = Counter(c.item.category for c in candidates)
    lost = Counter((loss.candidate.item.category, loss.step) for loss in losses)
    steps = ("flipped", "captioned", "edited", "kept")
    rows = []
    for category in sorted(n_all):
        gone = [lost[category, step] for step in steps]
        kept = n_all[category] - sum(gone)
        counts = (n_all[category], *gone, kept)
        rows.append(Row(category or "(none)", tuple(Cell(str(n)) for n in counts)))
    headers = ("items", *(f"not {step}" for step in steps), "kept")
    columns = tuple(map(Column, headers))
    return Table(
        "losses_by_category", "Losses by category.", "category", columns, (("", tuple(rows)),)
    )


def _lost_at(candidate: Candidate) -> tuple[str, str]:
    """Return the step that the candidate did not reach and its stage, or two empty texts."""
    made = (candidate.flip, candidate.caption, candidate.edit)
    for (step, stage), record in zip(_STEPS, made, strict=True):
        if record is None:
            return step, stage
    return "", ""


def _named(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if len(ordered) <= N_NAMED + 1:
        return tuple(ordered)
    rest = ordered[N_NAMED:]
    others = f"{len(rest)} other reasons, see reasons.csv"
    return (*ordered[:N_NAMED], (others, sum(n for _, n in rest)))
