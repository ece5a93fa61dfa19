"""Duplicates: noisy copies are found, perturbed versions are not, among thousands of images."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flipbench.config.audit import AuditSettings
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.filters.audit.duplicates import (
    Fingerprints,
    duplicates,
    fingerprints,
    image_groups,
    near_pairs,
    train_overlap,
)
from flipbench.shapes.questions import QuestionFamily
from flipbench.shapes.render import render
from tests.filters.audit.conftest import MakeItem
from tests.fixtures.photos import encoded, photo

SETTINGS = AuditSettings()


def noisy(image: Image.Image, sigma: float = 4.0) -> Image.Image:
    pixels = np.asarray(image, float)
    rng = np.random.default_rng(0)
    return Image.fromarray((pixels + rng.normal(0, sigma, pixels.shape)).clip(0, 255).astype("u1"))


def as_jpeg(image: Image.Image, store: ImageStore) -> ImageRef:
    return store.put(encoded(image, "JPEG", quality=60), "jpeg")


@pytest.fixture
def store(shapes_store: ImageStore) -> ImageStore:
    return shapes_store


def test_a_clean_benchmark_has_no_duplicates(shapes_items: list[Item], store: ImageStore) -> None:
    groups = image_groups(shapes_items, store, SETTINGS, progress=False)
    found = duplicates(shapes_items, groups)
    assert found.status == "ok" and found.items == ()
    assert found.details["n_image_files"] == found.details["n_image_groups"] == 60


def test_copies_are_found_and_named(
    shapes_items: list[Item], store: ImageStore, make_item: MakeItem
) -> None:
    pictures = [store.open(item.images[0]) for item in shapes_items[:4]]
    small = pictures[2].resize((112, 112), Image.Resampling.LANCZOS)
    copies = [
        (0, store.put_image(noisy(pictures[0]), "noise")),
        (1, as_jpeg(pictures[1], store)),
        (2, store.put_image(small, "small")),
    ]
    planted = [
        shapes_items[row].model_copy(
            update={"id": f"{row}", "name": f"copy{row}", "images": (ref,)}
        )
        for row, ref in copies
    ]
    other_question = make_item("asks", images=[copies[0][1]])
    wrong = shapes_items[3].model_dump() | {"id": "", "name": "wrong"}
    wrong["answer"] = (wrong["answer"] + 1) % len(wrong["options"])
    wrong["answer_text"] = wrong["options"][wrong["answer"]]
    items = [*shapes_items, *planted, other_question, Item.model_validate(wrong)]
    found = duplicates(items, image_groups(items, store, SETTINGS, progress=False))
    flagged = {named.name: (named.action, named.why) for named in found.items}
    assert {name for name, (action, _) in flagged.items() if action == "drop"} == {
        "copy0",
        "copy1",
        "copy2",
    }
    assert flagged["copy0"][1].startswith("repeats 0000: a near-duplicate image")
    assert flagged["asks"][0] == "look" and "0000" in flagged["asks"][1]
    assert flagged["wrong"][0] == flagged["0003"][0] == "person"
    assert found.status == "defect"
    near = found.rates[1]
    assert (near.k, near.n) == (6, 63)


def test_images_of_one_scene_family_are_not_duplicates(
    shapes_items: list[Item], store: ImageStore, tmp_path: Path
) -> None:
    rest = ImageStore(tmp_path)
    refs = []
    for item in shapes_items[:30]:
        family = QuestionFamily.from_json(item.extra["family"])
        refs += [rest.put_image(render(scene), "twin") for scene in family.scenes[:2]]
    prints = fingerprints(refs, rest, progress=False)
    assert near_pairs(prints, None, 8, 0.03) == []
    by_hash_alone = near_pairs(prints, None, 8, 1.0)
    assert len(by_hash_alone) > 5, "their hashes hardly differ; the colours tell them apart"


def pictures(size: tuple[int, int], items: list[Item], store: ImageStore) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    scenes = [store.open(item.images[0]) for item in items[:10]]
    return [photo(rng, *size) for _ in range(10)] + [
        scene.resize(size, Image.Resampling.LANCZOS) for scene in scenes
    ]


COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg50": lambda image: encoded(image, "JPEG", quality=50),
    "jpeg75": lambda image: encoded(image, "JPEG", quality=75),
    "smaller": lambda image: encoded(image.resize([edge * 3 // 4 for edge in image.size])),
    "larger": lambda image: encoded(image.resize([edge * 3 // 2 for edge in image.size])),
    "png": lambda image: encoded(image, "PNG", compress_level=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [(66, 66), (96, 80), (224, 224), (640, 480)], ids=str)
def test_copies_of_any_size_are_found(
    size: tuple[int, int], shapes_items: list[Item], store: ImageStore, tmp_path: Path
) -> None:
    copies = ImageStore(tmp_path)
    originals = pictures(size, shapes_items, store)
    refs = [copies.put_image(image, "original") for image in originals]
    prints = fingerprints(refs, copies, progress=False)
    assert near_pairs(prints, None, 8, 0.03) == [], "different pictures are no duplicates"
    for copy, make in COPIES.items():
        made = [copies.put(make(image), copy) for image in originals]
        pairs = near_pairs(prints, fingerprints(made, copies, progress=False), 8, 0.03)
        assert pairs == [(n, n) for n in range(20)], copy


@pytest.mark.slow
@pytest.mark.parametrize("edge", [48, 66, 96])
@pytest.mark.parametrize("quality", [None, 50])
def test_a_small_picture_with_another_color_is_no_copy(
    edge: int, quality: int | None, shapes_items: list[Item], tmp_path: Path
) -> None:
    store = ImageStore(tmp_path)
    originals, changed = [], []
    for item in shapes_items[:30]:
        scenes = QuestionFamily.from_json(item.extra["family"]).scenes
        first, *others = (render(s).resize((edge, edge)) for s in scenes)
        for other in others:
            saved = encoded(other, "JPEG", quality=quality) if quality else encoded(other)
            originals.append(store.put(encoded(first), "scene"))
            changed.append(store.put(saved, "changed"))
    before, after = (fingerprints(refs, store, progress=False) for refs in (originals, changed))
    by_hash = near_pairs(before, after, 8, 1.0)
    assert len(by_hash) > 10
    assert near_pairs(before, after, 8, 0.03) == []


def test_blank_and_missing_images_are_reported(make_item: MakeItem, tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    white = store.put_image(Image.new("RGB", (40, 40), "white"), "white")
    paper = store.put_image(Image.new("RGB", (50, 40), (254, 255, 254)), "paper")
    black = store.put_image(Image.new("RGB", (40, 40)), "black")
    gone = ImageRef(sha256="0" * 64, format="png", width=4, height=4)
    items = [
        make_item(name, images=[ref], question=f"{name}?")
        for name, ref in [("white", white), ("paper", paper), ("black", black), ("gone", gone)]
    ]
    groups = image_groups(items, store, SETTINGS, progress=False)
    assert groups.of[white.sha256] == groups.of[paper.sha256] != groups.of[black.sha256]
    found = duplicates([*items, make_item("no image")], groups)
    flagged = {named.name: named.action for named in found.items}
    assert flagged == {"white": "look", "paper": "look", "black": "look", "gone": "person"}
    assert found.rates[2].k == 3


def test_images_shared_with_the_training_split_are_found(
    shapes_items: list[Item], store: ImageStore, make_item: MakeItem
) -> None:
    test, other = shapes_items[:30], shapes_items[30:]
    same = make_item("t1", images=test[4].images, question=test[4].question)
    near = store.put_image(noisy(store.open(test[7].images[0])), "near")
    train = [*other, same, make_item("t2", images=[near], question="What else?")]
    groups = image_groups(test, store, SETTINGS, progress=False)
    found = train_overlap(test, groups, train, store, SETTINGS, progress=False)
    flagged = {named.name: named.why for named in found.items}
    assert flagged == {
        "0004": "its image is that of training item t1, which asks the same question",
        "0007": "its image is nearly that of training item t2",
    }
    assert found.status == "defect" and (found.rates[0].k, found.rates[0].n) == (2, 30)
    clean = train_overlap(test, groups, other, store, SETTINGS, progress=False)
    assert clean.status == "ok"
    assert train_overlap(test, groups, None, store, SETTINGS).status == "not_run"


@pytest.mark.slow
def test_near_duplicates_match_brute_force_and_scale() -> None:
    rng = np.random.default_rng(0)
    n = 10_000
    hashes = rng.integers(0, 2**63, n, dtype=np.uint64)
    hashes[5_000:5_200] = hashes[:200] ^ np.uint64(0b1011)
    thumbnails = rng.integers(0, 256, (n, 768), dtype=np.uint8)
    thumbnails[5_000:5_100] = thumbnails[:100]  # the other hundred differ in their pixels
    refs = [ImageRef(sha256=f"{i}", format="png", width=9, height=9) for i in range(n)]
    prints = Fingerprints(refs, hashes, thumbnails, np.zeros(n, bool), {})
    start = time.perf_counter()
    pairs = near_pairs(prints, None, 4, 0.03)
    assert time.perf_counter() - start < 20
    assert pairs == [(i, 5_000 + i) for i in range(100)]
    some = np.r_[0:60, 5_000:5_060]
    few = Fingerprints(
        [refs[i] for i in some], hashes[some], thumbnails[some], prints.flat[some], {}
    )
    brute = [
        (i, j)
        for i in range(120)
        for j in range(i + 1, 120)
        if int(few.hashes[i] ^ few.hashes[j]).bit_count() <= 30
    ]
    assert sorted(near_pairs(few, None, 30, 1.0)) == brute
    assert len(near_pairs(few, few, 30, 1.0)) == 2 * len(brute) + 120
