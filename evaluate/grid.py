"""A grid of checkpoints with known doses, and how a detector meets the requirements on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GridModel:
    """One model of a grid; ``dose`` = copies x epochs of every contaminated item, 0 for clean."""

    name: str
    fingerprint: str
    family: str
    strategy: str
    epoch: int
    dose: int

    @property
    def clean(self) -> bool:
        """Whether the model has not been trained on the benchmark."""
        return self.dose == 0


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
