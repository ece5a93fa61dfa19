"""Claims of a text, each checked against the file of results that it rests on."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import jmespath
import yaml
from jmespath.exceptions import JMESPathError
from pydantic import Field, model_validator

from flipbench.benchmarks.tables import numbered_rows, read_json, read_rows
from flipbench.config.loading import validated
from flipbench.config.yaml_text import parse_yaml, read_yaml
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Value
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Table, build_table, text_column

Outcome = Literal["supported", "contradicted", "missing"]
Figure = float | str
_NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")


class Evidence(Value):
    """A figure in a file of results."""

    file: Path = Field(description="JSON, JSON lines, YAML, CSV or TSV; from the claims file")
    path: str = Field(description="JMESPath of the figure; a table is a list of its rows")
    divided_by: Evidence | None = Field(default=None, description="the figure is this ratio")


class Printed(Value):
    """The place where a text prints the figure."""

    file: Path
    text: str = Field(description="words of the text, with {} for the figure")

    @model_validator(mode="after")
    def _has_one_figure(self) -> Self:
        if self.text.count("{}") != 1:
            raise ValueError("text needs {} once, where the figure stands")
        return self


class Bounds(Value):
    """What a figure must be: equal up to a tolerance, or within bounds."""

    expected: Figure | None = None
    tolerance: float = Field(default=0.0, ge=0, description="largest absolute difference")
    relative_tolerance: float = Field(default=0.0, ge=0)
    at_least: float | None = None
    at_most: float | None = None


class Control(Bounds):
    """A control that the claim must survive: a further figure and what it must be."""

    name: str
    evidence: Evidence


class Claim(Bounds):
    """A claim, its evidence, where it is printed, and the controls it must survive."""

    claim: str
    evidence: Evidence
    printed: Printed | None = None
    survives: tuple[Control, ...] = ()
    outcome: Outcome = Field(
        default="supported", description="what the check is known to find, if not support"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        conditions = (self.printed, self.expected, self.at_least, self.at_most)
        if all(value is None for value in conditions):
            raise ValueError("give printed, expected, at_least or at_most")
        if self.printed is not None and self.expected is not None:
            raise ValueError("give printed or expected, not both: the text is what is checked")
        return self


class Claims(Value):
    """The contents of a claims file."""

    claims: tuple[Claim, ...] = Field(min_length=1)


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and what its evidence says.

    Attributes
    ----------
    outcome : str
        ``supported``, ``contradicted``, or ``missing`` if a file, figure or sentence is not there.
    stated, found : float, str or None
        The claim's figure and the evidence's; None if there is none.
    reason : str
        Why it is not supported, or which controls it survived.
    """

    claim: Claim
    outcome: Outcome
    stated: Figure | None
    found: Figure | None
    reason: str = ""

    @property
    def as_known(self) -> bool:
        """Whether the outcome is the one that the claims file names."""
        return self.outcome == self.claim.outcome


class _Missing(Exception):
    """A file, figure or sentence that is not there."""


def read_claims(path: Path) -> list[Claim]:
    """Read a claims file.

    Raises
    ------
    ConfigError
        If it is missing, not YAML, or has an unknown or missing key; the message names the claim.
    """
    try:
        data = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return list(validated(Claims, data, path).claims)


def check_claims(claims: Sequence[Claim], folder: Path) -> list[CheckedClaim]:
    """Check every claim; files are found from ``folder``.

    References
    ----------
    The claims-to-evidence map of Xu, Wu, Ryu, arXiv 2606.10066. Ours reads the figures from the
    text and from the results, so neither is typed a second time.
    """
    return [_check(claim, folder) for claim in claims]


def claims_table(claims: Sequence[CheckedClaim]) -> Table:
    """Return one row for each claim, with the counts in the caption."""
    counts = Counter(claim.outcome for claim in claims)
    words = ", ".join(f"{counts[name]} {name}" for name in ("supported", "contradicted", "missing"))
    return build_table(
        "claims",
        f"{len(claims)} claims: {words}.",
        "claim",
        [
            (text_column(""), _mark),
            (text_column("stated"), lambda claim: _text(claim.stated)),
            (text_column("found"), lambda claim: _text(claim.found)),
            (
                text_column("evidence"),
                lambda claim: f"{claim.claim.evidence.file}: {claim.claim.evidence.path}",
            ),
            (text_column("remarks"), _remark),
        ],
        {"": [(claim.claim.claim, claim) for claim in claims]},
    )


def _mark(claim: CheckedClaim) -> Cell:
    return Cell(claim.outcome, mark="✓" if claim.outcome == "supported" else "✗")


def _remark(claim: CheckedClaim) -> str:
    is_expected_failure = claim.outcome != "supported" and claim.as_known
    return f"{'as known; ' if is_expected_failure else ''}{claim.reason}"


def _text(figure: Figure | None) -> str:
    if figure is None:
        return formats.NOTHING
    return figure if isinstance(figure, str) else f"{figure:.6g}".replace("-", formats.MINUS)


def _check(claim: Claim, folder: Path) -> CheckedClaim:
    stated: Figure | None = claim.expected
    try:
        figure = _figure(claim.evidence, folder)
        bounds: Bounds = claim
        if claim.printed is not None:
            text = _match(claim.printed, folder, isinstance(figure, str))
            stated = text if isinstance(figure, str) else _number(text)
            changes: dict[str, Figure] = {"expected": stated}
            _, _, decimals = text.partition(".")
            if not isinstance(figure, str) and decimals:
                if claim.tolerance == claim.relative_tolerance == 0:
                    changes["tolerance"] = 0.5 * 10 ** -len(decimals)  # of the last printed digit
            bounds = claim.model_copy(update=changes)
        if complaint := _violated(bounds, figure):
            return CheckedClaim(claim, "contradicted", stated, figure, complaint)
        for control in claim.survives:
            value = _figure(control.evidence, folder)
            if complaint := _violated(control, value):
                reason = f"does not survive {control.name}: {_text(value)}, {complaint}"
                return CheckedClaim(claim, "contradicted", stated, figure, reason)
    except _Missing as missing:
        return CheckedClaim(claim, "missing", stated, None, str(missing))
    survived = ", ".join(control.name for control in claim.survives)
    return CheckedClaim(claim, "supported", stated, figure, survived and f"survives {survived}")


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _violated(bounds: Bounds, figure: Figure) -> str:
    """Return how a figure differs from what it must be; empty if it does not."""
    if isinstance(bounds.expected, str) or isinstance(figure, str):
        is_same = bounds.expected is None or str(bounds.expected) == str(figure)
        return "" if is_same else f"not {bounds.expected}"
    if bounds.expected is not None:
        slack = max(bounds.tolerance, bounds.relative_tolerance * abs(bounds.expected))
        if not math.isclose(figure, bounds.expected, rel_tol=1e-9, abs_tol=slack + 1e-12):
            return f"not {_text(bounds.expected)}" + (f" ± {slack:g}" if slack else "")
    if bounds.at_least is not None and not figure >= bounds.at_least:
        return f"below {bounds.at_least:g}"
    if bounds.at_most is not None and not figure <= bounds.at_most:
        return f"above {bounds.at_most:g}"
    return ""


def _figure(evidence: Evidence, folder: Path) -> Figure:
    try:
        value = jmespath.search(evidence.path, _data(folder / evidence.file))
    except JMESPathError as error:
        raise ConfigError(f"{evidence.path!r} is not a JMESPath: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        kind = "nothing" if value is None else f"a {type(value).__name__}, not a figure"
        raise _Missing(f"{evidence.file}: {evidence.path} gives {kind}")
    if evidence.divided_by is None:
        return value if isinstance(value, str) else float(value)
    divisor = _figure(evidence.divided_by, folder)
    if isinstance(value, str) or isinstance(divisor, str) or divisor == 0:
        raise _Missing(f"{value!r} cannot be divided by {divisor!r}")
    return value / divisor


def _match(quotation: Printed, folder: Path, as_text: bool) -> str:
    """Return what a text prints in place of ``{}``."""
    head, tail = map(re.escape, " ".join(quotation.text.split()).split("{}"))
    figure = "(.+?)" if as_text else f"({_NUMBER.pattern})"
    text = " ".join(_text_of(folder / quotation.file).split())
    matches = re.findall(head + figure + tail, text)
    if len(matches) != 1:
        times = "does not occur" if not matches else f"occurs {len(matches)} times"
        raise _Missing(f"{quotation.file}: {quotation.text!r} {times}")
    return str(matches[0])


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _Missing(f"{path.name}: cannot be read ({error.__class__.__name__})") from error


def _data(path: Path) -> Any:
    try:
        match path.suffix:
            case ".json":
                return read_json(path)
            case ".jsonl":
                return [row.cells for row in read_rows(path)]
            case ".yaml" | ".yml":
                return parse_yaml(_text_of(path))
            case ".csv" | ".tsv":
                _, rows = numbered_rows(path)
                return [{name: _value(cell) for name, cell in row.items()} for _, row in rows]
    except OSError as error:
        raise _Missing(f"{path.name}: cannot be read ({error.__class__.__name__})") from error
    except DataError as error:
        raise _Missing(str(error).replace(str(path), path.name)) from error
    except yaml.YAMLError as error:
        raise _Missing(f"{path.name}: not well-formed ({error})") from error
    raise ConfigError(f"{path}: evidence must be .json, .jsonl, .yaml, .csv or .tsv")


def _value(cell: str) -> Figure | None:
    try:
        return _number(cell)
    except ValueError:
        return cell or None
