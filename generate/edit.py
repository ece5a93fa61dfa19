"""Redraw images from their captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Edit, Record
from flipbench.imaging.similarity import similarity
from flipbench.models.protocols import Editor


class EditStage:
    """Edit captioned items; results have exactly the source's size and are stored losslessly.

    Each item's seed is derived from (seed, item id), so resuming, reordering, or adding workers
    changes no image.
    """

    name = "edit"
    record: type[Record] = Edit

    def __init__(self, editor: Editor, images: ImageStore, seed: int = 0) -> None:
        self.editor, self.images, self.seed = editor, images, seed

    def id_of(self, candidate: Candidate) -> str:
        """Return the id of the candidate's edit."""
        return Edit.id_for(**self._key(candidate))

    def subject(self, candidate: Candidate) -> str:
        """Return the item's benchmark and name."""
        return candidate.subject

    def __call__(self, candidates: Sequence[Candidate]) -> list[Edit | Exception]:
        """Edit a batch."""
        seeds = [self._seed(candidate) for candidate in candidates]
        out: list[Edit | Exception] = []
        drawings = self.editor(candidates, seeds, self.images)
        for candidate, drawing in zip(candidates, drawings, strict=True):
            if isinstance(drawing, Exception):
                out.append(drawing)
                continue
            source = candidate.item.images[0]
            if drawing.image.size != (source.width, source.height):
                sizes = f"{drawing.image.size} pixels, the source {(source.width, source.height)}"
                out.append(DataError(f"the edited image has {sizes}"))
                continue
            image = self.images.put_image(drawing.image, candidate.subject)
            likeness = similarity(self.images.open(source), drawing.image).to_json()
            extra = drawing.extra | {"similarity": likeness}
            out.append(Edit(**self._key(candidate), image=image, extra=extra))
        return out

    def _seed(self, candidate: Candidate) -> int:
        return int(generator(self.seed, candidate.item.id, "edit").integers(2**63))

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        caption, item = candidate.caption, candidate.item
        if caption is None or not item.images:
            raise DataError(f"{candidate.subject}: no caption or no image to edit")
        return {
            "caption_id": caption.id,
            "caption_text": caption.text,
            "source_sha256": item.images[0].sha256,
            "editor": self.editor.name,
            "settings": self.editor.settings,
            "seed": self._seed(candidate),
        }
