"""All raters' verdicts on each pair: written to disk before they count, and never erased."""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from flipbench.core.errors import DataError
from flipbench.core.run import Run

from ..effective_verdicts import ANSWERED_BLIND, WITHDRAWN
from .tasks import REVIEW, Judgement, Pair, RaterVerdict, Task

SHOW = ("undecided", "disagreement", "all")
"""What a queue can be limited to, beside each label."""

Judges = Literal["", "keep", "doubt"]
MAX_NAME = 60
_RESERVED = {"people", "policy"}  # in tables of agreement: everybody together, and what was kept


class Refused(DataError):
    """A request that does not match the run's contents."""


class Ledger:
    """The verdicts on the pairs of a run, for any number of concurrent reviewers.

    Verdicts are read from the run once, and appended to it; those on other pairs are ignored. A
    changed verdict is a new record with ``run`` one higher; the newest counts. Undo writes the
    previous verdict again, or one with the reason `WITHDRAWN`.
    """

    def __init__(self, run: Run, pairs: Sequence[Pair], task: Task = REVIEW) -> None:
        self.pairs = pairs
        self.task = task
        self.people: set[str] = set()
        self.judges: set[str] = set()
        self._run = run
        self._positions = {pair.key: position for position, pair in enumerate(pairs)}
        self._ids = {pair_id for pair_id, _ in self._positions}
        self._newest: list[dict[str, RaterVerdict]] = [{} for _ in pairs]
        self._counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._undo: dict[str, list[tuple[int, RaterVerdict | None]]] = defaultdict(list)
        self._lock = threading.RLock()
        for record in run.read(task.record):
            position = self._positions.get(task.key_of(record))
            if position is not None:
                self._count(position, record)

    def reviewer(self, name: str) -> str:
        """Return a person's name, normalised and spelled as the first time.

        Raises
        ------
        Refused
            If the name is empty, too long, not printable, reserved, or a judge's or rule's.
        """
        name = " ".join(unicodedata.normalize("NFC", name).split())
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise Refused(f"a reviewer's name has 1 to {MAX_NAME} printable characters")
        if name.casefold() in _RESERVED:
            raise Refused(f"{name!r} has another meaning in tables of agreement; choose another")
        if name.casefold() in {judge.casefold() for judge in self.judges}:
            raise Refused(f"{name!r} is the name of a judge or a rule; choose another")
        with self._lock:
            return next((p for p in self.people if p.casefold() == name.casefold()), name)

    def position(self, key: tuple[str, str]) -> int:
        """Return the index of a pair in ``pairs``.

        Raises
        ------
        Refused
            If the pair is not in the run, or one of its images has another hash.
        """
        position = self._positions.get(key)
        if position is not None:
            return position
        id_noun, hash_noun = self.task.nouns
        if key[0] not in self._ids:
            raise Refused(f"{id_noun} {key[0]!r} is not in this run")
        raise Refused(f"{id_noun} {key[0]}: the run's {hash_noun} has another hash")

    def verdicts(self, position: int) -> dict[str, RaterVerdict]:
        """Return each rater's newest verdict on a pair; each repetition of a judge is a rater."""
        with self._lock:
            return dict(self._newest[position])

    def decided(self, position: int) -> dict[str, RaterVerdict]:
        """Return the verdicts on a pair that are decisions."""
        return {rater: v for rater, v in self.verdicts(position).items() if v.decided}

    def decide(
        self,
        rater: str,
        position: int,
        decision: str,
        reason: str = "",
        seconds: float | None = None,
    ) -> None:
        """Write a person's verdict to disk.

        Repeating the same verdict writes nothing, so requests can be retried.
        """
        with self._lock:
            previous = self._newest[position].get(rater)
            if previous and previous.decided and (decision, reason) == previous[2:4]:
                return
            verdict = RaterVerdict(0, "person", decision, reason, None, seconds)
            self.add([(rater, position, verdict)])
            self._undo[rater].append((position, previous))

    def answer_blind(self, rater: str, position: int, answer: str, seconds: float | None) -> None:
        """Write a person's blind answer; only the first one counts."""
        with self._lock:
            previous = self._newest[position].get(rater)
            if previous is None or previous.blind_answer is None:
                verdict = RaterVerdict(0, "person", "unsure", ANSWERED_BLIND, answer, seconds)
                self.add([(rater, position, verdict)])

    def undo(self, rater: str) -> int | None:
        """Undo a person's last verdict of this session; return its pair, or None."""
        with self._lock:
            if not self._undo[rater]:
                return None
            position, verdict = self._undo[rater][-1]
            if verdict is None or not verdict.decided:
                verdict = RaterVerdict(0, "person", "unsure", WITHDRAWN)
            self.add([(rater, position, verdict)])
            self._undo[rater].pop()
            return position

    def add(self, verdicts: Iterable[tuple[str, int, RaterVerdict]]) -> int:
        """Append people's verdicts (rater, position, verdict); return their number.

        They count once they are on disk.
        """
        with self._lock:
            records: list[tuple[int, Judgement]] = []
            n_pending: Counter[tuple[str, int]] = Counter()
            for rater, position, verdict in verdicts:
                previous = self._newest[position].get(rater)
                if previous and previous.blind_answer is not None:  # it is never replaced
                    verdict = verdict._replace(blind_answer=previous.blind_answer)
                number = (previous.run + 1 if previous else 0) + n_pending[rater, position]
                n_pending[rater, position] += 1
                pair = self.pairs[position]
                records.append((position, self.task.to_record(pair, rater, number, verdict)))
            self._run.append([record for _, record in records])
            for position, record in records:
                self._count(position, record)
            return len(records)

    def queue(self, rater: str, show: str, category: str = "", judges: Judges = "") -> list[int]:
        """Return the positions of the pairs that match a reviewer's filters."""
        with self._lock:
            return [
                position
                for position, pair in enumerate(self.pairs)
                if (not category or pair.category == category)
                and _matches_show(self._newest[position], rater, show)
                and _matches_judges(self._newest[position], judges)
            ]

    def counts(self, rater: str, category: str = "") -> dict[str, int]:
        """Return the number of a person's decisions, by label."""
        with self._lock:
            total: Counter[str] = Counter()
            for (counted_rater, counted_category), counter in self._counts.items():
                if counted_rater == rater and category in ("", counted_category):
                    total.update(counter)
            return {value: total[value] for value in self.task.values}

    def _count(self, position: int, record: Judgement) -> None:
        """Add a verdict to the counts, unless a newer one by the same rater is there."""
        verdict = self.task.from_record(record)
        is_person = verdict.kind == "person"
        (self.people if is_person else self.judges).add(record.rater)
        repetition = "" if is_person or verdict.run == 0 else f" (run {verdict.run})"
        rater = record.rater + repetition
        previous = self._newest[position].get(rater)
        if previous and previous.run >= verdict.run:
            return
        counter = self._counts[rater, self.pairs[position].category]
        if previous and previous.decided:
            counter[previous.decision] -= 1
        if verdict.decided:
            counter[verdict.decision] += 1
        self._newest[position][rater] = verdict


def _matches_show(verdicts: dict[str, RaterVerdict], rater: str, show: str) -> bool:
    if show == "all":
        return True
    if show == "disagreement":  # a rule's "keep" is no opinion on the pair
        votes = {(v.kind, v.decision) for v in verdicts.values() if v.decided}
        return len({decision for _, decision in votes - {("rule", "keep")}}) > 1
    verdict = verdicts.get(rater)
    decision = verdict.decision if verdict and verdict.decided else "undecided"
    return decision == show


def _matches_judges(verdicts: dict[str, RaterVerdict], judges: Judges) -> bool:
    if not judges:
        return True
    decisions = {v.decision for v in verdicts.values() if v.kind != "person"}
    return bool(decisions) and (decisions == {"keep"}) == (judges == "keep")
