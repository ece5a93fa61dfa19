"""Tables as text and files: Markdown, LaTeX and CSV. HTML is in `macros.html.jinja`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.core.files import markdown_text, printable, spreadsheet_cell, write_atomically
from flipbench.reporting.tables import Column, Table

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
            lines.append(
                _md_line([f"**{markdown_text(name)}**", *("" for _ in table.columns)], escape=False)
            )
        lines += [_md_line([row.header, *(cell.plain() for cell in row.cells)]) for row in rows]
    return "\n".join(lines) + f"\n\n{markdown_text(table.caption)}\n"


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
    """Return several tables, then the notes; a comment lists the packages needed."""
    paragraphs = [rf"\noindent {_tex(note)}" + "\n" for note in notes]
    return _LATEX_HEAD + "\n" + "\n".join([*map(latex, tables), *paragraphs])


def table_csv(table: Table) -> str:
    """Return a table as CSV with a header line, without the names of its groups."""
    headers = [table.stub, *(column.header for column in table.columns)]
    return rows_csv(
        headers, ([row.header, *(cell.plain() for cell in row.cells)] for row in table.rows)
    )


def rows_csv(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a header line; texts pass `spreadsheet_cell`."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(
        [spreadsheet_cell(cell) if isinstance(cell, str) else cell for cell in row]
        for row in [headers, *rows]
    )
    return file.getvalue()


def frame_csv(frame: Any) -> str:
    """Return a data frame as CSV, without its index; texts and names pass `spreadsheet_cell`."""
    values = frame.astype(object).where(frame.notna(), None)
    return rows_csv(list(map(str, frame.columns)), values.to_numpy().tolist())


def records_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mappings with the same keys as CSV with a header line."""
    headers = list(rows[0]) if rows else []
    return rows_csv(headers, [[row[header] for header in headers] for row in rows])


def write_tables(tables: Sequence[Table], folder: Path, page: str, title: str) -> Path:
    """Write each table as ``<key>.csv`` and all of them on one Markdown page; return its path.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    for table in tables:
        write_atomically(folder / f"{table.key}.csv", table_csv(table))
    body = "\n".join(markdown(table) for table in tables)
    return write_atomically(folder / page, f"# {markdown_text(title)}\n\n{body}")


def _full_header(table: Table, column: Column) -> str:
    """Return a header after its group's; the main table's only group is in its caption."""
    has_group = column.group and table.key != "gap"
    return f"{column.group}: {column.header}" if has_group else column.header


def _md_line(cells: list[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(markdown_text(cell) if escape else cell for cell in cells) + " |"


def _tex_line(cells: list[str]) -> str:
    return " & ".join(_tex(cell) for cell in cells) + r" \\"


def _tex(text: str) -> str:
    return "".join(
        _LATEX.get(character, character) for character in printable(" ".join(text.split()))
    )
