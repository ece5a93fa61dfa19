"""Rules that reject a pair without understanding its image; each is a rater like any other.

A rule's "keep" means "no objection". Verdicts are cached by rater name, so the name contains
everything but the pair itself that a verdict depends on.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from PIL import Image
from scipy import ndimage

from flipbench.config.policy import RuleName
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, Record, Verdict, content_id
from flipbench.imaging.similarity import FAR_PHASH, Label, perceptual_hash, similarity
from flipbench.models.protocols import JudgeDecision
from flipbench.prompting.prompts import LETTERS

from .stage import JudgeStage

BLOCK = 8
NO_OBJECTION = JudgeDecision("keep")


class Rule:
    """A rater that checks one candidate at a time; ``slug`` is its name in a policy."""

    rater_kind: Literal["judge", "rule", "oracle"] = "rule"
    slug: ClassVar[RuleName]

    def __init__(self) -> None:
        self.name = f"rule {self.slug}"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch, in order."""
        out: list[JudgeDecision | Exception] = []
        for candidate in candidates:
            try:
                out.append(self.judge(candidate, _edit_of(candidate), images))
            except DataError as error:
                out.append(error)
        return out

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Return "reject" with a reason, or no objection."""
        raise NotImplementedError


class EqualOptions(Rule):
    """The old or the new answer occurs twice among the options, so no single letter is correct.

    Texts are compared ignoring case, spacing and final punctuation. Two equal options that are
    neither answer are fine: both are wrong.
    """

    slug = "equal-options"

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Compare the options."""
        item, flip = candidate.item, candidate.flip
        if item.options is None or flip is None:
            return NO_OBJECTION
        texts = [_plain(text) for text in item.options]
        for what, index in (("new", flip.new_answer), ("old", item.answer)):
            same = [] if index is None else [i for i, t in enumerate(texts) if t == texts[index]]
            if len(same) > 1:
                letters = " and ".join(LETTERS[i] for i in same)
                return JudgeDecision(
                    "reject", f"options {letters} are equal, and the {what} answer"
                )
        return NO_OBJECTION


class WrongSize(Rule):
    """The edited image differs from the original in width or height."""

    slug = "wrong-size"

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Compare the sizes."""
        old, new = candidate.item.images[0], edit.image
        if (old.width, old.height) == (new.width, new.height):
            return NO_OBJECTION
        sizes = f"{new.width} x {new.height} pixels, the original {old.width} x {old.height}"
        return JudgeDecision("reject", f"the edited picture has {sizes}")


class Duplicate(Rule):
    """The pair repeats an earlier one, or its edited image also belongs to another original.

    * Question, options and original image equal those of an earlier candidate: the later one is
      rejected.
    * The edited image equals, pixel for pixel, that of a candidate with another original: both are
      rejected. Failing editors return the same image for everything (black, a placeholder).

    Parameters
    ----------
    candidates : sequence of Candidate
        All candidates to compare, in order. Their ids are part of the rater's name, since verdicts
        depend on the whole set.
    """

    slug = "duplicate"

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        edited = [c for c in candidates if c.edit is not None]
        key = content_id([[c.item.id, _edit_of(c).id, _edit_of(c).image] for c in edited])
        self.name = f"rule {self.slug} {key[:8]}"
        self._first: dict[str, Candidate] = {}
        self._drawn: dict[str, dict[str, Candidate]] = defaultdict(dict)
        for c in edited:
            self._first.setdefault(_content(c), c)
            self._drawn[_edit_of(c).image.sha256].setdefault(c.item.images[0].sha256, c)

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Look the candidate up among the others."""
        first = self._first.get(_content(candidate), candidate)
        if first.item.id != candidate.item.id:
            return JudgeDecision("reject", f"the same question and picture as {first.subject}")
        source = candidate.item.images[0].sha256
        others = [c for s, c in self._drawn.get(edit.image.sha256, {}).items() if s != source]
        if others:
            why = f"the edited picture is also that of {others[0].subject}, whose original differs"
            return JudgeDecision("reject", why)
        return NO_OBJECTION


class Unchanged(Rule):
    """The edited image is the original up to noise.

    No mean over 8 x 8 pixels differs by ``least_change`` grey levels of 255 in any channel.
    Compression and noise mostly average out over that many pixels, but a redrawn object does not:
    in the shapes world, the largest change is at least 70 levels for correct edits and below 24 for
    the original saved as JPEG of quality 50 or better. Global measures cannot separate the two: a
    third of the correct edits have a perceptual hash within 4 bits and an SSIM above .95. A faint
    change of the entire image counts as unchanged; people can override this rule.
    """

    slug = "unchanged"

    def __init__(self, least_change: float = 25.0) -> None:
        self.least_change = least_change
        self.name = f"rule {self.slug} {least_change:g}"

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Use the edit's similarity label if it is conclusive; otherwise compare the images."""
        label = _label(edit)
        if label == "unchanged":
            return JudgeDecision("reject", "every pixel is the original's")
        if label in ("edited", "unrelated"):
            return NO_OBJECTION
        old, new = images.open(candidate.item.images[0]), images.open(edit.image)
        if old.size != new.size:
            return NO_OBJECTION
        change = largest_change(old, new)
        if change >= self.least_change:
            return NO_OBJECTION
        return JudgeDecision("reject", f"no part differs by more than {change:.1f} levels of 255")


class Unrelated(Rule):
    """Nothing of the original is left, or the image is blank.

    As in `flipbench.imaging.similarity`: 24 or more of the 64 bits of the perceptual hash differ
    and SSIM is below .25. A single-colour image is rejected too, unless the original is one. A
    similar image of a different scene passes; that is for people and judges to notice.
    """

    slug = "unrelated"

    def judge(self, candidate: Candidate, edit: Edit, images: ImageStore) -> JudgeDecision:
        """Use the edit's similarity label if it has one; check for blank images in any case."""
        old, new = images.open(candidate.item.images[0]), images.open(edit.image)
        if _is_blank(new) and not _is_blank(old):
            return JudgeDecision("reject", "the edited picture is of one colour")
        label = _label(edit)
        if label is None and old.size == new.size:
            distance = int(np.count_nonzero(perceptual_hash(old) != perceptual_hash(new)))
            # SSIM is slow, so compute it only if it can matter
            label = similarity(old, new).label if distance >= FAR_PHASH else "edited"
        if label == "unrelated":
            return JudgeDecision("reject", "nothing of the original's composition is left")
        return NO_OBJECTION


def build_rules(names: Sequence[RuleName], candidates: Sequence[Candidate]) -> list[Rule]:
    """Return the rules of these names, for these candidates."""
    rules: dict[RuleName, Rule] = {
        "equal-options": EqualOptions(),
        "wrong-size": WrongSize(),
        "duplicate": Duplicate(candidates),
        "unchanged": Unchanged(),
        "unrelated": Unrelated(),
    }
    return [rules[name] for name in names]


class RuleStage:
    """Apply all rules in one stage; a task is (the rule's rater name, candidate)."""

    name = "rules"
    record: type[Record] = Verdict

    def __init__(self, rules: Sequence[Rule], images: ImageStore) -> None:
        self.stages = {rule.name: JudgeStage(rule, images) for rule in rules}

    def id_of(self, task: tuple[str, Candidate]) -> str:
        """Return the id of the rule's verdict."""
        return self.stages[task[0]].id_of(task[1])

    def subject(self, task: tuple[str, Candidate]) -> str:
        """Return the item's benchmark and name."""
        return task[1].subject

    def __call__(self, tasks: Sequence[tuple[str, Candidate]]) -> list[Verdict | Exception]:
        """Apply a batch."""
        return [self.stages[rule]([candidate])[0] for rule, candidate in tasks]


def largest_change(old: Image.Image, new: Image.Image) -> float:
    """Return the largest change of any 8 x 8 pixel mean, in grey levels of 255.

    Images must be RGB and of the same size; if an edge is below 8 pixels, so is the window.
    """
    change = np.asarray(new, dtype=np.float32) - np.asarray(old, dtype=np.float32)
    window = min(BLOCK, *old.size)
    means = ndimage.uniform_filter(change, size=(window, window, 1), mode="nearest")
    return float(np.abs(means).max())


def _is_blank(image: Image.Image) -> bool:
    """Return whether no colour varies by more than 8 levels."""
    bands = np.asarray(image).reshape(-1, 3)
    return bool((bands.max(axis=0).astype(int) - bands.min(axis=0) <= 8).all())


def _edit_of(candidate: Candidate) -> Edit:
    if candidate.edit is None or not candidate.item.images:
        raise DataError(f"{candidate.subject}: there is no edited image to judge")
    return candidate.edit


def _content(candidate: Candidate) -> str:
    item = candidate.item
    options = None if item.options is None else sorted(map(_plain, item.options))
    return content_id(_plain(item.question), options, [ref.sha256 for ref in item.images])


def _label(edit: Edit) -> Label | None:
    similarity = edit.extra.get("similarity")
    label: Label | None = similarity.get("label") if isinstance(similarity, dict) else None
    return label


def _plain(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return text.rstrip(" .,;:!?") or text
