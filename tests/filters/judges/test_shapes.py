from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Caption, Edit, Flip, ImageRef
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import CaptionText, Drawing, JudgeDecision
from flipbench.shapes.benchmark import shapes_vqa

N = 20


@pytest.fixture(scope="module")
def redrawn(shapes_store: ImageStore) -> list[tuple[Candidate, Drawing]]:
    """Return items with a caption, and their redrawn pictures, 40 % of them faulty."""
    found = []
    for item in shapes_vqa(shapes_store, N):
        assert item.options and item.answer is not None
        new = (item.answer + 1) % len(item.options)
        flip = Flip(item_id=item.id, method="m", seed=0, new_answer=new, new_text=item.options[new])
        (text,) = SceneCaptioner()([Candidate(item, flip)], shapes_store)
        assert isinstance(text, CaptionText)
        caption = Caption(flip_id=flip.id, captioner="c", prompt="p", text=text.text)
        candidate = Candidate(item, flip, caption)
        seed = int(generator(0, item.id, "edit").integers(2**63))
        (drawing,) = SceneEditor(0.4)([candidate], [seed], shapes_store)
        assert isinstance(drawing, Drawing)
        found.append((candidate, drawing))
    return found


def edited(candidate: Candidate, image: ImageRef, **extra: object) -> Candidate:
    assert candidate.caption
    edit = Edit(
        caption_id=candidate.caption.id,
        caption_text=candidate.caption.text,
        source_sha256=candidate.item.images[0].sha256,
        editor="e",
        seed=0,
        image=image,
        extra=extra,
    )
    return Candidate(candidate.item, candidate.flip, candidate.caption, edit)


def test_record_and_pixels_agree_on_redrawn_pictures(
    redrawn: list[tuple[Candidate, Drawing]], shapes_store: ImageStore
) -> None:
    recorded, read = [], []
    for candidate, drawing in redrawn:
        image = shapes_store.put_image(drawing.image, "edit")
        recorded.append(edited(candidate, image, scene=drawing.extra["scene"]))
        read.append(edited(candidate, image))
    judge = SceneJudge()
    decisions = judge(recorded, shapes_store)
    assert judge(read, shapes_store) == decisions
    kept = [isinstance(d, JudgeDecision) and d.decision == "keep" for d in decisions]
    assert kept == ["fault" not in drawing.extra for _, drawing in redrawn]
    assert any(kept) and not all(kept)


def test_a_picture_with_an_unreadable_cell_is_rejected_by_name(
    redrawn: list[tuple[Candidate, Drawing]], shapes_store: ImageStore
) -> None:
    candidate, drawing = redrawn[0]
    picture = drawing.image.copy()
    pen = ImageDraw.Draw(picture)
    for y in range(60, 108, 12):  # stripes over row 2 column 4
        pen.rectangle((172, y, 220, y + 5), fill=(220, 40, 160))
    image = shapes_store.put_image(picture, "edit")
    (decision,) = SceneJudge()([edited(candidate, image)], shapes_store)
    assert decision == JudgeDecision("reject", "unreadable: row 2 column 4")


def test_noise_is_rejected(
    redrawn: list[tuple[Candidate, Drawing]], shapes_store: ImageStore
) -> None:
    noise = Image.effect_noise((224, 224), 200).convert("RGB")
    image = shapes_store.put_image(noise, "edit")
    (decision,) = SceneJudge()([edited(redrawn[0][0], image)], shapes_store)
    assert isinstance(decision, JudgeDecision) and decision.decision == "reject"


def test_without_an_edit_there_is_nothing_to_judge(
    redrawn: list[tuple[Candidate, Drawing]], shapes_store: ImageStore
) -> None:
    (result,) = SceneJudge()([redrawn[0][0]], shapes_store)
    assert isinstance(result, DataError) and "no edit" in str(result)
