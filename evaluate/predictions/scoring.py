"""Right or wrong: replies read by flipbench's own parser, or as the file itself says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flipbench.benchmarks.answers import answer_letter, find_answer
from flipbench.benchmarks.report import RowError
from flipbench.core.errors import ConfigError, DataError
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

from .join import PredictionPair
from .prediction import Prediction, listing

Scoring = Literal["auto", "parse", "file"]
_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ScoredReply:
    """A prediction with its outcome; None where there is nothing to score.

    ``choice`` is -1 where the reply names no option, and None where the file's own mark counts.
    """

    prediction: Prediction
    right: bool | None
    choice: int | None = None

    @property
    def unparsed(self) -> bool:
        """Whether a reply was read and names no option."""
        return self.right is not None and self.choice == -1


@dataclass(frozen=True)
class ScoredPair:
    """Both versions of an item, marked; ``gold`` are the right options' positions."""

    original: ScoredReply
    perturbed: ScoredReply
    gold: tuple[int, int] | None = None


def mark(
    twins: Sequence[PredictionPair], scoring: Scoring = "auto"
) -> tuple[list[ScoredPair], Scoring, list[str]]:
    """Mark all replies in one way, and say what could not be used.

    "parse" reads replies with `flipbench.prompting.parsing.parse_choice`; "file" takes the file's
    own marks; "auto" parses where the file has replies and right letters, else takes the marks.

    Returns
    -------
    (list of MarkedTwin, {"parse", "file"}, list of str)
        The usable items; how they were marked; what was left out or is odd, by name.

    Raises
    ------
    DataError
        Where no item can be marked that way.
    """
    if scoring not in ("auto", "parse", "file"):
        raise ConfigError(f"scoring {scoring!r}: choose auto, parse or file")
    notes: list[str] = []
    if scoring != "file":
        marked, unusable = _parse(twins)
        if marked:
            same = [t for t in marked if t.gold and t.gold[0] == t.gold[1]]
            if unusable:
                notes.append(_left_out(unusable, "the right answer is none of the options"))
            if same:
                names = [t.original.prediction.id for t in same]
                notes.append(_left_out(names, "the right answer is the same in both versions"))
            kept = [t for t in marked if t not in same]
            return kept, "parse", notes + _disagreements(kept)
        if scoring == "parse":
            first = twins[0].original
            raise DataError(
                f"{first.where}: replies cannot be read: the right answer {first.gold!r} is no"
                " letter and no option is given; add columns A, B, …, or take the file's own marks"
            )
    unsaid = [
        p.where
        for t in twins
        for p in (t.original, t.perturbed)
        if p.correct is None and not p.error
    ]
    if unsaid:
        raise DataError(
            f"{unsaid[0]}: neither a right letter with a reply, nor a mark of 0 or 1, and"
            f" {len(unsaid) - 1} more like it; add the columns answer and prediction, or correct"
        )
    marked = [ScoredPair(_said(t.original), _said(t.perturbed)) for t in twins]
    if any(t.original.right is not None for t in marked):
        notes.append(
            "right and wrong are the files' own marks; how many replies named no option is not"
            " known"
        )
    return marked, "file", notes


def _parse(twins: Sequence[PredictionPair]) -> tuple[list[ScoredPair], list[str]]:
    golds = [answer_letter(p.gold) for t in twins for p in (t.original, t.perturbed)]
    n_letters = max([4, *(LETTERS.index(letter) + 1 for letter in golds if letter)])
    if any(all(getattr(t, side).text is None for t in twins) for side in ("original", "perturbed")):
        return [], []
    marked, unusable = [], []
    for twin in twins:
        options = twin.original.options or twin.perturbed.options
        gold = tuple(_gold(p.gold, options) for p in (twin.original, twin.perturbed))
        if -1 in gold:
            unusable.append(twin.original.id)
            continue
        shown = _shown(options, n_letters)
        marked.append(
            ScoredPair(
                _read(twin.original, shown, gold[0]),
                _read(twin.perturbed, shown, gold[1]),
                (gold[0], gold[1]),
            )
        )
    return marked, unusable


def _gold(answer: str, options: Sequence[tuple[str, str]]) -> int:
    """Return the right option's place in the alphabet; -1 where the answer means none."""
    if not options:
        letter = answer_letter(answer)
        return LETTERS.index(letter) if letter else -1
    try:
        return LETTERS.index(options[find_answer(answer, options, "letter")[0]][0])
    except RowError:
        return -1


def _shown(options: Sequence[tuple[str, str]], n_letters: int) -> list[str]:
    """Return the options' texts by letter, "" for a gap; only letters where none are known."""
    if not options:
        return [""] * n_letters
    texts = dict(options)
    return [texts.get(letter, "") for letter in LETTERS[: LETTERS.index(max(texts)) + 1]]


def _read(prediction: Prediction, shown: Sequence[str], gold: int) -> ScoredReply:
    if prediction.error or prediction.text is None:
        return ScoredReply(prediction, None)
    choice = parse_choice(_THOUGHT.sub("", prediction.text), shown)
    return ScoredReply(prediction, choice == gold, choice)


def _said(prediction: Prediction) -> ScoredReply:
    return ScoredReply(prediction, None if prediction.error else prediction.correct)


def _left_out(names: Sequence[str], why: str) -> str:
    items = "item is" if len(names) == 1 else "items are"
    return f"{len(names)} {items} left out, since {why}: {listing(names)}"


def _disagreements(marked: Sequence[ScoredPair]) -> list[str]:
    """Say where the file's own marks differ from what the replies say."""
    notes = []
    for side in ("original", "perturbed"):
        both: list[ScoredReply] = [getattr(twin, side) for twin in marked]
        both = [m for m in both if m.right is not None and m.prediction.correct is not None]
        differ = [m.prediction.id for m in both if m.right != m.prediction.correct]
        if differ:
            notes.append(
                f"{side}: the file's own marks differ from the replies as read here for"
                f" {len(differ)} of {len(both)} items: {listing(differ)}; the replies count"
            )
    return notes
