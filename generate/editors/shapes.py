"""The embedded world's editor: redraws the scene, exactly or with a deliberate fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict, Value
from flipbench.models.protocols import Drawing
from flipbench.shapes.benchmark import family_of, scene_of
from flipbench.shapes.faults import add_fault
from flipbench.shapes.render import render
from flipbench.shapes.wording import read_description


class ShapesEditorSpec(Value):
    """The embedded world's editor."""

    kind: Literal["shapes"] = "shapes"
    wrong: float = Field(default=0.0, ge=0, le=1, description="share of images drawn with a fault")

    def build(self, context: Context) -> SceneEditor:
        """Return the editor."""
        return SceneEditor(self.wrong)


class SceneEditor:
    """Draws the caption's scene with the original's background and positions.

    It sees only the caption and the original's scene: a wrong caption makes a wrong image, as with
    a diffusion model.

    Parameters
    ----------
    wrong : float
        Share of images with a deliberate fault (`flipbench.shapes.faults`) that makes the new
        answer false; ``extra["fault"]`` of the edit names it.
    """

    name = "shapes redraw"

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong
        self.settings: JsonDict = {"wrong": wrong} if wrong else {}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch; the seeds only select faults."""
        out: list[Drawing | Exception] = []
        for candidate, seed in zip(candidates, seeds, strict=True):
            try:
                out.append(self._draw(candidate, seed))
            except (DataError, ValueError) as error:
                out.append(DataError(str(error)))
        return out

    def _draw(self, candidate: Candidate, seed: int) -> Drawing:
        text = candidate.caption.text if candidate.caption else ""
        original, extra = scene_of(candidate), {}
        scene = read_description(text, original)
        rng = generator(seed, candidate.item.id, "fault")
        if candidate.flip and rng.random() < self.wrong:
            family, true_answer = family_of(candidate), candidate.flip.new_text
            extra["fault"], scene = add_fault(scene, original, family, true_answer, rng)
        image = render(scene, candidate.source.width)
        return Drawing(image, {"scene": scene.to_json(), **extra})
