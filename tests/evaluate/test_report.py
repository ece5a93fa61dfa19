"""The report, from realistic scores to a page in a real browser."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binom

from flipbench.errors import DataError
from flipbench.evaluate.gallery import make_gallery
from flipbench.evaluate.grid import GridModel, Requirements
from flipbench.evaluate.report import ReportData, headline, write_report
from flipbench.evaluate.tables import GAP
from flipbench.images import ImageStore
from flipbench.paired import Pair, PairedBenchmark
from flipbench.records import ImageRef, Interval, Item, Score, Source
from flipbench.shapes.benchmark import shapes_vqa_families
from flipbench.shapes.render import render

EVIL = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)> & what is it?"


def make_benchmark(folder: Path, n_pairs: int) -> PairedBenchmark:
    """Return real pairs of the embedded world; the last asks a question that is a script."""
    store = ImageStore(folder / "images")
    pairs = []
    for row, family in enumerate(shapes_vqa_families(n_pairs)):
        question = EVIL if row == n_pairs - 1 else family.question.text()
        kind = family.question.kind
        new = 1 + row % (len(family.options) - 1)
        refs = [store.put_image(render(family.scenes[i]), kind) for i in (0, new)]
        original, perturbed = (
            make_item(f"row-{row}", question, family.options, answer, ref, kind)
            for answer, ref in zip((0, new), refs, strict=True)
        )
        caption = f"The same scene, but the answer is {family.options[new]}."
        pairs.append(Pair(original, perturbed, caption))
    funnel = {
        "items": 2 * n_pairs,
        "with_images": 2 * n_pairs - 7,
        "edited": int(1.7 * n_pairs),
        "kept": n_pairs,
    }
    return PairedBenchmark("shapes-vqa", tuple(pairs), store, funnel)


def make_item(
    name: str, question: str, options: tuple[str, ...], answer: int, image: ImageRef, category: str
) -> Item:
    return Item(
        benchmark="shapes-vqa",
        name=name,
        images=(image,),
        question=question,
        options=options,
        answer=answer,
        answer_text=options[answer],
        category=category,
        source=Source(dataset="shapes-vqa"),
    )


def make_grid() -> list[GridModel]:
    grid = []
    for family in ("tiny-llava", "tiny-qwen2-vl"):
        grid.append(GridModel(f"{family}-clean", f"{family}-0", family, "clean", 0, 0))
        for strategy in ("lora", "full"):
            for epoch in (1, 2, 3):
                name = f"{family}-{strategy}-e{epoch}"
                grid.append(GridModel(name, name, family, strategy, epoch, epoch))
    return grid


def make_scores(benchmark: PairedBenchmark, grid: list[GridModel]) -> list[Score]:
    scores = []
    for at, model in enumerate(grid):
        rng = np.random.default_rng([7, at])
        n = len(benchmark.pairs)
        strength = model.dose * (0.75 if model.strategy == "lora" else 1.0)
        before = rng.random(n) < min(0.62 + 0.11 * strength, 0.97)
        after = rng.random(n) < 0.64 - 0.09 * strength
        for rule in ("sign", "mcnemar", "relative"):
            scores.append(gap(benchmark, model, rule, before, after))
        circular = before & (rng.random(n) < 0.8)
        scores.append(other(benchmark, model, "circular_eval", "circular", before, circular))
        confused = rng.random(n) < 0.8 - 0.04 * strength
        scores.append(other(benchmark, model, "choice_confusion", "generalised", before, confused))
        blind = rng.random(n) < 0.3 + 0.08 * strength
        scores.append(other(benchmark, model, "text_only_leakage", "text_only", before, blind))
    return scores


def gap(
    benchmark: PairedBenchmark,
    model: GridModel,
    rule: str,
    before: np.ndarray[Any, Any],
    after: np.ndarray[Any, Any],
) -> Score:
    n, b, c = len(before), int((before & ~after).sum()), int((after & ~before).sum())
    delta = (c - b) / n
    se = float(np.sqrt(((b + c) / n - delta**2) / n))
    p = float(binom.sf(b - 1, b + c, 0.5))
    found = {"sign": delta < 0, "mcnemar": p <= 0.05, "relative": delta < -0.05}[rule]
    verdict: Any = "contaminated" if found else "not_detected"
    if rule == "relative" and model.clean:
        verdict = "not_applicable"
    if rule == "mcnemar" and model.name == "tiny-llava-lora-e1":
        verdict = "inconclusive"
    known = verdict != "not_applicable"
    changes = after.astype(float) - before
    return Score(
        detector="perturbation_gap",
        rule=rule,
        model=model.name,
        model_fingerprint=model.fingerprint,
        benchmark=benchmark.name,
        benchmark_id=benchmark.id,
        statistic=delta if known else None,
        interval=Interval(low=delta - 1.96 * se, high=delta + 1.96 * se) if known else None,
        p_value=p if rule != "relative" else None,
        verdict=verdict,
        n=n,
        details={
            "accuracies": {
                "original": {"k": int(before.sum()), "n": n},
                "perturbed": {"k": int(after.sum()), "n": n},
            },
            "b": b,
            "c": c,
        },
        per_item={p.original.id: float(x) for p, x in zip(benchmark.pairs, changes, strict=True)},
        warnings=("the model has no clean reference",) if not known else (),
    )


def other(
    benchmark: PairedBenchmark,
    model: GridModel,
    detector: str,
    variant: str,
    before: np.ndarray[Any, Any],
    after: np.ndarray[Any, Any],
) -> Score:
    n, k, k2 = len(before), int(before.sum()), int(after.sum())
    return Score(
        detector=detector,
        rule="paper",
        model=model.name,
        model_fingerprint=model.fingerprint,
        benchmark=benchmark.name,
        benchmark_id=benchmark.id,
        statistic=(k2 - k) / n,
        verdict="contaminated" if k2 - k < -0.2 * n else "not_detected",
        n=n,
        details={"accuracies": {"original": {"k": k, "n": n}, variant: {"k": k2, "n": n}}},
    )


def make_data(folder: Path, n_pairs: int) -> ReportData:
    benchmark, grid = make_benchmark(folder, n_pairs), make_grid()
    missed, broken, alarm = ("tiny-llava-lora-e1",), ("tiny-qwen2-vl full",), ("tiny-llava-clean",)
    all_4, some, few, two = (4, 4), (3, 4), (1, 4), (2, 2)
    requirements = [
        Requirements(GAP, "sign", True, (12, 12), (), all_4, all_4, (), two, ()),
        Requirements(GAP, "mcnemar", True, (11, 12), missed, all_4, some, broken, two, ()),
        Requirements(
            "circular_eval", "paper", False, (9, 12), missed, some, few, broken, (1, 2), alarm
        ),
    ]
    return ReportData(
        title="Who has seen shapes-vqa?",
        benchmark=benchmark,
        grid=grid,
        scores=make_scores(benchmark, grid),
        requirements=requirements,
        settings={"command": "flipbench run configs/shapes.yaml seed=7", "seed": "7"},
        notes=[
            "It shows two small models that were contaminated on purpose, on a small drawn world.",
            "It does not show what happens with real photographs or large models.",
        ],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("report")
    write_report(make_data(folder, 40), folder / "report")
    return folder / "report"


def test_every_file_is_written(folder: Path) -> None:
    figures = ("gap_by_dose", "accuracy_by_dose", "paired_outcomes", "funnel")
    names = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    names |= {"gap.md", "table.md", "table.csv", "table.tex", "requirements.md", "requirements.csv"}
    assert {path.name for path in folder.iterdir()} == names | {"index.html"}
    for name in names:
        assert (folder / name).stat().st_size > 200, name


def test_the_headline_counts_caught_and_flagged_models(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    verdicts = ["contaminated"] * 11 + ["inconclusive"] + ["not_detected", "contaminated"]
    ordered = sorted(data.grid, key=lambda model: model.clean)
    tests = {s.model_fingerprint: s for s in data.scores if s.rule == "mcnemar"}
    scores = [
        tests[model.fingerprint].model_copy(update={"verdict": verdict})
        for model, verdict in zip(ordered, verdicts, strict=True)
    ]
    assert headline(data.grid, scores) == [
        "The exact McNemar test of the perturbation gap caught 11 of 12 contaminated models and"
        " flagged 1 of 2 clean; 1 is inconclusive."
    ]
    assert headline(data.grid[:1], scores)[0].endswith("perturbation gap flagged 0 of 1 clean.")


def test_scores_of_other_models_are_refused(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    data.grid = [GridModel("x", "another fingerprint", "x", "clean", 0, 0)]
    with pytest.raises(DataError, match="no score belongs to a model of the grid"):
        write_report(data, tmp_path / "report")


def test_the_same_data_give_the_same_page(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    data.grid = data.grid[:2]
    one, two = (write_report(data, tmp_path / name).read_bytes() for name in "ab")
    assert one == two


def test_the_gallery_begins_with_what_most_contaminated_models_fell_for(tmp_path: Path) -> None:
    data = make_data(tmp_path, 30)
    gallery = make_gallery(data.benchmark, data.grid, data.scores)
    fallen = [len(card.fell) for card in gallery.cards]
    assert fallen == sorted(fallen, reverse=True) and fallen[0] > fallen[-1]
    scored = [s for s in data.scores if s.rule == "mcnemar"]
    first = next(p for p in data.benchmark.pairs if p.original.name == gallery.cards[0].name)
    clean = {model.fingerprint for model in data.grid if model.clean}
    expected = [
        s.model
        for s in scored
        if s.per_item[first.original.id] == -1 and s.model_fingerprint not in clean
    ]
    assert list(gallery.cards[0].fell) == expected


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
    page = write_report(
        ReportData("Photographs", benchmark, grid, make_scores(benchmark, grid)), tmp_path / "r"
    )
    assert page.stat().st_size < 5_000_000
    assert page.read_text().count("<article") == 500
    few = make_gallery(benchmark, grid, [], budget=60_000)
    assert 0 < len(few.cards) < 500 and few.n_pairs == 500
    assert sum(len(t.data) for c in few.cards for t in c.original + c.perturbed) < 60_000


# -------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on this machine: install it to test the page in a browser")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=180_000
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    """A page that fails its test if anything is logged as an error or asked of a network."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:")) else trouble.append(r.url),
    )
    page.goto((folder / "index.html").as_uri())
    yield page
    page.close()
    assert trouble == []


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_does_not_overflow(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_gallery_filters_by_category_and_words(page: Any) -> None:
    visible = page.locator("#gallery article:visible")
    assert visible.count() == 24
    page.get_by_role("button", name="Show 16 more").click()
    assert visible.count() == 40
    page.get_by_label("Category").select_option("color")
    assert visible.count() == 8
    assert page.locator("#count").text_content() == "8 of 8 pairs shown (40 in all)"
    page.get_by_label("Search").fill("nothing like this")
    assert visible.count() == 0
    page.get_by_label("Search").fill("what COLOR circle")
    shown = visible.locator("h3").all_text_contents()
    assert shown and all("circle" in text for text in shown)
    page.get_by_label("Search").press("Enter")  # submits nothing


def test_a_question_that_is_a_script_is_shown_as_text(page: Any) -> None:
    assert page.title() == "Who has seen shapes-vqa?"
    page.get_by_label("Search").fill("onerror")
    assert page.locator("#gallery article:visible h3").all_text_contents() == [EVIL]
    assert page.locator("#gallery script").count() == 0


def test_both_pictures_of_a_pair_are_drawn_at_one_scale(page: Any) -> None:
    frames = page.locator("#gallery article:visible").first.locator("img")
    boxes = [frames.nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["width"] == boxes[1]["width"] > 100
    assert boxes[0]["y"] == boxes[1]["y"]


def test_the_page_can_be_read_without_seeing_it(page: Any) -> None:
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("h1").count() == 1
    alt = page.locator("#figure-gap_by_dose img").first.get_attribute("alt")
    assert "at dose 3" in alt
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_aa(browser: Any, folder: Path, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.set_default_timeout(120_000)
    page.goto((folder / "index.html").as_uri())
    colors = page.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          const names = ["paper", "raised", "ink", "muted", "link", "good", "bad", "old", "new"];
          return Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
        }"""
    )
    page.close()
    for name in ("ink", "muted", "link", "good", "bad", "old", "new"):
        for ground in ("paper", "raised"):
            assert contrast(colors[name], colors[ground]) >= 4.5, (scheme, name, ground)


def contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
