"""A task of the page: which pairs people see, which labels they choose from, what is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flipbench.core.records import Adjudication, ImageRef, Verdict
from flipbench.core.run import Run

from ..effective_verdicts import ANSWERED_BLIND, WITHDRAWN

Judgement = Verdict | Adjudication


class RaterVerdict(NamedTuple):
    """The newest verdict of one rater on one pair."""

    run: int
    kind: str
    decision: str
    reason: str = ""
    blind_answer: str | None = None
    seconds: float | None = None

    @property
    def decided(self) -> bool:
        """Whether it is a decision; a mere blind answer or a withdrawn verdict is not."""
        return self.kind != "person" or self.reason not in (WITHDRAWN, ANSWERED_BLIND)


class Pair(Protocol):
    """Two pictures on which people decide."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the pair in its records: the values of the task's key columns."""

    @property
    def category(self) -> str:
        """The category to filter by."""

    @property
    def pictures(self) -> tuple[ImageRef, ...]:
        """The left picture, any others that are the same on both sides, then the right one."""

    def shown(self) -> dict[str, Any]:
        """Return what a reviewer sees at once, as JSON for the page."""

    def revealed(self) -> dict[str, Any]:
        """Return what a reviewer sees only after a blind answer."""

    def facts(self) -> dict[str, Any]:
        """Return what exported files say about the pair."""

    def record(self, rater: str, run: int, verdict: RaterVerdict) -> Judgement:
        """Return the record of a person's verdict on the pair."""


@dataclass(frozen=True)
class Label:
    """One of the decisions on a pair.

    Attributes
    ----------
    key : str
        The key that chooses it.
    past : str
        Its name among the filters and in the progress ("12 kept").
    chosen : str
        The sentence that confirms it.
    meaning : str
        What it stands for, in the list of keys.
    why : str
        If given, the page asks for a reason under this heading.
    always_counted : bool
        Whether the progress shows it even if there are none.
    """

    value: str
    name: str
    key: str
    past: str
    chosen: str
    meaning: str = ""
    why: str = ""
    always_counted: bool = False


@dataclass(frozen=True)
class Task:
    """What the page shows and asks; also the layout of exported files.

    Attributes
    ----------
    name : str
        The command that serves it.
    title, instructions, details : str
        The page's title, what a reviewer is told at the start, and the heading of what is shown on
        demand.
    record : type
        `Verdict` or `Adjudication`.
    sides : tuple of str
        The names of the left and right picture.
    same_scale : bool
        Whether both are drawn at the same scale; otherwise each fills its frame.
    independent : bool
        Whether other people's verdicts are sent only to a reviewer who has decided.
    reasons : tuple of str
        The reasons to choose from for labels with ``why``.
    nouns : tuple of str
        What the two parts of a pair's key identify, for messages.
    key_columns, label_column, columns
        Columns of a table of verdicts: the pair's key, the label, and all of them.
    needs, missing : str
        A path in a run directory that can be worked on, and the message if it is not there.
    load : callable
        Returns the pairs of a run, optionally only those with certain first parts of their keys.
    verdict_of : callable
        Returns what a record of this task says.
    """

    name: str
    title: str
    instructions: str
    details: str
    record: type[Verdict] | type[Adjudication]
    labels: tuple[Label, ...]
    sides: tuple[str, str]
    nouns: tuple[str, str]
    key_columns: tuple[str, str]
    label_column: str
    columns: tuple[str, ...]
    needs: str
    missing: str
    load: Callable[[Run, Collection[str] | None], Sequence[Pair]]
    verdict_of: Callable[[Any], RaterVerdict]
    reasons: tuple[str, ...] = ()
    same_scale: bool = True
    independent: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The labels as stored."""
        return tuple(label.value for label in self.labels)

    def key_of(self, record: Judgement) -> tuple[str, str]:
        """Return the key of the pair that a record is about."""
        first, second = (str(getattr(record, column)) for column in self.key_columns)
        return first, second


def picture(ref: ImageRef) -> dict[str, Any]:
    """Return an image as JSON for the page."""
    return {"src": f"/images/{ref.sha256}", "width": ref.width, "height": ref.height}
