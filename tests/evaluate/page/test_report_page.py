"""The report, from realistic scores to a page in a real browser."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.evaluate.page.report_page import headline, write_report
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.results import read_results
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import gap_table
from flipbench.evaluate.report.titles import GAP
from flipbench.reporting import writers
from tests.fixtures.browser import OpenPage, accessibility_violations
from tests.fixtures.report_data import EVIL, make_data

pytestmark = [pytest.mark.slow, pytest.mark.figures]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("report")
    write_report(make_data(folder, 40), folder / "report")
    return folder / "report"


def test_every_file_is_written(folder: Path) -> None:
    figures = ["gap_by_dose", "accuracy_by_dose", "paired_outcomes", "funnel", "detectors"]
    figures += [f"detectors_by_models-tiny-{family}" for family in ("llava", "qwen2-vl")]
    detectors = ["perturbation-gap", "circulareval", "choice-confusion", "multi-modal-leakage"]
    for kind in ("roc", "power_by_dose"):
        figures += [kind, *(f"{kind}-{name}" for name in detectors)]
    names = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    names |= {"detectors.md", "validation.md", "validation.csv", "validation.tex"}
    names |= {"gap.md", "table.md", "table.csv", "table.tex", "requirements.md", "requirements.csv"}
    names |= {"results.json"}
    assert {path.name for path in folder.iterdir()} == names | {"index.html"}
    for name in names:
        assert (folder / name).stat().st_size > 200, name


def test_the_tables_can_be_printed_again_from_the_results(folder: Path) -> None:
    results = read_results(folder / "results.json")
    for name, table in (
        ("gap", gap_table(results.models, score_frame(results.gaps, results.models))),
        ("detectors", results.tables[0]),
    ):
        rows = writers.markdown(table).split("\n\n")[0]
        assert rows in (folder / f"{name}.md").read_text(), name
    assert {score.detector for score in results.gaps} == {GAP}
    assert (results.n_pairs, len(results.models)) == (40, 14)


def test_the_headline_counts_caught_and_flagged_models(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    verdicts = ["contaminated"] * 11 + ["inconclusive"] + ["not_detected", "contaminated"]
    ordered = sorted(data.grid, key=lambda model: model.clean)
    tests = {s.model_fingerprint: s for s in data.scores if s.rule == "mcnemar"}
    scores = [
        tests[model.fingerprint].model_copy(update={"verdict": verdict})
        for model, verdict in zip(ordered, verdicts, strict=True)
    ]
    assert headline(score_frame(scores, data.grid)) == [
        "The exact McNemar test of the perturbation gap caught 11 of 12 contaminated models and"
        " flagged 1 of 2 clean models; 1 is inconclusive."
    ]
    (sentence,) = headline(score_frame(scores, data.grid[:1]))
    assert sentence.endswith("perturbation gap flagged 0 of 1 clean model.")


def test_the_comparison_with_the_clean_model_leads_where_there_is_one(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    tests = [s for s in data.scores if s.rule == "mcnemar"]
    clean = next(model for model in data.grid if model.clean).fingerprint
    compared = {"rule": "relative", "reference_fingerprint": clean, "verdict": "contaminated"}
    scores = [*tests, tests[-1].model_copy(update=compared)]
    relative, test = headline(score_frame(scores, data.grid))
    assert relative == "The gap, compared with the clean model’s, caught 1 of 1 contaminated model."
    assert test.startswith("The exact McNemar test")
    without = tests[-1].model_copy(update=compared | {"reference_fingerprint": ""})
    assert headline(score_frame([*tests, without], data.grid))[0].startswith(
        "The exact McNemar test"
    )


def test_scores_of_other_models_are_refused(tmp_path: Path) -> None:
    data = make_data(tmp_path, 10)
    data.grid = [GridModel("x", "another fingerprint", "x", "clean", 0, 0)]
    with pytest.raises(DataError, match="no score belongs to a model of the grid"):
        write_report(data, tmp_path / "report")


# -------------------------------------------------------------------------------- in a browser


@pytest.fixture
def page(open_page: OpenPage, folder: Path) -> Any:
    return open_page((folder / "index.html").as_uri())


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_does_not_overflow(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_gallery_filters_by_category_and_words(page: Any) -> None:
    visible = page.locator("#gallery article:visible")
    assert visible.count() == 8
    for more, shown in ((16, 24), (16, 40)):
        # by key: a click can miss, since lazy pictures move the button
        page.get_by_role("button", name=f"Show {more} more").press("Enter")
        visible.nth(shown - 1).wait_for()
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


def test_the_validation_is_on_the_page(page: Any) -> None:
    section = page.locator("section#trust")
    assert section.locator("table.validation tbody tr:not(.group)").count() == 6
    assert "not estimable" in section.locator("table.validation").text_content()
    assert section.locator("table.detectors tbody tr:not(.group)").count() == 1
    assert [section.locator(f"#figure-{key} img").count() for key in ("roc", "power_by_dose")] == [
        1,
        1,
    ]
    images = section.locator("img")
    for at in range(images.count()):
        images.nth(at).scroll_into_view_if_needed()
        assert images.nth(at).evaluate("image => image.decode().then(() => image.naturalWidth)")
    alt = section.locator("#figure-power_by_dose img").get_attribute("alt")
    assert "at dose 3" in alt and "0/2 at dose 0" in alt


def test_rater_agreement_is_on_the_page_and_in_markdown(page: Any, folder: Path) -> None:
    page.get_by_role("link", name="Who decided, and how well").click()
    section = page.locator("section#raters")
    assert section.locator("h2").text_content() == "Who decided, and how well"
    tables = section.get_by_role("table")
    assert tables.count() == 2
    judge = tables.first.locator("tr", has_text="o3 judge-v1").locator("td")
    assert judge.count() == 8 and "[" in judge.nth(4).locator(".small").inner_text()
    markdown = (folder / "table.md").read_text()
    for at in (0, 7):
        assert " ".join(judge.nth(at).inner_text().split()) in markdown


def test_a_control_image_is_shown_where_there_is_one(page: Any) -> None:
    cards = page.locator("#gallery article:visible")
    with_one = page.locator("#gallery article:visible:has(.control)")
    assert 0 < with_one.count() < cards.count()
    card = with_one.first
    card.locator("summary").click()
    control = card.locator(".control img")
    control.scroll_into_view_if_needed()
    assert control.evaluate("image => image.decode().then(() => image.naturalWidth)") > 20
    name = card.locator(".meta").inner_text().split(" ")[0]
    assert control.get_attribute("alt").startswith(f"control image of {name}:")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_accessible(open_page: OpenPage, folder: Path, scheme: str, width: int) -> None:
    viewport = {"width": width, "height": 850}
    address = (folder / "index.html").as_uri()
    page = open_page(address, color_scheme=scheme, viewport=viewport)
    assert accessibility_violations(page) == []


def test_both_pictures_of_a_pair_are_drawn_at_one_scale(page: Any) -> None:
    frames = page.locator("#gallery article:visible").first.locator("img")
    boxes = [frames.nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["width"] == boxes[1]["width"] > 100
    assert boxes[0]["y"] == boxes[1]["y"]


def test_the_page_works_with_a_screen_reader(page: Any) -> None:
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("h1").count() == 1
    alt = page.locator("#figure-gap_by_dose img").first.get_attribute("alt")
    assert "at dose 3" in alt
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"


def test_figures_turn_dark_with_the_page(open_page: OpenPage, folder: Path) -> None:
    """The ink of a figure is dark on a light page and light on a dark one."""
    darkest, lightest = [], []
    for scheme in ("light", "dark"):
        page = open_page((folder / "index.html").as_uri(), color_scheme=scheme)
        shot = page.locator("#figure-roc img").screenshot(type="png")
        values = np.asarray(Image.open(io.BytesIO(shot)).convert("L"))
        darkest.append(int(values.min()))
        lightest.append(int(np.median(values)))
    assert lightest[0] > 240 and darkest[0] < 80
    assert lightest[1] < 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_meets_aa(open_page: OpenPage, folder: Path, scheme: str) -> None:
    page = open_page((folder / "index.html").as_uri(), color_scheme=scheme)
    colors = page.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          const names = ["paper", "raised", "ink", "muted", "link", "good", "bad", "old", "new"];
          return Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
        }"""
    )
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
