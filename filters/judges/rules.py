"""Rules that reject a pair without understanding its image; each is a rater like any other.

A rule's "keep" means "no objection". Verdicts are cached by rater name, so the name contains
everything but the pair itself that a verdict depends on.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from PIL import Image

from flipbench.config.policy import RuleName
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.image_similarity import (
    FAR_PHASH,
    LEAST_CHANGE,
    Label,
    largest_change,
    perceptual_hash,
    similarity,
)
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, Record, Verdict, content_id
from flipbench.models.protocols import JudgeDecision
from flipbench.prompting.prompts import LETTERS

from .stage import JudgeStage, edit_of

Objection = Callable[[Candidate, Edit, ImageStore], str]


class Rule:
    """A rater that checks one candidate at a time.

    ``objection`` returns why a candidate is rejected, or "". ``slug`` is its name in a policy, and
    ``made_of`` what else its verdicts depend on, which becomes part of the rater's name.
    """

    rater_kind: Literal["judge", "rule", "oracle"] = "rule"

    def __init__(self, slug: RuleName, objection: Objection, made_of: str = "") -> None:
        self.slug, self.objection = slug, objection
        self.name = f"rule {slug} {made_of}".strip()

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch, in order."""
        return [result_or_error(self._judge, candidate, images) for candidate in candidates]

    def _judge(self, candidate: Candidate, images: ImageStore) -> JudgeDecision:
        edit = edit_of(candidate)
        if not candidate.item.images:
            raise DataError(f"{candidate.subject}: there is no original image")
        reason = self.objection(candidate, edit, images)
        return JudgeDecision("reject" if reason else "keep", reason)


def equal_options(candidate: Candidate, edit: Edit, images: ImageStore) -> str:
    """Reject if the old or the new answer occurs twice among the options: no letter is correct.

    Texts are compared ignoring case, spacing and final punctuation. Two equal options that are
    neither answer are fine: both are wrong.
    """
    item, flip = candidate.item, candidate.flip
    if item.options is None or flip is None:
        return ""
    texts = [_normalised(text) for text in item.options]
    for which_answer, index in (("new", flip.new_answer), ("old", item.answer)):
        equal_rows = [] if index is None else [i for i, t in enumerate(texts) if t == texts[index]]
        if len(equal_rows) > 1:
            letters = " and ".join(LETTERS[i] for i in equal_rows)
            return f"options {letters} are equal, and the {which_answer} answer"
    return ""


def wrong_size(candidate: Candidate, edit: Edit, images: ImageStore) -> str:
    """Reject if the edited image differs from the original in width or height."""
    original, new_image = candidate.source, edit.image
    if (original.width, original.height) == (new_image.width, new_image.height):
        return ""
    size, original_size = (f"{ref.width} x {ref.height}" for ref in (new_image, original))
    return f"the edited picture has {size} pixels, the original {original_size}"


def duplicate_rule(candidates: Sequence[Candidate]) -> Rule:
    """Return the rule that rejects repeated pairs, and edited images that two originals share.

    * Question, options and original image equal those of an earlier candidate: the later one is
      rejected.
    * The edited image equals, pixel for pixel, that of a candidate with another original: both are
      rejected. Failing editors return the same image for everything (black, a placeholder).

    The ids of all candidates are part of the rater's name, since verdicts depend on the whole set.
    """
    edited_candidates = [(c, c.edit) for c in candidates if c.edit is not None and c.item.images]
    first_by_content: dict[str, Candidate] = {}
    sources_by_image: dict[str, dict[str, Candidate]] = defaultdict(dict)
    for c, edit in edited_candidates:
        first_by_content.setdefault(_content_id(c), c)
        sources_by_image[edit.image.sha256].setdefault(c.source.sha256, c)

    def objection(candidate: Candidate, edit: Edit, images: ImageStore) -> str:
        earlier = first_by_content.get(_content_id(candidate), candidate)
        if earlier.item.id != candidate.item.id:
            return f"the same question and picture as {earlier.subject}"
        source = candidate.source.sha256
        others_drawn = [
            c for s, c in sources_by_image.get(edit.image.sha256, {}).items() if s != source
        ]
        if not others_drawn:
            return ""
        return (
            f"the edited picture is also that of {others_drawn[0].subject}, whose original differs"
        )

    key = content_id([[c.item.id, edit.id, edit.image] for c, edit in edited_candidates])
    return Rule("duplicate", objection, key[:8])


def unchanged(candidate: Candidate, edit: Edit, images: ImageStore) -> str:
    """Reject if the edited image is the original up to noise.

    No mean over 8 x 8 pixels differs by `LEAST_CHANGE` grey levels of 255 in any channel.
    Compression and noise mostly average out over that many pixels, but a redrawn object does not:
    in the shapes world, the largest change is at least 70 levels for correct edits and below 24 for
    the original saved as JPEG of quality 50 or better. Global measures cannot separate the two: a
    third of the correct edits have a perceptual hash within 4 bits and an SSIM above .95. A faint
    change of the entire image counts as unchanged; people can override this rule.
    """
    label = _label(edit)  # conclusive unless near-identical
    if label == "unchanged":
        return "every pixel is the original's"
    if label in ("edited", "unrelated"):
        return ""
    original, perturbed = images.open(candidate.source), images.open(edit.image)
    if (
        original.size != perturbed.size
        or (change := largest_change(original, perturbed)) >= LEAST_CHANGE
    ):
        return ""
    return f"no part differs by more than {change:.1f} levels of 255"


def unrelated(candidate: Candidate, edit: Edit, images: ImageStore) -> str:
    """Reject if nothing of the original is left, or the image is blank.

    As in `flipbench.core.image_similarity`: 24 or more of the 64 bits of the perceptual hash differ
    and SSIM is below .25. A single-colour image is rejected too, unless the original is one. A
    similar image of a different scene passes; that is for people and judges to notice.
    """
    original, perturbed = images.open(candidate.source), images.open(edit.image)
    if _is_blank(perturbed) and not _is_blank(original):
        return "the edited picture is of one colour"
    label = _label(edit)
    if label is None and original.size == perturbed.size:
        distance = int(np.count_nonzero(perceptual_hash(original) != perceptual_hash(perturbed)))
        # SSIM is slow, so compute it only if it can matter
        label = similarity(original, perturbed).label if distance >= FAR_PHASH else "edited"
    return "nothing of the original's composition is left" if label == "unrelated" else ""


def build_rules(names: Sequence[RuleName], candidates: Sequence[Candidate]) -> list[Rule]:
    """Return the rules of these names, for these candidates."""
    rules = (
        Rule("equal-options", equal_options),
        Rule("wrong-size", wrong_size),
        duplicate_rule(candidates),
        Rule("unchanged", unchanged, f"{LEAST_CHANGE:g}"),
        Rule("unrelated", unrelated),
    )
    by_name = {rule.slug: rule for rule in rules}
    return [by_name[name] for name in names]


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


def _is_blank(image: Image.Image) -> bool:
    """Return whether no colour varies by more than 8 levels."""
    bands = np.asarray(image).reshape(-1, 3)
    return bool((bands.max(axis=0).astype(int) - bands.min(axis=0) <= 8).all())


def _content_id(candidate: Candidate) -> str:
    item = candidate.item
    options = None if item.options is None else sorted(map(_normalised, item.options))
    return content_id(_normalised(item.question), options, [ref.sha256 for ref in item.images])


def _label(edit: Edit) -> Label | None:
    similarity = edit.extra.get("similarity")
    label: Label | None = similarity.get("label") if isinstance(similarity, dict) else None
    return label


def _normalised(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return text.rstrip(" .,;:!?") or text
