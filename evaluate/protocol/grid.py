"""A grid of checkpoints with known doses, and how a detector meets the requirements on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flipbench.core.errors import DataError

UNTOUCHED = "clean"


@dataclass(frozen=True)
class GridModel:
    """One model of a grid and what is known of it.

    Attributes
    ----------
    strategy : str
        How it was trained on from the clean model; "clean" is that model itself. A dose of 0 with
        another strategy is a clean fine-tune: trained in the same way on other data of the same
        kind. It is the honest negative, since a detector may react to any training.
    dose : int or None
        Copies x epochs of every contaminated item; 0 for clean. None where nobody knows: such a
        model is neither clean nor contaminated. It is shown, serves as nobody's reference, and no
        verdict on it is right or wrong.
    lineage : str
        The clean model it descends from, where a family has several (seeds of pre-training, say).
        Models of one family and lineage are not independent of each other.
    trained_from : str
        Fingerprint of the weights that its last epoch began with, where that epoch was on all items
        of the benchmark; else empty.
    external : bool
        Whether it cannot have seen the benchmark, by its date or its data. A detector that fires
        on it measures something else there.
    warnings : tuple of str
        What the card of its training warns of, such as another pixel budget than it is asked with.

    Raises
    ------
    DataError
        Where an external or an untouched clean model has a dose, or may have one.
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

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        dose = "unknown" if self.dose is None else self.dose
        if self.external and self.dose != 0:
            raise DataError(
                f"{self.name}: a dose of {dose} for a model that cannot have seen the benchmark;"
                " use dose 0 for every model that was not trained on it"
            )
        if self.strategy == UNTOUCHED and self.dose != 0:
            raise DataError(f"{self.name}: strategy {UNTOUCHED!r}, but a dose of {dose}")
        if self.dose is not None and self.dose < 0:
            raise DataError(f"{self.name}: a dose of {dose}; a model that was not trained has 0")

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
        """Family and lineage: what resampling draws as a whole."""
        return f"{self.family}, {self.lineage}" if self.lineage else self.family


def reference_of(model: GridModel, grid: Sequence[GridModel]) -> GridModel | None:
    """Return the untouched clean model a model is compared with; None for that model itself.

    A clean fine-tune has a reference like a contaminated model: only so can a rule that compares
    with a clean model show what it says of the innocent.

    >>> base = GridModel("base", "0", "f", "clean", 0, 0)
    >>> other = GridModel("other", "1", "f", "LoRA", 1, 0)
    >>> reference_of(other, [base, other]) == base, reference_of(base, [base, other])
    (True, None)
    """
    if model.strategy == UNTOUCHED:
        return None
    alike = (m for m in grid if m.strategy == UNTOUCHED and m.cluster == model.cluster)
    return next(alike, None)


@dataclass(frozen=True)
class Requirements:
    """Practicality, reliability, consistency and specificity of one rule of one detector.

    Fractions as (hit, total); ``misses``, ``violations`` and ``false_alarms`` name models and
    series. Glyphs follow the core paper's Table 1; docs/papers.md tells how they are read off it.
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

    @property
    def reliability_glyph(self) -> str:
        """``✓`` if every contaminated model was detected, else ``✗``; ``–`` without any."""
        hit, total = self.reliability
        return "–" if total == 0 else "✓" if hit == total else "✗"

    @property
    def consistency_glyph(self) -> str:
        """``✓`` if all series are weakly monotone, ``▲`` if a third or more are, else ``✗``."""
        hit, total = self.consistency_weak
        return "–" if total == 0 else "✓" if hit == total else "▲" if 3 * hit >= total else "✗"

    @property
    def specificity_glyph(self) -> str:
        """``✓`` if no clean model was flagged, else ``✗``; ``–`` without any."""
        hit, total = self.specificity
        return "–" if total == 0 else "✓" if hit == total else "✗"

    @property
    def practicality_glyph(self) -> str:
        """``✓`` or ``✗``."""
        return "✓" if self.practical else "✗"
