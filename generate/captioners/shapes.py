"""The embedded world's captioner, exact because the scene is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.models.protocols import CaptionText
from flipbench.shapes.benchmark import family_of
from flipbench.shapes.wording import describe


class ShapesCaptionerSpec(Value):
    """The embedded world's captioner."""

    kind: Literal["shapes"] = "shapes"

    def build(self, context: Context) -> SceneCaptioner:
        """Return the captioner."""
        return SceneCaptioner()


class SceneCaptioner:
    """Describes, by a template, the scene of the family in which the new answer is true."""

    name = "shapes template"
    prompt = "scene-v1"
    settings: JsonDict = {}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        """Describe a batch."""
        return [result_or_error(self._describe, candidate) for candidate in candidates]

    def _describe(self, candidate: Candidate) -> CaptionText:
        family = family_of(candidate)
        if candidate.flip is None or candidate.flip.new_text not in family.options:
            raise DataError("the new answer is not among the options of its family")
        return CaptionText(describe(family.scenes[family.options.index(candidate.flip.new_text)]))
