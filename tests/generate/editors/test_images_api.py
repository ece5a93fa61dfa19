"""The images-edit route, with the real client, against a server on loopback that speaks it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from pydantic import ValidationError

from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore, png_bytes
from flipbench.core.paired import Candidate
from flipbench.generate.editors.images_api import (
    ImagesAPIEditor,
    ImagesAPIEditorSpec,
    _restored,
)
from flipbench.generate.editors.sizes import Fit, fit
from flipbench.models.protocols import Drawing

Build = Callable[..., Candidate]
KEY = "q7Zp-3fKx-91Lm-vT55-ab12"
Reply = tuple[int, str, bytes]


@dataclass
class Server:
    """Requests so far, and replies to send before pictures with inverted colours."""

    base_url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)


def form_of(content_type: str, body: bytes) -> dict[str, Any]:
    """Return the fields of a multipart form; the picture decoded."""
    message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    fields: dict[str, Any] = {}
    for part in message.get_payload():  # type: ignore[union-attr]
        name = part.get_param("name", header="content-disposition")  # type: ignore[union-attr]
        data = part.get_payload(decode=True)  # type: ignore[union-attr]
        is_image = name == "image"
        fields[str(name)] = Image.open(io.BytesIO(data)) if is_image else data.decode()  # type: ignore[arg-type,union-attr]
    return fields


def answer(image: Image.Image, **more: Any) -> Reply:
    encoded = base64.b64encode(png_bytes(image)).decode()
    return 200, "application/json", json.dumps({"data": [{"b64_json": encoded}], **more}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            form = form_of(self.headers["Content-Type"], body)
            state.requests.append(form)
            state.paths.append(self.path)
            state.keys.append(self.headers["Authorization"])
            usage = {"input_tokens": 300, "output_tokens": 1056}
            inverted = answer(ImageOps.invert(form["image"].convert("RGB")), usage=usage)
            status, kind, data = state.replies.pop(0) if state.replies else inverted
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if status == 307:
                self.send_header("Location", "http://localhost:9/elsewhere")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{httpd.server_port}/v1")
    Thread(target=httpd.serve_forever, daemon=True).start()
    yield state
    httpd.shutdown()
    httpd.server_close()


def editor(server: Server, **settings: Any) -> ImagesAPIEditor:
    defaults = {"model": "gpt-image-1", "sizes": ("96x96", "96x64", "64x96"), "max_retries": 0}
    spec = ImagesAPIEditorSpec(base_url=server.base_url, **(defaults | settings))
    return ImagesAPIEditor(spec)


def redraw(
    server: Server, candidate: Candidate, images: ImageStore, **settings: Any
) -> Drawing | Exception:
    (result,) = editor(server, **settings)([candidate], [2**40 + 7], images)
    return result


def test_picture_and_instruction_go_out_and_a_picture_of_the_same_size_comes_back(
    server: Server, candidate: Build, pictures: ImageStore
) -> None:
    item = candidate("a", size=(48, 32), text="Make it blue.")
    drawing = redraw(server, item, pictures, extra_body={"quality": "high"}, price={
        "96x96": 0.1, "96x64": 0.2, "64x96": 0.3
    })  # fmt: skip
    assert isinstance(drawing, Drawing)
    (form,) = server.requests
    assert form["prompt"] == "Make it blue." and form["model"] == "gpt-image-1"
    assert form["size"] == "96x64" and form["image"].size == (96, 64)
    assert form["quality"] == "high" and "seed" not in form
    assert server.paths == ["/v1/images/edits"] and server.keys == [f"Bearer {KEY}"]
    assert drawing.image.size == (48, 32)
    expected = ImageOps.invert(pictures.open(item.source))
    difference = np.abs(np.asarray(expected, int) - np.asarray(drawing.image, int))
    assert np.median(difference) <= 2  # scaled twice
    assert drawing.extra["sizes"] == {
        "source": [48, 32], "scaled": [96, 64], "sent": [96, 64], "received": [96, 64]
    }  # fmt: skip
    assert drawing.extra["usage"] == {"cost_usd": 0.2, "input_tokens": 300, "output_tokens": 1056}


def test_a_server_that_takes_a_seed_and_any_size(
    server: Server, candidate: Build, pictures: ImageStore
) -> None:
    drawing = redraw(server, candidate("a", size=(270, 300)), pictures, sizes="any", seeded=True)
    assert isinstance(drawing, Drawing) and drawing.image.size == (270, 300)
    assert server.requests[0]["size"] == "272x304"
    assert 0 <= int(server.requests[0]["seed"]) < 2**31


@pytest.mark.parametrize(
    ("source", "sizes"),
    [
        ((100, 100), ((100, 100), (96, 96), (96, 96))),
        ((30, 60), ((30, 60), (48, 96), (64, 96))),
        ((200, 50), ((200, 50), (96, 24), (96, 64))),
    ],
)
def test_the_size_with_the_least_padding_is_chosen(
    source: tuple[int, int], sizes: tuple[Any, Any, Any]
) -> None:
    spec = ImagesAPIEditorSpec(model="m", sizes=("96x96", "96x64", "64x96"))
    assert spec.plan(*source, "x") == Fit(*sizes)


def test_padding_is_cut_off_even_if_the_server_scales_its_picture() -> None:
    image = Image.effect_noise((200, 50), 60).convert("RGB")
    plan = Fit((200, 50), (96, 24), (96, 64))
    sent = fit(image, plan)
    assert sent.size == (96, 64)
    assert np.asarray(sent)[23:].std(axis=0).max() == 0  # the last row, replicated
    restored = _restored(sent.resize((192, 128), Image.Resampling.LANCZOS), plan)
    assert restored.size == (200, 50)
    distance = np.abs(np.asarray(restored, int) - np.asarray(image, int)).mean()
    assert distance < np.abs(np.asarray(image, int) - np.asarray(image, int).mean()).mean()


REFUSED = json.dumps(
    {"error": {"message": "rejected by the safety system", "code": "moderation_blocked"}}
).encode()
URL_ONLY = json.dumps({"data": [{"url": "http://169.254.169.254/latest"}]}).encode()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((400, "application/json", REFUSED), "rejected by the safety system"),
        ((200, "text/html", b"<html>down for maintenance</html>"), "invalid JSON"),
        ((200, "application/json", b'{"data": []}'), "without a picture"),
        ((200, "application/json", b"[]"), "without a picture"),
        ((200, "application/json", b'{"data": [{"b64_json": "!!"}]}'), "no picture"),
        ((200, "application/json", b'{"data": [{"b64_json": "AAAA"}]}'), "no picture"),
        (answer(Image.new("RGB", (96, 96))), "drew 96x96 pixels instead of 96x64"),
        ((500, "text/plain", f"no {KEY} here".encode()), "500"),
    ],
    ids=["refused", "a page", "empty", "a list", "no base64", "no image", "square", "500"],
)
def test_odd_replies_fail_their_item_alone(
    server: Server, candidate: Build, pictures: ImageStore, reply: Reply, says: str
) -> None:
    server.replies.append(reply)
    tasks = [candidate("a", size=(48, 32)), candidate("b", size=(48, 32))]
    bad, good = editor(server, n_concurrent=1)(tasks, [1, 2], pictures)
    assert isinstance(bad, ServiceError) and says in str(bad) and KEY not in str(bad)
    assert isinstance(good, Drawing)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((401, "application/json", b'{"error": {"message": "bad key"}}'), "OPENAI_API_KEY"),
        ((404, "application/json", b'{"error": {"message": "no"}}'), "no model 'gpt-image-1'"),
        ((307, "text/plain", b""), "redirect"),
        ((200, "application/json", URL_ONLY), "response_format: b64_json"),
    ],
    ids=["key", "model", "redirect", "address"],
)
def test_what_would_fail_every_item_ends_the_stage(
    server: Server, candidate: Build, pictures: ImageStore, reply: Reply, says: str
) -> None:
    server.replies.append(reply)
    with pytest.raises(PrerequisiteError, match=says):
        redraw(server, candidate("a", size=(48, 32)), pictures)
    assert len(server.requests) == 1


def test_a_missing_key_is_named_before_anything_is_sent(
    server: Server, candidate: Build, pictures: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(PrerequisiteError, match="OPENAI_API_KEY is not set"):
        redraw(server, candidate("a"), pictures)
    assert not server.requests


def test_too_large_a_picture_is_a_failure_of_its_item(
    server: Server, candidate: Build, pictures: ImageStore
) -> None:
    result = redraw(server, candidate("a", size=(4000, 1600)), pictures, sizes="any")
    assert isinstance(result, DataError) and not server.requests


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sizes": ["1024"]}, "write it as 1024x1024"),
        ({"sizes": []}, "at least one size"),
        ({"extra_body": {"seed": 3}}, "seeded: true"),
        ({"extra_body": {"prompt": "x"}}, "'prompt' is set by the editor"),
        ({"price": {"1024x1024": 0.1}}, "no price for 1024x1536"),
        ({"base_url": "http://user:pw@host/v1"}, "must not contain a user"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ImagesAPIEditorSpec.model_validate({"model": "m", **settings})


def test_settings_make_the_edit_and_the_address_does_not() -> None:
    here = ImagesAPIEditor(ImagesAPIEditorSpec(model="m", base_url="http://localhost:1/v1"))
    there = ImagesAPIEditor(ImagesAPIEditorSpec(model="m", n_concurrent=9, price=1))
    other = ImagesAPIEditor(ImagesAPIEditorSpec(model="m", extra_body={"quality": "low"}))
    assert here.settings == there.settings != other.settings
    spec = ImagesAPIEditorSpec(model="m", base_url="http://example.org/v1")
    assert spec.needs_trust() == (("base_url",), ("api_key_env",))
