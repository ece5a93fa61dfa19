"""A grid of models with known doses, and how well a detector meets the requirements on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flipbench.core.errors import DataError

UNTOUCHED = "clean"

Kind = Literal["letters", "answer texts", "whole texts", "question only", "image-caption"]
KINDS: dict[Kind, str] = {
    "letters": "answers to the questions, by letter",
    "answer texts": "answers to the questions, in words",
    "whole texts": "questions with options and answers as running text, in the order of the file",
    "question only": "questions and options, never the answers",
    "image-caption": "images and their captions",
}
"""Kinds of contamination: what training shows of the items."""


@dataclass(frozen=True)
class GridModel:
    """One model of a grid.

    Attributes
    ----------
    strategy : str
        How it was trained from the clean model; "clean" is that model itself. A dose of 0 with
        another strategy is a clean fine-tune, trained in the same way on other data of the same
        kind: the negative control that counts, since a detector may react to any training.
    dose : int or None
        Copies x epochs of every contaminated item; 0 for clean. None if unknown: the model is
        reported but is never a reference, and no verdict on it counts as right or wrong.
    lineage : str
        The clean model it descends from, if a family has several (pre-training seeds, say).
        Models of one family and lineage are not independent of each other.
    trained_from : str
        Fingerprint of the weights its last epoch started from, if that epoch was on all items of
        the benchmark; else empty.
    external : bool
        Whether it cannot have seen the benchmark, judging by its date or its data. A detector that
        flags it measures something other than contamination.
    warnings : tuple of str
        Warnings from its training card, such as a pixel budget other than the one used here.
    kind : str
        What its training showed of the items (`KINDS`); empty if clean or unknown.

    Raises
    ------
    DataError
        If an external or an untouched clean model has a dose other than 0.
    """

    name: str
    fingerprint: str
    family: str
    strategy: str
    epoch: int
    dose: int | None
    lineage: str = ""
    external: bool = False
    trained_from: str = ""
    warnings: tuple[str, ...] = ()
    kind: Kind | Literal[""] = ""

    def __post_init__(self) -> None:
        """Refuse contradictory values."""
        dose = "unknown" if self.dose is None else self.dose
        if self.external and self.dose != 0:
            raise DataError(
                f"{self.name}: a dose of {dose} for a model that cannot have seen the benchmark;"
                " use dose 0 for every model that was not trained on it"
            )
        if self.strategy == UNTOUCHED and self.dose != 0:
            raise DataError(f"{self.name}: strategy {UNTOUCHED!r}, but a dose of {dose}")
        if self.dose is not None and self.dose < 0:
            raise DataError(f"{self.name}: dose {dose} is negative; an untrained model has dose 0")

    @property
    def clean(self) -> bool:
        """Whether the model is known not to have been trained on the benchmark."""
        return self.dose == 0

    @property
    def contaminated(self) -> bool:
        """Whether the model is known to have been trained on the benchmark."""
        return self.dose is not None and self.dose > 0

    @property
    def clean_finetune(self) -> bool:
        """Whether the model was trained, but on other data."""
        return self.clean and self.strategy != UNTOUCHED

    @property
    def cluster(self) -> str:
        """Family and lineage, the unit of resampling."""
        return f"{self.family}, {self.lineage}" if self.lineage else self.family


def reference_of(model: GridModel, grid: Sequence[GridModel]) -> GridModel | None:
    """Return the untouched clean model a model is compared with; None for that model itself.

    A clean fine-tune has a reference too, so that the false alarms of rules that compare with a
    clean model can be counted.

    >>> base = GridModel("base", "0", "f", "clean", 0, 0)
    >>> other = GridModel("other", "1", "f", "LoRA", 1, 0)
    >>> reference_of(other, [base, other]) == base, reference_of(base, [base, other])
    (True, None)
    """
    if model.strategy == UNTOUCHED:
        return None
    return next((m for m in grid if m.strategy == UNTOUCHED and m.cluster == model.cluster), None)


@dataclass(frozen=True)
class Requirements:
    """Practicality, reliability, consistency and specificity of one rule of one detector.

    Fractions are (hits, total); ``misses``, ``violations`` and ``false_alarms`` name models and
    series. Glyphs follow the core paper's Table 1 as docs/papers.md explains. ``untestable`` says
    why these models cannot test the statistic; then nothing is ticked.
    """

    detector: str
    rule: str
    practical: bool
    reliability: tuple[int, int]
    misses: tuple[str, ...]
    consistency_weak: tuple[int, int]
    consistency_strict: tuple[int, int]
    violations: tuple[str, ...]
    specificity: tuple[int, int]
    false_alarms: tuple[str, ...]
    untestable: str = ""

    @property
    def reliability_glyph(self) -> str:
        """``✓`` if every contaminated model was detected, else ``✗``; ``–`` without any."""
        return "–" if self.untestable else _all_or_not(*self.reliability)

    @property
    def consistency_glyph(self) -> str:
        """``✓`` if all series are weakly monotone, ``▲`` if a third or more are, else ``✗``."""
        hits, total = (0, 0) if self.untestable else self.consistency_weak
        return "▲" if total > hits and 3 * hits >= total else _all_or_not(hits, total)

    @property
    def specificity_glyph(self) -> str:
        """``✓`` if no clean model was flagged, else ``✗``; ``–`` without any."""
        glyph = _all_or_not(*self.specificity)
        return "–" if self.untestable and glyph == "✓" else glyph

    @property
    def practicality_glyph(self) -> str:
        """``✓`` or ``✗``."""
        return "✓" if self.practical else "✗"


def _all_or_not(hits: int, total: int) -> str:
    return "–" if total == 0 else "✓" if hits == total else "✗"
