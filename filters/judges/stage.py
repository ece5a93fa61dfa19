"""The stage that turns a judge's or a rule's decisions into verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Record, Verdict
from flipbench.models.protocols import Judge


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
        out: list[Verdict | Exception] = []
        decisions = self.judge(candidates, self.images)
        for candidate, decision in zip(candidates, decisions, strict=True):
            if isinstance(decision, Exception):
                out.append(decision)
                continue
            out.append(
                Verdict(
                    **self._key(candidate),
                    rater_kind=self.judge.rater_kind,
                    decision=decision.decision,
                    reason=decision.reason,
                    blind_answer=decision.blind_answer,
                    usage=decision.usage,
                )
            )
        return out

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        if candidate.edit is None:
            raise DataError(f"{candidate.subject}: there is no edited image to judge")
        return {
            "edit_id": candidate.edit.id,
            "image_sha256": candidate.edit.image.sha256,
            "rater": self.judge.name,
            "run": self.run,
        }
