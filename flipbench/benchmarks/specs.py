"""The configuration of a benchmark: one frozen model per format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flipbench.benchmarks.build import AnswerIs
from flipbench.core.records import Value

OptionsIn = Literal["columns", "list", "question", "none"]
QuestionStyle = Literal["lines", "inline", "naturalbench"]


class ShapesSpec(Value):
    """The benchmark of the embedded world."""

    format: Literal["shapes"] = "shapes"
    n_items: int = Field(default=480, ge=1, le=480, description="the first n of its 480 items")
    seed: int | None = Field(
        default=None, ge=0, description="draws other items than those of shapes-vqa; null: those"
    )
    level: Literal["standard", "hard"] = Field(
        default="standard", description="hard: items that the tiny models often get wrong"
    )
    per_picture: int = Field(
        default=1, ge=1, le=4, description="questions about each picture; 2 to 4: colours only"
    )

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if self.per_picture > 1 and self.level != "standard":
            raise ValueError("per_picture: questions that share a picture have no hard level")
        return self


class TsvSpec(Value):
    """A tab-separated file in VLMEvalKit's format.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The benchmark's name, part of every item's id; the file's stem if empty.
    image_root : Path or None
        The folder of ``image_path`` cells; the file's folder if None.
    licence, revision : str
        Stored with every item.
    extra_columns : tuple of str
        Columns to store in ``Item.extra``.
    """

    format: Literal["vlmeval"] = "vlmeval"
    path: Path
    name: str = ""
    image_root: Path | None = None
    licence: str = ""
    revision: str = ""
    extra_columns: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """The kit's columns; of those of a hint, a category and pictures, not all need be there."""
        columns = ColumnMapping(
            index="index",
            images=("image", "image_path"),
            hint="hint",
            category="category",
            extra=self.extra_columns,
        )
        return Layout(columns=columns, answer_is="letter")


class ColumnMapping(Value):
    """The columns of a dataset.

    Attributes
    ----------
    question, answer : str
        Required columns.
    images : tuple of str
        One or more columns, each an image or a list of images; with several columns, empty cells
        are skipped.
    index : str or None
        The items' names; the row number if None.
    options : tuple of str
        The option columns in order (``options_in: columns``; the columns A, B, … if empty), or
        the one column that contains the list (``options_in: list``).
    category, group, hint : str or None
        Optional columns.
    extra : tuple of str
        Columns to store in ``Item.extra``.
    """

    question: str = "question"
    answer: str = "answer"
    images: tuple[str, ...] = ("image",)
    index: str | None = None
    options: tuple[str, ...] = ()
    category: str | None = None
    group: str | None = None
    hint: str | None = None
    extra: tuple[str, ...] = ()


class Layout(Value):
    """Columns, where the options are, and what an answer is."""

    columns: ColumnMapping = ColumnMapping()
    options_in: OptionsIn = "columns"
    question_style: QuestionStyle | None = None
    answer_is: AnswerIs = "auto"


LAYOUTS = {
    "realworldqa": Layout(options_in="question", question_style="lines", answer_is="letter"),
    "mmstar": Layout(
        columns=ColumnMapping(index="index", category="category", extra=("l2_category",)),
        options_in="question",
        question_style="inline",
        answer_is="letter",
    ),
}


class HuggingFaceSpec(Value):
    """A dataset whose columns are mapped: one that the ``datasets`` library can open, or JSON.

    Attributes
    ----------
    path : str
        A folder, a parquet file, a pattern such as ``data/*.parquet``, a folder that
        ``save_to_disk`` wrote, the id of a dataset on the Hub, or a ``.jsonl`` or ``.json`` file
        with one object in each line or one list of them.
    revision : str
        For the Hub: the 40-digit commit; a branch or tag may change.
    split, config_name : str
        May be empty if there is only one.
    mapping : {"realworldqa", "mmstar", "flipbench"} or None
        A predefined layout; ``columns``, ``options_in``, ``question_style`` and ``answer_is``
        override its parts. ``flipbench`` reads files written by `write_parquet`.
    options_in : {"columns", "list", "question", "none"} or None
        Where the options are; None: as in the mapping, else "columns".
    question_style : {"lines", "inline", "naturalbench"} or None
        How a question contains its options: ``A. …`` on separate lines,
        ``Options: A: …, B: …``, or ``Option: A: …; B: …;`` with Yes and No if there are none.
    answer_is : {"auto", "letter", "text", "index"} or None
        What the answer column contains; an index counts from 0. None: as in the mapping ("letter"
        for the two benchmarks), else "auto".
    image_root : Path or None
        The folder of images that are given as paths; the dataset's folder if None.
    """

    format: Literal["huggingface"] = "huggingface"
    path: str
    revision: str = ""
    split: str = ""
    config_name: str = ""
    name: str = ""
    licence: str = ""
    image_root: Path | None = None
    mapping: Literal["realworldqa", "mmstar", "flipbench"] | None = None
    columns: ColumnMapping | None = None
    options_in: OptionsIn | None = None
    question_style: QuestionStyle | None = None
    answer_is: AnswerIs | None = None

    @property
    def layout(self) -> Layout:
        """The predefined layout with the user's overrides."""
        base = LAYOUTS.get(self.mapping or "", Layout())
        return Layout(
            columns=self.columns or base.columns,
            options_in=self.options_in or base.options_in,
            question_style=self.question_style or base.question_style,
            answer_is=self.answer_is or base.answer_is,
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        layout = self.layout
        if layout.options_in == "question" and layout.question_style is None:
            raise ValueError("options_in: question needs a question_style, such as lines or inline")
        if layout.options_in == "list" and len(layout.columns.options) != 1:
            raise ValueError(
                "options_in: list needs columns.options with the name of the column that contains"
                " the list"
            )
        return self


class JsonlSpec(Value):
    """Our own format: one JSON object per line, with image files next to it.

    Attributes
    ----------
    path : Path
        The ``.jsonl`` file.
    image_root : Path or None
        The folder that image paths are relative to; the file's folder if None.
    name : str
        The benchmark's name for rows without one; the file's stem if empty.
    """

    format: Literal["jsonl"] = "jsonl"
    path: Path
    image_root: Path | None = None
    name: str = ""


BenchmarkSpec = Annotated[TsvSpec | HuggingFaceSpec | JsonlSpec, Field(discriminator="format")]


class FoundPairSpec(Value):
    """Two versions of the same questions, read as two benchmarks and joined by item name.

    They may be two files, or two column mappings of one file.
    """

    original: BenchmarkSpec
    counterfactual: BenchmarkSpec


class PairsSpec(Value):
    """A benchmark of existing pairs; nothing is generated.

    Attributes
    ----------
    parts : tuple of FoundPairSpec
        Read one after another.
    naturalbench : str
        Instead of parts: a folder or hub id of NaturalBench. Each row becomes two pairs, one for
        each question; the first image is the original.
    """

    format: Literal["pairs"] = "pairs"
    name: str = ""
    parts: tuple[FoundPairSpec, ...] = ()
    naturalbench: str = ""
    revision: str = ""
    licence: str = Field(default="", description="of NaturalBench; parts state their own")

    def resolved(self) -> Iterator[tuple[str, FoundPairSpec]]:
        """Yield a suffix for the item names of each part, and the part."""
        if self.naturalbench:
            for number in (0, 1):
                yield f"q{number}", _naturalbench(self, number)
        for number, part in enumerate(self.parts):
            yield f"p{number}" if len(self.parts) > 1 else "", part


def _naturalbench(spec: PairsSpec, number: int) -> FoundPairSpec:
    def side(image: int) -> HuggingFaceSpec:
        return HuggingFaceSpec(
            path=spec.naturalbench,
            revision=spec.revision,
            licence=spec.licence,
            name=spec.name or "NaturalBench",
            split="train",
            columns=ColumnMapping(
                index="Index",
                question=f"Question_{number}",
                answer=f"Image_{image}_Question_{number}",
                images=(f"Image_{image}",),
                category="Question_Type",
            ),
            options_in="question",
            question_style="naturalbench",
        )

    return FoundPairSpec(original=side(0), counterfactual=side(1))
