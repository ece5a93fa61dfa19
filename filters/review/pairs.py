"""The review of edited pairs: the pairs, compact enough to hold 50,000 in memory, and the task."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.records import Caption, Edit, Flip, ImageRef, Item, Verdict
from flipbench.core.run import Run

from ..effective_verdicts import REASONS
from .task import Label, RaterVerdict, Task, picture

log = logging.getLogger(__name__)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FORMAT = re.compile(r"[a-z]{3,4}")


@dataclass(frozen=True, slots=True)
class EditedPair:
    """An item and one edit of it. ``old_answer`` and ``new_answer`` index ``options``.

    ``redrawn`` is the position, from 0, of the image in ``originals`` that ``edited`` replaces.
    """

    edit_id: str
    item: str
    category: str
    question: str
    options: tuple[str, ...]
    old_answer: int | None
    old_text: str
    new_answer: int | None
    new_text: str
    caption: str
    originals: tuple[ImageRef, ...]
    edited: ImageRef
    redrawn: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The ids of the edit and of its image."""
        return self.edit_id, self.edited.sha256

    @property
    def pictures(self) -> tuple[ImageRef, ...]:
        """The image that was redrawn, the other originals in order, then the edited image."""
        at = self.redrawn
        return (
            *self.originals[at : at + 1],
            *self.originals[:at],
            *self.originals[at + 1 :],
            self.edited,
        )

    @property
    def place(self) -> str:
        """Which of several images was redrawn, for people; empty if there is only one."""
        n_images = len(self.originals)
        return f"image {self.redrawn + 1} of {n_images}" if n_images > 1 else ""

    def shown(self) -> dict[str, Any]:
        """Return the question and the edited image."""
        return {
            "item": self.item,
            "category": self.category,
            "question": self.question,
            "options": self.options,
            "right": picture(self.edited),
            "more": [
                picture(ref) | {"number": number}
                for number, ref in enumerate(self.originals, 1)
                if number != self.redrawn + 1
            ],
            "place": self.place,
        }

    def revealed(self) -> dict[str, Any]:
        """Return the answers, the original image and the caption."""
        return {
            "left": picture(self.pictures[0]) if self.originals else None,
            "old_answer": self.old_answer,
            "old_text": self.old_text,
            "new_answer": self.new_answer,
            "new_text": self.new_text,
            "details": self.caption,
        }

    def facts(self) -> dict[str, Any]:
        """Return item, question, options, answers and caption."""
        answer = f"New answer: {self.new_text} (before: {self.old_text})"
        if self.options:
            answer += f". Options: {'; '.join(self.options)}"
        return {
            "item": self.item,
            "category": self.category,
            "question": self.question,
            **({"redrawn": self.place} if self.place else {}),
            "options": list(self.options),
            "answer": answer,
            "old_answer": self.old_text,
            "new_answer": self.new_text,
            "caption": self.caption,
        }

    def record(self, rater: str, run: int, verdict: RaterVerdict) -> Verdict:
        """Return the record of a person's verdict."""
        return Verdict(
            edit_id=self.edit_id,
            image_sha256=self.edited.sha256,
            rater=rater,
            rater_kind="person",
            run=run,
            decision=verdict.decision,  # type: ignore[arg-type]  # validated by the record
            reason=verdict.reason,
            blind_answer=verdict.blind_answer,
            seconds=verdict.seconds,
        )


def edited_pairs(run: Run, edit_ids: Collection[str] | None = None) -> list[EditedPair]:
    """Return the pairs of a run in the order of its items, optionally of some edits only.

    An edit without an item in the run, or with a missing image file, is skipped with a warning.

    Raises
    ------
    DataError
        If there is nothing to review.
    """
    items: dict[str, Item] = {}
    for item in run.read(Item):  # drop what only editors need
        items[item.id] = item.model_copy(update={"extra": {}, "raw_question": ""})
    order = {item_id: number for number, item_id in enumerate(items)}
    flips = {f.id: (f.item_id, f.new_answer, f.new_text) for f in run.read(Flip)}
    captions = {c.id: (c.flip_id, c.picture) for c in run.read(Caption)}
    numbered: list[tuple[int, EditedPair]] = []
    skipped: list[str] = []
    for edit in run.read(Edit):
        if edit_ids is not None and edit.id not in edit_ids:
            continue
        flip_id, redrawn = captions.get(edit.caption_id, ("", 0))
        item_id, new_answer, new_text = flips.get(flip_id, ("", None, ""))
        if item_id not in items:
            skipped.append(f"edit {edit.id}: its item, flip or caption is not in the run")
            continue
        item = items[item_id]
        pair = EditedPair(
            edit_id=edit.id,
            item=f"{item.benchmark} {item.name}",
            category=item.category,
            question=item.question,
            options=item.options or (),
            old_answer=item.answer,
            old_text=item.answer_text,
            new_answer=new_answer,
            new_text=new_text,
            caption=edit.caption_text,
            originals=item.images,
            edited=edit.image,
            redrawn=redrawn,
        )
        lost = [
            r
            for r in pair.pictures
            if isinstance(result_or_error(image_path, run.images, r), DataError)
        ]
        if lost:
            skipped.append(f"{pair.item}: image {lost[0].sha256[:12]} is missing")
            continue
        numbered.append((order[item_id], pair))
    for reason in skipped[:5]:
        log.warning("skipped: %s", reason)
    if len(skipped) > 5:
        log.warning("skipped: ... and %d more", len(skipped) - 5)
    if not numbered:
        raise DataError(
            f"{run.path}: there are no edited images to review; run 'flipbench generate' first"
        )
    return [pair for _, pair in sorted(numbered, key=lambda entry: entry[0])]


def image_path(images: ImageStore, ref: ImageRef) -> Path:
    """Return the path of an image, which is always inside the run's image folder.

    Raises
    ------
    DataError
        If the record points elsewhere (runs may be untrusted), or the file is missing or damaged.
    """
    is_valid = _SHA256.fullmatch(ref.sha256) and _FORMAT.fullmatch(ref.format)
    path = images.path(ref) if is_valid else images.folder
    if path.is_symlink() or not path.is_file():
        raise DataError(f"image {ref.sha256[:12]} is not among the images of this run")
    if not images.has(ref):
        raise DataError(f"{path}: the image is damaged; 'flipbench generate' recreates it")
    return path


def _verdict_of(record: Verdict) -> RaterVerdict:
    return RaterVerdict(
        record.run,
        record.rater_kind,
        record.decision,
        record.reason,
        record.blind_answer,
        record.seconds,
    )


REVIEW = Task(
    name="review",
    title="Review",
    instructions="Keep a pair if the new answer, and no other, follows from the edited image;"
    " image quality does not matter. Reject ambiguous pairs.",
    details="Caption",
    record=Verdict,
    labels=(
        Label("keep", "Keep", "k", "kept", "You kept this pair", always_counted=True),
        Label(
            "reject",
            "Reject",
            "r",
            "rejected",
            "You rejected this pair",
            why="Reject because",
            always_counted=True,
        ),
        Label(
            "unsure", "Unsure", "u", "unsure", "You are unsure of this pair", why="Unsure because"
        ),
    ),
    sides=("original", "edited"),
    nouns=("edit", "image"),
    key_columns=("edit_id", "image_sha256"),
    label_column="decision",
    columns=(
        "edit_id",
        "image_sha256",
        "rater",
        "decision",
        "rater_kind",
        "reason",
        "note",
        "blind_answer",
        "seconds",
        "item",
        "category",
        "question",
        "options",
        "old_answer",
        "new_answer",
    ),
    needs="edits",
    missing="not a run with edited images; run 'flipbench generate' first",
    load=edited_pairs,
    verdict_of=_verdict_of,
    reasons=REASONS,
)
