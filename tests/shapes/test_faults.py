"""Faults are what their names say, and drawn from the item's seed; the oracle sees the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Edit
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import Drawing
from flipbench.shapes.benchmark import shapes_vqa
from flipbench.shapes.faults import FAULTS, add_fault
from flipbench.shapes.questions import KINDS_OF, Level, answer, draw_family
from flipbench.shapes.scene import Scene
from tests.fixtures.flipped import captioned

pytestmark = pytest.mark.slow

N = 150


@pytest.fixture(scope="module")
def candidates(shapes_store: ImageStore) -> list[Candidate]:
    """Return the first items with another answer and the caption that fits it."""
    return [captioned(item) for item in shapes_vqa(shapes_store, N)]


def draw(
    editor: SceneEditor, candidates: Sequence[Candidate], images: ImageStore, seed: int = 0
) -> list[Drawing]:
    seeds = [int(generator(seed, c.item.id, "edit").integers(2**63)) for c in candidates]
    drawn = editor(candidates, seeds, images)
    return [drawing for drawing in drawn if isinstance(drawing, Drawing)]


@pytest.mark.parametrize(
    ("level", "kind"), [(level, kind) for level, kinds in KINDS_OF.items() for kind in kinds]
)
def test_a_fault_spoils_the_image_as_named(level: Level, kind: str) -> None:
    found: Counter[str] = Counter()
    missing = set()
    for row in range(80):
        rng = np.random.default_rng([1, row])
        family = draw_family(rng, kind, level)
        (old, right), (original, scene) = family.options[:2], family.scenes[:2]
        name, faulty = add_fault(scene, original, family, right, rng)
        found[name] += 1
        true = answer(faulty, family.question)
        n_more = len(faulty.things) - len(scene.things)
        assert true != right and faulty.background == original.background
        if name == "unchanged":
            assert faulty == original and true == old
        elif name == "another answer":
            assert true in family.options[2:]
        elif name == "object missing":
            (gone,) = set(scene.things) - set(faulty.things)
            missing.add(gone.shape == family.question.other)
            assert n_more == -1
            assert true == (str(int(right) - 1) if kind == "number" else None)
        else:
            (twin,) = set(faulty.things) - set(scene.things)
            assert n_more == 1 and true is None
            alone = [t for t in scene.things if t.shape != twin.shape or kind == "shape"]
            alone = [t for t in alone if t.color != twin.color or kind != "shape"]
            other = answer(Scene.of([twin, *alone], scene.background), family.question)
            assert other not in (None, right)  # it is no second thing with the same answer
    impossible = {"relation": {"another answer"}, "number": {"ambiguous"}}.get(kind, set())
    assert set(found) == set(FAULTS) - impossible
    assert min(found.values()) >= 8
    assert missing == ({True, False} if kind == "relation" else {False})


@pytest.mark.slow
def test_faults_depend_on_the_item_and_the_seed(
    candidates: list[Candidate], shapes_store: ImageStore
) -> None:
    def extras(items: Sequence[Candidate], seed: int = 0) -> dict[str, object]:
        drawn = draw(SceneEditor(0.4), items, shapes_store, seed)
        return {c.item.id: d.extra for c, d in zip(items, drawn, strict=True)}

    once = extras(candidates)
    assert extras(candidates[::-1]) == once
    assert extras(candidates[5:9]) == {c.item.id: once[c.item.id] for c in candidates[5:9]}
    assert extras(candidates, seed=1) != once


def test_the_stated_share_of_edits_is_faulty(
    candidates: list[Candidate], shapes_store: ImageStore
) -> None:
    n_wrong = {
        wrong: sum("fault" in d.extra for d in draw(SceneEditor(wrong), candidates, shapes_store))
        for wrong in (0.0, 0.1, 0.4, 1.0)
    }
    assert n_wrong[0.0] == 0 and n_wrong[1.0] == N
    for wrong in (0.1, 0.4):
        deviation = (N * wrong * (1 - wrong)) ** 0.5
        assert abs(n_wrong[wrong] - N * wrong) < 2.6 * deviation


def test_a_fault_share_is_in_the_settings_unless_zero() -> None:
    assert SceneEditor().settings == {}  # as edits of old runs have it
    assert SceneEditor(0.4).settings == {"wrong": 0.4}


def test_the_oracle_rejects_faults_without_reading_the_note(
    candidates: list[Candidate], shapes_store: ImageStore
) -> None:
    drawn = draw(SceneEditor(0.4), candidates, shapes_store)

    def judged(note: bool) -> list[str]:
        edited = []
        for candidate, drawing in zip(candidates, drawn, strict=True):
            caption = candidate.caption
            assert caption
            extra = drawing.extra if note else {"scene": drawing.extra["scene"]}
            edit = Edit(
                caption_id=caption.id,
                caption_text=caption.text,
                source_sha256=candidate.item.images[0].sha256,
                editor="e",
                seed=0,
                image=candidate.item.images[0],
                extra=extra,
            )
            edited.append(Candidate(candidate.item, candidate.flip, caption, edit))
        decisions = SceneJudge()(edited, shapes_store)
        return ["error" if isinstance(o, Exception) else o.decision for o in decisions]

    expected = ["reject" if "fault" in drawing.extra else "keep" for drawing in drawn]
    assert judged(note=True) == judged(note=False) == expected
