"""Edits without a model where one makes the new answer true; the rest go to another editor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from pydantic import Field

from flipbench.benchmarks.tables import cell_text, read_rows
from flipbench.config.kinds import Context, EditorSpec
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Item, JsonDict, Value
from flipbench.models.protocols import Drawing, Editor, release
from flipbench.prompting.prompts import yes_no

from . import exact_operations
from .exact_rules import COLOURS, ExactEdit, Region, exact_edits

_BOX = ("x", "y", "width", "height")


class ExactEditorSpec(Value):
    """Mirroring, recolouring, removing, repeating and swapping, on a CPU."""

    kind: Literal["exact"] = "exact"
    regions: str | None = Field(
        default=None,
        description="CSV, TSV or JSONL of boxes around objects: name (of the item), x, y, width,"
        " height (pixels) and, to swap, label",
    )
    mirror_text: bool = Field(
        default=False, description="mirror pictures in which writing seems to be, too"
    )
    otherwise: EditorSpec | None = Field(
        default=None, description="the editor of items that no exact edit fits"
    )

    def build(self, context: Context) -> ExactEditor:
        """Return the editor."""
        fallback = None if self.otherwise is None else self.otherwise.build(context)
        return ExactEditor(self.read_regions(), fallback, mirror_text=self.mirror_text)

    def read_regions(self) -> dict[str, list[Region]]:
        """Return the regions by item name; empty without a file."""
        return read_regions(Path(self.regions)) if self.regions else {}

    def reachable_answers(self, items: Sequence[Item]) -> dict[str, list[int]]:
        """Return the options by item id to which the new answer is restricted.

        Items that the other editor redraws, if there is one, are not in it.
        """
        regions = self.read_regions()
        reachable = {
            item.id: sorted(exact_edits(item, regions.get(item.name, ()))) for item in items
        }
        return {id_: options for id_, options in reachable.items() if options or not self.otherwise}


class ExactEditor:
    """Changes a picture by the exact edit that makes the new answer true.

    Each edit stores its operation and the share of pixels that may have changed. Outside of them,
    the picture is the original's, bit for bit.

    Parameters
    ----------
    regions : mapping
        The objects to work on, by item name.
    otherwise : Editor, optional
        Redraws the items that no exact edit fits; their edits are as if it were the editor.
    mirror_text : bool
        Whether to mirror a picture in which writing seems to be.
    """

    name = "exact"

    def __init__(
        self,
        regions: Mapping[str, Sequence[Region]],
        otherwise: Editor | None = None,
        *,
        mirror_text: bool = False,
    ) -> None:
        self.regions, self.otherwise, self.mirror_text = regions, otherwise, mirror_text
        self.settings: JsonDict = {"mirror_text": mirror_text}

    def identity(self, candidate: Candidate) -> tuple[str, JsonDict]:
        """Return the name and the settings that an edit of this candidate is stored with."""
        edit = self._edit_for(candidate)
        if edit is None and self.otherwise is not None:
            return self.otherwise.name, self.otherwise.settings
        return self.name, self.settings if edit is None else self.settings | _to_json(edit)

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Edit a batch, in order; the seeds are for the other editor."""
        drawings: dict[int, Drawing | Exception] = {}
        remaining = []
        for index, candidate in enumerate(candidates):
            edit = self._edit_for(candidate)
            if edit is None and self.otherwise is not None:
                remaining.append(index)
                continue
            try:
                drawings[index] = self._draw(candidate, edit, images)
            except DataError as error:
                drawings[index] = error
        if remaining and self.otherwise is not None:
            batch = [candidates[index] for index in remaining]
            redrawn = self.otherwise(batch, [seeds[index] for index in remaining], images)
            drawings |= zip(remaining, redrawn, strict=True)
        return [drawings[index] for index in range(len(candidates))]

    def release(self) -> None:
        """Free what the other editor holds, if it can."""
        release(self.otherwise)

    def _edit_for(self, candidate: Candidate) -> ExactEdit | None:
        item, flip = candidate.item, candidate.flip
        if flip is None:
            return None
        index = flip.new_answer
        if index is None and (words := yes_no(item)):
            index = words.index(flip.new_text)
        edits = exact_edits(item, self.regions.get(item.name, ()))
        return None if index is None else edits.get(index)

    def _draw(self, candidate: Candidate, edit: ExactEdit | None, images: ImageStore) -> Drawing:
        if edit is None:
            raise DataError(
                f"{candidate.subject}: no exact edit makes the new answer true; mark the object in"
                " a file of regions, or name another editor under otherwise"
            )
        picture = np.asarray(images.open(candidate.source).convert("RGB"))
        if edit.operation == "mirror" and not self.mirror_text:
            if lines := exact_operations.text_lines(picture):
                raise DataError(
                    f"{candidate.subject}: there seems to be writing at {lines[0]} (x, y, width,"
                    " height), which would be mirrored; set mirror_text: true if it is none"
                )
        drawing, changed_pixels = _apply(edit, picture, self.regions.get(candidate.item.name, ()))
        extra = _to_json(edit) | {"changed_share": round(float(changed_pixels.mean()), 4)}
        return Drawing(Image.fromarray(drawing), {"exact": extra})


def _apply(
    edit: ExactEdit, picture: exact_operations.Picture, regions: Sequence[Region]
) -> tuple[exact_operations.Picture, exact_operations.Mask]:
    boxes = [region.box for region in edit.regions]
    if edit.operation == "mirror":
        return exact_operations.mirror(picture)
    if edit.operation == "recolour":
        return exact_operations.recolour(picture, boxes[0], COLOURS[edit.colour])
    if edit.operation == "remove":
        return exact_operations.remove(picture, boxes)
    if edit.operation == "repeat":
        other_boxes = [region.box for region in regions]
        return exact_operations.repeat(picture, boxes[0], edit.copies, other_boxes)
    return exact_operations.swap(picture, *boxes)


def _to_json(edit: ExactEdit) -> JsonDict:
    return {
        "operation": edit.operation,
        "boxes": [list(region.box) for region in edit.regions],
        "colour": edit.colour,
        "copies": edit.copies,
    }


def read_regions(path: Path) -> dict[str, list[Region]]:
    """Return the regions of a table by item name, in the order of the file.

    Raises
    ------
    DataError
        If the file cannot be read, or a row lacks a number; the message gives file and line.
    """
    regions: dict[str, list[Region]] = defaultdict(list)
    for row in read_rows(path):
        name, label = (cell_text(row.cells.get(column)).strip() for column in ("name", "label"))
        if not name:
            raise DataError(f"{row.where}: name is missing; give the item's name in the benchmark")
        try:
            x, y, width, height = (round(float(row.cells[column])) for column in _BOX)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{row.where}: x, y, width and height must be numbers of pixels, but the row is"
                f" {row.cells!r}"
            ) from error
        regions[name].append(Region((x, y, width, height), label))
    return dict(regions)
