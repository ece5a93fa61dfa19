"""The report of a grid: tables and figures as files, and a self-contained page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from flipbench.core.files import markdown_text, without_html, write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import writers
from flipbench.reporting.figures import Figure
from flipbench.reporting.pages import environment
from flipbench.reporting.sections import Section
from flipbench.reporting.tables import Table

from ..protocol.grid import GridModel, Requirements
from ..report.dose_figures import make_figures
from ..report.quadrants import STATUS, quadrant_section
from ..report.results import Results, write_results
from ..report.score_frame import score_frame, write_scores_csv
from ..report.score_tables import cell_key, detector_tables, gap_table, other_table
from ..report.titles import GAP, RELATIVE, TEST, VERDICTS, rule_title, title
from ..report.validation_figures import (
    FIFTHS,
    make_validation_figures,
    overview_heats,
)
from ..report.validation_tables import (
    blind_table,
    controls_table,
    detector_results,
    detectors_table,
    requirements_rows,
    requirements_table,
    validation_frame,
    validation_table,
)
from ..validation.validation import Validation, validate
from .explorer import Replies, make_explorer
from .gallery import BUDGET, make_gallery

PAGE_BYTES = 4_900_000
_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("gallery.js", "tables.js", "viewer.js")
_RULE_SUBJECTS = {
    TEST: "The exact McNemar test of the perturbation gap",
    RELATIVE: "The gap, compared with the clean model’s,",
}


@dataclass
class ReportData:
    """The content of a report.

    Attributes
    ----------
    grid : list of GridModel
        The models, in display order.
    scores : list of Score
        Every score of these models; scores of other models are left out.
    settings : dict of str
        How this was made: command, seed, versions.
    n_answers : int
        Of all models to the questions of all detectors.
    notes : list of str
        What the page shows and what it does not, in plain sentences.
    raters : list of Table
        Who decided which pairs are valid, compared with people or the truth.
    kept : list of Table
        The kept items compared with all items.
    groups : Table or None
        NaturalBench's group metrics of each model.
    sections : list of Section
        Further sections of the page; their figures are in the report's folder already.
    replies : mapping
        The models' replies to both versions of each pair, which the page shows beside the items.
    """

    title: str
    benchmark: PairedBenchmark
    grid: list[GridModel]
    scores: list[Score]
    requirements: list[Requirements] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    n_answers: int = 0
    notes: list[str] = field(default_factory=list)
    raters: list[Table] = field(default_factory=list)
    kept: list[Table] = field(default_factory=list)
    groups: Table | None = None
    sections: list[Section] = field(default_factory=list)
    replies: Replies = field(default_factory=dict)


def write_report(data: ReportData, folder: Path) -> Path:
    """Write tables, figures and ``index.html`` into ``folder``; return the page's path.

    Raises
    ------
    DataError
        If no score belongs to the grid, or an image of the benchmark is missing.
    """
    frame = score_frame(data.scores, data.grid)
    tables = [gap_table(data.grid, frame), other_table(data.grid, frame)]
    shown_tables = [table for table in tables if table is not None]
    kinds = {model.clean for model in data.grid if model.dose is not None}
    can_validate = len(kinds) == 2 or any(model.external for model in data.grid)
    validations = validate(data.scores, data.grid) if can_validate else []
    validation = _validation_tables(data, validations)
    folder.mkdir(parents=True, exist_ok=True)
    best_figures, detector_figures = make_validation_figures(
        validations, data.grid, data.scores, folder
    )
    figures = make_figures(data.benchmark, data.grid, data.scores, folder)
    quadrants = quadrant_section(data.grid, data.scores, folder)
    sections = [*([quadrants] if quadrants else []), *data.sections]
    write_tables(data, frame, shown_tables, validation, sections, folder)
    write_results(folder / "results.json", _results(data, validations, validation[:1]))
    if validation:
        csv = writers.frame_csv(validation_frame(validations))
        write_atomically(folder / "validation.csv", csv)
    explorer = make_explorer(data.benchmark, data.grid, data.scores, frame, data.replies)
    all_figures = [*best_figures, *detector_figures.values(), *figures]
    all_figures += [figure for section in sections for figure in section.figures]
    budget = _thumbnail_bytes(data, all_figures, len(explorer.data))
    panels, idle = _detector_panels(data, frame, detector_figures)
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    html = (
        environment(_TEMPLATES)
        .get_template("report.html.jinja")
        .render(
            title=data.title,
            data=data,
            headline=headline(frame),
            tables=shown_tables,
            requirements=requirements_table(data.requirements) if data.requirements else None,
            validation=validation,
            heats=overview_heats(validations, data.grid, data.scores),
            fifths=FIFTHS,
            cell_key=cell_key,
            verdicts=VERDICTS,
            checks=best_figures,
            figures=figures,
            panels=panels,
            idle=idle,
            sections=sections,
            status=STATUS,
            gallery=make_gallery(data.benchmark, data.grid, data.scores, budget),
            explorer=explorer,
            warnings=warnings_of(data.scores),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )
    return write_atomically(folder / "index.html", html)


def write_tables(
    data: ReportData,
    frame: pd.DataFrame,
    tables: Sequence[Table],
    validation: Sequence[Table],
    sections: Sequence[Section],
    folder: Path,
) -> None:
    """Write all tables as Markdown, and the main ones as LaTeX and CSV."""
    main_tables = [tables[0], *([data.groups] if data.groups else [])]
    needed = [requirements_table(data.requirements)]
    head = f"# {markdown_text(data.title)}\n\n{' '.join(headline(frame))}\n"
    pages: list[tuple[str, str, Sequence[Table], Sequence[str]]] = [
        ("gap", head, main_tables, ()),
        ("table", head, [*main_tables, *tables[1:], *data.raters, *data.kept], ()),
        ("requirements", "", needed, ()),
        *((table.key, "", [table], ()) for table in validation),
        *((section.key, "", section.tables, section.notes) for section in sections),
    ]
    for name, heading, page_tables, notes in pages:
        lines = "".join(f"- {note}\n" for note in (*notes, *data.notes))
        parts = [heading, *map(writers.markdown, page_tables), lines]
        write_atomically(folder / f"{name}.md", without_html("\n".join(filter(None, parts))))
    write_atomically(
        folder / "table.tex", writers.latex_document([*main_tables, *tables[1:]], data.notes)
    )
    if validation:
        latex = writers.latex_document(validation, data.notes)
        write_atomically(folder / "validation.tex", latex)
    write_scores_csv(folder / "table.csv", frame)
    rows = requirements_rows(data.requirements)
    write_atomically(folder / "requirements.csv", writers.records_csv(rows))


def headline(frame: pd.DataFrame) -> list[str]:
    """Return one sentence for each rule of the perturbation gap, the one that decides first.

    As for the verdict on one model, that is the comparison with the clean model's gap where there
    is a clean model, else the test. A sentence counts the contaminated models that were caught and
    the clean ones that were flagged.
    """
    rows = [row for row in frame.to_dict("records") if row["detector"] == GAP]
    has_clean_models = any(row["rule"] == RELATIVE and row["reference"] for row in rows)
    deciding = [RELATIVE, TEST] if has_clean_models else [TEST]
    rules = dict.fromkeys(row["rule"] for row in rows if row["rule"] in _RULE_SUBJECTS)
    rules_in_order = dict.fromkeys([*(rule for rule in deciding if rule in rules), *rules])
    sentences = [_sentence(rule, rows) for rule in rules_in_order]
    return list(filter(None, sentences)) or ["The perturbation gap was not measured on this grid."]


def warnings_of(scores: Sequence[Score]) -> list[tuple[str, list[str]]]:
    """Return each distinct warning with its subjects (model, detector, rule)."""
    subjects: dict[str, list[str]] = {}
    for score in scores:
        subject = (
            f"{score.model}: {title(score.detector)}, {rule_title(score.detector, score.rule)}"
        )
        for warning in score.warnings:
            subjects.setdefault(warning, []).append(subject)
    return list(subjects.items())


def _sentence(rule: str, rows: Sequence[Mapping[Any, Any]]) -> str:
    applied = [row for row in rows if row["rule"] == rule and row["verdict"] != "not_applicable"]
    by_model = {row["fingerprint"]: (row["dose"], row["verdict"]) for row in applied}
    parts = []
    for did, kind, verdicts in (
        ("caught", "contaminated", [verdict for dose, verdict in by_model.values() if dose]),
        ("flagged", "clean", [verdict for dose, verdict in by_model.values() if dose == 0]),
    ):
        if n := len(verdicts):
            models = "model" if n == 1 else "models"
            parts.append(f"{did} {verdicts.count('contaminated')} of {n} {kind} {models}")
    unknown = [verdict for dose, verdict in by_model.values() if dose is None]
    if unknown:
        count = f"{unknown.count('contaminated')} of {len(unknown)}"
        parts.append(f"called {count} models of unknown history contaminated")
    if not parts:
        return ""
    n_open = sum(verdict == "inconclusive" for _, verdict in by_model.values())
    tail = f"; {n_open} {'is' if n_open == 1 else 'are'} inconclusive" if n_open else ""
    return f"{_RULE_SUBJECTS[rule]} {' and '.join(parts)}{tail}."


def _validation_tables(data: ReportData, validations: Sequence[Validation]) -> list[Table]:
    if not validations:
        return []
    tables = [
        detectors_table(validations, data.grid, data.scores),
        validation_table(validations),
        controls_table(validations),
        blind_table(data.benchmark, data.scores),
    ]
    return [table for table in tables if table is not None]


def _results(
    data: ReportData, validations: Sequence[Validation], tables: Sequence[Table]
) -> Results:
    fingerprints = {model.fingerprint for model in data.grid}
    gaps = [s for s in data.scores if s.detector == GAP and s.model_fingerprint in fingerprints]
    return Results(
        title=data.title,
        settings=data.settings,
        n_pairs=len(data.benchmark.pairs),
        n_answers=data.n_answers,
        n_detectors=len({score.detector for score in data.scores}),
        n_rules=len({(s.detector, s.rule) for s in data.scores}),
        models=tuple(data.grid),
        gaps=tuple(gap.model_copy(update={"per_item": {}, "details": {}}) for gap in gaps),
        detectors=tuple(detector_results(validations)),
        tables=tuple(tables),
    )


def _detector_panels(
    data: ReportData, frame: pd.DataFrame, figures: Mapping[str, Figure]
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return title, table and figure of the detectors with a verdict on some model.

    Of the others, title and reason.
    """
    by_detector: dict[str, list[Score]] = {}
    for score in data.scores:
        if score.detector != GAP:
            by_detector.setdefault(score.detector, []).append(score)
    reasons: dict[str, str] = {}
    for name, scores in by_detector.items():
        if all(score.verdict == "not_applicable" for score in scores):
            texts = (text for s in scores for text in (s.reason, *s.warnings) if text)
            reasons[name] = next(texts, "no reason given")
    applied = sorted((name for name in by_detector if name not in reasons), key=title)
    panels = [
        {
            "title": title(table.key),
            "table": table,
            "figure": figures.get(table.key),
        }
        for table in detector_tables(data.grid, frame, applied)
    ]
    return panels, [(title(name), reasons[name]) for name in sorted(reasons)]


def _thumbnail_bytes(data: ReportData, figures: Sequence[Figure], n_other: int) -> int:
    """Return the bytes left for thumbnails on a page with ``more`` bytes of other data."""
    n_figures = sum(len(panel.svg) for figure in figures for panel in figure.panels) * 4 // 3
    names = sum(len(model.name) + 2 for model in data.grid)
    texts = [
        text
        for p in data.benchmark.pairs
        for text in (p.original.question, *(p.original.options or ()), p.caption)
    ]
    cards = 2 * sum(len(text.encode()) for text in texts)
    cards += (1_200 + names) * len(data.benchmark.pairs)
    cards += 300 * sum(pair.control is not None for pair in data.benchmark.pairs)
    n_left = PAGE_BYTES - n_figures - cards - n_other - 400_000  # for tables, style and script
    return min(BUDGET, max(n_left, BUDGET // 10))
