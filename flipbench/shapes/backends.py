"""Captioner, editor and judge of the embedded world: exact, because the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict
from flipbench.models.protocols import CaptionText, Drawing, Opinion
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.faults import spoil
from flipbench.shapes.questions import Family, answer
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene
from flipbench.shapes.wording import describe, read_description


class SceneCaptioner:
    """Says the family's scene in which the new answer is true, in a template's words."""

    name = "shapes template"
    prompt = "scene-v1"
    settings: JsonDict = {}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        """Describe a batch."""
        return [self._describe(candidate) for candidate in candidates]

    def _describe(self, candidate: Candidate) -> CaptionText | Exception:
        try:
            family = _family(candidate)
        except DataError as error:
            return error
        if candidate.flip is None or candidate.flip.new_text not in family.options:
            return DataError("the new answer is no option of its family")
        return CaptionText(describe(family.scenes[family.options.index(candidate.flip.new_text)]))


class SceneEditor:
    """Draws what the caption says, on the background and at the places of the original.

    It knows the caption and the original's scene, not the family: a wrong caption makes a wrong
    picture, as it does with a diffusion model.

    Parameters
    ----------
    wrong : float
        Share of the pictures that get a fault on purpose (`flipbench.shapes.faults`), by which the
        new answer is not true in them; the edit's ``extra`` says which.
    """

    name = "shapes redraw"

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong
        self.settings: JsonDict = {"wrong": wrong} if wrong else {}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch; the seeds decide about faults only."""
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
        scene = read_description(text, like=original)
        rng = generator(seed, candidate.item.id, "fault")
        if candidate.flip and rng.random() < self.wrong:
            family, right = _family(candidate), candidate.flip.new_text
            extra["fault"], scene = spoil(scene, original, family, right, rng)
        image = render(scene, candidate.item.images[0].width)
        return Drawing(image, {"scene": scene.to_json(), **extra})


class SceneJudge:
    """The oracle: keeps a pair if and only if the drawn scene makes the new answer true."""

    name = "shapes oracle"
    rater_kind: Literal["judge", "rule", "oracle"] = "oracle"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[Opinion | Exception]:
        """Judge a batch."""
        return [self._judge(candidate) for candidate in candidates]

    def _judge(self, candidate: Candidate) -> Opinion | Exception:
        if candidate.edit is None or "scene" not in candidate.edit.extra:
            return DataError("the edit tells no scene; only shapes edits have an oracle")
        scene = Scene.from_json(candidate.edit.extra["scene"])
        true = answer(scene, _family(candidate).question)
        new = candidate.flip.new_text if candidate.flip else None
        if true == new:
            return Opinion("keep", f"the picture shows {true}", true)
        return Opinion("reject", f"the picture shows {true}, not {new}", true)


def scene_of(candidate: Candidate) -> Scene:
    """Return the scene of a shapes item."""
    family = _family(candidate)
    return family.scenes[family.options.index(candidate.item.answer_text)]


def _family(candidate: Candidate) -> Family:
    if not is_shapes_item(candidate.item):
        raise DataError(f"{candidate.subject}: not an item of the shapes world")
    return Family.from_json(candidate.item.extra["family"])
