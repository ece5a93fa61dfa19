"""The audit as files: one page that needs nothing else, Markdown, JSON, and a list by item."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from flipbench.benchmarks import write_jsonl
from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.reporting import formats, writers
from flipbench.reporting.pages import environment
from flipbench.reporting.tables import Cell, Column, Row, Table

from .audit import AuditReport
from .finding import AuditFinding, Named, NamedRate, n_items

N_SHOWN = 40
_SIDE = 112
_TEMPLATES = Path(__file__).parent / "templates"
STATUS = {
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


@dataclass(frozen=True)
class NamedItem:
    """A named item as the page shows it."""

    found: Named
    action: str
    question: str
    answer: str
    thumbnails: list[str]


def write_audit(report: AuditReport, folder: Path) -> Path:
    """Write the audit into ``folder`` and return the page's path.

    ``index.html`` is for people, ``audit.md`` for an issue or a pull request, ``audit.json`` has
    every number, ``items.csv`` one line for each item and check that names it, ``kept.txt`` the
    names of the items that stay. Where options are to be pruned or reordered, ``mended/`` holds
    the kept items that way, with their images.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    write_atomically(folder / "audit.json", _json(report))
    write_atomically(folder / "audit.md", markdown(report))
    write_atomically(folder / "items.csv", _items_csv(report))
    write_atomically(folder / "kept.txt", "".join(f"{item.name}\n" for item in report.kept))
    page = write_atomically(folder / "index.html", html(report))
    if report.mended != report.kept:
        write_jsonl(report.mended, report.images, folder / "mended")
    return page


def headline(report: AuditReport) -> str:
    """Return the one sentence that a maintainer reads first.

    It counts what stays, what a person must decide, and the checks that call for something.
    """
    n, kept = len(report.benchmark.items), len(report.kept)
    bad = sum(found.status == "defect" for found in report.findings)
    skipped = sum(found.status == "not_run" for found in report.findings)
    person = sum(step.n_person for step in report.funnel)
    parts = [f"{kept:,} of {n_items(n)} stay"]
    if person:
        parts.append(f"{person:,} wait for a person")
    parts.append(f"{bad} of {len(report.findings) - skipped} checks that ran call for action")
    if skipped:
        parts.append(f"{skipped} did not run")
    return "; ".join(parts) + "."


def markdown(report: AuditReport) -> str:
    """Return the audit as Markdown."""
    lines = [f"# Audit of {report.benchmark.name}", "", headline(report), "", "## What is left", ""]
    lines += ["| after | left out | to a person | items |", "|---|--:|--:|--:|"]
    lines.append(f"| as it came | | | {len(report.benchmark.items):,} |")
    lines += [
        f"| {s.title} | {s.n_dropped:,} | {s.n_person:,} | {s.n_after:,} |" for s in report.funnel
    ]
    for found in report.findings:
        lines += ["", f"## {found.title}: {STATUS[found.status]}", "", found.sentence]
        if found.rates:
            lines += ["", writers.markdown(rates_table(found)).rstrip()]
        if found.status != "ok" and found.todo:
            lines += ["", f"To do: {found.todo}"]
        if found.limits:
            lines += ["", f"Not seen: {found.limits}"]
        if found.items:
            lines.append("")
            lines += [
                f"- `{i.name}` {ACTION[i.action]}: {_one_line(i.why)}"
                for i in found.items[:N_SHOWN]
            ]
        if len(found.items) > N_SHOWN:
            lines.append(f"- and {len(found.items) - N_SHOWN:,} more, see items.csv")
    return "\n".join(lines) + "\n"


def html(report: AuditReport) -> str:
    """Return the page."""
    items = {item.id: item for item in report.benchmark.items}
    shop = _Thumbnails(report.images)
    rows = {f.check: [_row(n, items, shop) for n in _shown(f)] for f in report.findings}
    return (
        environment(_TEMPLATES)
        .get_template("audit.html.jinja")
        .render(
            title=f"Audit of {report.benchmark.name}",
            report=report,
            headline=headline(report),
            rows=rows,
            rates_table=rates_table,
            status=STATUS,
            settings=report.settings.model_dump(mode="json"),
        )
    )


def rates_table(found: AuditFinding) -> Table:
    """Return a finding's rates, with the columns that say something."""
    heads = ["k/n", "%", "interval", "chance %", "p", "p, Holm"]
    if all(rate.p_value is None for rate in found.rates):
        heads = heads[: 4 if any(rate.chance is not None for rate in found.rates) else 3]
    return Table(
        f"rates-{found.check}",
        f"{found.title}, counted",
        "measured",
        tuple(map(Column, heads)),
        (("", tuple(Row(r.name, tuple(_cells(r)[: len(heads)])) for r in found.rates)),),
    )


def _cells(found: NamedRate) -> list[Cell]:
    """Return k/n, percent, interval, chance and p-values."""
    percents, p_values = (found.value, found.chance), (found.p_value, found.p_adjusted)
    share, chance = (formats.NOTHING if x is None else formats.percent(x) for x in percents)
    between = formats.interval(found.interval, formats.percent) or formats.NOTHING
    texts = [f"{found.k:,}/{found.n:,}", share, between, chance]
    texts += [formats.NOTHING if p is None else formats.p_value(p) for p in p_values]
    return list(map(Cell, texts))


def _shown(found: AuditFinding) -> list[Named]:
    """Return the items that the page shows: those to act on first."""
    order = list(ACTION)
    return sorted(found.items, key=lambda named: order.index(named.action))[:N_SHOWN]


def _row(found: Named, items: dict[str, Item], shop: _Thumbnails) -> NamedItem:
    item = items[found.item_id]
    return NamedItem(
        found=found,
        action=ACTION[found.action],
        question=item.question,
        answer=item.answer_text,
        thumbnails=[uri for ref in found.pictures if (uri := shop.uri(ref))],
    )


class _Thumbnails:
    """Makes each small picture once; one that is gone is left out."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self.made: dict[str, str] = {}

    def uri(self, ref: ImageRef) -> str:
        if ref.sha256 not in self.made:
            try:
                image = self.store.open(ref)
            except DataError:
                return ""
            image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            image.save(buffer, "WEBP", quality=60)
            data = base64.b64encode(buffer.getvalue()).decode()
            self.made[ref.sha256] = f"data:image/webp;base64,{data}"
        return self.made[ref.sha256]


def _json(report: AuditReport) -> str:
    data = {
        "benchmark": report.benchmark.name,
        "n_rows": report.benchmark.n_rows,
        "n_refused": len(report.benchmark.refused),
        "n_items": len(report.benchmark.items),
        "headline": headline(report),
        "settings": report.settings.model_dump(mode="json"),
        "funnel": [step.model_dump(mode="json") for step in report.funnel],
        "findings": [found.model_dump(mode="json") for found in report.findings],
        "kept": [item.id for item in report.kept],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _items_csv(report: AuditReport) -> str:
    rows = [
        [named.name, named.item_id, found.check, named.action, named.why]
        for found in report.findings
        for named in found.items
    ]
    return writers.rows_csv(["name", "item_id", "check", "action", "why"], rows)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
