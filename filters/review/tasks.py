"""What people judge on the page: edited pairs (review), or flagged corpus pairs (adjudication)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.records import (
    Adjudication,
    Caption,
    Edit,
    Flip,
    ImageRef,
    Item,
    Verdict,
    content_id,
)
from flipbench.core.run import Run

from ..audit.corpus_overlap.flagged import FLAGGED, LABELS, FlaggedPair, read_flagged
from ..effective_verdicts import ANSWERED_BLIND, REASONS, WITHDRAWN, join_reason, split_reason

log = logging.getLogger(__name__)
Judgement = Verdict | Adjudication
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FORMAT = re.compile(r"[a-z]{3,4}")


class RaterVerdict(NamedTuple):
    """The newest verdict of one rater on one pair."""

    run: int
    kind: str
    decision: str
    reason: str = ""
    blind_answer: str | None = None
    seconds: float | None = None

    @property
    def decided(self) -> bool:
        """Whether it is a decision; a mere blind answer or a withdrawn verdict is not."""
        return self.kind != "person" or self.reason not in (WITHDRAWN, ANSWERED_BLIND)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pictures on which people decide, compact enough to hold 50,000 in memory.

    Attributes
    ----------
    key : tuple of str
        What identifies it in its records: the values of the task's key columns.
    category : str
        The category to filter by.
    details : str
        What is shown on demand.
    left, right : ImageRef
        The pictures; an edited image may have no original.
    others : tuple of (int, ImageRef)
        Further images of the item, the same on both sides, by their number from 1.
    place : str
        Which of several images was redrawn, for people; empty if there is only one.
    old_answer, new_answer : int or None
        Index ``options``.
    flagged : FlaggedPair or None
        What an audit says of the pair.
    """

    key: tuple[str, str]
    item: str
    category: str
    question: str
    details: str
    left: ImageRef | None
    right: ImageRef
    others: tuple[tuple[int, ImageRef], ...] = ()
    place: str = ""
    options: tuple[str, ...] = ()
    old_answer: int | None = None
    old_text: str = ""
    new_answer: int | None = None
    new_text: str = ""
    flagged: FlaggedPair | None = None

    @property
    def pictures(self) -> tuple[ImageRef, ...]:
        """The left picture, any others that are the same on both sides, then the right one."""
        left_pictures = (self.left,) if self.left else ()
        return (*left_pictures, *(ref for _, ref in self.others), self.right)

    def shown(self) -> dict[str, Any]:
        """Return what a reviewer sees at once, as JSON for the page."""
        return {
            "item": self.item,
            "category": self.category,
            "question": self.question,
            "options": self.options,
            "right": _picture(self.right),
            "more": [_picture(ref) | {"number": number} for number, ref in self.others],
            "place": self.place,
        }

    def revealed(self) -> dict[str, Any]:
        """Return what a reviewer sees only after a blind answer."""
        return {
            "left": _picture(self.left) if self.left else None,
            "old_answer": self.old_answer,
            "old_text": self.old_text,
            "new_answer": self.new_answer,
            "new_text": self.new_text,
            "details": self.details,
        }


def _picture(ref: ImageRef) -> dict[str, Any]:
    return {"src": f"/images/{ref.sha256}", "width": ref.width, "height": ref.height}


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


def _lost_image(images: ImageStore, pair: Pair) -> str:
    """Return the start of the hash of a picture that is missing; empty if all are there."""
    for ref in pair.pictures:
        if isinstance(result_or_error(image_path, images, ref), DataError):
            return ref.sha256[:12]
    return ""


@dataclass(frozen=True)
class Label:
    """One of the decisions on a pair.

    Attributes
    ----------
    key : str
        The key that chooses it.
    past : str
        Its name among the filters and in the progress ("12 kept").
    chosen : str
        The sentence that confirms it.
    meaning : str
        What it stands for, in the list of keys.
    why : str
        If given, the page asks for a reason under this heading.
    always_counted : bool
        Whether the progress shows it even if there are none.
    """

    value: str
    name: str
    key: str
    past: str
    chosen: str
    meaning: str = ""
    why: str = ""
    always_counted: bool = False


@dataclass(frozen=True)
class Task:
    """What the page shows and asks; also the layout of exported files.

    Attributes
    ----------
    name : str
        The command that serves it.
    title, instructions, details : str
        The page's title, what a reviewer is told at the start, and the heading of what is shown on
        demand.
    sides : tuple of str
        The names of the left and right picture.
    nouns : tuple of str
        What the two parts of a pair's key identify, for messages.
    key_columns, label_column, columns
        Columns of a table of verdicts: the pair's key, the label, and all of them.
    needs, missing : str
        A path in a run directory that can be worked on, and the message if it is not there.
    load : callable
        Returns the pairs of a run, optionally only those with certain first parts of their keys.
    facts : callable
        Returns what exported files say about a pair.
    to_record, from_record : callable
        Make a record of a person's verdict on a pair (pair, rater, run, verdict), and read one.
    reasons : tuple of str
        The reasons to choose from for labels with ``why``.
    same_scale : bool
        Whether both pictures are drawn at the same scale; otherwise each fills its frame.
    independent : bool
        Whether other people's verdicts are sent only to a reviewer who has decided.
    """

    name: str
    title: str
    instructions: str
    details: str
    record: type[Verdict] | type[Adjudication]
    labels: tuple[Label, ...]
    sides: tuple[str, str]
    nouns: tuple[str, str]
    key_columns: tuple[str, str]
    label_column: str
    columns: tuple[str, ...]
    needs: str
    missing: str
    load: Callable[[Run, Collection[str] | None], Sequence[Pair]]
    facts: Callable[[Pair], dict[str, Any]]
    to_record: Callable[[Pair, str, int, RaterVerdict], Judgement]
    from_record: Callable[[Any], RaterVerdict]
    reasons: tuple[str, ...] = ()
    same_scale: bool = True
    independent: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The labels as stored."""
        return tuple(label.value for label in self.labels)

    def key_of(self, record: Judgement) -> tuple[str, str]:
        """Return the key of the pair that a record is about."""
        id_column, hash_column = self.key_columns
        return str(getattr(record, id_column)), str(getattr(record, hash_column))


# --- the review of edited pairs -------------------------------------------------------------------


def edited_pairs(run: Run, edit_ids: Collection[str] | None = None) -> list[Pair]:
    """Return the edited pairs of a run in the order of its items, optionally of some edits only.

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
    numbered: list[tuple[int, Pair]] = []
    problems: list[str] = []
    for edit in run.read(Edit):
        if edit_ids is not None and edit.id not in edit_ids:
            continue
        flip_id, redrawn = captions.get(edit.caption_id, ("", 0))
        item_id, new_answer, new_text = flips.get(flip_id, ("", None, ""))
        if item_id not in items:
            problems.append(f"edit {edit.id}: its item, flip or caption is not in the run")
            continue
        item = items[item_id]
        images = dict(enumerate(item.images, 1))
        pair = Pair(
            key=(edit.id, edit.image.sha256),
            item=f"{item.benchmark} {item.name}",
            category=item.category,
            question=item.question,
            details=edit.caption_text,
            left=images.pop(redrawn + 1, None),
            right=edit.image,
            others=tuple(images.items()),
            place=f"image {redrawn + 1} of {len(item.images)}" if len(item.images) > 1 else "",
            options=item.options or (),
            old_answer=item.answer,
            old_text=item.answer_text,
            new_answer=new_answer,
            new_text=new_text,
        )
        if sha256 := _lost_image(run.images, pair):
            problems.append(f"{pair.item}: image {sha256} is missing")
            continue
        numbered.append((order[item_id], pair))
    for problem in problems[:5]:
        log.warning("skipped: %s", problem)
    if len(problems) > 5:
        log.warning("skipped: ... and %d more", len(problems) - 5)
    if not numbered:
        raise DataError(
            f"{run.path}: there are no edited images to review; run 'flipbench generate' first"
        )
    return [pair for _, pair in sorted(numbered, key=lambda entry: entry[0])]


def _edited_facts(pair: Pair) -> dict[str, Any]:
    answer = f"New answer: {pair.new_text} (before: {pair.old_text})"
    if pair.options:
        answer += f". Options: {'; '.join(pair.options)}"
    return {
        "item": pair.item,
        "category": pair.category,
        "question": pair.question,
        **({"redrawn": pair.place} if pair.place else {}),
        "options": list(pair.options),
        "answer": answer,
        "old_answer": pair.old_text,
        "new_answer": pair.new_text,
        "caption": pair.details,
    }


def _to_verdict(pair: Pair, rater: str, run: int, verdict: RaterVerdict) -> Verdict:
    return Verdict(
        edit_id=pair.key[0],
        image_sha256=pair.key[1],
        rater=rater,
        rater_kind="person",
        run=run,
        decision=verdict.decision,  # type: ignore[arg-type]  # validated by the record
        reason=verdict.reason,
        blind_answer=verdict.blind_answer,
        seconds=verdict.seconds,
    )


def _from_verdict(v: Verdict) -> RaterVerdict:
    return RaterVerdict(v.run, v.rater_kind, v.decision, v.reason, v.blind_answer, v.seconds)


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
        *("edit_id", "image_sha256", "rater", "decision", "rater_kind", "reason", "note"),
        *("blind_answer", "seconds", "item", "category", "question", "options", "old_answer"),
        "new_answer",
    ),
    needs="edits",
    missing="not a run with edited images; run 'flipbench generate' first",
    load=edited_pairs,
    facts=_edited_facts,
    to_record=_to_verdict,
    from_record=_from_verdict,
    reasons=REASONS,
)

# --- the adjudication of flagged pairs ------------------------------------------------------------

_QUESTION = "How are the two pictures related?"
_MEANINGS = {
    "duplicate": "the same picture, perhaps cropped, resized, recoloured or annotated",
    "same subject": "another picture of the same patient, person, object or place",
    "same view": "the same kind of picture of something else: another patient's chest X-ray",
    "ambiguous": "the pictures do not settle it",
    "unrelated": "none of these",
}


def corpus_pairs(run: Run, keys: Collection[str] | None = None) -> list[Pair]:
    """Return the flagged pairs of a run, optionally of some benchmark pictures only.

    Their order is arbitrary but fixed: nearest first, it would suggest the label. Distances are
    shown on demand only, for the same reason. A pair with a missing image file is skipped with a
    warning.

    Raises
    ------
    DataError
        If there is nothing to adjudicate.
    """
    pairs = []
    for flagged in sorted(read_flagged(run.path), key=lambda pair: content_id(*pair.key)):
        if keys is not None and flagged.benchmark.sha256 not in keys:
            continue
        items = flagged.items or (flagged.benchmark.sha256[:12],)
        encoder = f" by {flagged.encoder}" if flagged.encoder else ""
        names = f" Benchmark items: {', '.join(flagged.items)}." if flagged.items else ""
        pair = Pair(
            key=flagged.key,
            item=f"{items[0]} and {len(items) - 1} more" if len(items) > 1 else items[0],
            category=flagged.category,
            question=_QUESTION,
            details=f"Corpus picture: {flagged.corpus_key}; distance"
            f" {flagged.distance:.4f}{encoder}.{names}",
            left=flagged.benchmark,
            right=flagged.corpus,
            flagged=flagged,
        )
        if sha256 := _lost_image(run.images, pair):
            log.warning("skipped: %s: image %s is missing", flagged.corpus_key, sha256)
            continue
        pairs.append(pair)
    if not pairs:
        raise DataError(
            f"{run.path / FLAGGED}: there are no flagged pairs with pictures to adjudicate"
        )
    return pairs


def _flagged_facts(pair: Pair) -> dict[str, Any]:
    assert pair.flagged is not None
    return {
        "item": ", ".join(pair.flagged.items),
        "category": pair.category,
        "question": pair.question,
        "corpus_key": pair.flagged.corpus_key,
        "distance": f"{pair.flagged.distance:.6f}",
        "encoder": pair.flagged.encoder,
    }


def _to_adjudication(pair: Pair, rater: str, run: int, verdict: RaterVerdict) -> Adjudication:
    assert pair.flagged is not None
    return Adjudication(
        benchmark_sha256=pair.key[0],
        corpus_sha256=pair.key[1],
        corpus_key=pair.flagged.corpus_key,
        distance=pair.flagged.distance,
        rater=rater,
        run=run,
        label=verdict.decision if verdict.decided else None,  # type: ignore[arg-type]
        note=split_reason(verdict.reason)[1] if verdict.decided else "",
        seconds=verdict.seconds,
    )


def _from_adjudication(record: Adjudication) -> RaterVerdict:
    reason = WITHDRAWN if record.label is None else join_reason("", record.note)
    label = record.label or "ambiguous"
    return RaterVerdict(record.run, "person", label, reason, None, record.seconds)


ADJUDICATION = Task(
    name="adjudicate",
    title="Adjudication",
    instructions="Each benchmark picture is beside the corpus picture nearest to it. Choose how"
    " the two are related; the items' questions and answers do not matter.",
    details="Distance and source",
    record=Adjudication,
    labels=tuple(
        Label(value, name.capitalize(), str(number), value, f"You chose: {name}", _MEANINGS[value])
        for number, (value, name) in enumerate(LABELS.items(), 1)
    ),
    sides=("benchmark", "corpus"),
    nouns=("benchmark picture", "nearest corpus picture"),
    key_columns=("benchmark_sha256", "corpus_sha256"),
    label_column="label",
    columns=(
        *("benchmark_sha256", "corpus_sha256", "rater", "label", "note", "seconds", "item"),
        *("category", "corpus_key", "distance", "encoder"),
    ),
    needs=str(FLAGGED),
    missing="there are no flagged pairs; run 'flipbench audit' with a corpus first",
    load=corpus_pairs,
    facts=_flagged_facts,
    to_record=_to_adjudication,
    from_record=_from_adjudication,
    same_scale=False,
    independent=True,
)
