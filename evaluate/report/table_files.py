"""Tables as files: Markdown, LaTeX, and every score with all its numbers as CSV."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipbench.core.records import Interval, Score

from ..protocol.grid import GridModel, Requirements
from ..statistics.roc import Rate
from ..validation.requirements import success
from ..validation.validation import Validation
from .tables import Column, Table, accuracies

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "−": r"$-$",
    "–": "--",
    "Δ": r"$\Delta$",
    "→": r"$\to$",
    "✓": r"\ding{51}",
    "✗": r"\ding{55}",
    "▲": r"$\blacktriangle$",
}
_LATEX_HEAD = "% In the preamble: \\usepackage{booktabs,amssymb,pifont,graphicx}\n"


def markdown(table: Table) -> str:
    """Return a table as GitHub-flavoured Markdown; group names become rows."""
    heads = [table.stub, *(_full_header(table, column) for column in table.columns)]
    aligned = ["---", *("---:" if column.numeric else "---" for column in table.columns)]
    lines = [_md_line(heads), "|" + "|".join(aligned) + "|"]
    for name, rows in table.groups:
        if name:
            lines.append(_md_line([f"**{_md(name)}**", *("" for _ in table.columns)], escape=False))
        lines += [_md_line([row.header, *(cell.plain() for cell in row.cells)]) for row in rows]
    return "\n".join(lines) + f"\n\n{_md(table.caption)}\n"


def latex(table: Table) -> str:
    """Return a table as a LaTeX ``table*`` with booktabs rules."""
    layout = "l" + "".join("r" if column.numeric else "l" for column in table.columns)
    width = len(table.columns) + 1
    lines = [r"\begin{table*}", r"\centering", rf"\caption{{{_tex(table.caption)}}}"]
    lines += [rf"\label{{tab:{table.key}}}", r"\resizebox{\linewidth}{!}{%"]
    lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
    if any(column.group for column in table.columns):
        spans, rules, start = [""], [], 2
        for name, n in table.column_groups():
            spans.append(rf"\multicolumn{{{n}}}{{c}}{{{_tex(name)}}}")
            rules += [rf"\cmidrule(lr){{{start}-{start + n - 1}}}"] if name else []
            start += n
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    lines += [_tex_line([table.stub, *(column.header for column in table.columns)])]
    for name, rows in table.groups:
        lines.append(r"\midrule")
        if name:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_tex(name)}}}}} \\")
        lines += [_tex_line([row.header, *(cell.plain() for cell in row.cells)]) for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def latex_document(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return several tables and what they do not show; the packages they need are in a comment."""
    below = [rf"\noindent {_tex(note)}" + "\n" for note in notes]
    return _LATEX_HEAD + "\n" + "\n".join([*map(latex, tables), *below])


def write_scores_csv(path: Path, grid: Sequence[GridModel], scores: Sequence[Score]) -> None:
    """Write one row for each model, detector and rule, in full precision."""
    variants = list(dict.fromkeys(name for score in scores for name in accuracies(score)))
    models = {model.fingerprint: model for model in grid}
    names = {model.fingerprint: model.name for model in grid}
    rows = []
    for score in scores:
        if score.model_fingerprint not in models:
            continue
        model, between = models[score.model_fingerprint], score.interval
        right, counts = success(score, model), accuracies(score)
        row: dict[str, Any] = {
            "model": model.name,
            "fingerprint": model.fingerprint,
            "family": model.family,
            "strategy": model.strategy,
            "epoch": model.epoch,
            "dose": model.dose,
            "benchmark": score.benchmark,
            "benchmark_id": score.benchmark_id,
            "detector": score.detector,
            "rule": score.rule,
            "reference": names.get(score.reference_fingerprint, score.reference_fingerprint),
            "n": score.n,
            "n_dropped": score.n_dropped,
        }
        for name in variants:
            k, n = counts.get(name, (None, None))
            row |= {f"k_{name}": k, f"n_{name}": n}
            row[f"accuracy_{name}"] = k / n if k is not None and n else None
        row |= {
            "right_to_wrong": score.paired.b if score.paired else None,
            "wrong_to_right": score.paired.c if score.paired else None,
            "statistic": score.statistic,
            "unit": score.unit,
            "low": between.low if between else None,
            "high": between.high if between else None,
            "level": between.level if between else None,
            "p_value": score.p_value,
            "verdict": score.verdict,
            "success": "" if right is None else right,
            "warnings": "; ".join([*score.warnings, *model.warnings]),
        }
        rows.append(row)
    _write_csv(path, rows)


def write_requirements_csv(path: Path, requirements: Sequence[Requirements]) -> None:
    """Write one row for each rule of each detector."""
    rows: list[dict[str, Any]] = []
    for r in requirements:
        row: dict[str, Any] = {
            "detector": r.detector,
            "rule": r.rule,
            "practicality": r.practicality_glyph,
            "reliability": r.reliability_glyph,
            "consistency": r.consistency_glyph,
            "specificity": r.specificity_glyph,
        }
        for name in ("reliability", "consistency_weak", "consistency_strict", "specificity"):
            row[f"{name}_hit"], row[f"{name}_total"] = getattr(r, name)
        for name in ("misses", "violations", "false_alarms"):
            row[name] = "; ".join(getattr(r, name))
        rows.append(row)
    _write_csv(path, rows)


def write_validation_csv(path: Path, validations: Sequence[Validation]) -> None:
    """Write one row for each rule, benchmark and quantity: name, value, k, n, interval, p."""
    rows: list[dict[str, Any]] = []
    for v in validations:
        about = {"detector": v.detector, "rule": v.rule, "benchmark": v.benchmark}
        about["benchmark_id"] = v.benchmark_id
        if v.separation:
            interval = v.separation.interval
            rows.append(about | _quantity("auroc", v.separation.auroc, interval=interval))
            for point in v.separation.points:
                name, rate = f"tpr_at_fpr_{point.target:g}", point.detected
                note = "" if point.estimable else "not estimable: too few clean models"
                rows.append(about | _of_rate(name, rate) | {"note": note})
        rates: dict[str, Rate] = {"false_alarms_untouched": v.untouched_alarms}
        rates |= {"false_alarms_finetuned": v.finetuned_alarms, "power": v.detected}
        rates |= {f"power_at_dose_{dose}": rate for dose, rate in v.power.items()}
        rows += [about | _of_rate(name, rate) for name, rate in rates.items()]
        steps = Rate(v.trend.in_order, v.trend.n_steps)
        rows.append(about | _of_rate("steps_in_order", steps))
        correlation = _quantity("rank_correlation", v.trend.correlation, p_value=v.trend.p_value)
        rows.append(about | correlation)
        fired = _of_rate("external_models", Rate(len(v.artefact.fired), v.artefact.n))
        note = "artefact suspected: " + "; ".join(v.artefact.fired)
        rows.append(about | fired | {"note": note if v.artefact.suspected else ""})
    _write_csv(path, rows)


def _of_rate(name: str, rate: Rate) -> dict[str, Any]:
    counts = {"k": rate.k, "n": rate.n, "n_lineages": rate.n_clusters or None}
    return _quantity(name, rate.value, rate.interval) | counts


def _quantity(
    name: str, value: float, interval: Interval | None = None, p_value: float | None = None
) -> dict[str, Any]:
    return {
        "quantity": name,
        "value": None if math.isnan(value) else value,
        "k": None,
        "n": None,
        "n_lineages": None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "p_value": p_value,
        "note": "",
    }


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _full_header(table: Table, column: Column) -> str:
    """Return a header with its group before it; the main table's one group is its caption's."""
    named = column.group and table.key != "gap"
    return f"{column.group}: {column.header}" if named else column.header


def _md_line(cells: list[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(_md(cell) if escape else cell for cell in cells) + " |"


def _md(text: str) -> str:
    """Escape what would end a cell or start markup; ``<`` alone keeps ``<.001`` readable."""
    text = re.sub(r"([\\|`*])", r"\\\1", " ".join(text.split())).replace("](", "]\\(")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def _tex_line(cells: list[str]) -> str:
    return " & ".join(_tex(cell) for cell in cells) + r" \\"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
