"""The audit as files: a self-contained page, Markdown, JSON, and a list of flagged items."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from PIL import Image
from pydantic_core import to_jsonable_python

from flipbench.benchmarks import write_jsonl
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.files import markdown_text, printable_json, without_html, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef
from flipbench.reporting import formats, sections, writers
from flipbench.reporting.pages import environment
from flipbench.reporting.sections import Section, Status
from flipbench.reporting.tables import Cell, Column, Row, Table

from .audit import AuditReport
from .finding import AuditFinding, FlaggedItem, NamedRate, n_items

N_SHOWN = 40
_SIDE = 112
_TEMPLATES = Path(__file__).parent / "templates"
STATUS: dict[Status, str] = {
    "ok": "nothing found",
    "look": "have a look",
    "defect": "act",
    "not_run": "not run",
}
ACTION = {
    "drop": "leave out",
    "person": "a person must decide",
    "change": "change",
    "look": "look",
}


def write_audit(report: AuditReport, folder: Path, more: Sequence[Section] = ()) -> Path:
    """Write the audit into ``folder`` and return the page's path.

    ``index.html`` is for people, ``audit.md`` for an issue or a pull request; ``audit.json`` has
    every number, ``items.csv`` one row per flagged item and check, ``kept.txt`` the names of the
    kept items. If options should be pruned or reordered, ``mended/`` contains the kept items with
    those changes, and their images. ``more`` are sections on a training corpus and on other models;
    their tables are also written as CSV.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    write_atomically(folder / "audit.json", _json(report, more))
    write_atomically(folder / "audit.md", markdown(report, more))
    write_atomically(folder / "items.csv", _items_csv(report))
    write_atomically(folder / "kept.txt", "".join(f"{item.name}\n" for item in report.kept))
    for table in (table for section in more for table in section.tables):
        write_atomically(folder / f"{table.key}.csv", writers.table_csv(table))
    page = write_atomically(folder / "index.html", html(report, more))
    if report.mended != report.kept:
        write_jsonl(report.mended, report.images, folder / "mended")
    return page


def headline(report: AuditReport, more: Sequence[Section] = ()) -> str:
    """Return the summary: items kept, left to a person, checks that call for action; sections."""
    n, n_kept = len(report.benchmark.items), len(report.kept)
    n_defects = sum(f.status == "defect" for f in report.findings)
    n_skipped = sum(f.status == "not_run" for f in report.findings)
    person = sum(step.n_person for step in report.funnel)
    parts = [f"{n_kept:,} of {n_items(n)} kept"]
    if person:
        parts.append(f"{person:,} left to a person")
    parts.append(
        f"{n_defects} of {len(report.findings) - n_skipped} checks that ran call for action"
    )
    if n_skipped:
        parts.append(f"{n_skipped} did not run")
    return " ".join(["; ".join(parts) + ".", *(s.headline for s in more if s.headline)])


def markdown(report: AuditReport, more: Sequence[Section] = ()) -> str:
    """Return the audit as Markdown."""
    lines = [
        f"# Audit of {markdown_text(report.benchmark.name)}",
        "",
        headline(report, more),
        "",
        "## What is left",
        "",
    ]
    lines += ["| after | left out | to a person | items |", "|---|--:|--:|--:|"]
    lines.append(f"| before | | | {len(report.benchmark.items):,} |")
    lines += [
        f"| {s.title} | {s.n_dropped:,} | {s.n_person:,} | {s.n_after:,} |" for s in report.funnel
    ]
    for finding in report.findings:
        lines += ["", f"## {finding.title}: {STATUS[finding.status]}", "", finding.sentence]
        if finding.rates:
            lines += ["", writers.markdown(rates_table(finding)).rstrip()]
        if finding.status != "ok" and finding.todo:
            lines += ["", f"To do: {finding.todo}"]
        if finding.limits:
            lines += ["", f"Not detected: {finding.limits}"]
        if finding.items:
            lines.append("")
            lines += [
                f"- `{i.name}` {ACTION[i.action]}: {_one_line(i.why)}"
                for i in finding.items[:N_SHOWN]
            ]
        if len(finding.items) > N_SHOWN:
            lines.append(f"- and {len(finding.items) - N_SHOWN:,} more, see items.csv")
    return without_html("\n".join(lines) + "\n" + sections.markdown(more, STATUS))


def html(report: AuditReport, more: Sequence[Section] = ()) -> str:
    """Return the HTML page."""
    cached_thumbnail = cache(partial(thumbnail, report.images))
    return (
        environment(_TEMPLATES)
        .get_template("audit.html.jinja")
        .render(
            title=f"Audit of {report.benchmark.name}",
            report=report,
            more=more,
            headline=headline(report, more),
            flagged={finding.check: _shown(finding) for finding in report.findings},
            items={item.id: item for item in report.benchmark.items},
            thumbnails=lambda flagged: list(filter(None, map(cached_thumbnail, flagged.pictures))),
            action=ACTION,
            rates_table=rates_table,
            status=STATUS,
            settings=report.settings.model_dump(mode="json"),
        )
    )


def rates_table(finding: AuditFinding) -> Table:
    """Return a finding's rates, without empty columns."""
    heads = ["k/n", "%", "interval", "chance %", "p", "p, Holm"]
    if all(rate.p_value is None for rate in finding.rates):
        heads = heads[: 4 if any(rate.chance is not None for rate in finding.rates) else 3]
    return Table(
        f"rates-{finding.check}",
        f"{finding.title}, counted",
        "measured",
        tuple(map(Column, heads)),
        (("", tuple(Row(r.name, tuple(_cells(r)[: len(heads)])) for r in finding.rates)),),
    )


def _cells(rate: NamedRate) -> list[Cell]:
    """Return k/n, percent, interval, chance and p-values."""
    percents, p_values = (rate.value, rate.chance), (rate.p_value, rate.p_adjusted)
    share, chance = (formats.NOTHING if x is None else formats.percent(x) for x in percents)
    interval = formats.interval(rate.interval, formats.percent) or formats.NOTHING
    texts = [f"{rate.k:,}/{rate.n:,}", share, interval, chance]
    texts += [formats.NOTHING if p is None else formats.p_value(p) for p in p_values]
    return list(map(Cell, texts))


def _shown(finding: AuditFinding) -> list[FlaggedItem]:
    """Return the items to show on the page, the most urgent first."""
    order = list(ACTION)
    return sorted(finding.items, key=lambda flagged: order.index(flagged.action))[:N_SHOWN]


def thumbnail(store: ImageStore, ref: ImageRef) -> str:
    """Return a small image as a data URI, empty if it cannot be read."""
    image = result_or_error(store.open, ref)
    if isinstance(image, DataError):
        return ""
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=60)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _json(report: AuditReport, more: Sequence[Section]) -> str:
    data = {
        "benchmark": report.benchmark.name,
        "n_rows": report.benchmark.n_rows,
        "n_refused": len(report.benchmark.refused),
        "n_items": len(report.benchmark.items),
        "headline": headline(report, more),
        "settings": report.settings.model_dump(mode="json"),
        "funnel": [step.model_dump(mode="json") for step in report.funnel],
        "findings": [finding.model_dump(mode="json") for finding in report.findings],
        "kept": [item.id for item in report.kept],
        **{section.key: {"sentence": section.sentence, **section.data} for section in more},
    }
    plain = to_jsonable_python(data, inf_nan_mode="null")
    return printable_json(json.dumps(plain, indent=2, ensure_ascii=False)) + "\n"


def _items_csv(report: AuditReport) -> str:
    rows = [
        [flagged.name, flagged.item_id, finding.check, flagged.action, flagged.why]
        for finding in report.findings
        for flagged in finding.items
    ]
    return writers.rows_csv(["name", "item_id", "check", "action", "why"], rows)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
