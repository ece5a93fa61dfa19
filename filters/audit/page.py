"""The audit as files: one page that needs nothing else, Markdown, JSON, and a list by item."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from flipbench.benchmarks import write_jsonl
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item

from .audit import AuditReport
from .finding import Finding, Named, NamedRate, n_items

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
class Row:
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
        Where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "audit.json").write_text(_json(report), encoding="utf-8")
        (folder / "audit.md").write_text(markdown(report), encoding="utf-8")
        _write_items(report, folder / "items.csv")
        names = "".join(f"{item.name}\n" for item in report.kept)
        (folder / "kept.txt").write_text(names, encoding="utf-8")
        page = folder / "index.html"
        page.write_text(html(report), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: cannot write there ({error.strerror})") from error
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
            heads = columns(found)
            lines += ["", f"| | {' | '.join(heads)} |", "|---" + "|--:" * len(heads) + "|"]
            lines += [
                f"| {r.name} | " + " | ".join(cells(r)[: len(heads)]) + " |" for r in found.rates
            ]
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
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    items = {item.id: item for item in report.benchmark.items}
    shop = _Thumbnails(report.images)
    rows = {f.check: [_row(n, items, shop) for n in _shown(f)] for f in report.findings}
    return environment.get_template("audit.html.jinja").render(
        report=report,
        headline=headline(report),
        rows=rows,
        cells=cells,
        columns=columns,
        status=STATUS,
        settings=report.settings.model_dump(mode="json"),
        style=Markup((_TEMPLATES / "audit.css").read_text(encoding="utf-8")),
    )


def columns(found: Finding) -> list[str]:
    """Return the heads of the columns that say something in a finding's table."""
    heads = ["k/n", "%", "interval", "chance %", "p", "p, Holm"]
    if any(rate.p_value is not None for rate in found.rates):
        return heads
    return heads[: 4 if any(rate.chance is not None for rate in found.rates) else 3]


def cells(found: NamedRate) -> list[str]:
    """Return k/n, percent, interval, chance and p-values as they are printed."""
    blank = "–"
    between = found.interval
    return [
        f"{found.k:,}/{found.n:,}",
        blank if found.value is None else f"{100 * found.value:.1f}",
        blank if between is None else f"[{100 * between.low:.1f}, {100 * between.high:.1f}]",
        blank if found.chance is None else f"{100 * found.chance:.1f}",
        _p(found.p_value),
        _p(found.p_adjusted),
    ]


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<.001" if value < 0.001 else min(f"{value:.3f}", "1.000").removeprefix("0")


def _shown(found: Finding) -> list[Named]:
    """Return the items that the page shows: those to act on first."""
    order = list(ACTION)
    return sorted(found.items, key=lambda named: order.index(named.action))[:N_SHOWN]


def _row(found: Named, items: dict[str, Item], shop: _Thumbnails) -> Row:
    item = items[found.item_id]
    return Row(
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


def _write_items(report: AuditReport, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "item_id", "check", "action", "why"])
        for found in report.findings:
            for named in found.items:
                writer.writerow([named.name, named.item_id, found.check, named.action, named.why])


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
