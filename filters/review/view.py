"""What a reviewer sees of a pair: everything or, in blind mode, at first only the question."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..effective_verdicts import split_reason
from .ledger import Ledger
from .task import RaterVerdict


class Viewer:
    """Pairs as JSON for the page.

    In blind mode, the new answer, the original image, the caption and other raters' verdicts are
    hidden until the reviewer has answered; then the original's address comes with a key, without
    which it is not served. Reviewers give their names themselves: who takes another's name sees
    what that person may see.
    """

    def __init__(self, ledger: Ledger, blind: bool) -> None:
        self.ledger, self.blind = ledger, blind
        self._secret = secrets.token_bytes(32)
        pairs = ledger.pairs if blind else ()
        self._open = {shown["src"] for pair in pairs for shown in _pictures(pair.shown())}
        self._n_pairs = Counter(pair.category for pair in ledger.pairs)

    def n_pairs(self, category: str = "") -> int:
        """Return the number of pairs, of one category if given."""
        return self._n_pairs[category] if category else len(self.ledger.pairs)

    def is_hidden(self, position: int, reviewer: str) -> bool:
        """Return whether the reviewer has to answer before seeing the rest."""
        own = self.ledger.verdicts(position).get(reviewer)
        return self.blind and (own is None or own.blind_answer is None)

    def answered(self, positions: Sequence[int], reviewer: str) -> list[int]:
        """Return the positions whose rest the reviewer may see."""
        return [position for position in positions if not self.is_hidden(position, reviewer)]

    def may_fetch(self, path: str, key: str) -> bool:
        """Return whether a picture is shown before an answer, or ``key`` was sent with it."""
        is_open = not self.blind or path in self._open
        return is_open or hmac.compare_digest(self._key(path).encode(), key.encode())

    def _key(self, path: str) -> str:
        return hmac.new(self._secret, path.encode(), hashlib.sha256).hexdigest()[:32]

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
        revealed = pair.revealed()
        if self.blind:
            for shown in _pictures(revealed):
                shown["src"] += f"?key={self._key(shown['src'])}"
        return view | {
            **revealed,
            "mine": _verdict(own) if own else None,
            "others": [{"rater": rater} | _verdict(verdict) for rater, verdict in others],
        }


def _pictures(view: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pictures in what is sent of a pair (`.task.picture`)."""
    found = [view.get("left"), view.get("right"), *view.get("more", [])]
    return [picture for picture in found if picture]


def _verdict(verdict: RaterVerdict) -> dict[str, Any]:
    reason, note = split_reason(verdict.reason)
    return {
        "kind": verdict.kind,
        "decision": verdict.decision if verdict.decided else None,
        "reason": reason if verdict.decided else "",
        "note": note,
        "blind_answer": verdict.blind_answer,
    }
