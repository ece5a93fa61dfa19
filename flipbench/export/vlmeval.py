"""A pair of VLMEvalKit TSV files."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.export.pairs import cut_name, groups_of, png_of, raters_of, sides
from flipbench.prompting.prompts import LETTERS

_GUARD = "\u00a0"  # a no-break space: invisible, and pandas keeps the cell as text


def write_vlmeval(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``NAME_original_HASH.tsv`` and ``NAME_perturbed_HASH.tsv``; return them.

    NAME is the benchmark's, cut into pieces of two characters (`cut_name`), since the kit chooses
    its behaviour by parts of a name.

    Copy both into ``$LMUData`` and run the kit with ``--data`` and both names. Never compare the
    kit's own file of a benchmark with our perturbed one: the kit uses other prompts for registered
    names. Images are base64 PNG on both sides. Free-form questions go into a separate pair of
    files, since the kit chooses the prompt of a whole file by its columns.

    If items share images, a column ``group`` says which; the kit copies it into its results, where
    ``flipbench gap`` reads it. It names the images of the original on both sides. In the same way,
    ``judged_by`` says who judged the pairs, if anybody did.

    The kit reads with pandas' defaults, which turn an option ``NA`` into a missing value and ``2``
    into 2.0. A no-break space is appended to cells that would change.

    Raises
    ------
    DataError
        If an item has no image, or more than 26 options.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, groups = [], groups_of(benchmark)
    for side, items in sides(benchmark):
        kinds = {"": [], "open": []}  # type: dict[str, list[tuple[int, Item]]]
        for number, item in enumerate(items):
            kinds["open" if item.options is None else ""].append((number, item))
        for kind, numbered in kinds.items():
            if not numbered:
                continue
            rows = [_row(number, item) for number, item in numbered]
            if benchmark.judged_by:
                rows = [row | {"judged_by": _raters(benchmark, row)} for row in rows]
            if groups:
                rows = [row | {"group": groups[int(row["index"])]} for row in rows]
            _guard(rows)
            for row, (_, item) in zip(rows, numbered, strict=True):
                row["image"] = _images(item, benchmark)
            path = folder / f"{cut_name(benchmark, '-'.join(filter(None, (kind, side))))}.tsv"
            write_atomically(path, _tsv(rows, _columns(rows)))
            paths.append(path)
    return paths


def _raters(benchmark: PairedBenchmark, row: dict[str, str]) -> str:
    return raters_of(benchmark, benchmark.pairs[int(row["index"])])


def _row(number: int, item: Item) -> dict[str, str]:
    if not item.images:
        raise DataError(f"{item.subject}: no image; the kit drops such rows")
    options = item.options or ()
    if len(options) > len(LETTERS):
        raise DataError(f"{item.subject}: {len(options)} options; at most 26 are supported")
    row = {"index": str(number), "question": item.question}
    row |= dict(zip(LETTERS, options, strict=False))
    row["answer"] = item.answer_text if item.answer is None else LETTERS[item.answer]
    if item.category:
        row["category"] = item.category
    if "l2_category" in item.extra:
        row["l2-category"] = str(item.extra["l2_category"])
    row["name"], row["item_id"] = item.name, f"id-{item.id}"
    return row


def _guard(rows: list[dict[str, str]]) -> None:
    """Append `_GUARD` to the cells that pandas' defaults would change, until none does."""
    import pandas as pd

    columns = _columns(rows)
    for _ in range(3):
        text = _tsv(rows, columns)
        frame = pd.read_csv(io.StringIO(text), sep="\t")
        altered_cells = [
            (row, column)
            for column in columns
            if column != "index"
            for row, cell in zip(rows, frame[column], strict=True)
            if row.get(column) and (pd.isna(cell) or str(cell) != row[column])
        ]
        for row, column in altered_cells:
            row[column] += _GUARD
        if not altered_cells:
            return


def _images(item: Item, benchmark: PairedBenchmark) -> str:
    encoded = [base64.b64encode(png_of(r, benchmark.images)).decode() for r in item.images]
    return encoded[0] if len(encoded) == 1 else str(encoded)


def _columns(rows: list[dict[str, str]]) -> list[str]:
    columns = dict.fromkeys(column for row in rows for column in row)
    options = [letter for letter in LETTERS if letter in columns]
    leading = ["index", "question", *options, "answer"]
    return [*leading, *(column for column in columns if column not in leading)]


def _tsv(rows: list[dict[str, str]], columns: list[str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(
        out, columns, restval="", delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
