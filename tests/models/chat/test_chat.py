"""Data URLs, what is known of models by name, and the limiter."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from flipbench.config.chat import TRAITS, ChatSpec, image_tokens, traits_of
from flipbench.core.images import ImageStore
from flipbench.models.chat import bounds
from flipbench.models.chat.messages import data_url


def picture(fmt: str, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 30, 90)).save(buffer, fmt, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(("fmt", "mime"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp")])
def test_common_image_formats_are_sent_unchanged(store: ImageStore, fmt: str, mime: str) -> None:
    data = picture(fmt)
    head, encoded = data_url(store.put(data, "x"), store).split(",")
    assert head == f"data:image/{mime};base64" and base64.b64decode(encoded) == data


@pytest.mark.parametrize("fmt", ["GIF", "BMP", "TIFF"])
def test_other_image_formats_are_sent_as_png(store: ImageStore, fmt: str) -> None:
    ref = store.put(picture(fmt), "x")
    head, encoded = data_url(ref, store).split(",")
    sent = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert head == "data:image/png;base64" and sent.format == "PNG"
    assert sent.convert("RGB").tobytes() == store.open(ref).tobytes()


def test_a_rotated_photo_is_sent_upright(store: ImageStore) -> None:
    note = Image.Exif()
    note[0x0112] = 6
    ref = store.put(picture("JPEG", exif=note), "x")
    sent = Image.open(io.BytesIO(base64.b64decode(data_url(ref, store).split(",")[1])))
    assert sent.format == "PNG" and sent.size == (ref.width, ref.height) == (30, 40)


def test_the_limiter_waits_for_the_scarcest_quantity(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bounds.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(bounds.time, "sleep", slept.append)
    limiter = bounds.RateLimiter(60.0, 600.0)
    for n_tokens in (50, 5, 5):
        limiter.wait(1, n_tokens)
    assert slept == [5.0, 6.0]  # 50 tokens take 5 s, a request 1 s


@pytest.mark.parametrize(
    "url", ["http://me:secret@host/v1", "http://host/v1?key=secret", "localhost:8000"]
)
def test_a_base_url_holds_no_secret(url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        ChatSpec(model="m", base_url=url)


@pytest.mark.parametrize(
    ("size", "model", "detail", "tokens"),
    [
        ((1024, 1024), "gpt-4o", "high", 765),
        ((2048, 4096), "gpt-4o", "auto", 1105),
        ((4096, 8192), "gpt-4o", "low", 85),
        ((1024, 1024), "gpt-4o-mini", "high", 2833 + 4 * 5667),
        ((100, 80), "o3", "high", 75 + 150),
        ((1024, 1024), "gpt-4.1-mini", "auto", 1659),
        ((1800, 2400), "gpt-4.1-mini", "low", 2353),
        ((16, 9000), "gpt-5-nano", "auto", 694),
    ],
)
def test_image_tokens_are_counted(
    size: tuple[int, int], model: str, detail: str, tokens: int
) -> None:
    assert image_tokens(*size, TRAITS[model], detail) == tokens


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("openai/o3-2025-04-16", "o3"),
        ("gpt-5.1", "gpt-5"),
        ("gpt-5-chat-latest", "gpt-5-chat"),
        ("o30", None),
        ("Qwen/Qwen2.5-VL-7B-Instruct", None),
    ],
)
def test_model_traits_follow_the_name(model: str, like: str | None) -> None:
    assert traits_of(model) == (TRAITS[like] if like else None)
