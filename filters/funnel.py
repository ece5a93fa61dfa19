"""The funnel from items to pairs, with every loss named and explained item by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.benchmarks.tables import numbered_rows
from flipbench.config.policy import Policy
from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate
from flipbench.core.records import Failure
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, build_table

from .decide import Raters, Ruling, VerdictIndex, decide

N_NAMED = 6
HEADERS = (
    *("item", "item_id", "edit_id", "category"),
    *("step", "decision", "loss", "decided_by", "reason"),
)
STEPS = ("flipped", "captioned", "edited", "kept")
_STAGES = dict(zip(STEPS, ("flip", "caption", "edit"), strict=False))
_PART_OF = {"choose picture": "caption"}  # without the image to redraw, there is no caption


@dataclass(frozen=True)
class Filtered:
    """A policy's result: a ruling on each item, in order, whether or not it became a pair."""

    rulings: tuple[Ruling, ...]

    @property
    def kept(self) -> list[Candidate]:
        """The kept candidates, in order."""
        return [ruling.candidate for ruling in self.rulings if ruling.kept]

    @property
    def doubtful(self) -> list[Candidate]:
        """Candidates neither kept nor clearly rejected, in order: those for people to review."""
        return [r.candidate for r in self.rulings if r.decision == "unsure"]

    @property
    def counts(self) -> dict[str, int]:
        """Number left after each step: items, flipped, captioned, edited, kept."""
        counts = {"items": len(self.rulings)}
        n_lost = Counter(ruling.missed_step for ruling in self.rulings)
        for step, previous in zip(STEPS, ("items", *STEPS), strict=False):
            counts[step] = counts[previous] - n_lost[step]
        return counts

    def funnel(self) -> Table:
        """Return one row per step, preceded by one row per loss; rare losses are merged."""
        rows: list[Row] = []
        for step, n in self.counts.items():
            losses = Counter(r.loss for r in self.rulings if r.missed_step == step)
            rows += [
                Row("", (Cell(loss), Cell(f"-{n_lost}"), Cell("")))
                for loss, n_lost in _most_common(losses)
            ]
            share = formats.percent(n / len(self.rulings)) if self.rulings else formats.NOTHING
            rows.append(Row(step, (Cell(""), Cell(str(n)), Cell(share))))
        caption = "From items to pairs. Every lost item counts under exactly one loss."
        columns = (Column("lost", numeric=False), Column("n"), Column("% of items"))
        return Table("funnel", caption, "step", columns, (("", tuple(rows)),))

    def losses_by_category(self) -> Table:
        """Return, for each category, the number of items and where they were lost."""
        counts: dict[str, Counter[str]] = {}
        for ruling in self.rulings:
            by_step = counts.setdefault(ruling.candidate.item.category, Counter())
            by_step[ruling.missed_step] += 1
        return build_table(
            "losses_by_category",
            "Losses by category.",
            "category",
            [
                ("items", Counter[str].total),
                *((f"not {step}", _count_of(step)) for step in STEPS),
                ("kept", _count_of("")),
            ],
            {"": [(category or "(none)", counts[category]) for category in sorted(counts)]},
        )

    def loss_rows(self) -> list[tuple[str, ...]]:
        """Return one row under `HEADERS` for each item that is not kept."""
        return [
            (
                r.candidate.item.name,
                r.candidate.item.id,
                r.candidate.edit.id if r.candidate.edit else "",
                r.candidate.item.category,
                f"not {r.missed_step}",
                r.decision,
                r.loss,
                "; ".join(r.decided_by),
                r.reason,
            )
            for r in self.rulings
            if not r.kept
        ]


def rule_on(
    candidates: Sequence[Candidate],
    verdicts: VerdictIndex,
    failures: Iterable[Failure],
    policy: Policy,
    raters: Raters,
) -> Filtered:
    """Return a ruling on every item.

    ``failures`` are the run's, which explain why an item was not flipped, captioned or edited.
    """
    messages = {
        (_PART_OF.get(failure.stage, failure.stage), failure.subject): failure.message
        for failure in failures
    }
    rulings = []
    for candidate in candidates:
        if candidate.edit is not None:
            rulings.append(decide(candidate, verdicts, policy, raters))
            continue
        stage = _STAGES[Ruling(candidate, "").missed_step]
        message = messages.get((stage, candidate.subject), "not tried yet")
        rulings.append(Ruling(candidate, "", message, (), message))
    return Filtered(tuple(rulings))


def read_doubtful(path: Path) -> set[str]:
    """Return the ids of the doubtful edits in ``reasons.csv``; as `read_columns`."""
    rows = read_columns(path, "edit_id", "decision")
    return {edit_id for edit_id, decision in rows if decision == "unsure"}


def read_columns(path: Path, *columns: str) -> list[tuple[str, ...]]:
    """Return columns of ``kept.csv`` or ``reasons.csv``, row by row.

    Raises
    ------
    DataError
        If the file cannot be read or lacks a column.
    """
    remedy = "'flipbench filter' rewrites it"
    try:
        return [tuple(row[name] for name in columns) for _, row in numbered_rows(path)[1]]
    except KeyError as error:
        raise DataError(f"{path}: no column {error}; {remedy}") from error
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from error


def _count_of(step: str) -> Callable[[Counter[str]], int]:
    return lambda counts: counts[step]


def _most_common(counts: Counter[str]) -> list[tuple[str, int]]:
    losses = sorted(counts.items(), key=lambda loss: (-loss[1], loss[0]))
    if len(losses) <= N_NAMED + 1:
        return losses
    rare = losses[N_NAMED:]
    summary = f"{len(rare)} other reasons, see reasons.csv"
    return [*losses[:N_NAMED], (summary, sum(n for _, n in rare))]
