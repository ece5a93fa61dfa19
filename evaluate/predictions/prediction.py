"""Predictions of other evaluation kits: what every reader returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Prediction:
    """A model's reply to one item, as read from a file.

    Attributes
    ----------
    id : str
        The item's id in the file, by which original and perturbed predictions are joined.
    where : str
        File and row, for messages.
    text : str or None
        The raw reply; None if the file has none.
    gold : str
        The right answer as written in the file: a letter or an option's text.
    options : tuple of (letter, text)
        The options in the file; empty if it has none.
    correct : bool or None
        The file's own mark; None if it has none.
    error : str
        Why there is no reply to score. Never counted as a wrong answer.
    cut_off : bool
        Whether the reply ended at its limit of tokens.
    judged_by : str
        Who judged that the item's pair is valid, as an export of ours says; empty if nobody.
    right : bool or None
        The outcome; None if there is nothing to score, or it has not been scored.
    choice : int or None
        -1 if the reply names no option; None if the file's own mark is the outcome.
    """

    id: str
    where: str
    text: str | None
    gold: str
    options: tuple[tuple[str, str], ...] = ()
    correct: bool | None = None
    question: str = ""
    group: str = ""
    error: str = ""
    cut_off: bool = False
    judged_by: str = ""
    right: bool | None = None
    choice: int | None = None

    @property
    def unparsed(self) -> bool:
        """Whether the reply was parsed and names no option."""
        return self.right is not None and self.choice == -1


@dataclass(frozen=True)
class PredictionPair:
    """The predictions for the two versions of an item.

    Attributes
    ----------
    golds : (int, int)
        Positions of the right options of the two versions; -1 if the file's own marks are used.
    n_options : int
        0 if the file does not list the options.
    """

    original: Prediction
    perturbed: Prediction
    golds: tuple[int, int] = (-1, -1)
    n_options: int = 0

    @property
    def id(self) -> str:
        """The id of the item, which is the same in both files."""
        return self.original.id

    @property
    def sides(self) -> dict[str, Prediction]:
        """Both predictions by name."""
        return {"original": self.original, "perturbed": self.perturbed}

    @property
    def answered(self) -> bool:
        """Whether both replies are right or wrong."""
        return self.original.right is not None and self.perturbed.right is not None

    def without_replies(self) -> PredictionPair:
        """Return the same pair for a model that was not asked about it."""
        return replace(
            self,
            original=replace(self.original, right=None, choice=None),
            perturbed=replace(self.perturbed, right=None, choice=None),
        )


@dataclass(frozen=True)
class PredictionFile:
    """A file's predictions in order, and its names for model and benchmark."""

    path: Path
    layout: str
    predictions: tuple[Prediction, ...]
    model: str = ""
    benchmark: str = ""


def id_text(value: Any) -> str:
    """Return an id as text; 17 and 17.0, as numbers or as text, are the same id.

    >>> id_text(17), id_text(17.0), id_text("17.0"), id_text(" a1 "), id_text(None)
    ('17', '17', '17', 'a1', '')
    """
    text = "" if value is None else str(value).strip()
    whole, point, zeros = text.partition(".")
    return whole if point and zeros and not zeros.strip("0") and whole.isdigit() else text


def truth(value: Any) -> bool | None:
    """Return whether a file's mark means right; None if it is neither right nor wrong.

    >>> [truth(v) for v in (1, "0.0", "True", "C", "I", "N", "P", 0.5, "")]
    [True, False, True, True, False, False, None, None, None]
    """
    text = str(value).strip().lower()
    if text in ("1", "1.0", "true", "c", "correct", "right"):
        return True
    if text in ("0", "0.0", "false", "i", "n", "incorrect", "wrong"):
        return False
    return None


def listing(names: Sequence[str], n_shown: int = 5) -> str:
    """Return the first few names and the number of others.

    >>> listing(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    text = ", ".join(repr(name) for name in names[:n_shown])
    return text if len(names) <= n_shown else f"{text} and {len(names) - n_shown} more"
