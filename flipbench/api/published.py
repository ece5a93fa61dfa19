"""What is published about models: contamination cards, printed tables, and claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flipbench.api.options import Option
from flipbench.api.stages.display import Result
from flipbench.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from flipbench.evaluate.verdict.transparency_card import TransparencyCard


@dataclass(frozen=True, repr=False)
class CardResult(Result):
    """A contamination transparency card, and its files."""

    content: TransparencyCard
    files: Sequence[Path]

    def __str__(self) -> str:
        findings, checks = self.content.findings, self.content.checks
        if len(findings) == 1:
            return findings[0].sentence
        return f"{len(findings)} models, {len(checks)} rules of detectors"


def card(
    run: str | Path, *, rates: str | Path | None = None, out: str | Path | None = None
) -> CardResult:
    """Write a contamination transparency card: what was checked, at which error rates, the result.

    As Markdown and JSON, to publish beside a model or a benchmark. Nothing is asked again.

    Parameters
    ----------
    run : str or Path
        The run directory of a detect or evaluate, or its report.
    rates : str or Path, optional
        A report on models of known history, for the detectors' error rates.
    out : str or Path, optional
        Folder to write; by default that of the report.

    Raises
    ------
    ConfigError, DataError
        If there is no finished result, or the rates are of the same models.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.card("runs/detect-mine", rates="docs/results/demo.json")  # doctest: +SKIP
    """
    from flipbench.evaluate.verdict.transparency_card import card_of, write_card

    place = Path(run)
    content = card_of(place, None if rates is None else Path(rates))
    report = place / "report"
    beside = report if report.is_dir() else place if place.is_dir() else place.parent
    return CardResult(content, write_card(content, Path(out) if out else beside))


@dataclass(frozen=True, repr=False)
class DoctorResult(Result):
    """What was examined, and whether it can be true."""

    text: str
    is_sound: bool = True
    is_markdown: bool = False

    @property
    def n_failed(self) -> int:
        """1 where something cannot be true, or a claim is not supported."""
        return int(not self.is_sound)

    def __str__(self) -> str:
        return self.text


def doctor(
    paths: Annotated[str | Path | Sequence[str | Path], Option(metavar="[PATH]...")] = (),
    *,
    out: str | Path | None = None,
) -> DoctorResult:
    """Show the environment; or examine a checkpoint's card, printed tables, or claims.

    A CSV of published results is examined for percentages that no count gives, gaps that are not
    the difference of their figures, and figures that cannot be of the same items; several files are
    also compared with each other. The claims of a YAML file are checked against the result files
    they rest on, whose paths are relative to its folder. Exit status 1 where something cannot be
    true, or a claim has another outcome than the file names ("supported" by default).

    Parameters
    ----------
    paths : str, Path or sequence of them, optional
        A checkpoint folder, CSV files of printed results, or claims.yaml.
    out : str or Path, optional
        Folder for the table of claims as Markdown and CSV.

    Raises
    ------
    ConfigError, DataError
        If a path is none of these.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.doctor("docs/claims.yaml").is_sound  # doctest: +SKIP
    True
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    suffixes = {path.suffix for path in files}
    if out is not None and not suffixes & {".yaml", ".yml"}:
        raise ConfigError("--out is for the table of a claims file")
    if not files:
        from flipbench.core.run import environment

        return DoctorResult(json.dumps(environment(), indent=2))
    if suffixes == {".csv"}:
        from flipbench.evaluate.published.doctor import examination

        text, is_wrong = examination(files)
        return DoctorResult(text, not is_wrong)
    if len(files) > 1:
        raise ConfigError("give one checkpoint folder, one claims file, or CSV files only")
    (path,) = files
    if path.suffix in (".yaml", ".yml"):
        from flipbench.evaluate.published.claims import check_claims, claims_table, read_claims
        from flipbench.reporting.writers import markdown, write_tables

        claims = check_claims(read_claims(path), path.parent)
        table = claims_table(claims)
        text = markdown(table)
        if out is not None:
            page = write_tables([table], Path(out), "claims.md", "Claims and their evidence")
            text += f"\n{page}"
        return DoctorResult(text, all(claim.as_known for claim in claims), True)
    if not path.is_dir():
        raise DataError(
            f"{path}: no such folder; give a checkpoint's, or CSV files of printed results"
        )
    from flipbench.contaminate.checks.card import history_of

    return DoctorResult(f"{path}: {history_of(path)}")
