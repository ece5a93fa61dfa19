"""What a reviewer sees of a pair: everything or, in blind mode, at first only the question."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..effective_verdicts import split_reason
from .ledger import Ledger
from .task import RaterVerdict


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
        hidden = self.is_hidden(position, reviewer)
        view = {"position": position, "key": pair.key, "hidden": hidden, "mine": None}
        view |= pair.shown()
        if hidden:
            return view
        own = verdicts.get(reviewer)
        others = [(r, v) for r, v in sorted(verdicts.items()) if r != reviewer and v.decided]
        if self.ledger.task.independent and not (own and own.decided):
            others = []
        return view | {
            **pair.revealed(),
            "mine": _verdict(own) if own else None,
            "others": [{"rater": rater} | _verdict(verdict) for rater, verdict in others],
        }


def _verdict(verdict: RaterVerdict) -> dict[str, Any]:
    reason, note = split_reason(verdict.reason)
    return {
        "kind": verdict.kind,
        "decision": verdict.decision if verdict.decided else None,
        "reason": reason if verdict.decided else "",
        "note": note,
        "blind_answer": verdict.blind_answer,
    }
