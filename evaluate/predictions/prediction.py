"""The one vocabulary of predictions made elsewhere: what every reader returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Prediction:
    """What a file says of one model's reply to one item.

    Attributes
    ----------
    id : str
        The item's id in that file, by which original and perturbed are joined.
    where : str
        File and row, for messages.
    text : str or None
        The reply as it was given; None where the file holds none.
    gold : str
        The right answer as the file has it: a letter or an option's text.
    options : tuple of (letter, text)
        Those that the file shows; empty where it shows none.
    correct : bool or None
        What the file itself says of the reply; None where it does not say.
    error : str
        Why there is no reply to score. Never taken for a wrong answer.
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


@dataclass(frozen=True)
class PredictionFile:
    """A file's predictions in its order, and the names the file gives to model and benchmark."""

    path: Path
    layout: str
    predictions: tuple[Prediction, ...]
    model: str = ""
    benchmark: str = ""


def id_text(value: Any) -> str:
    """Return an id as text; 17 and 17.0 are the same id.

    >>> id_text(17), id_text(17.0), id_text(" a1 "), id_text(None)
    ('17', '17', 'a1', '')
    """
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def truth(value: Any) -> bool | None:
    """Return what a file's mark of a reply says; None where it is neither right nor wrong.

    >>> [truth(v) for v in (1, "0.0", "True", "C", "I", "N", "P", 0.5, "")]
    [True, False, True, True, False, False, None, None, None]
    """
    text = str(value).strip().lower()
    if text in ("1", "1.0", "true", "c", "correct", "right"):
        return True
    if text in ("0", "0.0", "false", "i", "n", "incorrect", "wrong"):
        return False
    return None


def listing(names: Sequence[str], shown: int = 5) -> str:
    """Return the first few names, and how many there are beyond them.

    >>> listing(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    text = ", ".join(repr(name) for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
