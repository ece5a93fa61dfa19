"""The report of a grid: tables and figures as files, and one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import writers
from flipbench.reporting.pages import environment
from flipbench.reporting.tables import Table

from ..protocol.grid import GridModel, Requirements
from ..validation.validation import Validation, validate
from . import table_files
from .figures import Figure, make_figures
from .gallery import BUDGET, make_gallery
from .tables import GAP, TEST, gap_table, other_table, rule_title, title
from .validation_figures import make_validation_figures
from .validation_tables import (
    detectors_table,
    requirements_table,
    validation_table,
)

PAGE_BYTES = 4_900_000
_TEMPLATES = Path(__file__).parent / "templates"
_SUBJECTS = {
    TEST: "The exact McNemar test of the perturbation gap",
    "sign": "The sign of the gap alone, the paper’s rule,",
    "relative": "Comparing the gap with the clean model’s",
}


@dataclass
class ReportData:
    """What a report is made of.

    Attributes
    ----------
    grid : list of GridModel
        The models, in the order they are shown.
    scores : list of Score
        Every score of these models; others are left out.
    settings : dict of str
        How this was made: command, seed, versions.
    notes : list of str
        What the page shows and what it does not, in plain sentences.
    raters : list of Table
        Who decided which pairs are valid, held against people or the truth.
    kept : list of Table
        The kept items beside all.
    groups : Table or None
        Right answers to whole questions, on whole images and in whole groups, model by model.
    """

    title: str
    benchmark: PairedBenchmark
    grid: list[GridModel]
    scores: list[Score]
    requirements: list[Requirements] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    raters: list[Table] = field(default_factory=list)
    kept: list[Table] = field(default_factory=list)
    groups: Table | None = None


def write_report(data: ReportData, folder: Path) -> Path:
    """Write tables, figures and ``index.html`` into ``folder``; return the page's path.

    Raises
    ------
    DataError
        Where no score belongs to the grid, or an image of the benchmark is gone.
    """
    tables = [gap_table(data.grid, data.scores)]
    others = other_table(data.grid, data.scores)
    tables += [others] if others else []
    needed = requirements_table(data.requirements)
    validations = _validations(data)
    validation = [make(validations) for make in (detectors_table, validation_table) if validations]
    folder.mkdir(parents=True, exist_ok=True)
    _write_tables(data, tables, needed, folder)
    if validation:
        _write_validation(validations, validation, data.notes, folder)
    checks = make_validation_figures(validations, data.grid, data.scores, folder)
    figures = make_figures(data.benchmark, data.grid, data.scores, folder)
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    pages = environment(_TEMPLATES)
    pages.filters["data_uri"] = _svg_uri
    html = pages.get_template("report.html.jinja").render(
        title=data.title,
        data=data,
        headline=headline(data.grid, data.scores),
        tables=tables,
        requirements=needed if data.requirements else None,
        validation=validation,
        checks=checks,
        figures=figures,
        gallery=make_gallery(
            data.benchmark, data.grid, data.scores, _room(data, [*checks, *figures])
        ),
        warnings=warnings_of(data.scores),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return write_atomically(folder / "index.html", html)


def headline(grid: Sequence[GridModel], scores: Sequence[Score]) -> list[str]:
    """Return what each rule of the perturbation gap says of the grid, the test first.

    Each sentence counts the contaminated models that were caught and the clean ones flagged.
    """
    rules = dict.fromkeys(score.rule for score in scores if score.detector == GAP)
    ordered = sorted(rules, key=lambda rule: rule != TEST)
    found = [_sentence(rule, grid, scores) for rule in ordered]
    return [sentence for sentence in found if sentence] or [
        "The perturbation gap was not measured on this grid."
    ]


def warnings_of(scores: Sequence[Score]) -> list[tuple[str, list[str]]]:
    """Return each distinct warning with what it was said of (model, detector, rule)."""
    found: dict[str, list[str]] = {}
    for score in scores:
        subject = (
            f"{score.model}: {title(score.detector)}, {rule_title(score.detector, score.rule)}"
        )
        for warning in score.warnings:
            found.setdefault(warning, []).append(subject)
    return list(found.items())


def _sentence(rule: str, grid: Sequence[GridModel], scores: Sequence[Score]) -> str:
    mine = {s.model_fingerprint: s for s in scores if (s.detector, s.rule) == (GAP, rule)}
    judged = [
        (model, mine[model.fingerprint].verdict)
        for model in grid
        if model.fingerprint in mine and mine[model.fingerprint].verdict != "not_applicable"
    ]
    dirty = [verdict for model, verdict in judged if model.contaminated]
    clean = [verdict for model, verdict in judged if model.clean]
    parts = []
    if dirty:
        caught = f"caught {dirty.count('contaminated')} of {len(dirty)} contaminated models"
        parts.append(caught if len(dirty) > 1 else caught.removesuffix("s"))
    if clean:
        parts.append(f"flagged {clean.count('contaminated')} of {len(clean)} clean")
    unknown = [verdict for model, verdict in judged if model.dose is None]
    if unknown:
        count = f"{unknown.count('contaminated')} of {len(unknown)}"
        parts.append(f"called {count} models of unknown history contaminated")
    if not parts:
        return ""
    verdicts = [verdict for _, verdict in judged]
    unsure = verdicts.count("inconclusive")
    tail = f"; {unsure} {'is' if unsure == 1 else 'are'} inconclusive" if unsure else ""
    return f"{_SUBJECTS.get(rule, f'Rule {rule!r}')} {' and '.join(parts)}{tail}."


def _write_tables(data: ReportData, tables: Sequence[Table], needed: Table, folder: Path) -> None:
    head = f"# {data.title}\n\n{' '.join(headline(data.grid, data.scores))}\n"
    first = [tables[0], *([data.groups] if data.groups else [])]
    main = [head, *(writers.markdown(table) for table in first)]
    below = _below(data.notes)
    write_atomically(folder / "gap.md", "\n".join([*main, *below]))
    rest = [*tables[1:], *data.raters, *data.kept]
    parts = [*main, *(writers.markdown(table) for table in rest), *below]
    write_atomically(folder / "table.md", "\n".join(parts))
    of_models = writers.latex_document([*first, *tables[1:]], data.notes)
    write_atomically(folder / "table.tex", of_models)
    met = "\n".join([writers.markdown(needed), *below])
    write_atomically(folder / "requirements.md", met)
    table_files.write_scores_csv(folder / "table.csv", data.grid, data.scores)
    table_files.write_requirements_csv(folder / "requirements.csv", data.requirements)


def _below(notes: Sequence[str]) -> list[str]:
    """Return what stands below a table in Markdown, if anything does."""
    return ["".join(f"- {note}\n" for note in notes)] if notes else []


def _room(data: ReportData, figures: Sequence[Figure]) -> int:
    """Return the bytes left for thumbnails on a page of `PAGE_BYTES`."""
    drawn = sum(len(panel.svg) for figure in figures for panel in figure.panels) * 4 // 3
    names = sum(len(model.name) + 2 for model in data.grid)
    texts = [
        text
        for p in data.benchmark.pairs
        for text in (p.original.question, *(p.original.options or ()), p.caption)
    ]
    cards = 2 * sum(len(text.encode()) for text in texts)
    cards += (1_200 + names) * len(data.benchmark.pairs)
    cards += 300 * sum(pair.control is not None for pair in data.benchmark.pairs)
    left = PAGE_BYTES - drawn - cards - 300_000  # tables, style and script
    return min(BUDGET, max(left, BUDGET // 10))


def _validations(data: ReportData) -> list[Validation]:
    """Check the detectors where the grid can: with contaminated and clean, or external, models."""
    kinds = {model.clean for model in data.grid if model.dose is not None}
    can = len(kinds) == 2 or any(model.external for model in data.grid)
    return validate(data.scores, data.grid) if can else []


def _write_validation(
    validations: Sequence[Validation], tables: Sequence[Table], notes: Sequence[str], folder: Path
) -> None:
    for table in tables:
        text = "\n".join([writers.markdown(table), *_below(notes)])
        write_atomically(folder / f"{table.key}.md", text)
    document = writers.latex_document(tables, notes)
    write_atomically(folder / "validation.tex", document)
    table_files.write_validation_csv(folder / "validation.csv", validations)


def _svg_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
