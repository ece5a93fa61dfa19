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
    n_items: int = Field(default=480, ge=1, le=480)
    """The first n of its 480 items."""
    seed: int | None = Field(default=None, ge=0)
    """Draws other items than those of shapes-vqa; null: those."""
    level: Literal["standard", "hard"] = "standard"
    """hard: items that the tiny models often get wrong."""
    per_picture: int = Field(default=1, ge=1, le=4)
    """Questions about each picture; 2 to 4: colours only."""

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if self.per_picture > 1 and self.level != "standard":
            raise ValueError("per_picture: questions that share a picture have no hard level")
        return self


class TsvSpec(Value):
    """A tab-separated file in VLMEvalKit's format."""

    format: Literal["vlmeval"] = "vlmeval"
    path: Path
    name: str = ""
    """The benchmark's name, part of every item's id; empty: the file's, without its suffix."""
    image_root: Path | None = None
    """The folder of ``image_path`` cells; null: the file's."""
    licence: str = ""
    """Stored with every item."""
    revision: str = ""
    """Stored with every item."""
    extra_columns: tuple[str, ...] = ()
    """Columns to store in ``Item.extra``."""

    @property
    def layout(self) -> Layout:
        """The kit's columns: hint and category are optional, one column of images is enough."""
        columns = ColumnMapping(
            index="index",
            images=("image", "image_path"),
            hint="hint",
            category="category",
            extra=self.extra_columns,
        )
        return Layout(columns=columns, answer_is="letter")


class ColumnMapping(Value):
    """The columns of a dataset."""

    question: str = "question"
    answer: str = "answer"
    images: tuple[str, ...] = ("image",)
    """One or more columns, each an image or a list of images; with several columns, empty cells
    are skipped."""
    index: str | None = None
    """The items' names; null: the row number."""
    options: tuple[str, ...] = ()
    """The option columns in order (``options_in: columns``; empty: the columns A, B, …), or the one
    column that contains the list (``options_in: list``)."""
    category: str | None = None
    group: str | None = None
    hint: str | None = None
    extra: tuple[str, ...] = ()
    """Columns to store in ``Item.extra``."""


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
    """A dataset whose columns are mapped: one that the ``datasets`` library can open, or JSON."""

    format: Literal["huggingface"] = "huggingface"
    path: str
    """A folder, a parquet file, a pattern such as ``data/*.parquet``, a folder that
    ``save_to_disk`` wrote, the id of a dataset on the Hub, or a ``.jsonl`` or ``.json`` file with
    one object in each line or one list of them."""
    revision: str = ""
    """For the Hub: the 40-digit commit; a branch or tag may change."""
    split: str = ""
    """May be empty if there is only one."""
    config_name: str = ""
    """May be empty if there is only one."""
    name: str = ""
    licence: str = ""
    image_root: Path | None = None
    """The folder of images that are given as paths; null: the dataset's."""
    mapping: Literal["realworldqa", "mmstar", "flipbench"] | None = None
    """A predefined layout; ``columns``, ``options_in``, ``question_style`` and ``answer_is``
    override its parts. flipbench: files written by `write_parquet`."""
    columns: ColumnMapping | None = None
    options_in: OptionsIn | None = None
    """Where the options are; null: as in the mapping, else columns."""
    question_style: QuestionStyle | None = None
    """How a question contains its options: ``A. …`` on separate lines, ``Options: A: …, B: …``, or
    ``Option: A: …; B: …;`` with Yes and No if there are none."""
    answer_is: AnswerIs | None = None
    """What the answer column contains; an index counts from 0. null: as in the mapping (letter for
    the two benchmarks), else auto."""

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
    """Our own format: one JSON object per line, with image files next to it."""

    format: Literal["jsonl"] = "jsonl"
    path: Path
    image_root: Path | None = None
    """The folder that image paths are relative to; null: the file's."""
    name: str = ""
    """The benchmark's name for rows without one; empty: the file's, without its suffix."""


BenchmarkSpec = Annotated[TsvSpec | HuggingFaceSpec | JsonlSpec, Field(discriminator="format")]


class FoundPairSpec(Value):
    """Two versions of the same questions, read as two benchmarks and joined by item name.

    They may be two files, or two column mappings of one file.
    """

    original: BenchmarkSpec
    counterfactual: BenchmarkSpec


class PairsSpec(Value):
    """A benchmark of existing pairs; nothing is generated."""

    format: Literal["pairs"] = "pairs"
    name: str = ""
    parts: tuple[FoundPairSpec, ...] = ()
    """Read one after another."""
    naturalbench: str = ""
    """Instead of parts: a folder or hub id of NaturalBench. Each row becomes two pairs, one for
    each question; the first image is the original."""
    revision: str = ""
    licence: str = ""
    """Of NaturalBench; parts state their own."""

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
