"""Your own judge, by import path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context, PythonTarget
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import content_id
from flipbench.models.plugins import build_target
from flipbench.models.protocols import Judge, JudgeDecision, release


class PythonJudgeSpec(PythonTarget):
    """Your class or factory that returns a `Judge`."""

    kind: Literal["python"] = "python"

    def build(self, context: Context) -> PythonJudge:
        """Return the judge."""
        return PythonJudge(self)


class PythonJudge:
    """Your judge; its name, part of verdict ids, ends in the target and a hash of the arguments."""

    def __init__(self, spec: PythonTarget) -> None:
        self.judge: Judge = build_target(spec.target, spec.arguments, Judge)
        self.rater_kind: Literal["judge", "rule", "oracle"] = self.judge.rater_kind
        made_of = content_id(spec.target, spec.arguments)
        self.name = f"{self.judge.name} {spec.target} {made_of[:8]}"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[JudgeDecision | Exception]:
        """Judge a batch, in order."""
        return self.judge(candidates, images)

    def release(self) -> None:
        """Free what it holds, if it can."""
        release(self.judge)
