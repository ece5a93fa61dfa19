"""The embedded world's oracle, which knows the scene that was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError, attempt
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Value
from flipbench.models.protocols import JudgeDecision
from flipbench.shapes.benchmark import family_of
from flipbench.shapes.questions import answer
from flipbench.shapes.scene import Scene


class ShapesJudgeSpec(Value):
    """The embedded world's oracle, which knows the scene that was drawn."""

    kind: Literal["shapes"] = "shapes"

    def build(self, context: Context) -> SceneJudge:
        """Return the oracle."""
        return SceneJudge()


class SceneJudge:
    """Keeps a pair if and only if the new answer is true in the drawn scene."""

    name = "shapes oracle"
    rater_kind: Literal["judge", "rule", "oracle"] = "oracle"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch."""
        return [attempt(self._judge, candidate) for candidate in candidates]

    def _judge(self, candidate: Candidate) -> JudgeDecision:
        if candidate.edit is None or "scene" not in candidate.edit.extra:
            raise DataError("the edit has no scene; only shapes edits have an oracle")
        scene = Scene.from_json(candidate.edit.extra["scene"])
        true = answer(scene, family_of(candidate).question)
        new = candidate.flip.new_text if candidate.flip else None
        if true == new:
            return JudgeDecision("keep", f"the picture shows {true}", true)
        return JudgeDecision("reject", f"the picture shows {true}, not {new}", true)
