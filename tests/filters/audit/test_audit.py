"""The whole audit: the funnel adds up, planted defects call for action, the page says so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flipbench.benchmarks import JsonlSpec, load_benchmark
from flipbench.config.audit import AuditSettings
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.core.run import Run
from flipbench.filters.audit.audit import AuditReport, audit
from flipbench.filters.audit.finding import AuditFinding
from flipbench.filters.audit.page import headline, markdown, write_audit
from flipbench.shapes.benchmark import shapes_vqa
from tests.filters.audit.conftest import MakeItem, as_benchmark
from tests.fixtures.browser import OpenPage
from tests.fixtures.policies import RuleModel, says_b

pytestmark = pytest.mark.slow

QUICK = AuditSettings(n_permutations=199)
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def picture(seed: int, store: ImageStore, noise: int = 0) -> ImageRef:
    """Return a random landscape of soft patches; ``noise`` makes a copy with grain."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((96, 96))
    pixels = np.asarray(image, int)
    grain = np.random.default_rng(noise).integers(-noise, noise + 1, pixels.shape)
    return store.put_image(Image.fromarray((pixels + grain).clip(0, 255).astype("u1")), "patch")


def flawed(make_item: MakeItem, store: ImageStore) -> list[Item]:
    """Return 120 items: mostly C, mostly longest, with copies and answers given away."""
    rng, items = np.random.default_rng(3), []
    words = ["ash", "elm", "oak", "fir", "yew", "box", "bay", "fig"]
    for i in range(110):
        options = [str(word) for word in rng.permutation(words)[:4]]
        answer = 2 if i % 2 else int(rng.integers(4))
        if i % 3:
            options[answer] += ", as seen from afar"
        question = f"Which tree stands at place {i}?"
        if i in (7, 8):
            question = f"Which tree stands beside the {options[answer]}?"
        if i == 9:
            question = EVIL
        images = [picture(i, store)]
        items.append(make_item(f"{i:03d}", options, answer, question=question, images=images))
    for i in range(10):
        copy = {"id": f"copy{i}", "name": f"copy{i}", "images": (picture(i, store, noise=5),)}
        items.append(items[i].model_copy(update=copy))
    return items


@pytest.fixture(scope="module")
def report(make_item: MakeItem, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    run = Run(tmp_path_factory.mktemp("flawed"))
    items = flawed(make_item, run.images)
    return audit(
        as_benchmark(items, "Trees & <others>"),
        run,
        QUICK,
        text_models=[RuleModel("says B", says_b)],
        progress=False,
    )


@pytest.fixture(scope="module")
def folder(report: AuditReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_audit(report, tmp_path_factory.mktemp("page") / "audit").parent


def finding(report: AuditReport, check: str) -> AuditFinding:
    return next(f for f in report.findings if f.check == check)


def test_a_clean_benchmark_passes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    items = shapes_vqa(run.images, 120)
    found = audit(as_benchmark(items, "shapes-vqa"), run, QUICK, progress=False)
    assert {f.check: f.status for f in found.findings} == {
        "duplicates": "ok",
        "train_overlap": "not_run",
        "direct_reveal": "ok",
        "text_solvable": "not_run",
        "longest_option": "ok",
        "letter_balance": "ok",
        "option_pruning": "ok",
        "stress_test": "ok",
    }
    assert found.kept == found.mended == items and found.funnel == []
    assert headline(found) == (
        "120 of 120 items kept; 0 of 6 checks that ran call for action; 2 did not run."
    )
    page = write_audit(found, tmp_path / "audit")
    assert not (page.parent / "mended").exists()


def test_every_planted_defect_is_found(report: AuditReport) -> None:
    status = {f.check: f.status for f in report.findings}
    assert {check for check, state in status.items() if state == "defect"} == {
        "duplicates",
        "longest_option",
        "letter_balance",
        "stress_test",
    }
    assert status["direct_reveal"] == "look" and status["text_solvable"] == "ok"
    copies = [i.name for i in finding(report, "duplicates").items if i.action == "drop"]
    assert set(copies) == {f"copy{i}" for i in range(10)}
    revealed = finding(report, "direct_reveal").items
    assert {flagged.name for flagged in revealed} == {"007", "008", "copy7", "copy8"}


def test_the_funnel_adds_up(report: AuditReport) -> None:
    left = len(report.benchmark.items)
    for step in report.funnel:
        assert step.n_before == left
        left -= step.n_dropped + step.n_person
        assert step.n_after == left
    assert left == len(report.kept) == len(report.mended)
    assert [step.check for step in report.funnel] == ["duplicates", "longest_option"]
    assert {i.answer_text for i in report.kept} >= {i.answer_text for i in report.mended}


def test_mended_benchmarks_pass(report: AuditReport, tmp_path: Path) -> None:
    run = Run(tmp_path)
    for item in report.mended:
        for ref in item.images:
            run.images.put(report.images.path(ref).read_bytes(), item.name)
    again = audit(as_benchmark(report.mended), run, QUICK, progress=False)
    status = {f.check: f.status for f in again.findings}
    assert status["duplicates"] == status["letter_balance"] == status["longest_option"] == "ok"


def test_a_model_above_chance_on_kept_items_is_flagged_for_a_look(
    make_item: MakeItem, report: AuditReport, tmp_path: Path
) -> None:
    settings = AuditSettings(checks=("text_solvable",), n_runs=4)
    items = [make_item(f"{i}", ("a", "b"), 1, question=f"{i}?") for i in range(30)]
    lover = RuleModel("lover", says_b)
    found = audit(as_benchmark(items), Run(tmp_path), settings, text_models=[lover], progress=False)
    assert finding(found, "text_solvable").status == "look" and found.kept == items
    assert finding(report, "text_solvable").status == "ok"


def test_the_same_audit_gives_the_same_report(report: AuditReport, tmp_path: Path) -> None:
    run = Run(tmp_path)
    for item in report.benchmark.items:
        run.images.put(report.images.path(item.images[0]).read_bytes(), item.name)
    model = RuleModel("says B", says_b)
    again = audit(report.benchmark, run, QUICK, text_models=[model], progress=False)
    assert again.findings == report.findings and again.mended == report.mended


def test_benchmarks_that_cannot_be_audited_are_refused(make_item: MakeItem, tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(DataError, match="flipbench import"):
        audit(as_benchmark([]), run, progress=False)
    one = RuleModel("one", says_b)
    with pytest.raises(DataError, match="one: a model that filters cannot be held out"):
        audit(
            as_benchmark([make_item("1")]), run, text_models=[one], held_out=[one], progress=False
        )


def test_free_form_items_without_images_are_audited(make_item: MakeItem, tmp_path: Path) -> None:
    items = [make_item(f"{i}", None, None, answer_text=f"{i}") for i in range(20)]
    found = audit(as_benchmark(items), Run(tmp_path), QUICK, progress=False)
    assert {f.status for f in found.findings} == {"ok", "not_run"} and len(found.kept) == 20
    assert write_audit(found, tmp_path / "audit").exists()


# ------------------------------------------------------------------------------------ the files


def test_files_agree_with_the_report(report: AuditReport, folder: Path) -> None:
    data = json.loads((folder / "audit.json").read_text())
    assert data["n_items"] == 120 and len(data["kept"]) == len(report.kept)
    assert [f["check"] for f in data["findings"]] == list(QUICK.checks)
    rows = list(csv.DictReader((folder / "items.csv").open()))
    assert len(rows) == sum(len(f.items) for f in report.findings)
    assert {r["action"] for r in rows} <= {"drop", "person", "change", "look"}
    assert (folder / "kept.txt").read_text().split() == [i.name for i in report.kept]
    spec = JsonlSpec(path=folder / "mended" / "items.jsonl")
    loaded = load_benchmark(spec, ImageStore(folder / "x")).items
    assert [item.id for item in loaded] == [item.id for item in report.mended]


def test_markdown_has_one_table_per_check(report: AuditReport) -> None:
    text = markdown(report)
    assert text.count("\n## ") == 9 and "10 of 120 items repeat an earlier item" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and {row.count("|") for row in rows} <= {5, 6, 8}
    assert "<script>" not in text


def test_the_page_is_self_contained_and_escaped(folder: Path) -> None:
    text = (folder / "index.html").read_text()
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert "http://" not in text and "https://" not in text
    assert "Trees &amp; &lt;others&gt;" in text
    assert text.count("data:image/webp") == 20


def test_the_page_in_a_browser(open_page: OpenPage, folder: Path) -> None:
    page = open_page((folder / "index.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for width in (320, 390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    broken = "[...document.images].filter((i) => i.complete && !i.naturalWidth).length"
    assert page.locator("img").count() == 20 and page.evaluate(broken) == 0
    assert page.locator("img:not([alt])").count() == page.locator("th:not([scope])").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.get_by_role("link", name="Length of the correct option").click()
    assert page.evaluate("location.hash") == "#longest_option"
