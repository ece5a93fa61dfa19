"""Guess how to read a benchmark file, for ``flipbench init``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from flipbench.benchmarks.build import AnswerIs
from flipbench.benchmarks.image_files import is_base64, split_cell
from flipbench.benchmarks.load import MAX_REFERENCE, check_image_column
from flipbench.benchmarks.own_format import KEYS
from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.specs import (
    ColumnMapping,
    HuggingFaceSpec,
    JsonlSpec,
    OptionsIn,
    QuestionStyle,
    TsvSpec,
)
from flipbench.benchmarks.tables import (
    RowError,
    check_columns,
    open_table,
    option_columns,
)
from flipbench.core.errors import DataError
from flipbench.prompting.prompts import LETTERS

_N_ROWS = 20
_SYNONYMS = {
    "question": ("query", "prompt", "text"),
    "answer": ("label", "answer_index", "correct_answer", "gt_answer", "target"),
    "images": ("decoded_image", "image", "image_path", "picture", "img", "image_1", "image_0"),
    "index": ("id", "question_id", "qid", "idx"),
    "options": ("choices", "candidates"),
    "category": ("subject", "topic", "task"),
    "hint": (),
}


@dataclass(frozen=True)
class Guess:
    """How to read a benchmark, and observations about the file."""

    spec: TsvSpec | JsonlSpec | HuggingFaceSpec
    notes: list[str] = field(default_factory=list)


def guess_spec(path: str) -> Guess:
    """Return how to read a benchmark, judging by its extension, columns and first rows.

    Parameters
    ----------
    path : str
        A ``.tsv``, ``.jsonl``, ``.json`` or ``.parquet`` file, or the id of a dataset on the Hub,
        which is not opened.

    Raises
    ------
    DataError
        If a required column is missing, or the file has another format.
    """
    suffix = Path(path).suffix.lower()
    guesses = {
        ".tsv": _guess_tsv,
        ".jsonl": _guess_json,
        ".json": _guess_json,
        ".parquet": _guess_parquet,
    }
    if suffix in guesses:
        table = open_table(Path(path))
        rows = []
        for row in islice(table.rows, _N_ROWS):
            if row.error and suffix != ".tsv":
                raise DataError(f"{row.where}: {row.error}") from row.error
            rows.append(row.cells)
        header = table.columns or list(dict.fromkeys(key for cells in rows for key in cells))
        return guesses[suffix](Path(path), header, rows)
    if not Path(path).exists() and path.count("/") == 1 and suffix != ".csv":
        note = "on the Hub, not opened: name its columns, and pin its revision"
        return Guess(HuggingFaceSpec(path=path, name=path.rpartition("/")[2]), [note])
    raise DataError(
        f"{path}: give a .tsv (VLMEvalKit), .jsonl, .json or .parquet file, or a dataset's id on"
        " the Hub such as Lin-Chen/MMStar"
    )


def _guess_tsv(path: Path, header: Sequence[str], rows: list[dict[str, Any]]) -> Guess:
    check_columns(["index", "question", "answer"], header, str(path))
    check_image_column(header, str(path))
    letters = option_columns(header, str(path))
    notes = [f"options in the columns {', '.join(letters)}"]
    if not letters:
        notes = ["no option columns A, B, …: every question is free-form"]
        if _style(rows, "question", "answer") in ("lines", "inline"):
            notes.append("there are options inside questions: move them into columns A, B, …")
    if any(len(row.get("image", "")) > MAX_REFERENCE for row in rows):
        return Guess(TsvSpec(path=path), [*notes, "images in the file"])
    paths = [path for row in rows for path in split_cell(row.get("image_path", ""))]
    root, image_notes = _image_root(path, paths)
    return Guess(TsvSpec(path=path, image_root=root), [*notes, *image_notes])


def _guess_json(path: Path, keys: Sequence[str], rows: list[dict[str, Any]]) -> Guess:
    foreign = [key for key in keys if key not in KEYS]
    if path.suffix.lower() != ".jsonl" or not _is_own(keys, foreign):
        return _guess_mapped(path, keys, [dict.fromkeys(keys) | row for row in rows])
    check_columns(["images", "question", "answer"], keys, str(path))
    notes = [
        "options as lists" if "options" in keys else "no 'options': every question is free-form"
    ]
    if foreign:
        notes.append(f"unknown keys, move them into 'extra': {', '.join(foreign)}")
    paths = [p for row in rows for p in _as_list(row.get("images")) if isinstance(p, str)]
    root, image_notes = _image_root(path, paths)
    return Guess(JsonlSpec(path=path, image_root=root), [*notes, *image_notes])


def _is_own(keys: Sequence[str], foreign: Sequence[str]) -> bool:
    """Return whether the keys are those of our JSONL: 'name' marks it, or there are no others."""
    return "images" in keys and ("name" in keys or "id" not in keys and not foreign)


def _guess_parquet(path: Path, header: Sequence[str], rows: list[dict[str, Any]]) -> Guess:
    if {"benchmark", "name", "images", "question", "answer"} <= set(header):
        spec = HuggingFaceSpec(path=str(path), mapping="flipbench")
        return Guess(spec, ["written by flipbench"])
    return _guess_mapped(path, header, rows)


def _guess_mapped(path: Path, header: Sequence[str], rows: list[dict[str, Any]]) -> Guess:
    """Return how to read a table by a mapping of its columns."""
    names = {meaning: _column(meaning, header) for meaning in _SYNONYMS}
    required = {meaning: names[meaning] or meaning for meaning in ("question", "answer", "images")}
    check_columns(list(required.values()), header, str(path))
    numbered = rf"{re.escape(re.sub(r'_[01]$', '', required['images']))}_\d+"
    several = [c for c in header if re.fullmatch(numbered, c) and c != required["images"]]
    options, options_in, style = _options(names["options"], required, header, rows)
    columns = ColumnMapping(
        question=required["question"],
        answer=required["answer"],
        images=(required["images"], *several),
        index=names["index"],
        category=names["category"],
        hint=names["hint"],
        options=options,
    )
    answer_is: AnswerIs = "auto"
    if options_in != "none" and all(type(row[columns.answer]) is int for row in rows):
        answer_is = "index"
    cells = [cell for row in rows for column in columns.images for cell in _as_list(row[column])]
    paths = [cell for cell in cells if isinstance(cell, str) and cell and not is_base64(cell)]
    root, image_notes = _image_root(path, paths)
    spec = HuggingFaceSpec(
        path=str(path),
        image_root=root,
        columns=columns,
        options_in=options_in,
        question_style=style,
        answer_is=answer_is,
    )
    notes = ["no options: every question is free-form"] if options_in == "none" else []
    if answer_is == "index":
        notes.append("answers are integers: read as positions counted from 0")
    return Guess(spec, [*notes, *image_notes])


def _options(
    column: str | None, names: dict[str, str], header: Sequence[str], rows: list[dict[str, Any]]
) -> tuple[tuple[str, ...], OptionsIn, QuestionStyle | None]:
    """Return the option columns, where the options are, and their style inside a question."""
    if {"A", "B"} <= set(header):
        return (), "columns", None
    if {"a", "b"} <= set(header):
        return tuple(c.lower() for c in LETTERS if c.lower() in header), "columns", None
    if column is not None:
        return (column,), "list", None
    style = _style(rows, names["question"], names["answer"])
    return (), "question" if style else "none", style


def _style(rows: Sequence[Mapping[str, Any]], question: str, answer: str) -> QuestionStyle | None:
    """Return in which style options are written inside the questions; None if they are not."""
    styles: tuple[QuestionStyle, ...] = ("lines", "inline", "naturalbench")
    for style in styles:
        try:
            for row in rows:
                if split_question(str(row.get(question)), style, str(row.get(answer))).options:
                    return style
        except RowError:
            continue
    return None


def _column(meaning: str, header: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(header)}
    names = (meaning, *_SYNONYMS[meaning])
    return next((lower[name] for name in names if name in lower), None)


def _image_root(path: Path, images: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder of the image paths (None for the file's own), and notes about it."""
    if not images:
        return None, []
    folders = [path.parent, path.parent / "images", path.parent / path.stem]
    for folder in folders:
        if (folder / images[0]).is_file():
            return (None if folder == path.parent else folder), [f"images in {folder}"]
    return None, [f"{images[0]} is not in {', '.join(map(str, folders))}: set image_root"]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
