"""The gallery: the most suspicious pairs first, and a page that stays small."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, Pair, PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip, ImageRef, Item, Verdict
from flipbench.core.run import Run
from flipbench.evaluate.page.gallery import make_gallery
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.scoring.suspicion import suspicions
from flipbench.reporting.contact_sheet import contact_sheet, edit_sheet
from tests.fixtures.cases import paired_cases
from tests.fixtures.edited_run import edited_run
from tests.fixtures.report_data import (
    make_benchmark,
    make_data,
    make_grid,
    make_item,
    make_scores,
)


@pytest.mark.slow
def test_the_gallery_starts_with_the_most_suspicious_pair(tmp_path: Path) -> None:
    data = make_data(tmp_path, 30)
    gallery = make_gallery(data.benchmark, data.grid, data.scores)
    values = [card.suspicion.value for card in gallery.cards]
    assert values == sorted(values, reverse=True) and values[0] > 0 > values[-1]
    first = next(p for p in data.benchmark.pairs if p.original.name == gallery.cards[0].name)
    places: dict[bool, list[float]] = {True: [], False: []}
    for model in data.grid:  # the gap's per-item values, by hand: -1 is right → wrong
        (own,) = (
            s for s in data.scores if s.model_fingerprint == model.fingerprint and s.rule == "sign"
        )
        value, every = own.per_item[first.original.id], list(own.per_item.values())
        above = sum(v > value for v in every) + sum(v == value for v in every) / 2
        places[model.clean].append(above / 30)
    assert values[0] == pytest.approx(np.mean(places[False]) - np.mean(places[True]))
    card = gallery.cards[0].suspicion
    assert (card.n_scores, card.n_clean_scores) == (12, 2)
    fell = {m.name for m in data.grid if m.name in gallery.cards[0].fell}
    assert len(fell) == len(gallery.cards[0].fell) > 0


def test_pairs_that_clean_models_also_fail_are_hard_not_suspicious(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 3)
    memorised, hard, easy = (pair.original.id for pair in benchmark.pairs)
    grid = make_grid()[:2]
    fell = {grid[0].name: {hard: -1.0, memorised: 0.0, easy: 0.0}}
    fell[grid[1].name] = {hard: -1.0, memorised: -1.0, easy: 0.0}
    template = make_scores(benchmark, grid)[0]
    scores = [
        template.model_copy(update={"model_fingerprint": m.fingerprint, "per_item": fell[m.name]})
        for m in grid
    ]
    # another detector, whose values rise, keyed by the perturbed item
    scores += [
        template.model_copy(
            update={
                "detector": "other",
                "model_fingerprint": grid[1].fingerprint,
                "direction": "rises",
                "per_item": {benchmark.pairs[0].perturbed.id: 7.0, easy: 0.1},
            }
        )
    ]
    found = suspicions(benchmark, grid, scores)
    assert found[memorised].value > 0 > found[easy].value
    assert found[hard].value < found[memorised].value
    assert found[memorised].value == pytest.approx((2 / 3 + 3 / 4) / 2 - 1 / 3)
    assert (found[memorised].n_scores, found[hard].n_scores) == (2, 1)
    nothing = suspicions(benchmark, grid, [])
    assert all(s.value == 0 and s.n_scores == 0 for s in nothing.values())


def test_a_control_image_is_shown_with_its_pair(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 6)
    benchmark.save(tmp_path / "far" / "away")
    loaded = PairedBenchmark.load(tmp_path / "far" / "away")
    cards = {card.name: card for card in make_gallery(loaded, [], []).cards}
    assert [name for name, card in cards.items() if card.control] == ["row-0", "row-3"]
    shown, pair = cards["row-0"].control, cards["row-0"].original[0]
    assert shown and (shown.width, shown.height) == (pair.width // 2, pair.height // 2)
    control = loaded.pairs[0].control
    assert control is not None
    loaded.images.path(control).unlink()
    cards = {card.name: card for card in make_gallery(loaded, [], []).cards}
    assert cards["row-0"].control is None, "a control image that is gone is no reason to stop"
    loaded.save(tmp_path / "third")
    item = loaded.pairs[0].perturbed.model_copy(update={"extra": {"control": "group A"}})
    assert Pair(loaded.pairs[0].original, item).control is None, "a user's own word of that name"


def test_of_several_images_those_that_differ_are_shown_in_full(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        benchmark = paired_cases(run, 4)
    cards = {card.name: card for card in make_gallery(benchmark, [], []).cards}
    for pair in benchmark.pairs:
        card, n_images = cards[pair.original.name], len(pair.original.images)
        assert (len(card.original), len(card.perturbed)) == (1, 1)
        assert len(card.others) == n_images - 1
        assert card.place == f"image {pair.original.extra['decides'] + 1} of {n_images}"
        assert card.original[0].data != card.perturbed[0].data
        assert card.others[0].width <= card.original[0].width // 2 + 1
    one = make_gallery(make_benchmark(tmp_path / "one", 2), [], []).cards[0]
    assert one.others == [] and one.place == ""


def test_a_contact_sheet_shows_the_images_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path) as run:
        benchmark = paired_cases(run, 3)
    opened: list[ImageRef] = []
    read = ImageStore.open

    def remember(store: ImageStore, ref: ImageRef) -> Image.Image:
        opened.append(ref)
        return read(store, ref)

    monkeypatch.setattr(ImageStore, "open", remember)
    contact_sheet(benchmark, tmp_path / "pairs.png", 3)
    expected = {
        item.images[pair.changed[0]]
        for pair in benchmark.pairs
        for item in (pair.original, pair.perturbed)
    }
    assert set(opened) == expected and len(expected) == 6


@pytest.mark.figures
def test_a_contact_sheet_leaves_no_gap_above_landscape_pictures(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    heights = []
    for width, height in ((320, 180), (320, 320)):
        refs = [store.put_image(Image.new("RGB", (width, height), c), c) for c in ("red", "blue")]
        texts = ("a", "b", "c", "d")
        items = [make_item(f"{height}", "Why?", texts, at, ref, "c") for at, ref in enumerate(refs)]
        sheet = tmp_path / f"{height}.png"
        contact_sheet(PairedBenchmark("x", (Pair(*items, ""),) * 3, store, {}), sheet)
        heights.append(Image.open(sheet).height)
    assert heights[1] - heights[0] == pytest.approx(1.8 * (1 - 180 / 320) * 120, abs=2)


def test_a_contact_sheet_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs.png").mkdir()
    with pytest.raises(DataError, match=r"pairs\.png: cannot be written"):
        contact_sheet(make_benchmark(tmp_path / "made", 2), tmp_path / "pairs.png")


@pytest.mark.figures
def test_a_sheet_of_edits_shows_control_caption_and_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    run = edited_run(tmp_path / "run", 12)
    control = run.images.put_image(Image.new("RGB", (160, 160), "white"), "edges")
    flips, captions = run.index(Flip), run.index(Caption)
    items = {item.id: item for item in run.read(Item)}
    candidates = []
    for number, edit in enumerate(run.read(Edit)):
        caption = captions[edit.caption_id]
        flip = flips[caption.flip_id]
        extra = {"control": control.model_dump(mode="json")} if number != 2 else {"control": "A"}
        edit = edit.model_copy(update={"extra": extra})
        candidates.append(Candidate(items[flip.item_id], flip, caption, edit))
    opened: list[ImageRef] = []
    read = ImageStore.open

    def remember(store: ImageStore, ref: ImageRef) -> Image.Image:
        opened.append(ref)
        return read(store, ref)

    monkeypatch.setattr(ImageStore, "open", remember)
    sheet = tmp_path / "edits.svg"
    edit_sheet(candidates[1:], run.read(Verdict), run.images, sheet, 3)
    shown = [candidates[1], candidates[2], candidates[5]]  # of three kinds, and a rejected one
    assert {ref.sha256 for ref in opened} == {
        control.sha256,
        *(ref.sha256 for c in shown if c.edit for ref in (c.source, c.edit.image)),
    }
    text = sheet.read_text()
    assert text.count("test judge: keep") == 2 and text.count("test judge: reject (the disc") == 1
    assert "What colour is disc 1?" in text and "green → blue" in text
    with pytest.raises(DataError, match="run 'flipbench generate' first"):
        edit_sheet([Candidate(candidates[0].item)], [], run.images, sheet)


@pytest.mark.slow
def test_five_hundred_photographs_stay_under_five_megabytes(tmp_path: Path) -> None:
    rng, store = np.random.default_rng(0), ImageStore(tmp_path / "images")
    refs = []
    for _ in range(24):  # rough at every scale, as hard to compress as foliage
        image = Image.new("RGB", (480, 360))
        for height in (4, 12, 40, 120):
            noise = rng.integers(0, 256, (height, height, 3), dtype=np.uint8)
            image = Image.blend(image, Image.fromarray(noise).resize(image.size), 0.5)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG")
        refs.append(store.put(buffer.getvalue(), "photograph"))

    def item(row: int, answer: int) -> Item:
        image = refs[(row + answer) % 24]
        return make_item(f"r{row}", f"Is it {row}?", ("yes", "no"), answer, image, "x")

    pairs = tuple(Pair(item(row, 0), item(row, 1)) for row in range(500))
    grid = make_grid()
    benchmark = PairedBenchmark("photographs", pairs, store)
    scores = make_scores(benchmark, grid)
    scores += [  # as many detectors as there are in the field
        s.model_copy(update={"detector": f"detector_{i}", "rule": rule})
        for i in range(12)
        for rule in ("paper", "mcnemar", "relative")
        for s in scores
        if s.detector == "choice_confusion"
    ]
    page = write_report(ReportData("Photographs", benchmark, grid, scores), tmp_path / "r")
    assert page.stat().st_size < 5_000_000
    assert page.read_text().count("<article") == 500
    few = make_gallery(benchmark, grid, [], budget=60_000)
    assert 0 < len(few.cards) < 500 and few.n_pairs == 500
    assert sum(len(t.data) for c in few.cards for t in c.original + c.perturbed) < 60_000
    edges = {"control": refs[0].model_dump(mode="json")}
    held = [Pair(p.original, p.perturbed.model_copy(update={"extra": edges})) for p in pairs[:300]]
    fewer = make_gallery(replace(benchmark, pairs=(*held, *pairs[300:])), grid, [], budget=60_000)
    data = [t.data for c in fewer.cards for t in (*c.original, *c.perturbed, c.control) if t]
    assert sum(map(len, data)) < 60_000 and 0 < len(fewer.cards) < len(few.cards)
