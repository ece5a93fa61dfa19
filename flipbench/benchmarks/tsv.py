"""VLMEvalKit's tab-separated files. Every cell is read as text; no types are inferred."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from flipbench.benchmarks.build import Draft, build_item
from flipbench.benchmarks.grouping import group_of
from flipbench.benchmarks.image_files import decode_base64, image_folder, split_cell
from flipbench.benchmarks.report import Benchmark, Collector, RowError, RowPlace
from flipbench.benchmarks.specs import TsvSpec
from flipbench.benchmarks.tables import check_columns, check_file, not_utf8, option_columns
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.limits import FILE_BYTES, bounded_lines
from flipbench.core.records import ImageRef, Source

MAX_REFERENCE = 64
"""An ``image`` cell of at most this many characters is another row's index."""

_L2 = ("l2-category", "L2-category", "l2_category")
_Pending = ImageRef | str


@dataclass(frozen=True)
class _TsvRow:
    """A row without its base64: images already stored, references not yet followed."""

    row: RowPlace
    cells: dict[str, str]
    images: tuple[_Pending, ...]
    error: DataError | None

    @property
    def own(self) -> tuple[ImageRef, ...]:
        """Its images, if all are in the row itself."""
        refs = tuple(ref for ref in self.images if isinstance(ref, ImageRef))
        return refs if len(refs) == len(self.images) else ()


def load_tsv(spec: TsvSpec, images: ImageStore, strict: bool = False) -> Benchmark:
    """Read a VLMEvalKit file; see `flipbench.benchmarks.load_benchmark`.

    A row becomes an item as soon as it is read, so that a file of many gigabytes needs little
    memory; only rows that refer to the image of a later row wait for it.
    """
    check_file(spec.path)
    folder = image_folder(spec.image_root, spec.path.parent, images)
    collector = Collector(spec.name or spec.path.stem, strict)
    known: dict[str, tuple[ImageRef, ...] | DataError] = {}
    waiting: list[_TsvRow] = []
    with open_tsv(spec.path, spec.extra_columns) as (header, lines):
        options = option_columns(header, str(spec.path))

        def build(tsv_row: _TsvRow) -> None:
            row = tsv_row.row
            with collector.row(row):
                if tsv_row.error is not None:
                    raise tsv_row.error
                if not row.name:
                    raise RowError("index", "the index is empty", "give every row a unique index")
                refs = _follow(tsv_row, known)
                if not refs:
                    paths = split_cell(tsv_row.cells.get("image_path", ""))
                    refs = tuple(folder.put(path, row) for path in paths)
                if not refs:
                    raise RowError("image", "there is no image", "add one, or remove the row")
                draft = _draft(tsv_row, refs, options, spec, collector.name)
                collector.keep(row, *build_item(draft))

        n_rows = 0
        for line, cells in lines:
            tsv_row = _tsv_row(cells, header, f"{spec.path.name}, line {line}", n_rows, images)
            n_rows += 1
            if tsv_row.row.name:
                collector.claim(tsv_row.row.name, tsv_row.row)
                known[tsv_row.row.name] = tsv_row.error or tsv_row.own
            if all(isinstance(ref, ImageRef) or ref in known for ref in tsv_row.images):
                build(tsv_row)
            else:
                waiting.append(tsv_row)
    if not n_rows:
        raise DataError(f"{spec.path}: there is a header but no rows; download the file again")
    for tsv_row in waiting:
        build(tsv_row)
    if waiting:
        collector.items.sort(key=lambda item: item.source.row)
    folder.note_relocated(collector)
    return collector.finish()


@contextmanager
def open_tsv(
    path: Path, extra_columns: tuple[str, ...] = ()
) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """Yield a file's header, and an iterator of the other rows with their line numbers.

    Raises
    ------
    DataError
        If a needed column is missing or repeated, or the file is not UTF-8 or well-formed.
    """
    try:
        with wide_cells(), path.open(encoding="utf-8-sig", newline="") as file:
            rows = _rows(file, path)
            _, header = next(rows, (1, []))
            _check_header(header, path, extra_columns)
            yield header, (row for row in rows if row[1])
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


@contextmanager
def wide_cells() -> Iterator[None]:
    """Let ``csv`` read cells as long as a base64 image."""
    before = csv.field_size_limit(min(FILE_BYTES.value, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row, blank ones too, with the number of its first line.

    ``csv``, which needs up to eight bytes for a character, reads only what `_split` leaves to it.
    """
    number = 1
    lines = bounded_lines(file, path)
    for line in lines:
        n_lines, cells = 1, _split(line.rstrip("\r\n"))
        if cells is None:
            reader = csv.reader(itertools.chain([line], lines), delimiter="\t", strict=True)
            try:
                cells = next(reader)
            except csv.Error as error:
                raise DataError(
                    f"{path}, line {number + reader.line_num - 1}: not a well-formed TSV"
                    f" ({error}); a cell that starts with a quote must end with one, and quotes"
                    " inside must be doubled: write the file with pandas or csv"
                ) from error
            n_lines = reader.line_num
        line = ""  # not kept beside its cells
        yield number, cells
        number += n_lines


def _split(text: str) -> list[str] | None:
    """Return the cells of a line that quotes none of them or all, and holds no other quote."""
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        cells = text[1:-1].split('"\t"')
        return None if any('"' in cell for cell in cells) else cells
    if '"' in text:
        return None
    return text.split("\t") if text else []


def _check_header(header: list[str], path: Path, extra_columns: tuple[str, ...]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise DataError(f"{path}: two columns are named {column!r}; rename one")
    check_columns(["index", "question", "answer", *extra_columns], header, str(path))
    if "image" not in header and "image_path" not in header:
        raise DataError(
            f"{path}: there is no column 'image' (base64) or 'image_path' (found:"
            f" {', '.join(header)}); add one of them"
        )
    option_columns(header, str(path))


def _tsv_row(
    values: list[str], header: list[str], line: str, number: int, images: ImageStore
) -> _TsvRow:
    cells = dict(zip(header, values, strict=False))
    name = cells.get("index", "").strip()
    row = RowPlace(number, name, f"{line}, row {number} (index {name!r})")
    if len(values) != len(header):
        what = f"the row has {len(values)} cells, the header {len(header)}"
        error = RowError("cells", what, "there is a tab or quote too few or too many: fix the row")
        return _TsvRow(row, {}, (), error)
    try:
        pending: list[_Pending] = []
        for text in split_cell(cells.pop("image", "")):
            short = len(text) <= MAX_REFERENCE
            pending.append(text if short else images.put(decode_base64(text), row.where))
        return _TsvRow(row, cells, tuple(pending), None)
    except DataError as bad_image:
        return _TsvRow(row, cells, (), bad_image)


def _follow(
    row: _TsvRow, known: Mapping[str, tuple[ImageRef, ...] | DataError]
) -> tuple[ImageRef, ...]:
    """Return a row's images; ``known`` are those of the rows it may refer to, or their errors."""
    refs: list[ImageRef] = []
    for pending in row.images:
        if isinstance(pending, ImageRef):
            refs.append(pending)
            continue
        other = known.get(pending)
        what = f"the image cell refers to the row with index {pending!r}"
        if other is None:
            raise RowError("image", f"{what}, which does not exist", "put the image's base64 there")
        if isinstance(other, DataError):
            raise RowError("image", f"{what}: {other}", "fix that row first")
        if not other:
            raise RowError("image", f"{what}, which has no image", "put the base64 there")
        refs += other
    return tuple(refs)


def _draft(
    row: _TsvRow, refs: tuple[ImageRef, ...], options: Sequence[str], spec: TsvSpec, name: str
) -> Draft:
    cells = row.cells
    extra = {column: cells[column] for column in spec.extra_columns if cells[column]}
    subcategory = next((cells[column] for column in _L2 if cells.get(column)), "")
    return Draft(
        benchmark=name,
        name=row.row.name,
        images=refs,
        question=cells["question"],
        raw_question=cells["question"],
        options=[(column, cells[column]) for column in options],
        answer=cells["answer"],
        source=Source(
            dataset=spec.path.name,
            revision=spec.revision,
            split=cells.get("split", ""),
            row=row.row.number,
        ),
        answer_is="letter",
        hint=cells.get("hint", ""),
        category=cells.get("category", ""),
        group=group_of(cells, has_images=True),
        licence=spec.licence,
        extra=extra | ({"l2_category": subcategory} if subcategory else {}),
    )
