"""An editor on a server."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from pydantic import ValidationError

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors.http import HTTPEditor, HTTPEditorSpec
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing
from tests.fixtures.drawings import pixels

Build = Callable[..., Candidate]
KEY = "q7Zp-3fKx-91Lm-vT55-ab12"
Reply = tuple[int, str, bytes]


@dataclass
class Server:
    """What a server on loopback is asked, and its next replies; then it inverts the colours."""

    url: str
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    next: list[Reply] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.seen.append(body)
            made.keys.append(self.headers["Authorization"])
            status, kind, data = made.next.pop(0) if made.next else inverted(body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if status == 307:
                self.send_header("Location", made.url)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Server(f"http://127.0.0.1:{served.server_port}/edit")
    Thread(target=served.serve_forever, daemon=True).start()
    yield made
    served.shutdown()
    served.server_close()


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def inverted(body: dict[str, Any]) -> Reply:
    image = Image.open(io.BytesIO(base64.b64decode(body["image"])))
    text = base64.b64encode(png(ImageOps.invert(image))).decode()
    return 200, "application/json", json.dumps({"image": text}).encode()


def editor(server: Server, **options: Any) -> HTTPEditor:
    given = {"url": server.url, "model": "m", "sizes": SizeRule(min_edge=8)}
    return HTTPEditor(HTTPEditorSpec.model_validate(given | options))


def test_the_reply_is_cropped_to_the_source_s_size(
    server: Server, candidate: Build, pictures: ImageStore
) -> None:
    draws = editor(server, arguments={"steps": 4}, n_concurrent=2)
    tasks = [candidate("a", (65, 47)), candidate("b", text="a dog")]
    drawn = draws(tasks, [5, 6], pictures)
    for task, drawing in zip(tasks, drawn, strict=True):
        source = np.asarray(pictures.open(task.source)).astype(int)
        assert np.array_equal(pixels(drawing), 255 - source)
    assert isinstance(drawn[0], Drawing)
    assert drawn[0].extra["sizes"]["run"] == [80, 48]
    sent = sorted(server.seen, key=lambda body: body["seed"])
    assert [body["seed"] for body in sent] == [5, 6]
    assert {name: sent[0][name] for name in ("prompt", "width", "height", "steps")} == {
        "prompt": "a red square",
        "width": 80,
        "height": 48,
        "steps": 4,
    }


@pytest.mark.parametrize("form", ["raw", "data url"])
def test_other_forms_of_the_reply(
    form: str, server: Server, candidate: Build, pictures: ImageStore
) -> None:
    data = png(Image.new("RGB", (32, 16), "navy"))
    text = "data:image/png;base64," + base64.b64encode(data).decode()
    as_json = json.dumps({"image": text}).encode()
    server.next = [(200, "image/png", data) if form == "raw" else (200, "text/plain", as_json)]
    (drawn,) = editor(server)([candidate("a")], [1], pictures)
    assert isinstance(drawn, Drawing)
    assert drawn.image.getpixel((0, 0)) == (0, 0, 128)


def test_what_passes_is_tried_again_and_what_does_not_fails_alone(
    server: Server, candidate: Build, pictures: ImageStore
) -> None:
    server.next = [(503, "text/plain", b"busy"), (429, "text/plain", b"slow down")]
    (drawn,) = editor(server)([candidate("a")], [1], pictures)
    assert isinstance(drawn, Drawing)
    assert len(server.seen) == 3
    server.next = [(400, "text/plain", b"no such model")]
    refused, fine = editor(server)([candidate("a"), candidate("b")], [1, 2], pictures)
    assert isinstance(refused, ServiceError)
    assert "status 400: no such model" in str(refused)
    assert isinstance(fine, Drawing)
    server.next = [(500, "text/plain", b"broken")] * 2
    (failed,) = editor(server, max_retries=1)([candidate("a")], [1], pictures)
    assert "status 500: broken" in str(failed)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ((200, "application/json", b'{"picture": ""}'), ServiceError, "neither an image nor JSON"),
        ((200, "application/json", b'{"image": 3}'), ServiceError, "neither an image nor JSON"),
        ((200, "application/json", b'{"image": "?"}'), ServiceError, "neither an image nor JSON"),
        ((200, "application/json", b"<html>"), ServiceError, "neither an image nor JSON"),
        ((200, "image/png", b"\x89PNG"), ServiceError, "neither an image nor JSON"),
        ((200, "image/png", png(Image.new("RGB", (8, 8)))), DataError, "drew 8 x 8 pixels"),
        ((307, "text/plain", b""), ServiceError, "status 307"),
    ],
)
def test_an_odd_reply_fails_its_own_item_only(
    reply: Reply,
    error: type[Exception],
    message: str,
    server: Server,
    candidate: Build,
    pictures: ImageStore,
) -> None:
    server.next = [reply]
    odd, fine = editor(server)([candidate("a"), candidate("b")], [1, 2], pictures)
    assert isinstance(odd, error)
    assert message in str(odd)
    assert isinstance(fine, Drawing)


def test_no_server(candidate: Build, pictures: ImageStore, server: Server) -> None:
    closed = editor(server, url="http://127.0.0.1:9/edit", max_retries=0)
    (failed,) = closed([candidate("a")], [1], pictures)
    assert isinstance(failed, ServiceError)


def test_the_key_is_sent_and_never_shown(
    server: Server, candidate: Build, pictures: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDIT_KEY", KEY)
    server.next = [(401, "text/plain", f"no access for {KEY}".encode())]
    draws = editor(server, api_key_env="EDIT_KEY")
    (failed,) = draws([candidate("a")], [1], pictures)
    assert server.keys == [f"Bearer {KEY}"]
    assert KEY not in str(failed)
    assert KEY not in json.dumps(draws.settings)
    monkeypatch.delenv("EDIT_KEY")
    with pytest.raises(PrerequisiteError, match="EDIT_KEY is not set"):
        editor(server, api_key_env="EDIT_KEY")


def test_the_server_s_address_is_no_part_of_an_edit(server: Server) -> None:
    plain = editor(server).settings
    assert editor(server, url="http://localhost:1/x", timeout=3).settings == plain
    assert editor(server, model="n").settings != plain
    assert editor(server, arguments={"steps": 4}).settings != plain


def test_bad_settings_are_refused(server: Server) -> None:
    with pytest.raises(ConfigError, match="'seed' is set by the editor"):
        editor(server, arguments={"seed": 4})
    for url in ("localhost:8000", "http://a:b@localhost/", "http://localhost/?key=1"):
        with pytest.raises(ValidationError, match="url must"):
            editor(server, url=url)
