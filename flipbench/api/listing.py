"""What there is to measure with: the detectors, and how many pairs a test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from flipbench.api.options import Option
from flipbench.api.stages import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.evaluate.protocol.detector import About
    from flipbench.reporting.tables import Table

_FIRST = "perturbation"
"""The family that is listed first."""


@dataclass(frozen=True, repr=False)
class DetectorTable(display.Result):
    """Detectors by name: paper, access they need, and how they differ from the paper."""

    names: tuple[str, ...]

    @property
    def abouts(self) -> list[About]:
        """The facts about each detector."""
        from flipbench.evaluate.detectors.registry import DETECTORS

        return [DETECTORS[name].about for name in self.names]

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each detector."""
        import pandas as pd

        rows = [
            {
                "name": about.name,
                "title": about.title,
                "needs": ", ".join(sorted(about.needs)),
                "clean model": about.clean_model,
                "default rule": about.default_rule,
                "contaminated": about.direction,
                "evidence": about.evidence,
                "caveat": about.caveat,
                "paper": about.paper,
            }
            for about in self.abouts
        ]
        return pd.DataFrame(rows)

    def overview(self) -> Table:
        """Return one short row for each detector, family by family."""
        from flipbench.evaluate.detectors.registry import DETECTORS
        from flipbench.reporting.tables import Cell, Column, Row, Table

        groups: dict[str, list[Row]] = {}
        for about in self.abouts:
            family = type(DETECTORS[about.name]).__module__.split(".")[-2:][0]  # its folder
            cells = (
                Cell(", ".join(sorted(about.needs))),
                Cell("yes" if about.needs_clean_model() else "no"),
                Cell(about.evidence or "not graded"),
            )
            groups.setdefault(family, []).append(Row(about.name, cells))
        heads = ("Needs", "Clean model", "Evidence")
        columns = tuple(Column(head, numeric=False) for head in heads)
        sections = tuple(
            (family.replace("_", " ").capitalize(), tuple(groups[family]))
            for family in sorted(groups, key=lambda family: (family != _FIRST, family))
        )
        return Table("detectors", "", "Detector", columns, sections)

    def markdown(self) -> str:
        """Return the table of docs/papers.md."""
        from flipbench.evaluate.detectors.registry import markdown_table

        return markdown_table(self.names)

    def __str__(self) -> str:
        """Return a paragraph for each detector, its parameters included."""
        from flipbench.evaluate.detectors.parameters import parameters_of
        from flipbench.evaluate.detectors.registry import DETECTORS

        paragraphs = []
        for about in self.abouts:
            parameters = parameters_of(DETECTORS[about.name])
            values = ", ".join(f"{key} {value}" for key, value in parameters.items())
            paragraphs.append(
                f"{about.name}\n  {about.paper}\n  {about.variant}\n"
                f"  contaminated: {about.direction}; needs {', '.join(sorted(about.needs))}\n"
                f"  rules that need a clean model: {about.clean_model}\n"
                f"  differs from the paper: {about.deviates_from_paper}\n"
                f"{_line('evidence', about.evidence)}{_line('caveat', about.caveat)}"
                f"  evaluate.parameters.{about.name}: {values}\n"
            )
        return "\n".join(paragraphs)

    def __repr__(self) -> str:
        return f"<DetectorTable: {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        caption = "Needs: what a model must be able to do. Clean model: the rules that need one."
        table = display.frame_table("detectors", caption, self.to_frame())
        return display.html(f"{len(self.names)} detectors", [table])


def _line(name: str, value: str) -> str:
    return f"  {name}: {value}\n" if value else ""


def detectors(names: str | Sequence[str] = ()) -> DetectorTable:
    """List the detectors; with names: papers, rules, what they need and how they differ.

    Parameters
    ----------
    names : str or sequence of str
        Names or import paths; all of them by default.

    Raises
    ------
    ConfigError
        If there is no such detector.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.detectors(["perturbation_gap", "min_k"])
    <DetectorTable: perturbation_gap, min_k>
    """
    from flipbench.evaluate.detectors.registry import DETECTORS, names_of

    requested = [names] if isinstance(names, str) else names
    return DetectorTable(tuple(names_of(requested or DETECTORS, "detectors")))


@dataclass(frozen=True, repr=False)
class PowerResult(display.Result):
    """How many pairs the McNemar test needs, how often it sees a gap, or which gap it sees.

    Attributes
    ----------
    pairs_needed : mapping of float to int or None
        By power, without a number of pairs; None where it is out of reach.
    power : float, optional
        How often so many pairs would see the gap, a fraction.
    detectable_gap : float, optional
        The smallest gap (negative, a fraction) that so many pairs see four times in five; None if
        there is none.
    """

    n_pairs: int | None = None
    pairs_needed: Mapping[float, int | None] = field(default_factory=dict)
    power: float | None = None
    detectable_gap: float | None = None

    def __str__(self) -> str:
        if self.pairs_needed:
            return "\n".join(
                f"power {level:.2f}: {'out of reach' if n is None else f'{n:,} pairs'}"
                for level, n in self.pairs_needed.items()
            )
        if self.power is not None:
            return f"{self.n_pairs} pairs: power {self.power:.3f}"
        gap = self.detectable_gap
        gap_text = "no gap" if gap is None else f"a gap of {100 * gap:.1f} points"
        return f"{self.n_pairs} pairs: {gap_text} is seen four times in five"


def _fraction(percent: float) -> float:
    return percent / 100


def power(
    *,
    changed: Annotated[float, Option("--changed", parse=_fraction)],
    gap: Annotated[float | None, Option("--gap", parse=_fraction)] = None,
    n_pairs: Annotated[int | None, Option("--pairs", min=1)] = None,
    alpha: float = 0.05,
) -> PowerResult:
    """Say how many pairs the McNemar test needs to see a gap, or how often it would see it.

    With a number of pairs and no gap: the smallest gap that so many pairs see four times in five,
    if a clean model gets the changed share of the items right in one version only.

    Parameters
    ----------
    changed : float
        Items right in one version only, in percent.

        In Python a fraction.
    gap : float, optional
        Expected gap in points, e.g. -5; part of --changed.

        In Python a fraction.
    n_pairs : int, optional
        Power of a benchmark this size.
    alpha : float
        Level of the one-sided exact test.

    Raises
    ------
    ConfigError
        If neither a gap nor pairs are given, or no design has these values.

    Examples
    --------
    >>> import flipbench as fb
    >>> print(fb.power(changed=0.3, gap=-0.05, n_pairs=400))
    400 pairs: power 0.538
    >>> fb.power(changed=0.3, gap=-0.05).pairs_needed[0.8]
    776
    >>> fb.power(changed=0.2, n_pairs=400).detectable_gap
    -0.067
    """
    from flipbench.core.errors import ConfigError
    from flipbench.evaluate.statistics import power as statistics

    if gap is None:
        if n_pairs is None:
            raise ConfigError("give --gap (pairs needed), --pairs (gap that is seen), or both")
        if not 0 < changed <= 1:
            raise ConfigError(f"--changed {100 * changed:g}: a share of the items, up to 100 %")
        drop = statistics.detectable_drop(n_pairs, changed, alpha, 0.8)
        return PowerResult(n_pairs, detectable_gap=None if drop is None else -drop)
    if gap >= 0:
        raise ConfigError(f"--gap {100 * gap:g}: a fall is negative, e.g. -5")
    if not -gap <= changed <= 1:
        raise ConfigError(
            f"--changed {100 * changed:g}: a gap of {100 * gap:g} points needs {-100 * gap:g} to"
            " 100 % of the items right in one version only"
        )
    try:
        design = statistics.Design(gap=gap, discordance=changed, alpha=alpha)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if n_pairs is not None:
        return PowerResult(n_pairs, power=statistics.power(design, n_pairs))
    levels = (0.8, 0.9, 0.95)
    return PowerResult(pairs_needed={x: statistics.pairs_needed(design, x) for x in levels})
