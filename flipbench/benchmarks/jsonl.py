"""Our own JSONL: one item per line, with image files next to it; and rows of our own parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flipbench.benchmarks.build import AnswerIs, Draft, build_item
from flipbench.benchmarks.image_files import ImageFolder, image_folder
from flipbench.benchmarks.report import Benchmark, Collector, Oddity, RowError, RowPlace
from flipbench.benchmarks.specs import JsonlSpec
from flipbench.benchmarks.tables import check_file, not_utf8, parse_json
from flipbench.core.errors import DataError, nearest, shorten
from flipbench.core.images import ImageStore
from flipbench.core.limits import FILE_BYTES, bounded_lines
from flipbench.core.records import ImageRef, Item, JsonDict, Source
from flipbench.prompting.prompts import LETTERS

TEXTS = ("question", "answer_text", "raw_question", "category", "group", "licence")
KEYS = ("id", "benchmark", "name", "images", "options", "answer", "source", "extra", *TEXTS)


def load_jsonl(spec: JsonlSpec, images: ImageStore, strict: bool = False) -> Benchmark:
    """Read our own JSONL; see `flipbench.benchmarks.load_benchmark`."""
    check_file(spec.path)
    folder = image_folder(spec.image_root, spec.path.parent, images)
    collector = Collector(spec.name or spec.path.stem, strict)
    for number, (line, record) in enumerate(read_lines(spec.path)):
        name = str(record.get("name", number)) if isinstance(record, dict) else str(number)
        row = RowPlace(number, name, f"{spec.path.name}, line {line}, row {number} (name {name!r})")
        if isinstance(record, dict):
            collector.claim(name, row, str(record.get("benchmark", "")))
        with collector.row(row):
            if isinstance(record, ValueError):
                raise RowError("json", f"the line is not JSON ({record})", "fix the line")
            if not isinstance(record, dict):
                raise RowError("json", "the line is not a JSON object", "write it as {…}")
            refs = _images(record.pop("images", None), folder, row)
            item, oddities = item_of_record(record, refs, row, collector.name, spec.path.name)
            collector.keep(row, item, oddities)
    if not collector.n_rows:
        raise DataError(f"{spec.path}: there are no rows; download the file again")
    folder.note_relocated(collector)
    return collector.finish()


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line's number and its value, or the ValueError if it is not JSON.

    Raises
    ------
    DataError
        If a line is not UTF-8.
    """
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path) from error
            if not text.strip():
                continue
            try:
                yield number, parse_json(text)
            except ValueError as error:
                yield number, ValueError(str(error))


def json_rows(path: Path) -> Iterator[JsonDict]:
    """Yield the objects of a JSONL file, or of a ``.json`` file that contains one list of them.

    Raises
    ------
    DataError
        If the file is not UTF-8 or not JSON, or a member is not an object; the message names the
        line, or the member's position.
    """
    for where, row in _members(path):
        if isinstance(row, ValueError):
            raise DataError(f"{path}, {where}: not JSON ({row}); fix it")
        if not isinstance(row, dict):
            raise DataError(f"{path}, {where}: not a JSON object; write it as {{…}}")
        yield row


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix.lower() == ".json":
        FILE_BYTES.check(path.stat().st_size, path)
        try:
            whole = parse_json(path.read_text("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise not_utf8(path) from error
        except ValueError:  # several values: one in each line
            whole = None
        if isinstance(whole, list):
            yield from ((f"member {number}", row) for number, row in enumerate(whole))
            return
    yield from ((f"line {number}", row) for number, row in read_lines(path))


def _images(value: Any, folder: ImageFolder, row: RowPlace) -> tuple[ImageRef, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        what = f"'images' is {value!r:.60}" if value is not None else "there is no key 'images'"
        raise RowError("image", what, "give a list of paths; [] for a question without an image")
    return tuple(folder.put(path, row) for path in paths)


def record_of_item(item: Item) -> JsonDict:
    """Return an item as a row, without its images.

    ``answer`` is the right option's position from 0; None for a free-form question.
    """
    row = item.model_dump(mode="json", exclude={"images"})
    return {key: row[key] for key in KEYS if key != "images"}


def item_of_record(
    record: JsonDict, refs: tuple[ImageRef, ...], row: RowPlace, benchmark: str, dataset: str
) -> tuple[Item, list[Oddity]]:
    """Return a row's item and its oddities.

    ``refs`` are its images; ``benchmark`` and ``dataset`` are used if the row names none.

    Raises
    ------
    RowError
        If a key is unknown, a value has the wrong type, or the row's id does not match its content.
    """
    unknown = [key for key in record if key not in KEYS]
    if unknown:
        what = f"unknown key {shorten(unknown[0])!r}{nearest(unknown[0], list(KEYS))}"
        raise RowError("keys", what, f"the keys are {', '.join(KEYS)}; move others into 'extra'")
    for key in ("id", "benchmark", *TEXTS):
        if not isinstance(record.get(key, ""), str):
            raise RowError("text", f"{key!r} is {record[key]!r:.60}, not text", "quote it")
    options = _options(record.get("options"))
    answer, answer_is = _answer(record, bool(options))
    extra = record.get("extra", {})
    if isinstance(extra, str):
        extra = parse_json(extra or "{}")
    source = record.get("source") or {"dataset": dataset, "row": row.number}
    if not isinstance(extra, dict) or not isinstance(source, dict):
        raise RowError("text", "'extra' and 'source' must be objects", "fix the row")
    draft = Draft(
        benchmark=record.get("benchmark") or benchmark,
        name=row.name,
        images=refs,
        question=record.get("question", ""),
        raw_question=record.get("raw_question") or record.get("question", ""),
        options=list(zip(LETTERS, options, strict=False)),
        answer=answer,
        source=Source.model_validate(source),
        answer_is=answer_is,
        category=record.get("category", ""),
        group=record.get("group", ""),
        licence=record.get("licence", ""),
        extra=extra,
    )
    item, oddities = build_item(draft)
    if record.get("id", item.id) != item.id:
        what = f"its id {record['id']} does not match its content: the row was edited"
        raise RowError("id", what, "remove the id to accept the change")
    return item, oddities


def _options(options: Any) -> Sequence[str]:
    if options is None:
        return ()
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise RowError("options", f"'options' is {options!r:.60}", "give a list of texts")
    if not 2 <= len(options) <= len(LETTERS):
        what = f"there are {len(options)} options"
        raise RowError("options", what, "give 2 to 26, or none for a free-form question")
    for letter, option in zip(LETTERS, options, strict=False):
        if not option.strip():
            raise RowError("options", f"option {letter} is blank", "fix the row")
    return options


def _answer(record: JsonDict, has_options: bool) -> tuple[str, AnswerIs]:
    answer, text = record.get("answer"), record.get("answer_text", "")
    if not has_options:
        free_form = text or answer or ""
        if not isinstance(free_form, str):
            raise RowError("answer", f"'answer' is {free_form!r:.60}, not text", "quote it")
        return free_form, "text"
    if isinstance(answer, int) and not isinstance(answer, bool):
        options = record["options"]
        if text and 0 <= answer < len(options) and options[answer] != text:
            what = (
                f"'answer' is {answer}, option {options[answer]!r:.60}, 'answer_text' {text!r:.60}"
            )
            raise RowError("answer", what, "make them agree")
        return str(answer), "index"
    if not isinstance(answer, str):
        what = f"'answer' is {answer!r:.60}"
        raise RowError("answer", what, "give a letter, an option's text, or a position from 0")
    return answer, "auto"
