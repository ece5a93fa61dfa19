"""The adjudication of flagged pairs on the page, driven in a real browser, and its files."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flipbench.core.errors import DataError
from flipbench.core.records import Adjudication
from flipbench.core.run import Run
from flipbench.filters.agreement.adjudication import adjudication_of
from flipbench.filters.audit.corpus_overlap.flagged import LABELS, read_flagged, write_flagged
from flipbench.filters.review.exchange import export_csv, export_tasks, import_rows, read_rows
from flipbench.filters.review.ledger import Ledger
from flipbench.filters.review.serve import export_verdicts, import_verdicts, serve_review
from flipbench.filters.review.tasks import ADJUDICATION, corpus_pairs
from tests.fixtures.browser import OpenPage, accessibility_violations
from tests.fixtures.edited_run import edited_run
from tests.fixtures.flagged_run import EVIL

pytestmark = pytest.mark.slow
SERVE = """
import sys
from flipbench.filters.review.tasks import ADJUDICATION
from flipbench.filters.review.serve import serve_review
serve_review(sys.argv[1], port=0, task=ADJUDICATION)
"""
Visit = Callable[..., Any]


@pytest.fixture
def visit(open_page: OpenPage) -> Visit:
    """Open the page as a named rater."""

    def visit_as(address: str, name: str = "anna", **settings: Any) -> Any:
        page = open_page(address, **{"viewport": {"width": 1440, "height": 900}} | settings)
        page.get_by_label("Your name").fill(name)
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-shown]")
        return page

    return visit_as


@pytest.fixture
def run(flagged: Path, tmp_path: Path) -> Any:
    with Run(shutil.copytree(flagged, tmp_path / "scans")) as run:
        yield run


def press(page: Any, *keys: str) -> None:
    """Press keys of which the last shows another pair, and wait until it is there."""
    before = page.evaluate("document.body.dataset.shown")
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_selector(f"body:not([data-shown='{before}'])")


def ledger_of(run: Run) -> Ledger:
    return Ledger(run, corpus_pairs(run), ADJUDICATION)


def test_two_raters_by_keyboard(serve: Any, visit: Visit) -> None:
    served = serve(task=ADJUDICATION)
    anna = visit(served.address)
    assert anna.title() == "Adjudication of scans"
    assert anna.locator("figcaption").all_inner_texts() == ["Benchmark", "Corpus"]
    for number in range(20):
        press(anna, "4" if number == 13 else "3")
        assert len(served.adjudications) == number + 1  # on disk before the next pair was shown
        if number == 9:
            anna.reload()
            anna.wait_for_selector("body[data-shown='10']")
    assert anna.evaluate("document.body.dataset.shown") == "done"
    assert anna.locator("#count span").all_text_contents()[:3] == [
        "20 of 20",
        "19 same view",
        "1 ambiguous",
    ]
    ben = visit(served.address, "ben")
    for number in range(20):
        if number == 7:
            ben.keyboard.press("n")
            ben.keyboard.type("another patient, 3")
            ben.keyboard.press("Enter")
            press(ben, "2")
        else:
            press(ben, "4" if number == 13 else "3")
    outcome = adjudication_of(Run(served.run.path))
    assert outcome.counts["same view"] == 18 and outcome.counts["ambiguous"] == 2
    shown = corpus_pairs(served.run)
    assert [pair.flagged for pair in outcome.disputed] == [shown[7].flagged]
    assert outcome.disputed[0].notes == {"ben": "another patient, 3"}
    assert outcome.kappa.value == pytest.approx(0.64, abs=0.03)
    press(ben, "z")
    assert len(served.adjudications) == 41  # nothing is erased
    pairs = {p.flagged.key: p for p in adjudication_of(Run(served.run.path)).pairs}
    assert pairs[shown[19].key].labels == {"anna": "same view"}
    assert all(a.seconds is not None and a.seconds < 60 for a in served.adjudications[:40])


def test_each_label_has_its_key_and_its_button(serve: Any, visit: Visit) -> None:
    served = serve(task=ADJUDICATION)
    page = visit(served.address)
    for key in "12345":
        press(page, key)
    assert [a.label for a in served.adjudications] == list(LABELS)
    press(page, "ArrowLeft")
    assert page.locator("#given").inner_text() == "You chose: unrelated."
    page.get_by_role("button", name="Exact or near duplicate").click()
    page.wait_for_selector("body[data-shown='5']")
    newest = served.adjudications[-1]
    assert (newest.label, newest.run) == ("duplicate", 1)


def test_other_labels_and_the_distance_do_not_bias(serve: Any, visit: Visit) -> None:
    served = serve(task=ADJUDICATION)
    shown = [pair.flagged for pair in corpus_pairs(served.run)]
    assert [pair.distance for pair in shown] != sorted(pair.distance for pair in shown)
    press(visit(served.address), "5")
    ben = visit(served.address, "ben")
    ask = "fetch('/api/pairs/0?reviewer=ben').then((r) => r.json())"
    assert ben.evaluate(ask)["others"] == []
    assert not ben.get_by_text("ViT-B-16-SigLIP").is_visible()
    ben.keyboard.press("c")
    text = f"{shown[0].corpus_key}; distance {shown[0].distance:.4f} by ViT-B-16-SigLIP"
    assert ben.get_by_text(text).is_visible()
    press(ben, "3")
    press(ben, "ArrowLeft")
    ben.keyboard.press("o")
    assert ben.locator("#others li").all_inner_texts() == ["anna (person): unrelated"]
    evil = [pair.corpus_key for pair in shown].index(EVIL)
    page = visit(served.address + f"?show=all&pair={evil}", "cleo")
    page.keyboard.press("c")
    assert page.get_by_text(EVIL).is_visible()
    assert page.title() == "Adjudication of scans"


def test_each_picture_fills_its_frame(serve: Any, visit: Visit) -> None:
    page = visit(serve(task=ADJUDICATION).address)
    left, right = (page.locator(f"#{side} .frame").bounding_box() for side in ("left", "right"))
    assert left["height"] > 200 and right["height"] > 200  # 200 x 200 and 640 x 360 pixels
    assert left["width"] / left["height"] == pytest.approx(1, abs=0.02)
    assert right["width"] / right["height"] == pytest.approx(640 / 360, abs=0.02)


def test_a_phone_is_enough(serve: Any, visit: Visit) -> None:
    served = serve(task=ADJUDICATION)
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = visit(served.address, **phone)
    assert page.locator("#right .frame").is_visible()
    page.get_by_role("button", name="Flip").tap()
    assert page.locator("#left .frame").is_visible()
    for button in page.locator("main button:visible").all():
        box = button.bounding_box()
        assert box["height"] >= 44 and box["width"] >= 44, button.inner_text()
    bar = page.locator(".decide").bounding_box()
    frame = page.locator("#left .frame").bounding_box()
    assert frame["y"] + frame["height"] <= bar["y"] + 1
    page.get_by_role("button", name="Same view, different subject").tap()
    page.wait_for_selector("body[data-shown='1']")
    assert [a.label for a in served.adjudications] == ["same view"]
    for width in (320, 390, 844):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_page_is_accessible(
    serve: Any, open_page: OpenPage, scheme: str, size: tuple[int, int]
) -> None:
    viewport = {"width": size[0], "height": size[1]}
    page = open_page(serve(task=ADJUDICATION).address, color_scheme=scheme, viewport=viewport)

    def check(state: str) -> None:
        assert accessibility_violations(page) == [], state

    page.wait_for_selector("dialog[open]")
    check("the start")
    page.get_by_label("Your name").fill("anna")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-shown]")
    page.keyboard.press("c")
    check("a pair")
    press(page, "3")
    press(page, "ArrowLeft")
    check("a labelled pair")
    page.keyboard.press("?")
    check("the keys")


def test_labels_are_exported_and_imported(run: Run, tmp_path: Path, flagged: Path) -> None:
    ledger = ledger_of(run)
    ledger.decide("anna", 0, "same view", "note: =1+1", seconds=2.5)
    ledger.decide("ben", 0, "duplicate")
    ledger.decide("ben", 1, "unrelated")
    ledger.undo("ben")
    text = export_csv(ledger)
    assert (
        text.splitlines()[0]
        .removeprefix("\ufeff")
        .startswith("benchmark_sha256,corpus_sha256,rater,label,note,seconds,item")
    )
    assert len(text.splitlines()) == 1 + 2 + 19
    for number, data in enumerate((text, export_tasks(ledger))):
        with Run(shutil.copytree(flagged, tmp_path / f"other{number}")) as other:
            rows = read_rows(data.encode(), "x", ADJUDICATION)
            assert import_rows(ledger_of(other), *rows).n_new == 2
            assert import_rows(ledger_of(other), *rows).n_known == 2
            labels = {a.rater: (a.label, a.note) for a in other.read(Adjudication)}
        assert labels == {"anna": ("same view", "=1+1"), "ben": ("duplicate", "")}
    wrong = text.replace("same view", "keep")
    with pytest.raises(DataError, match="label 'keep' is none of duplicate, same subject"):
        import_rows(ledger, *read_rows(wrong.replace("duplicate", "x").encode(), "x", ADJUDICATION))


def test_files_work_without_the_page(run: Run, flagged: Path, tmp_path: Path) -> None:
    ledger_of(run).decide("anna", 0, "same view")
    assert export_verdicts(run.path, tmp_path / "a.csv", task=ADJUDICATION) == 20
    other = shutil.copytree(flagged, tmp_path / "other")
    assert import_verdicts(other, tmp_path / "a.csv", ADJUDICATION).n_new == 1


def test_a_new_nearest_picture_needs_a_new_label(run: Run) -> None:
    before = ledger_of(run)
    pairs = read_flagged(run.path)
    before.decide("anna", before.position(pairs[0].key), "same view")
    moved = pairs[0].model_copy(update={"corpus": pairs[9].corpus})
    write_flagged(run.path, [moved, *pairs[1:]])
    ledger = ledger_of(run)
    assert len(ledger.queue("anna", "undecided")) == 20
    with pytest.raises(DataError, match="nearest corpus picture has another hash"):
        ledger.position(pairs[0].key)


def test_what_cannot_be_adjudicated_is_refused(run: Run, tmp_path: Path, caplog: Any) -> None:
    pairs = read_flagged(run.path)
    run.images.path(pairs[0].corpus).unlink()
    assert len(corpus_pairs(run)) == 19
    assert "PMC0000/figure-1.jpg: image" in caplog.text
    write_flagged(run.path, [])
    with pytest.raises(DataError, match="no flagged pairs with pictures"):
        serve_review(run.path, port=0, task=ADJUDICATION)
    without = edited_run(tmp_path / "discs", 1).path
    with pytest.raises(DataError, match="run 'flipbench audit' with a corpus first"):
        serve_review(without, port=0, task=ADJUDICATION)


def test_a_kill_loses_no_label_that_was_acknowledged(run: Run) -> None:
    acknowledged: set[tuple[str, tuple[str, str], str]] = set()
    enough = threading.Event()

    def ask(connection: http.client.HTTPConnection, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body else None
        connection.request("POST" if body else "GET", path, data)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return json.loads(text)

    def burst(port: int, rater: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            for turn in range(1000):
                for position in range(20):
                    pair = ask(connection, f"/api/pairs/{position}?reviewer={rater}")
                    note = f"turn {turn}"
                    body = {"reviewer": rater, "decision": "same view", "key": pair["key"]}
                    ask(connection, "/api/verdicts", body | {"note": note})
                    acknowledged.add((rater, tuple(pair["key"]), note))
                    if len(acknowledged) >= 100:
                        enough.set()
        except (OSError, http.client.HTTPException):
            return  # killed

    command = [sys.executable, "-c", SERVE, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        address = next(w for w in server.stdout.readline().split() if w.startswith("http://"))
        port = urlsplit(address).port
        threads = [threading.Thread(target=burst, args=(port, name)) for name in ("anna", "ben")]
        for thread in threads:
            thread.start()
        reached = enough.wait(120)
        os.kill(server.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
    assert reached
    stored = {
        (a.rater, (a.benchmark_sha256, a.corpus_sha256), a.note) for a in run.read(Adjudication)
    }
    assert acknowledged <= stored
