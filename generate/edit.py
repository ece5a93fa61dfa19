"""Redraw images from their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.image_similarity import similarity
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Edit, JsonDict, Record
from flipbench.core.run import versions
from flipbench.models.protocols import Editor

_LIBRARY = "diffusers"


class EditStage:
    """Edit captioned items; results have exactly the source's size and are stored losslessly.

    Each item's seed is derived from (seed, item id), so resuming, reordering, or adding workers
    changes no image. The versions of the libraries that drew an image are stored with it, outside
    of its id: the same edit drawn by another version is the same edit, and its verdicts apply if
    the image has the same hash.

    Parameters
    ----------
    known_settings : mapping of str to dict, optional
        Settings that name a library's version, as `versioned_settings` returns them: these edits
        keep their ids.
    attempt : int
        Each attempt has a seed of its own; that of attempt 0 does not depend on there being others.
    step : str
        What this attempt changes, stored with the edit.
    """

    name = "edit"
    record: type[Record] = Edit

    def __init__(
        self,
        editor: Editor,
        images: ImageStore,
        seed: int = 0,
        known_settings: Mapping[str, JsonDict] | None = None,
        *,
        attempt: int = 0,
        step: str = "",
    ) -> None:
        self.editor, self.images, self.seed = editor, images, seed
        self.known, self.versions = known_settings or {}, versions()
        self.attempt, self.step = attempt, step
        if attempt:
            self.name = f"edit, attempt {attempt + 1}"

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
            source = candidate.source
            if drawing.image.size != (source.width, source.height):
                sizes = f"{drawing.image.size} pixels, the source {(source.width, source.height)}"
                out.append(DataError(f"the edited image has {sizes}"))
                continue
            image = self.images.put_image(drawing.image, candidate.subject)
            likeness = similarity(self.images.open(source), drawing.image).to_json()
            extra = drawing.extra | {"similarity": likeness}
            if self.attempt:
                extra |= {"attempt": self.attempt, "step": self.step}
            key = self._key(candidate)
            out.append(Edit(**key, image=image, extra=extra, versions=self.versions))
        return out

    def _seed(self, candidate: Candidate) -> int:
        purpose = f"edit, attempt {self.attempt}" if self.attempt else "edit"
        return int(generator(self.seed, candidate.item.id, purpose).integers(2**63))

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        caption = candidate.caption
        if caption is None or not candidate.item.images:
            raise DataError(f"{candidate.subject}: no caption or no image to edit")
        name, settings = identity_of(self.editor, candidate)
        key = {
            "caption_id": caption.id,
            "caption_text": caption.text,
            "source_sha256": candidate.source.sha256,
            "editor": name,
            "settings": settings,
            "seed": self._seed(candidate),
        }
        return key | {"settings": self.known.get(Edit.id_for(**key), settings)}


def identity_of(editor: Editor, candidate: Candidate) -> tuple[str, JsonDict]:
    """Return the name and settings that an edit is stored with.

    They are the editor's, unless it has a method ``identity`` since they differ between candidates.
    """
    identity = getattr(editor, "identity", None)
    return (editor.name, editor.settings) if identity is None else identity(candidate)


def made_of(edit: Edit) -> JsonDict:
    """Return the values that an edit's id is a hash of, by name."""
    return {name: getattr(edit, name) for name in Edit.made_of}


def versioned_settings(edits: Iterable[Mapping[str, Any]]) -> dict[str, JsonDict]:
    """Return settings that name the version of diffusers, by the edit's id without that version.

    ``edits`` are what their ids are made of, as `made_of` returns it. If an edit was drawn by
    several versions, the installed one counts, else the last.
    """
    settings_by_id: dict[str, JsonDict] = {}
    installed = versions().get(_LIBRARY)
    for parts in edits:
        settings = parts["settings"]
        if _LIBRARY not in settings:
            continue
        unversioned = {key: value for key, value in settings.items() if key != _LIBRARY}
        edit_id = Edit.id_for(**{**parts, "settings": unversioned})
        if edit_id not in settings_by_id or settings_by_id[edit_id][_LIBRARY] != installed:
            settings_by_id[edit_id] = settings
    return settings_by_id
