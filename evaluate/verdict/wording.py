"""The words of a verdict, made from a decision by ``templates/wording.jinja``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flipbench.reporting import formats
from flipbench.reporting.pages import paragraphs, text_environment

from ..diagnosis.diagnosis import Diagnosis
from ..diagnosis.section import sentence as diagnosis_sentence
from ..scoring.paired_replies import Pairs
from ..scoring.soundness import EASIER, attraction_sentence, attraction_text
from ..statistics.sequential import pairs_until
from .decision import BAD_EDITS, ENOUGH_REFERENCES, Decision, GapEvidence, Reference
from .other_detectors import OtherDetectorResult
from .sensitivity import MOST_PAIRS, Sensitivity


def sentence(decision: Decision) -> str:
    """Return the verdict as a sentence or two, with the numbers that it rests on.

    "not_detected" is never worded "clean".
    """
    return " ".join(paragraphs(_WORDS.sentence(decision, Sensitivity.of(decision))))


def qualifiers(decision: Decision, diagnosis: Diagnosis | None = None) -> list[str]:
    """Return what the verdict assumes, and what supports or weakens it."""
    explained = "" if diagnosis is None else diagnosis_sentence(diagnosis)
    return paragraphs(_WORDS.qualifiers(decision, explained))


def what_would_change(decision: Decision) -> list[str]:
    """Return what would change a verdict, a sentence or two for each change."""
    return paragraphs(_WORDS.changes(decision, Sensitivity.of(decision)))


def summary_of(results: Sequence[OtherDetectorResult]) -> list[str]:
    """Return a sentence on the detectors that have no vote; none if they have no results."""
    return paragraphs(_WORDS.other_detectors(results))


def _unknown_replies(evidence: GapEvidence) -> list[str]:
    """Return how many replies were no help on each side."""
    n = len(evidence.pairs.ids)
    return [
        f"{int(mask.sum()):,} of {n:,} to {version} versions {verb}"
        for version in ("original", "perturbed")
        for side in [getattr(evidence.replies, version)]
        for mask, verb in ((side.unreadable, "name no option"), (side.missing, "are missing"))
        if mask.any()
    ]


def _share_images(pairs: Pairs) -> bool:
    return len(set(pairs.clusters)) < len(pairs.ids)


def _clean_gap(reference: Reference) -> float:
    return float(np.nanmean(reference.replies.changes()))


def _load_words() -> Any:
    texts = text_environment(Path(__file__).parent / "templates", flat=True)
    filters: dict[str, Any] = {
        "percent_interval": partial(formats.interval, form=formats.percent),
        "clean_gap": _clean_gap,
    }
    texts.filters |= filters
    texts.globals |= {
        "attraction_text": attraction_text,
        "attraction_sentence": attraction_sentence,
        "unknown_replies": _unknown_replies,
        "share_images": _share_images,
        "pairs_until": pairs_until,
        "easier": EASIER,
        "bad_edits": f"{100 * BAD_EDITS:g}",
        "enough_references": ENOUGH_REFERENCES,
        "most_pairs": MOST_PAIRS,
    }
    return texts.get_template("wording.jinja").module


_WORDS = _load_words()
