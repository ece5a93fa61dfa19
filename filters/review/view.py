"""What a reviewer may see of a pair: all of it, or in blind mode first only what is asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flipbench.core.records import ImageRef

from ..effective_verdicts import split_reason
from .ledger import Ledger, RaterVerdict


class Viewer:
    """Pairs as JSON for the page.

    In blind mode a pair has neither its new answer nor the original picture, the caption or what
    others say, until the reviewer has answered.
    """

    def __init__(self, ledger: Ledger, blind: bool) -> None:
        self.ledger, self.blind = ledger, blind
        self._n_pairs = Counter(pair.category for pair in ledger.pairs)

    def n_pairs(self, category: str = "") -> int:
        """Return how many pairs there are, of a category if one is given."""
        return self._n_pairs[category] if category else len(self.ledger.pairs)

    def is_hidden(self, position: int, reviewer: str) -> bool:
        """Whether the reviewer must answer before the rest is shown."""
        mine = self.ledger.said(position).get(reviewer)
        return self.blind and (mine is None or mine.blind_answer is None)

    def view(self, position: int, reviewer: str) -> dict[str, Any]:
        """Return a pair as the page shows it."""
        pair, said = self.ledger.pairs[position], self.ledger.said(position)
        shown: dict[str, Any] = {
            "position": position,
            "edit_id": pair.edit_id,
            "image_sha256": pair.edited.sha256,
            "item": pair.item,
            "category": pair.category,
            "question": pair.question,
            "options": pair.options,
            "edited": _picture(pair.edited),
            "more": [_picture(ref) for ref in pair.originals[1:]],
            "hidden": self.is_hidden(position, reviewer),
            "mine": None,
        }
        if shown["hidden"]:
            return shown
        mine = said.get(reviewer)
        others = {rater: one for rater, one in said.items() if rater != reviewer and one.decided}
        return shown | {
            "original": _picture(pair.originals[0]) if pair.originals else None,
            "old_answer": pair.old_answer,
            "old_text": pair.old_text,
            "new_answer": pair.new_answer,
            "new_text": pair.new_text,
            "caption": pair.caption,
            "mine": _said(mine) if mine else None,
            "others": [{"rater": rater} | _said(one) for rater, one in sorted(others.items())],
        }


def _picture(ref: ImageRef) -> dict[str, Any]:
    return {"src": f"/images/{ref.sha256}", "width": ref.width, "height": ref.height}


def _said(said: RaterVerdict) -> dict[str, Any]:
    reason, note = split_reason(said.reason)
    return {
        "kind": said.kind,
        "decision": said.decision if said.decided else None,
        "reason": reason if said.decided else "",
        "note": note,
        "blind_answer": said.blind_answer,
    }
