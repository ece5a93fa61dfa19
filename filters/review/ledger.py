"""Who said what of which pair: every verdict on disk before it counts, and nothing ever erased."""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from flipbench.core.errors import DataError
from flipbench.core.records import Verdict
from flipbench.core.run import Run

from ..effective_verdicts import ANSWERED_BLIND, WITHDRAWN
from .pairs import EditedPair

Decision = Literal["keep", "reject", "unsure"]
Show = Literal["undecided", "disagreement", "all", "keep", "reject", "unsure"]
Judges = Literal["", "keep", "doubt"]
MAX_NAME = 60


class Refused(DataError):
    """A request that does not fit what the run holds."""


class RaterVerdict(NamedTuple):
    """The newest verdict of one rater on one pair."""

    run: int
    kind: str
    decision: Decision
    reason: str = ""
    blind_answer: str | None = None
    seconds: float | None = None

    @property
    def decided(self) -> bool:
        """Whether it decides anything; a blind answer alone or an undone verdict does not."""
        return self.kind != "person" or self.reason not in (WITHDRAWN, ANSWERED_BLIND)


class Ledger:
    """The verdicts on the pairs of a run, for any number of reviewers at once.

    A changed mind is a new `Verdict` with ``run`` one higher; the newest counts. Undo writes the
    verdict before it once more, or one whose reason is `WITHDRAWN`.

    Parameters
    ----------
    run : Run
        Where verdicts are read once and appended.
    pairs : sequence of EditedPair
        What is reviewed. A verdict on another edit or another picture is no part of the ledger.
    """

    def __init__(self, run: Run, pairs: Sequence[EditedPair]) -> None:
        self.pairs = pairs
        self.people: set[str] = set()
        self.others: set[str] = set()
        self._run = run
        self._at = {pair.edit_id: position for position, pair in enumerate(pairs)}
        self._said: list[dict[str, RaterVerdict]] = [{} for _ in pairs]
        self._counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._undo: dict[str, list[tuple[int, RaterVerdict | None]]] = defaultdict(list)
        self._lock = threading.RLock()
        for verdict in run.read(Verdict):
            position = self._at.get(verdict.edit_id)
            if position is not None and verdict.image_sha256 == pairs[position].edited.sha256:
                self._count(position, verdict)

    def reviewer(self, name: str) -> str:
        """Return the name under which a person's verdicts are kept, as first spelled.

        Raises
        ------
        Refused
            Where it is empty, too long, not printable, or a judge's name.
        """
        name = " ".join(unicodedata.normalize("NFC", name).split())
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise Refused(f"a reviewer's name has 1 to {MAX_NAME} printable characters")
        if name.casefold() in {other.casefold() for other in self.others}:
            raise Refused(f"{name!r} is the name of a judge or a rule; take another")
        with self._lock:
            return next((p for p in self.people if p.casefold() == name.casefold()), name)

    def position(self, edit_id: str, image_sha256: str) -> int:
        """Return where an edit stands in ``pairs``.

        Raises
        ------
        Refused
            Where the edit is not in the run, or its picture has another hash.
        """
        position = self._at.get(edit_id)
        if position is None:
            raise Refused(f"edit {edit_id!r} is not in this run")
        if self.pairs[position].edited.sha256 != image_sha256:
            raise Refused(f"edit {edit_id}: the run's picture has another hash")
        return position

    def said(self, position: int) -> dict[str, RaterVerdict]:
        """Return what each rater says of a pair; repetitions of a judge are told apart."""
        with self._lock:
            return dict(self._said[position])

    def decide(
        self,
        rater: str,
        position: int,
        decision: Decision,
        reason: str = "",
        seconds: float | None = None,
    ) -> RaterVerdict:
        """Write a person's verdict; it is on disk when this returns.

        The same verdict again writes nothing, so that a request may be repeated.
        """
        with self._lock:
            before = self._said[position].get(rater)
            if before and before.decided and (decision, reason) == before[2:4]:
                return before
            said = self._write(
                rater, position, RaterVerdict(0, "person", decision, reason, None, seconds)
            )
            self._undo[rater].append((position, before))
            return said

    def answer_blind(
        self, rater: str, position: int, answer: str, seconds: float | None
    ) -> RaterVerdict:
        """Write what a person answers without knowing the new answer; the first time counts."""
        with self._lock:
            before = self._said[position].get(rater)
            if before and before.blind_answer is not None:
                return before
            said = RaterVerdict(0, "person", "unsure", ANSWERED_BLIND, answer, seconds)
            return self._write(rater, position, said)

    def undo(self, rater: str) -> int | None:
        """Take back a person's last verdict since the start; return the pair, None if none."""
        with self._lock:
            if not self._undo[rater]:
                return None
            position, before = self._undo[rater][-1]
            if before is None or not before.decided:
                before = RaterVerdict(0, "person", "unsure", WITHDRAWN)
            self._write(rater, position, before)
            self._undo[rater].pop()
            return position

    def add(self, verdicts: Iterable[tuple[str, int, RaterVerdict]]) -> int:
        """Append people's verdicts (rater, position, said) as their newest; return how many."""
        with self._lock:
            new: list[tuple[int, Verdict]] = []
            ahead: Counter[tuple[str, int]] = Counter()
            for rater, position, said in verdicts:
                verdict = self._verdict(rater, position, said, ahead[rater, position])
                ahead[rater, position] += 1
                new.append((position, verdict))
            self._run.append([verdict for _, verdict in new])
            for position, verdict in new:
                self._count(position, verdict)
            return len(new)

    def queue(self, rater: str, show: Show, category: str = "", judges: Judges = "") -> list[int]:
        """Return the positions of the pairs that a reviewer wants to see."""
        with self._lock:
            return [
                position
                for position, pair in enumerate(self.pairs)
                if (not category or pair.category == category)
                and _wanted(self._said[position], rater, show)
                and _judged(self._said[position], judges)
            ]

    def counts(self, rater: str, category: str = "") -> dict[str, int]:
        """Return how many pairs a person keeps, rejects and is unsure of."""
        with self._lock:
            found: Counter[str] = Counter()
            for (who, where), counter in self._counts.items():
                if who == rater and category in ("", where):
                    found.update(counter)
            return {name: found[name] for name in ("keep", "reject", "unsure")}

    def _write(self, rater: str, position: int, said: RaterVerdict) -> RaterVerdict:
        verdict = self._verdict(rater, position, said)
        self._run.append([verdict])
        return self._count(position, verdict)

    def _verdict(self, rater: str, position: int, said: RaterVerdict, ahead: int = 0) -> Verdict:
        before = self._said[position].get(rater)
        blind_answer = said.blind_answer
        if before and before.blind_answer is not None:  # the first one stays, come what may
            blind_answer = before.blind_answer
        return Verdict(
            edit_id=self.pairs[position].edit_id,
            image_sha256=self.pairs[position].edited.sha256,
            rater=rater,
            rater_kind="person",
            run=(before.run + 1 if before else 0) + ahead,
            decision=said.decision,
            reason=said.reason,
            blind_answer=blind_answer,
            seconds=said.seconds,
        )

    def _count(self, position: int, verdict: Verdict) -> RaterVerdict:
        """Take a verdict into account; an older run of the same person changes nothing."""
        said = RaterVerdict(
            verdict.run,
            verdict.rater_kind,
            verdict.decision,
            verdict.reason,
            verdict.blind_answer,
            verdict.seconds,
        )
        person = verdict.rater_kind == "person"
        (self.people if person else self.others).add(verdict.rater)
        repeated = "" if person or verdict.run == 0 else f" (run {verdict.run})"
        rater = verdict.rater + repeated
        before = self._said[position].get(rater)
        if before and before.run >= said.run:
            return before
        counter = self._counts[rater, self.pairs[position].category]
        if before and before.decided:
            counter[before.decision] -= 1
        if said.decided:
            counter[said.decision] += 1
        self._said[position][rater] = said
        return said


def _wanted(said: dict[str, RaterVerdict], rater: str, show: Show) -> bool:
    mine = said.get(rater)
    if show == "all":
        return True
    if show == "undecided":
        return mine is None or not mine.decided
    if show == "disagreement":  # a rule that has no objection agrees with everyone
        votes = {(one.kind, one.decision) for one in said.values() if one.decided}
        return len({decision for _, decision in votes - {("rule", "keep")}}) > 1
    return mine is not None and mine.decided and mine.decision == show


def _judged(said: dict[str, RaterVerdict], judges: Judges) -> bool:
    if not judges:
        return True
    decisions = {one.decision for one in said.values() if one.kind != "person"}
    return bool(decisions) and (decisions == {"keep"}) == (judges == "keep")
