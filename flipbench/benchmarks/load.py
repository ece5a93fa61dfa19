"""Read a benchmark of any format, or existing pairs: rows become items, or are reported."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flipbench.benchmarks.build import build_item
from flipbench.benchmarks.grouping import group_of
from flipbench.benchmarks.image_files import ImageFolder, decode_base64, image_folder, split_cell
from flipbench.benchmarks.own_format import item_of_record
from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.report import Benchmark, Collector, Oddity, RowPlace
from flipbench.benchmarks.sources import RowSource, open_source
from flipbench.benchmarks.specs import HuggingFaceSpec, JsonlSpec, Layout, PairsSpec, TsvSpec
from flipbench.benchmarks.tables import (
    Row,
    RowError,
    check_columns,
    join_names,
    option_columns,
    parse_literal,
)
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Item, JsonDict, Source
from flipbench.prompting.prompts import LETTERS

MAX_REFERENCE = 64
"""VLMEvalKit: an ``image`` cell of at most this many characters is another row's index."""

_L2 = ("l2-category", "L2-category", "l2_category")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def load_benchmark(
    spec: TsvSpec | HuggingFaceSpec | JsonlSpec, images: ImageStore, *, strict: bool = False
) -> Benchmark:
    """Return a benchmark's items in release order, and every problem with its rows.

    A row becomes an item as soon as it is read, so that a file of many gigabytes needs little
    memory.

    Parameters
    ----------
    spec : TsvSpec, HuggingFaceSpec or JsonlSpec
        The benchmark's location and format.
    images : ImageStore
        Stores the image bytes, unchanged.
    strict : bool
        Whether to raise the first problem that rejects a row.

    Returns
    -------
    Benchmark
        Its ``items`` and ``refused`` rows always add up to the file's rows.

    Raises
    ------
    DataError
        If the file as a whole cannot be used (missing, empty, not UTF-8, without an answer
        column, the same index twice), or with ``strict`` at the first refused row.
    ServiceError
        If a dataset cannot be loaded from the Hugging Face Hub.
    """
    source = open_source(spec)
    collector = Collector(spec.name or source.name, strict)
    folder = image_folder(spec.image_root, source.folder, images)
    if isinstance(spec, JsonlSpec) or (
        isinstance(spec, HuggingFaceSpec) and spec.mapping == "flipbench"
    ):
        _read_own(source, folder, collector)
    else:
        if source.on_hub and not _COMMIT.fullmatch(spec.revision):
            problem = f"the revision {spec.revision or '(none)'!r} of {spec.path} is not pinned"
            remedy = "set revision to the 40-digit commit: the dataset may change"
            collector.note(Oddity("unpinned_revision", problem, remedy))
        _MappedReader(spec, source, folder, collector).read()
    if not collector.n_rows:
        raise DataError(f"{spec.path}: there are no rows; choose another split, or download it")
    folder.note_relocated(collector)
    return collector.finish()


# --- our own format --------------------------------------------------------------------------


def _read_own(source: RowSource, folder: ImageFolder, collector: Collector) -> None:
    if source.columns:
        required = ["benchmark", "name", "images", "question", "answer"]
        check_columns(required, source.columns, source.path)
    for number, row in enumerate(source.rows):
        record = {key: value for key, value in row.cells.items() if value is not None}
        name = str(record.get("name", number))
        place = RowPlace(number, name, f"{row.where}, row {number} (name {name!r})")
        if not row.error:
            collector.claim(name, place, str(record.get("benchmark", "")))
        with collector.row(place):
            if row.error:
                raise row.error
            if "images" not in record:
                remedy = "give a list of paths; [] for a question without an image"
                raise RowError("image", "there is no key 'images'", remedy)
            refs = folder.refs(record.pop("images"), "images", place)
            item, oddities = item_of_record(record, refs, place, collector.name, source.dataset)
            collector.keep(place, item, oddities)


# --- mapped columns: VLMEvalKit, Hugging Face, JSON of others -----------------------


def check_image_column(columns: Sequence[str], source: str) -> None:
    """Refuse a table of VLMEvalKit's without images.

    Raises
    ------
    DataError
        If it has neither of the two columns.
    """
    if not {"image", "image_path"} & set(columns):
        raise DataError(
            f"{source}: there is no column 'image' (base64) or 'image_path' (found:"
            f" {join_names(columns)}); add one of them"
        )


class _PendingRow(NamedTuple):
    """A row whose images are stored, or are those of another row, which is named by its index."""

    place: RowPlace
    cells: JsonDict
    images: tuple[ImageRef | str, ...]
    error: DataError | None


class _MappedReader:
    """Reads rows by their columns; only those that refer to a later row's images wait for it."""

    def __init__(
        self,
        spec: TsvSpec | HuggingFaceSpec,
        source: RowSource,
        folder: ImageFolder,
        collector: Collector,
    ) -> None:
        self.spec, self.source, self.folder, self.collector = spec, source, folder, collector
        self.layout, self.columns = spec.layout, spec.layout.columns
        self.is_vlmeval = isinstance(spec, TsvSpec)
        self.options = self._option_columns()
        self.images_by_index: dict[str, tuple[ImageRef, ...] | DataError] = {}
        self.n_missing = 0
        self._check_columns()

    def read(self) -> None:
        """Pass every row to the collector."""
        waiting: list[_PendingRow] = []
        for number, row in enumerate(self.source.rows):
            pending = self._pending_row(row, number)
            if name := pending.place.name:
                self.collector.claim(name, pending.place)
                if self.is_vlmeval:
                    stored_refs = tuple(ref for ref in pending.images if isinstance(ref, ImageRef))
                    whole = stored_refs if len(stored_refs) == len(pending.images) else ()
                    self.images_by_index[name] = pending.error or whole
            resolved = self.images_by_index
            if all(isinstance(ref, ImageRef) or ref in resolved for ref in pending.images):
                self._build(pending)
            else:
                waiting.append(pending)
        for pending in waiting:
            self._build(pending)
        if n := self.n_missing:
            problem = f"last options and hints with the text 'nan' are read as none ({n} rows)"
            odd = Oddity("missing_value", problem, "pandas writes it for an empty cell")
            self.collector.note(odd)

    def _option_columns(self) -> list[str]:
        if self.layout.options_in == "list" or self.columns.options:
            return list(self.columns.options)
        if self.layout.options_in == "columns":
            return option_columns(self.source.columns, self.source.path)
        return []

    def _check_columns(self) -> None:
        columns, header, path = self.columns, self.source.columns, self.source.path
        texts = [columns.question, columns.answer, *self.options, *columns.extra]
        texts += [columns.index] if columns.index else []
        if self.is_vlmeval:
            check_columns(texts, header, path)
            check_image_column(header, path)
            return
        texts += [c for c in (columns.category, columns.group, columns.hint) if c]
        check_columns([*texts, *columns.images], header, path)
        for column in texts:
            if getattr(self.source.features.get(column), "dtype", "").startswith("float"):
                problem = f"the column {column!r} contains floating-point numbers, not text"
                remedy = "'2' may have become '2.0': check the items"
                self.collector.note(Oddity("float_column", problem, remedy))

    def _pending_row(self, row: Row, number: int) -> _PendingRow:
        cells, error, refs = row.cells, row.error, ()  # type: JsonDict, DataError | None, Any
        name = str(number)
        try:
            if self.columns.index:
                name = _text(cells.get(self.columns.index)).strip()
        except RowError as bad_index:
            name, error = "", bad_index
        place = RowPlace(number, name, f"{row.where}, row {number} (index {name!r})")
        if error is None:
            try:
                refs = self._images(cells, place)
            except DataError as bad_image:
                error = bad_image
        return _PendingRow(place, cells, tuple(refs), error)

    def _images(self, cells: JsonDict, place: RowPlace) -> list[ImageRef | str]:
        """Return a row's images; in VLMEvalKit's files, some are other rows' indices."""
        if not self.is_vlmeval:
            names = self.columns.images
            return [ref for name in names for ref in self.folder.refs(cells[name], name, place)]
        texts = split_cell(cells.pop("image", ""))  # its base64 is not kept
        if not texts:
            return [self.folder.put(p, place) for p in split_cell(cells.get("image_path", ""))]
        return [
            text
            if len(text) <= MAX_REFERENCE
            else self.folder.store.put(decode_base64(text), place.where)
            for text in texts
        ]

    def _build(self, row: _PendingRow) -> None:
        cells, columns, place = row.cells, self.columns, row.place

        def text(column: str | None) -> str:
            return _text(cells.get(column)) if column else ""

        with self.collector.row(place):
            if row.error is not None:
                raise row.error
            if not place.name:
                raise RowError("index", "the index is empty", "give every row a unique index")
            refs = self._resolve_images(row.images)
            if not refs:
                raise RowError("image", "there is no image", "add one, or remove the row")
            extra = {name: value for name in columns.extra if (value := text(name))}
            if self.is_vlmeval:
                subcategory = next((cells[name] for name in _L2 if cells.get(name)), "")
                extra |= {"l2_category": subcategory} if subcategory else {}
            else:
                absent = self.options if self.layout.options_in == "columns" else []
                self.n_missing += _empty_missing(cells, absent, columns.hint)
            question, answer = text(columns.question), text(columns.answer)
            stem, options = question, _options(cells, self.layout, self.options)
            if self.layout.options_in == "question" and self.layout.question_style:
                stem, options = split_question(question, self.layout.question_style, answer)
            item, oddities = build_item(
                benchmark=self.collector.name,
                name=place.name,
                images=refs,
                question=stem,
                raw_question=question,
                options=options,
                answer=answer,
                answer_is=self.layout.answer_is,
                hint=text(columns.hint),
                category=text(columns.category),
                group=group_of(cells, has_images=True) if self.is_vlmeval else text(columns.group),
                source=Source(
                    dataset=self.source.dataset,
                    revision=self.spec.revision,
                    split=text("split") if self.is_vlmeval else self.source.split,
                    row=place.number,
                ),
                licence=self.spec.licence,
                extra=extra,
            )
            self.collector.keep(place, item, oddities)

    def _resolve_images(self, images: tuple[ImageRef | str, ...]) -> tuple[ImageRef, ...]:
        """Return a row's images, with those of the rows that it refers to."""
        refs: list[ImageRef] = []
        for image in images:
            if isinstance(image, ImageRef):
                refs.append(image)
                continue
            target = self.images_by_index.get(image)
            problem = f"the image cell refers to the row with index {image!r}"
            if target is None:
                remedy = "put the image's base64 there"
                raise RowError("image", f"{problem}, which does not exist", remedy)
            if isinstance(target, DataError):
                raise RowError("image", f"{problem}: {target}", "fix that row first")
            if not target:
                raise RowError("image", f"{problem}, which has no image", "put the base64 there")
            refs += target
        return tuple(refs)


def _empty_missing(cells: JsonDict, options: list[str], hint: str | None) -> bool:
    """Empty a row's cells that held no value before pandas made text of them.

    Mirrors of MMBench on the Hub have such cells. An option "nan" before another is kept.
    """
    trailing = list(itertools.takewhile(lambda c: cells[c] in ("nan", None, ""), reversed(options)))
    blank_names = [c for c in (*trailing, *([hint] if hint else [])) if cells[c] == "nan"]
    cells.update(dict.fromkeys(blank_names))
    return bool(blank_names)


def _options(cells: JsonDict, layout: Layout, columns: list[str]) -> tuple[tuple[str, str], ...]:
    if layout.options_in == "columns":
        beyond = [str(number) for number in range(len(LETTERS) + 1, len(columns) + 1)]
        letters = [*LETTERS, *beyond] if layout.columns.options else columns
        return tuple(
            (letter, _text(cells[column])) for letter, column in zip(letters, columns, strict=False)
        )
    if layout.options_in != "list":
        return ()
    value = cells[columns[0]]
    if isinstance(value, str) and value.strip():
        try:
            value = parse_literal(value.strip())
        except ValueError:
            value = 0
    if value is None or value == "":
        return ()
    if isinstance(value, dict) and value and value.keys() <= set(LETTERS):
        by_letter = sorted((letter, text) for letter, text in value.items() if text is not None)
        return tuple((letter, _text(text)) for letter, text in by_letter)
    if not isinstance(value, list | tuple):
        problem = f"the column {columns[0]!r} does not contain a list: {cells[columns[0]]!r:.60}"
        raise RowError("options", problem, "write it as ['a', 'b'] or {'A': 'a', 'B': 'b'}")
    if len(value) > len(LETTERS):
        problem = f"there are {len(value)} options; at most 26 are supported"
        raise RowError("options", problem, "remove the row")
    return tuple((letter, _text(v)) for letter, v in zip(LETTERS, value, strict=False))


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str | bool | int | float):
        return str(value)
    problem = f"{str(value)[:60]!r} is a {type(value).__name__}, not text"
    raise RowError("text", problem, "map a column that contains text")


# --- pairs that exist already -----------------------------------------------------------------


@dataclass
class FoundPairs:
    """The pairs, the two versions that were read, and why items could not be joined."""

    benchmark: PairedBenchmark
    sides: list[Benchmark]
    unpaired: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return what was read and what was rejected, for people."""
        lines = [f"{self.benchmark.name}: {len(self.benchmark.pairs)} pairs"]
        lines += [side.summary() for side in self.sides if side.problems]
        lines += [f"  unpaired: {line}" for line in self.unpaired[:10]]
        if len(self.unpaired) > 10:
            lines.append(f"  ... and {len(self.unpaired) - 10} more")
        return "\n".join(lines)


def load_pairs(spec: PairsSpec, images: ImageStore) -> FoundPairs:
    """Read existing pairs.

    They are marked as not exchangeable: which version is the original was not drawn at random, so
    one may be harder by construction, and only rules relative to a reference model are sound.

    Raises
    ------
    DataError
        If nothing is configured, or no pair is found.
    """
    pairs: list[Pair] = []
    sides: list[Benchmark] = []
    unpaired: list[str] = []
    name = spec.name
    for suffix, part in spec.resolved():
        original, counterfactual = (
            load_benchmark(version, images) for version in (part.original, part.counterfactual)
        )
        name = name or original.name
        sides += [original, counterfactual]
        counterfactuals = {item.name: item for item in counterfactual.items}
        for item in original.items:
            twin = counterfactuals.pop(item.name, None)
            if twin is None:
                unpaired.append(f"{item.name}: not in the counterfactual {counterfactual.name}")
                continue
            try:
                pairs.append(Pair(_renamed(item, name, suffix), _renamed(twin, name, suffix)))
            except DataError as error:
                unpaired.append(str(error))
        unpaired += [f"{twin}: not in the original {original.name}" for twin in counterfactuals]
    if not pairs:
        raise DataError(
            "no pairs: give 'parts' with an original and a counterfactual each, or 'naturalbench'"
            if not sides
            else f"no pair in {len(sides[0].items)} items; first: {next(iter(unpaired), '')}"
        )
    funnel = {"items": sum(side.n_rows for side in sides[::2]), "kept": len(pairs)}
    made_by = {"pairs": "found, not made"}
    paired = PairedBenchmark(name, tuple(pairs), images, funnel, made_by, exchangeable=False)
    return FoundPairs(paired, sides, unpaired)


def _renamed(item: Item, benchmark: str, suffix: str) -> Item:
    name = f"{item.name}-{suffix}" if suffix else item.name
    return item.revised(benchmark=benchmark, name=name, group=item.group or item.name)
