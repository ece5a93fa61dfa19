"""What a reviewer sees of a pair: everything or, in blind mode, at first only the question."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flipbench.core.records import ImageRef

from ..effective_verdicts import split_reason
from .ledger import Ledger, RaterVerdict


class Viewer:
    """Pairs as JSON for the page.

    In blind mode, the new answer, the original image, the caption and other raters' verdicts are
    hidden until the reviewer has answered.
    """

    def __init__(self, ledger: Ledger, blind: bool) -> None:
        self.ledger, self.blind = ledger, blind
        self._n_pairs = Counter(pair.category for pair in ledger.pairs)

    def n_pairs(self, category: str = "") -> int:
        """Return the number of pairs, of one category if given."""
        return self._n_pairs[category] if category else len(self.ledger.pairs)

    def is_hidden(self, position: int, reviewer: str) -> bool:
        """Return whether the reviewer has to answer before seeing the rest."""
        own = self.ledger.verdicts(position).get(reviewer)
        return self.blind and (own is None or own.blind_answer is None)

    def view(self, position: int, reviewer: str) -> dict[str, Any]:
        """Return a pair as shown on the page."""
        pair, verdicts = self.ledger.pairs[position], self.ledger.verdicts(position)
        view: dict[str, Any] = {
            "position": position,
            "edit_id": pair.edit_id,
            "image_sha256": pair.edited.sha256,
            "item": pair.item,
            "category": pair.category,
            "question": pair.question,
            "options": pair.options,
            "edited": _image(pair.edited),
            "more": [_image(ref) for ref in pair.originals[1:]],
            "hidden": self.is_hidden(position, reviewer),
            "mine": None,
        }
        if view["hidden"]:
            return view
        own = verdicts.get(reviewer)
        others = [(r, v) for r, v in sorted(verdicts.items()) if r != reviewer and v.decided]
        return view | {
            "original": _image(pair.originals[0]) if pair.originals else None,
            "old_answer": pair.old_answer,
            "old_text": pair.old_text,
            "new_answer": pair.new_answer,
            "new_text": pair.new_text,
            "caption": pair.caption,
            "mine": _verdict(own) if own else None,
            "others": [{"rater": rater} | _verdict(verdict) for rater, verdict in others],
        }


def _image(ref: ImageRef) -> dict[str, Any]:
    return {"src": f"/images/{ref.sha256}", "width": ref.width, "height": ref.height}


def _verdict(verdict: RaterVerdict) -> dict[str, Any]:
    reason, note = split_reason(verdict.reason)
    return {
        "kind": verdict.kind,
        "decision": verdict.decision if verdict.decided else None,
        "reason": reason if verdict.decided else "",
        "note": note,
        "blind_answer": verdict.blind_answer,
    }
