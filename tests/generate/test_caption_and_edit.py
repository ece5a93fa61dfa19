from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flipbench.core.errors import DataError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Flip, Item, JsonDict
from flipbench.generate.caption import CaptionStage
from flipbench.generate.edit import EditStage, made_of, versioned_settings
from flipbench.models.protocols import CaptionText, Drawing


class Says:
    """A captioner that says what it is told to."""

    name, prompt = "says", "says-v1"

    def __init__(self, *texts: str | Exception, **settings: Any) -> None:
        self.texts = texts
        self.settings: JsonDict = settings

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        return [t if isinstance(t, Exception) else CaptionText(t, {"n": 3}) for t in self.texts]


class Draws:
    """An editor that paints noise from its seed, in a size of its own if told to."""

    name = "draws"

    def __init__(self, size: tuple[int, int] | None = None, **settings: Any) -> None:
        self.size = size
        self.settings: JsonDict = settings

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        out: list[Drawing | Exception] = []
        for candidate, seed in zip(candidates, seeds, strict=True):
            assert candidate.caption
            if "fail" in candidate.caption.text:
                out.append(ServiceError("no free worker"))
                continue
            source = candidate.item.images[0]
            width, height = self.size or (source.width, source.height)
            noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
            out.append(Drawing(Image.fromarray(noise), {"seed": seed}))
        return out


@pytest.fixture
def candidates(shapes_items: list[Item]) -> list[Candidate]:
    return [
        Candidate(i, Flip(item_id=i.id, method="m", seed=0, new_answer=0, new_text="x"))
        for i in shapes_items[:4]
    ]


def captioned(candidate: Candidate, text: str = "A star.") -> Candidate:
    assert candidate.flip
    caption = Caption(flip_id=candidate.flip.id, captioner="c", prompt="p", text=text)
    return replace(candidate, caption=caption)


@pytest.fixture
def store(tmp_path: Any, shapes_store: ImageStore, candidates: list[Candidate]) -> ImageStore:
    """Return a store of its own that holds the originals."""
    own = ImageStore(tmp_path / "images")
    for candidate in candidates:
        for ref in candidate.item.images:
            own.put(shapes_store.path(ref).read_bytes(), candidate.subject)
    return own


@pytest.mark.parametrize("empty", ["", "  ", "\n\t"])
def test_an_empty_caption_is_a_failure(
    candidates: list[Candidate], store: ImageStore, empty: str
) -> None:
    good, bad = CaptionStage(Says(" A star. ", empty), store)(candidates[:2])
    assert isinstance(good, Caption) and (good.text, good.usage) == ("A star.", {"n": 3})
    assert isinstance(bad, ServiceError) and "empty" in str(bad)


def test_a_captioner_s_failure_affects_only_its_item(
    candidates: list[Candidate], store: ImageStore
) -> None:
    made = CaptionStage(Says("a", ServiceError("refused"), "c"), store)(candidates[:3])
    assert [isinstance(m, Caption) for m in made] == [True, False, True]


def test_a_captioner_that_loses_an_item_is_detected(
    candidates: list[Candidate], store: ImageStore
) -> None:
    with pytest.raises(ValueError, match="zip"):
        CaptionStage(Says("a"), store)(candidates[:2])


def test_caption_ids_are_known_beforehand_and_cover_the_request(
    candidates: list[Candidate], store: ImageStore
) -> None:
    stage = CaptionStage(Says("a", t=0.1), store)
    (made,) = stage(candidates[:1])
    assert isinstance(made, Caption) and made.id == stage.id_of(candidates[0])
    others = {
        stage.id_of(candidates[1]),
        CaptionStage(Says("a", t=0.2), store).id_of(candidates[0]),
        stage.id_of(candidates[0]),
    }
    assert len(others) == 3


def test_the_edit_has_the_source_s_size_and_is_stored_losslessly(
    candidates: list[Candidate], store: ImageStore
) -> None:
    stage = EditStage(Draws(), store, seed=5)
    task = captioned(candidates[0])
    (edit,) = stage([task])
    assert isinstance(edit, Edit) and edit.id == stage.id_of(task)
    source = task.item.images[0]
    assert (edit.image.width, edit.image.height) == (source.width, source.height)
    seed = edit.extra["seed"]
    assert seed == edit.seed
    drawn = np.random.default_rng(seed).integers(0, 256, (source.height, source.width, 3), np.uint8)
    assert (np.asarray(store.open(edit.image)) == drawn).all()
    data = store.path(edit.image).read_bytes()
    assert Image.open(io.BytesIO(data)).format == "PNG"
    assert edit.extra["similarity"]["label"] == "unrelated", "noise has nothing of the original"


@pytest.mark.parametrize("size", [(64, 64), (224, 208), (1024, 1024)])
def test_an_edit_of_another_size_is_a_failure(
    candidates: list[Candidate], store: ImageStore, size: tuple[int, int]
) -> None:
    (error,) = EditStage(Draws(size), store)([captioned(candidates[0])])
    assert isinstance(error, DataError)
    assert str(size) in str(error) and "(224, 224)" in str(error)


def test_an_editor_s_failure_affects_only_its_item(
    candidates: list[Candidate], store: ImageStore
) -> None:
    tasks = [captioned(candidates[0]), captioned(candidates[1], "fail"), captioned(candidates[2])]
    made = EditStage(Draws(), store)(tasks)
    assert [isinstance(m, Edit) for m in made] == [True, False, True]


def test_edit_ids_depend_on_caption_text_source_image_editor_and_seed(
    candidates: list[Candidate], store: ImageStore
) -> None:
    stage, task = EditStage(Draws(), store), captioned(candidates[0])
    assert task.caption
    other_source = task.item.model_copy(update={"images": candidates[1].item.images})
    same_id_other_text = task.caption.model_copy(update={"text": "A ring."})
    assert same_id_other_text.id == task.caption.id
    ids = {
        stage.id_of(task),
        stage.id_of(replace(task, caption=same_id_other_text)),
        stage.id_of(replace(task, item=other_source)),
        EditStage(Draws(steps=4), store).id_of(task),
        EditStage(Draws(), store, seed=1).id_of(task),
    }
    assert len(ids) == 5


def test_each_item_has_a_seed_of_its_own_whatever_the_order(
    candidates: list[Candidate], store: ImageStore
) -> None:
    tasks = [captioned(c) for c in candidates]
    stage = EditStage(Draws(), store, seed=9)
    together = [e.id for e in stage(tasks) if isinstance(e, Edit)]
    assert [e.id for e in stage(tasks[::-1]) if isinstance(e, Edit)] == together[::-1]
    seeds = [e.seed for e in stage(tasks) if isinstance(e, Edit)]
    assert len(set(seeds)) == len(tasks)


def test_an_edit_that_names_a_version_keeps_its_id(
    candidates: list[Candidate], store: ImageStore
) -> None:
    tasks = [captioned(c) for c in candidates[:2]]
    named = EditStage(Draws(steps=4, diffusers="0.30.0"), store)(tasks[:1])
    older = EditStage(Draws(steps=4, diffusers="0.29.0"), store)(tasks[:1])
    edits = [e for e in [*older, *named] if isinstance(e, Edit)]
    stage = EditStage(Draws(steps=4), store, known_settings=versioned_settings(map(made_of, edits)))
    again, other = stage(tasks)
    assert isinstance(again, Edit) and again.settings == {"steps": 4, "diffusers": "0.30.0"}
    assert again.id == stage.id_of(tasks[0]) == edits[1].id != edits[0].id
    assert again.versions["torch"] and "torch" not in again.settings
    assert isinstance(other, Edit) and other.settings == {"steps": 4}
    assert other.id == stage.id_of(tasks[1]) == EditStage(Draws(steps=4), store).id_of(tasks[1])


def test_no_items_to_edit_is_an_error(candidates: list[Candidate], store: ImageStore) -> None:
    with pytest.raises(DataError, match="no caption"):
        EditStage(Draws(), store).id_of(candidates[0])
