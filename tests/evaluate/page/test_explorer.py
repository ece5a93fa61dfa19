"""The report's page in a real browser: what is behind a cell, one item, tables that sort."""

from __future__ import annotations

import base64
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from PIL import Image

from flipbench.core.records import Response
from flipbench.evaluate.page.explorer import Replies, make_explorer
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.titles import GAP
from tests.fixtures.browser import OpenPage, accessibility_violations
from tests.fixtures.report_data import make_data

pytestmark = pytest.mark.slow
MODEL = "tiny-llava-full-e3"
CELL = f"#cell={MODEL}%2Fperturbation_gap%2Fmcnemar"
N_PAIRS = 60


def make_replies(data: ReportData) -> Replies:
    """Return replies that agree with the gap's per-item values."""
    found: dict[str, dict[str, tuple[Response, Response]]] = {}
    for score in (s for s in data.scores if (s.detector, s.rule) == (GAP, "mcnemar")):
        own = found.setdefault(score.model_fingerprint, {})
        for pair in data.benchmark.pairs:
            fell = score.per_item[pair.original.id] < 0
            old = pair.original.answer
            new = old if fell else pair.perturbed.answer
            own[pair.original.id] = (reply(score.model, old), reply(score.model, new))
    return found


def reply(model: str, choice: int | None) -> Response:
    logs = tuple(-0.25 if at == choice else -3.5 for at in range(4))
    return Response(
        probe_id="p",
        model_fingerprint=model,
        model=model,
        choice=-1 if choice is None else choice,
        option_log_probs=logs,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    made = make_data(tmp_path_factory.mktemp("pairs"), N_PAIRS)
    return replace(made, replies=make_replies(made))


@pytest.fixture(scope="module")
def address(data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(data, tmp_path_factory.mktemp("report")).as_uri()


def fallen(data: ReportData) -> list[str]:
    """Return the names of the items on which `MODEL` went right → wrong, in release order."""
    (score,) = (s for s in data.scores if (s.model, s.detector, s.rule) == (MODEL, GAP, "mcnemar"))
    pairs = data.benchmark.pairs
    return [p.original.name for p in pairs if score.per_item[p.original.id] < 0]


def test_the_same_data_give_the_same_page(data: ReportData, address: str, tmp_path: Path) -> None:
    assert (
        write_report(data, tmp_path).read_text()
        == Path(url2pathname(urlsplit(address).path)).read_text()
    )


def test_every_score_is_in_the_data_with_its_values(data: ReportData) -> None:
    shown = (data.benchmark, data.grid, data.scores, score_frame(data.scores, data.grid))
    explorer = make_explorer(*shown, data.replies)
    content = json.loads(gzip.decompress(base64.b64decode(explorer.data)))
    assert explorer.n_cells == len(content["cells"]) == len(data.scores)
    cell = content["cells"][f"{MODEL}/perturbation_gap/mcnemar"]
    values = content["series"][cell["series"]]
    names = [item["name"] for item in content["items"]]
    assert [n for n, v in zip(names, values, strict=True) if v == -1] == fallen(data)
    assert cell["rises"] is False and cell["n"] == N_PAIRS
    assert content["cells"][f"{MODEL}/circular_eval/paper"]["series"] == -1, "no values per item"
    place = [model["name"] for model in content["models"]].index(MODEL)
    old, new = content["replies"][place][0]
    assert old[0] == data.benchmark.pairs[0].original.answer and old[1][old[0]] == -0.25
    assert explorer == make_explorer(*shown, data.replies)


def test_a_cell_opens_its_items_the_most_suspicious_first(
    open_page: OpenPage, address: str, data: ReportData
) -> None:
    page = open_page(address)
    page.locator(f".heat a[href='{CELL}']").click()
    viewer = page.locator("#viewer")
    viewer.locator(".behind li").first.wait_for()
    assert viewer.locator("h2").text_content() == f"Perturbation gap, McNemar test: {MODEL}"
    links = viewer.locator(".behind a")
    assert links.count() == 48
    viewer.get_by_role("button", name=f"Show all {N_PAIRS}").click()
    names = [link.get_attribute("href").removeprefix("#item=") for link in links.all()]
    expected = fallen(data)
    assert len(names) == N_PAIRS and names[: len(expected)] == expected
    page.keyboard.press("Escape")
    assert not viewer.is_visible() and page.evaluate("location.hash") == ""


def test_an_item_shows_both_pictures_and_every_reply(
    open_page: OpenPage, address: str, data: ReportData
) -> None:
    name = fallen(data)[0]
    page = open_page(f"{address}{CELL}")
    viewer = page.locator("#viewer")
    viewer.locator(f".behind a[href='#item={name}']").click()
    viewer.locator(".stage").wait_for()
    pair = next(p for p in data.benchmark.pairs if p.original.name == name)
    assert viewer.locator("h2").text_content() == pair.original.question
    rows = viewer.locator(".replies tbody tr")
    assert rows.count() == len(data.grid)
    chosen = viewer.locator(".replies tr.chosen td")
    right = pair.original.answer
    assert right is not None
    said = f"{'ABCD'[right]} {pair.original.options[right]}"  # type: ignore[index]
    assert said in chosen.nth(1).text_content() and "−0.25" in chosen.nth(1).text_content()
    assert chosen.nth(3).text_content() == "right → wrong"
    stage = viewer.locator(".stage")
    before, after = (stage.locator(f".{side}").bounding_box() for side in ("before", "after"))
    assert before["y"] == after["y"] and after["x"] > before["x"] + before["width"]
    viewer.get_by_label("Swipe", exact=True).check()
    slide = viewer.get_by_role("slider")
    slide.fill("20")
    clip = stage.locator(".after").evaluate("image => getComputedStyle(image).clipPath")
    assert "80%" in clip
    viewer.get_by_label("Difference").check()
    blend = stage.locator(".after").evaluate("image => getComputedStyle(image).mixBlendMode")
    assert blend == "difference" and not slide.is_visible()
    viewer.get_by_role("link", name="next").click()
    page.wait_for_function(f"location.hash !== '#item={name}'")
    page.go_back()
    page.wait_for_function(f"location.hash === '#item={name}'")
    viewer.get_by_role("link", name="all items of this cell").click()
    viewer.locator(".behind").wait_for()


def test_the_difference_of_equal_pictures_is_black(open_page: OpenPage, address: str) -> None:
    """The highlight shows what changed and nothing else."""
    page = open_page(f"{address}#item=row-0")
    viewer = page.locator("#viewer")
    viewer.get_by_label("Difference").check()
    stage = viewer.locator(".stage")
    source = stage.locator(".before").get_attribute("src")
    assert brightest(stage) > 100
    stage.locator(".after").evaluate("(image, source) => { image.src = source; }", source)
    stage.locator(".after").evaluate("image => image.decode()")
    assert brightest(stage) < 32


def brightest(place: Any) -> int:
    pixels = np.asarray(Image.open(io.BytesIO(place.screenshot(type="png"))).convert("L"))
    return int(pixels[4:-4, 4:-4].max())


@pytest.mark.parametrize("kind", ["item", "cell"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_viewer_is_accessible_and_fits(
    open_page: OpenPage, address: str, kind: str, width: int
) -> None:
    key = "#item=row-0" if kind == "item" else CELL
    page = open_page(address + key, viewport={"width": width, "height": 844})
    page.locator("#viewer[open]").wait_for()
    assert accessibility_violations(page) == []
    box = page.locator("#viewer").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.evaluate("document.activeElement.id") == "viewer-title"


@pytest.mark.parametrize(
    "key", ["#item=no-such-item", "#cell=nothing", "#item=", "#%", "#cell=%E0"]
)
def test_an_address_of_nothing_opens_nothing(open_page: OpenPage, address: str, key: str) -> None:
    page = open_page(address + key)
    page.get_by_role("heading", level=1).wait_for()
    assert not page.locator("#viewer").is_visible()


def test_a_table_sorts_by_a_column_and_back(open_page: OpenPage, address: str) -> None:
    page = open_page(address)
    table = page.locator("table.gap")
    models = table.locator("tbody").first.locator("tr:not(.group) th")
    before = models.all_text_contents()
    header = table.locator("thead th", has_text="Δ, pp").first
    at = 1 + [h.strip() for h in table.locator("thead th").all_text_contents()].index("Δ, pp")

    def gaps() -> list[float]:
        cells = table.locator("tbody").first.locator(f"tr:not(.group) > :nth-child({at})")
        return [float(text.split()[0].replace("−", "-")) for text in cells.all_text_contents()]

    header.get_by_role("button").click()
    assert gaps() == sorted(gaps()) and header.get_attribute("aria-sort") == "ascending"
    header.get_by_role("button").click()
    assert gaps() == sorted(gaps(), reverse=True)
    header.get_by_role("button").click()
    assert models.all_text_contents() == before and header.get_attribute("aria-sort") is None


def test_rows_are_filtered_with_their_groups(open_page: OpenPage, address: str) -> None:
    page = open_page(address)
    place = page.locator("#table-gap")
    place.get_by_label("Filter rows").fill("qwen2 lora")
    shown = place.locator("tbody tr:not(.group):visible th").all_text_contents()
    assert shown == ["lora, epoch 1", "lora, epoch 2", "lora, epoch 3"]
    assert place.locator("tbody .group:visible").count() == 1
    assert place.locator("output").text_content() == "3 of 14 rows"


def test_one_detector_is_shown_at_a_time(open_page: OpenPage, address: str) -> None:
    page = open_page(address)
    shown = page.locator("#one-detector .table:visible table")
    assert shown.get_attribute("class") == "choice_confusion"
    page.locator("#detector").select_option("CircularEval")
    assert shown.get_attribute("class") == "circular_eval" and shown.count() == 1
    assert page.locator("#one-detector .panels:visible img").count() == 2


def test_a_heat_map_row_leads_to_its_detector(open_page: OpenPage, address: str) -> None:
    page = open_page(f"{address}#table-text_only_leakage")
    shown = page.locator("#one-detector .table:visible table")
    assert shown.get_attribute("class") == "text_only_leakage"


def test_the_page_is_short_and_nothing_is_cut_off(open_page: OpenPage, address: str) -> None:
    page = open_page(address, viewport={"width": 1440, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight") < 10 * 900
    nav = page.locator("nav")
    page.evaluate("scrollTo(0, 4000)")
    page.wait_for_function("scrollY > 3000")
    assert nav.bounding_box()["y"] == 0, "it stays in sight"
    titles = {h.strip() for h in page.locator("main > section > h2").all_text_contents()}
    assert {text.strip() for text in nav.locator("a").all_text_contents()} <= titles


def test_without_scripts_everything_can_be_read(open_page: OpenPage, address: str) -> None:
    page = open_page(address, java_script_enabled=False)
    assert page.locator("#gallery article").count() == N_PAIRS
    assert page.locator("#gallery article").last.is_visible()
    names = ["choice_confusion", "circular_eval", "text_only_leakage"]
    summaries = page.locator("#one-detector > details > summary")
    assert summaries.count() == len(names)
    summaries.nth(1).click()
    assert page.locator("table.circular_eval").is_visible()
    assert not page.locator("#filter").is_visible() and not page.locator("#viewer").is_visible()
