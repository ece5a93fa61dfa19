"""Your own judge, by import path."""

from __future__ import annotations

from typing import Literal, cast

from flipbench.config.kinds import Context, PythonTarget
from flipbench.core.records import content_id
from flipbench.models.plugins import UserPart, build_target
from flipbench.models.protocols import Judge


class PythonJudgeSpec(PythonTarget):
    """Your class or factory that returns a `Judge`.

    Its name, part of verdict ids, gets the target and a hash of the arguments added.
    """

    kind: Literal["python"] = "python"

    def build(self, context: Context) -> Judge:
        """Return the judge."""
        judge = build_target(self.target, self.arguments, Judge)
        made_of = content_id(self.target, self.arguments)
        return cast(Judge, UserPart(judge, name=f"{judge.name} {self.target} {made_of[:8]}"))
