"""The embedded world's oracle: the scene that was drawn, as recorded or as read off the pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Value
from flipbench.models.protocols import JudgeDecision
from flipbench.shapes.benchmark import family_of
from flipbench.shapes.questions import answer
from flipbench.shapes.reading import read_picture
from flipbench.shapes.scene import Scene


class ShapesJudgeSpec(Value):
    """The embedded world's oracle."""

    kind: Literal["shapes"] = "shapes"

    def build(self, context: Context) -> SceneJudge:
        """Return the oracle."""
        return SceneJudge()


class SceneJudge:
    """Keeps a pair if and only if the new answer is true in the drawn scene.

    The embedded world's editor records the scene that it drew. Of pictures by other editors, the
    scene is read off the pixels; one with an unreadable cell is rejected.
    """

    name = "shapes oracle"
    rater_kind: Literal["judge", "rule", "oracle"] = "oracle"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch."""
        return [result_or_error(self._judge, candidate, images) for candidate in candidates]

    def _judge(self, candidate: Candidate, images: ImageStore) -> JudgeDecision:
        family = family_of(candidate)
        if candidate.edit is None:
            raise DataError(f"{candidate.subject}: no edit to judge")
        if "scene" in candidate.edit.extra:
            scene = Scene.from_json(candidate.edit.extra["scene"])
        else:
            reading = read_picture(images.open(candidate.edit.image))
            if reading.scene is None:
                cells = ", ".join(f"row {r + 1} column {c + 1}" for r, c in reading.unreadable)
                return JudgeDecision("reject", f"unreadable: {cells}")
            scene = reading.scene
        true = answer(scene, family.question)
        new_text = candidate.flip.new_text if candidate.flip else None
        if true == new_text:
            return JudgeDecision("keep", f"the picture shows {true}", true)
        return JudgeDecision("reject", f"the picture shows {true}, not {new_text}", true)
