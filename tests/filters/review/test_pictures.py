"""The review page's pictures in a real browser: zoom, swipe, difference, preloading."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.filters.review.conftest import Visit
from tests.filters.review.test_page import press
from tests.fixtures.browser import accessibility_violations


def test_pictures_share_one_scale_and_one_zoom(serve: Any, visit: Visit) -> None:
    served = serve()
    page = visit(served.address + "?show=all&pair=5")
    frames = [page.locator(f"#{name} .frame") for name in ("left", "right")]
    boxes = [frame.bounding_box() for frame in frames]
    assert boxes[0]["width"] == pytest.approx(2 * boxes[1]["width"], abs=1)  # 160 and 80 pixels
    assert boxes[0]["y"] == boxes[1]["y"]
    page.keyboard.press("+")
    moved = [frame.locator("img").evaluate("img => img.style.transform") for frame in frames]
    assert moved[0] == moved[1] == "translate(0px, 0px) scale(1.5)"
    page.keyboard.press("Shift+ArrowLeft")
    moved = [frame.locator("img").evaluate("img => img.style.transform") for frame in frames]
    assert "translate(0px" not in moved[0]
    page.keyboard.press("0")
    page.keyboard.press("f")
    assert frames[0].is_visible() and not frames[1].is_visible()
    page.keyboard.press("f")
    assert frames[1].is_visible() and not frames[0].is_visible()
    one = frames[1].bounding_box()
    page.keyboard.press("f")
    assert frames[0].bounding_box()["y"] == one["y"]
    page.keyboard.press("s")
    assert frames[0].is_visible() and frames[1].is_visible()


def test_one_picture_over_the_other_with_a_divider_or_as_their_difference(
    serve: Any, visit: Visit
) -> None:
    page = visit(serve().address + "?show=all&pair=2")
    left, right = (page.locator(f"#{name}") for name in ("left", "right"))
    upper = right.locator(".frame img").last
    style = "(image, name) => getComputedStyle(image)[name]"
    page.keyboard.press("w")
    assert right.locator(".frame img").count() == 2 and not left.is_visible()
    assert right.locator(".under").get_attribute("src") == left.locator("img").get_attribute("src")
    label = right.locator("figcaption")
    assert label.inner_text() == "Original | Edited"
    page.get_by_role("slider").fill("25")
    assert "75%" in upper.evaluate(style, "clipPath")
    page.keyboard.press("+")
    moved = [image.evaluate("i => i.style.transform") for image in right.locator("img").all()]
    assert moved == ["translate(0px, 0px) scale(1.5)"] * 2
    page.get_by_role("button", name="Difference").click()
    assert upper.evaluate(style, "mixBlendMode") == "difference"
    assert label.inner_text() == "Difference"
    assert not page.get_by_role("slider").is_visible()
    assert accessibility_violations(page) == []
    page.keyboard.press("s")
    assert left.is_visible() and right.locator(".frame img").count() == 1
    assert label.inner_text() == "Edited"


def test_the_next_pairs_are_preloaded(serve: Any, visit: Visit) -> None:
    page = visit(serve().address)
    loaded = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/images/'))"
    for _ in range(600):
        if page.evaluate(f"{loaded}.length") == 6:  # this pair's pictures and those of two more
            break
        page.wait_for_timeout(50)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(re.sub(r".*:\d+", "", request.url)))
    press(page, "k")
    page.wait_for_timeout(200)
    assert asked[:2] == ["/api/verdicts?category=", "/api/pairs/3?reviewer=anna"]
