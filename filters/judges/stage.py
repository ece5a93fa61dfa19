"""Have a judge (or a rule) decide, pair by pair, and keep its opinions as verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Record, Verdict
from flipbench.models.protocols import Judge


class JudgeStage:
    """Turn a judge's opinions into verdicts that name the very image they are about."""

    record: type[Record] = Verdict

    def __init__(self, judge: Judge, images: ImageStore, run: int = 0) -> None:
        self.name = judge.name if judge.rater_kind == "rule" else f"judge {judge.name}"
        if run:
            self.name += f", run {run}"
        self.judge, self.images, self.run = judge, images, run

    def id_of(self, candidate: Candidate) -> str:
        """Return the id of this judge's verdict."""
        return Verdict.id_for(**self._made_of(candidate))

    def subject(self, candidate: Candidate) -> str:
        """Return the item in words."""
        return candidate.subject

    def __call__(self, candidates: Sequence[Candidate]) -> list[Verdict | Exception]:
        """Judge a batch."""
        out: list[Verdict | Exception] = []
        opinions = self.judge(candidates, self.images)
        for candidate, opinion in zip(candidates, opinions, strict=True):
            if isinstance(opinion, Exception):
                out.append(opinion)
                continue
            out.append(
                Verdict(
                    **self._made_of(candidate),
                    rater_kind=self.judge.rater_kind,
                    decision=opinion.decision,
                    reason=opinion.reason,
                    blind_answer=opinion.blind_answer,
                    usage=opinion.usage,
                )
            )
        return out

    def _made_of(self, candidate: Candidate) -> dict[str, Any]:
        if candidate.edit is None:
            raise DataError(f"{candidate.subject}: there is no edited image to judge")
        return {
            "edit_id": candidate.edit.id,
            "image_sha256": candidate.edit.image.sha256,
            "rater": self.judge.name,
            "run": self.run,
        }
