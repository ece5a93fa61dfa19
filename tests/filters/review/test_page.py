"""The review page, driven in a real browser."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from flipbench.filters.effective_verdicts import ANSWERED_BLIND, effective_verdicts
from tests.filters.review.conftest import Page, Visit
from tests.fixtures.browser import accessibility_violations
from tests.fixtures.edited_run import EVIL


def shown(page: Any) -> str:
    return str(page.evaluate("document.body.dataset.shown"))


def press(page: Any, *keys: str) -> None:
    """Press keys of which the last shows another pair, and wait until it is there."""
    before = shown(page)
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_selector(f"body:not([data-shown='{before}'])")


def count(page: Any) -> list[str]:
    return [text for text in page.locator("#count span").all_text_contents()]


def decisions(page: Page, rater: str = "anna") -> dict[str, tuple[str, str]]:
    items = {
        json.loads(line)["id"]: number
        for path in (page.run.path / "edits").glob("*.jsonl")
        for number, line in enumerate(path.read_text().splitlines())
    }
    return {
        str(items[v.edit_id]): (v.decision, v.reason)
        for v in effective_verdicts(page.verdicts)
        if v.rater == rater
    }


def test_thirty_pairs_by_keyboard(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    expected: dict[str, tuple[str, str]] = {}

    def review(numbers: range) -> None:
        for number in numbers:
            assert shown(page) == str(number)
            keys, decision = {
                5: ("4", ("reject", "object missing")),
                7: ("u2", ("unsure", "ambiguous")),
                14: ("r1", ("reject", "wrong answer")),
                21: ("uu", ("unsure", "")),
            }.get(number, ("k", ("keep", "")))
            press(page, *keys)
            expected[str(number)] = decision
            assert decisions(served) == expected  # on disk before the next pair was shown

    review(range(12))
    page.reload()
    page.wait_for_selector("body[data-shown='12']")
    assert count(page)[:3] == ["12 of 30", "10 kept", "1 rejected"]
    review(range(12, 20))
    press(page, "z")  # the verdict on 19 was a slip
    assert shown(page) == "19"
    assert str(19) not in decisions(served)
    press(page, "r", "r")
    expected["19"] = ("reject", "")
    review(range(20, 30))
    assert shown(page) == "done"
    assert page.get_by_role("heading", name="You have decided on every pair here.").is_visible()
    assert count(page)[:4] == ["30 of 30", "25 kept", "3 rejected", "2 unsure"]
    assert all(v.seconds is not None and 0 < v.seconds < 60 for v in served.verdicts if v.run == 0)
    page.keyboard.press("z")
    page.wait_for_selector("body[data-shown='29']")
    assert len(decisions(served)) == 29


def test_two_people_at_once(serve: Any, visit: Visit) -> None:
    served = serve()
    anna, ben = visit(served.address), visit(served.address, "ben")
    for number in range(8):
        press(anna, "k")
        press(ben, *("2" if number % 2 else "k"))
    assert {decision for decision, _ in decisions(served).values()} == {"keep"}
    assert [decision for decision, _ in decisions(served, "ben").values()] == ["keep", "reject"] * 4
    press(anna, "z")
    assert (len(decisions(served)), len(decisions(served, "ben"))) == (7, 8)
    ben.get_by_label("Show").select_option("disagreement")
    ben.wait_for_selector("body[data-shown='0']")
    assert ben.locator("#others").get_attribute("open") is None  # others' words only on demand
    ben.keyboard.press("o")
    assert ben.locator("#others li").all_inner_texts() == [
        "anna (person): keep",
        "test judge (judge): reject, the disc is hard to see",
    ]


def test_blind_mode_hides_the_answer_until_one_is_given(serve: Any, visit: Visit) -> None:
    served = serve(blind=True)
    replies: list[str] = []
    page = visit(served.address)
    page.on("response", lambda r: replies.append(r.text()) if "/api/pairs" in r.url else None)
    page.reload()
    page.wait_for_selector("#options button")
    page.wait_for_timeout(300)
    keys = set().union(*(json.loads(reply) for reply in replies))
    assert len(replies) >= 2
    assert not keys & {"new_answer", "new_text", "old_answer", "old_text", "details", "left"}
    assert page.locator("#stage img").count() == 1
    page.keyboard.press("k")  # nothing to decide yet
    page.keyboard.press("2")
    page.wait_for_selector("#left img")
    assert page.locator("#given").inner_text() == "You answered “green”, which is the new answer."
    assert page.locator("#options .new .text").inner_text() == "green"
    page.reload()  # the answer is on disk; asking again would not be blind
    page.wait_for_selector("#left img")
    press(page, "k")
    page.keyboard.press("0")
    page.wait_for_selector("#left img")
    assert "the new answer is “blue”" in page.locator("#given").inner_text()
    press(page, "2")
    press(page, "ArrowRight")
    press(page, "ArrowRight")  # to the question without options
    page.get_by_label("Your answer").fill("red, I think")
    page.keyboard.press("Enter")
    page.wait_for_selector("#left img")
    press(page, "k")
    kept, rejected, free = [v for v in served.verdicts if v.reason != ANSWERED_BLIND]
    assert (kept.decision, kept.blind_answer) == ("keep", "green")
    assert (rejected.decision, rejected.blind_answer) == ("reject", "UNCLEAR")
    assert (free.decision, free.blind_answer) == ("keep", "red, I think")
    assert len(served.verdicts) == 6


def test_a_note_a_caption_and_a_changed_mind(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    caption = page.get_by_text("A green disc on a light ground")
    assert not caption.is_visible()
    page.keyboard.press("c")
    assert caption.is_visible()
    page.keyboard.press("n")
    page.keyboard.type("k is a key, too: 2")
    page.keyboard.press("Enter")
    press(page, "6")
    press(page, "ArrowLeft")
    assert page.get_by_label("Note").input_value() == "k is a key, too: 2"
    assert page.locator("#given").inner_text() == "You rejected this pair: unsafe."
    page.keyboard.press("r")
    page.keyboard.press("Escape")
    press(page, "k")
    assert [(v.run, v.decision, v.reason) for v in served.verdicts] == [
        (0, "reject", "unsafe: k is a key, too: 2"),
        (1, "keep", "note: k is a key, too: 2"),
    ]


def test_a_note_without_a_verdict_waits_for_one(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    note = page.get_by_label("Note")
    note.fill("two cars")
    note.press("Enter")
    press(page, "ArrowRight")
    assert note.input_value() == ""
    page.goto(served.address)  # shows the first pair again
    page.wait_for_selector("body[data-shown='0']")
    assert note.input_value() == "two cars"
    press(page, "k")
    press(page, "ArrowLeft")
    note.fill("one car")
    note.press("Enter")
    press(page, "ArrowRight")
    press(page, "ArrowLeft")
    assert note.input_value() == "one car"
    press(page, "k")
    assert [v.reason for v in served.verdicts] == ["note: two cars", "note: one car"]


def test_a_double_click_decides_on_one_pair(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    for number, name in enumerate(["Keep", "1 wrong answer"], 1):
        page.get_by_role("button", name=name).dblclick(delay=40)
        page.wait_for_selector(f"body[data-shown='{number}']:not(.busy)")
        page.wait_for_timeout(300)  # what a second verdict would take
        assert (shown(page), len(served.verdicts)) == (str(number), number)
    page.get_by_role("button", name="Reject").dblclick(delay=40)
    assert page.locator(".decide.pending").is_visible()  # it waits for a reason
    assert len(served.verdicts) == 2


def test_filters_survive_a_reload(serve: Any, visit: Visit) -> None:
    page = visit(serve().address)
    press(page, "k")
    page.get_by_label("Category").select_option("number")
    page.wait_for_selector("body[data-shown='2']")
    assert count(page)[0] == "0 of 10"
    press(page, "k")
    page.get_by_label("Judges").select_option("doubt")
    page.wait_for_selector("body[data-shown='5']")
    page.reload()
    page.wait_for_selector("body[data-shown='5']")
    assert page.get_by_label("Category").input_value() == "number"
    press(page, "ArrowRight")
    assert shown(page) == "20"
    press(page, "ArrowRight")  # what was skipped comes round again
    assert shown(page) == "5"


def test_a_question_that_is_a_script_is_shown_as_text(serve: Any, visit: Visit) -> None:
    page = visit(serve().address + "?show=all&pair=3")
    assert page.locator("#question").inner_text() == EVIL
    assert page.title() == "Review of discs"
    assert page.locator("#question *").count() == 0


def test_a_stopped_server_loses_no_verdict(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    press(page, "k")
    served.stop()
    page.keyboard.press("k")
    alert = page.get_by_role("alert").filter(has_text="Failed")
    alert.wait_for()
    assert shown(page) == "1" and count(page)[0] == "1 of 30"
    served.start()
    press(page, "k")
    assert not alert.is_visible()
    assert len(served.verdicts) == 2


def test_a_pair_with_a_missing_image_cannot_be_judged(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    pair = page.evaluate("fetch('/api/pairs/6?reviewer=anna').then((r) => r.json())")
    (served.run.path / "images" / f"{pair['key'][1]}.png").unlink()
    page.goto(served.address + "?show=all&pair=6")
    page.get_by_text("This image cannot be shown").wait_for()
    page.keyboard.press("k")
    page.get_by_role("alert").filter(has_text="not among the images").wait_for()
    assert served.verdicts == []


def test_keys_can_be_turned_off(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address)
    page.keyboard.press("?")
    page.get_by_label("Single keys decide").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("k")
    page.get_by_role("button", name="Reject").focus()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="text illegible")
    button.focus()
    press(page, "Enter")
    assert decisions(served) == {"0": ("reject", "text illegible")}


def test_the_page_works_on_a_phone(serve: Any, visit: Visit) -> None:
    served = serve()
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = visit(served.address, **phone)
    assert page.locator("#right .frame").is_visible()
    assert not page.locator("#left .frame").is_visible()
    page.get_by_role("button", name="Flip").tap()
    assert page.locator("#left .frame").is_visible()
    for button in page.locator("main button:visible").all():
        box = button.bounding_box()
        assert box["height"] >= 44 and box["width"] >= 44, button.inner_text()
    rows = page.locator(".views button").evaluate_all(
        "all => all.map(b => [b.offsetTop, b.offsetHeight])"
    )
    assert len({tuple(row) for row in rows}) == 1, "one row, no word broken"
    frame, bar = page.locator("#left .frame"), page.locator(".decide")
    assert frame.bounding_box()["y"] + 300 < bar.bounding_box()["y"]
    assert page.locator("#question").bounding_box()["y"] < bar.bounding_box()["y"]
    page.get_by_role("button", name="Reject").tap()
    page.get_by_role("button", name="ambiguous").tap()
    page.wait_for_selector("body[data-shown='1']")
    page.get_by_role("button", name="Keep").tap()
    page.wait_for_selector("body[data-shown='2']")
    assert decisions(served) == {"0": ("reject", "ambiguous"), "1": ("keep", "")}
    for width in (320, 390, 844):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_verdicts_are_exported_and_imported_on_the_page(
    serve: Any, visit: Visit, tmp_path: Any
) -> None:
    served, other = serve(), serve()
    page = visit(served.address)
    press(page, "k")
    press(page, "3")
    page.get_by_role("button", name="Data").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "verdicts.csv")
    second = visit(other.address, "ben")
    second.get_by_role("button", name="Data").click()
    second.get_by_label("Import").set_input_files(tmp_path / "verdicts.csv")
    second.locator("#imported").filter(has_text="2 new verdicts").wait_for()
    assert decisions(other) == decisions(served)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_page_is_accessible(
    serve: Any, visit: Visit, scheme: str, size: tuple[int, int]
) -> None:
    settings = {"color_scheme": scheme, "viewport": {"width": size[0], "height": size[1]}}
    page = visit(serve().address, **settings)

    def check(state: str) -> None:
        assert accessibility_violations(page) == [], state

    check("a pair")
    page.keyboard.press("c")
    page.keyboard.press("o")
    page.keyboard.press("r")
    check("a rejection that waits for its reason")
    press(page, "2")
    press(page, "ArrowLeft")
    check("a decided pair")
    assert "New answer: green" in page.get_by_role("status").first.inner_text()
    page.keyboard.press("?")
    check("the keys")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Data").click()
    check("import and export")
    page.keyboard.press("Escape")
    blind = visit(serve(blind=True).address, **settings)
    page, waiting = blind, page
    check("a blind question")
    page = waiting
    page.goto(page.url.partition("?")[0] + "?show=unsure")
    page.wait_for_selector("body[data-shown='done']")
    check("nothing left")
    page.get_by_role("button", name=re.compile("Reviewer")).click()
    check("the name")
