from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Failure, Flip, Item, Source
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import CaptionText, Drawing
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.generated import generate
from tests.fixtures.options import QUIET

N_ITEMS = 24


class CountingCaptioner(SceneCaptioner):
    """Counts what it describes, and fails on the items it is told to fail on."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.n_described, self.failing = 0, set(failing)

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        self.n_described += len(candidates)
        return [
            RuntimeError("out of ink") if c.item.name in self.failing else caption
            for c, caption in zip(candidates, super().__call__(candidates, images), strict=True)
        ]


class CountingEditor(SceneEditor):
    """Counts what it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.n_drawn = 0

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        self.n_drawn += len(candidates)
        return super().__call__(candidates, seeds, images)


def made(
    path: Path, items: Sequence[Item], batch_size: int = 16, **options: int
) -> dict[str, tuple[str, str, str]]:
    """Generate into a run, and return each item's flip, caption and picture."""
    with Run(path) as run:
        shapes_vqa(run.images, N_ITEMS)
        candidates, _ = generate(
            items,
            SceneCaptioner(),
            SceneEditor(),
            run,
            StageOptions(batch_size=batch_size, progress=False),
            **options,
        )
    return {
        c.item.name: (c.flip.new_text, c.caption.text, c.edit.image.sha256)
        for c in candidates
        if c.flip and c.caption and c.edit
    }


@pytest.fixture(scope="module")
def reference(
    shapes_items: list[Item], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str, str]]:
    return made(tmp_path_factory.mktemp("reference"), shapes_items[:N_ITEMS])


@pytest.mark.slow
def test_order_batch_size_and_item_count_change_no_flip_or_image(
    shapes_items: list[Item], reference: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    items = shapes_items[:N_ITEMS]
    assert len(reference) == N_ITEMS
    assert made(tmp_path / "backwards", items[::-1], batch_size=1) == reference
    few = made(tmp_path / "few", items[3:10], batch_size=5)
    assert few == {name: reference[name] for name in few} and len(few) == 7
    assert made(tmp_path / "another seed", items[:12], seed=1) != {
        item.name: reference[item.name] for item in items[:12]
    }


@pytest.mark.slow
def test_the_second_run_does_nothing_twice(
    shapes_items: list[Item], reference: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    captioner, editor = CountingCaptioner(), CountingEditor()
    for n_items, n_new in ((5, 5), (N_ITEMS, N_ITEMS - 5), (N_ITEMS, 0)):
        captioner.n_described = editor.n_drawn = 0
        with Run(tmp_path) as run:
            items = shapes_vqa(run.images, n_items)
            candidates, reports = generate(items, captioner, editor, run, options=QUIET)
        assert captioner.n_described == editor.n_drawn == n_new
        assert [r.n_done for r in reports] == [n_new] * 3
        assert [r.n_skipped for r in reports] == [n_items - n_new] * 3
        assert [c.item for c in candidates] == items
    run = Run(tmp_path)
    for kind in (Item, Flip, Caption, Edit):
        assert len(list(run.read(kind))) == N_ITEMS  # type: ignore[type-abstract]
        lines = sum(len(f.read_text().splitlines()) for f in (tmp_path / kind.kind).iterdir())
        assert lines == N_ITEMS
    assert {c.item.name: c.edit.image.sha256 for c in candidates if c.edit} == {
        name: picture for name, (_, _, picture) in reference.items()
    }


def test_a_failed_item_is_counted_named_and_retried(
    shapes_items: list[Item], reference: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    run = Run(tmp_path)
    items = shapes_vqa(run.images, 8)
    candidates, reports = generate(
        items, CountingCaptioner(["0003"]), SceneEditor(), run, options=QUIET
    )
    assert [r.n_failed for r in reports] == [0, 1, 0]
    (failure,) = reports[1].failures
    assert failure.subject == "shapes-vqa 0003" and "out of ink" in failure.message
    assert candidates[3].flip and not candidates[3].caption and not candidates[3].edit
    assert [c.edit is not None for c in candidates] == [i != 3 for i in range(8)]
    assert len(list(run.read(Failure))) == 1

    captioner = CountingCaptioner()
    candidates, reports = generate(items, captioner, SceneEditor(), run, options=QUIET)
    assert captioner.n_described == 1 and [r.n_failed for r in reports] == [0, 0, 0]
    assert all(c.edit for c in candidates)
    assert candidates[3].edit
    assert candidates[3].edit.image.sha256 == reference["0003"][2]


def test_an_item_without_another_option_stops_at_the_flip(tmp_path: Path) -> None:
    run = Run(tmp_path)
    items = shapes_vqa(run.images, 2)
    free = Item(
        benchmark="made-up",
        name="q7",
        question="What is it?",
        answer_text="a bridge",
        source=Source(dataset="made-up"),
    )
    candidates, reports = generate(
        [items[0], free, items[1]], SceneCaptioner(), SceneEditor(), run, options=QUIET
    )
    assert [c.edit is not None for c in candidates] == [True, False, True]
    assert [r.n_failed for r in reports] == [1, 0, 0]
    (failure,) = run.read(Failure)
    assert (failure.subject, failure.stage) == ("made-up q7", "flip")
    assert "free-form" in failure.message
    assert "made-up q7: a free-form item has no options" in str(reports[0])


def test_a_lost_image_is_drawn_again(
    shapes_items: list[Item], reference: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    run = Run(tmp_path)
    items = shapes_vqa(run.images, 3)
    candidates, _ = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)
    assert candidates[1].edit
    run.images.path(candidates[1].edit.image).unlink()
    editor = CountingEditor()
    again, _ = generate(items, SceneCaptioner(), editor, run, options=QUIET)
    assert editor.n_drawn == 1
    assert again == candidates
    assert run.images.path(candidates[1].edit.image).exists()


def test_the_perturbed_item_asks_the_same_of_another_image(
    reference: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    run = Run(tmp_path)
    items = shapes_vqa(run.images, 10)
    candidates, _ = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)
    for candidate in candidates:
        pair = candidate.pair()
        assert pair.original == candidate.item
        assert pair.perturbed.question == pair.original.question
        assert pair.perturbed.options == pair.original.options
        assert pair.perturbed.answer != pair.original.answer
        assert pair.perturbed.images[0].sha256 == reference[candidate.item.name][2]
        assert pair.perturbed.id != pair.original.id
