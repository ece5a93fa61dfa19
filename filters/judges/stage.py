"""The stage that turns a judge's or a rule's decisions into verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, Record, Verdict
from flipbench.models.protocols import Judge, JudgeDecision


class JudgeStage:
    """Have a judge decide on each pair; a verdict refers to the exact image."""

    record: type[Record] = Verdict

    def __init__(self, judge: Judge, images: ImageStore, run: int = 0) -> None:
        self.name = judge.name if judge.rater_kind == "rule" else f"judge {judge.name}"
        if run:
            self.name += f", run {run}"
        self.judge, self.images, self.run = judge, images, run

    def id_of(self, candidate: Candidate) -> str:
        """Return the id of this judge's verdict."""
        return Verdict.id_for(**self._key(candidate))

    def subject(self, candidate: Candidate) -> str:
        """Return the item's benchmark and name."""
        return candidate.subject

    def __call__(self, candidates: Sequence[Candidate]) -> list[Verdict | Exception]:
        """Judge a batch."""
        decisions = self.judge(candidates, self.images)
        return [
            decision if isinstance(decision, Exception) else self._verdict(candidate, decision)
            for candidate, decision in zip(candidates, decisions, strict=True)
        ]

    def _verdict(self, candidate: Candidate, decision: JudgeDecision) -> Verdict:
        return Verdict(**self._key(candidate), rater_kind=self.judge.rater_kind, **vars(decision))

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        edit = edit_of(candidate)
        return {
            "edit_id": edit.id,
            "image_sha256": edit.image.sha256,
            "rater": self.judge.name,
            "run": self.run,
        }


def edit_of(candidate: Candidate) -> Edit:
    """Return the edit to judge."""
    if candidate.edit is None:
        raise DataError(f"{candidate.subject}: there is no edited image to judge")
    return candidate.edit
