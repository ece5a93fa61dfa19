"""No client follows a redirect to another server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.redirects import leads_elsewhere
from flipbench.generate.editors.http import HTTPEditor, HTTPEditorSpec
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest

REPLY = {"choices": [{"message": {"content": "A star."}, "finish_reason": "stop"}], "model": "m"}


class Server(ThreadingHTTPServer):
    """Answers, or redirects to ``target``, and keeps what it was sent."""

    target, status = "", 307

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append({"path": self.path, "key": self.headers.get("authorization")})
        redirects = self.server.target and not self.path.endswith("/there")
        body = b"" if redirects else json.dumps(REPLY).encode()
        self.send_response(self.server.status if redirects else 200)
        if redirects:
            self.send_header("location", self.server.target)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """Return a server, and the other one that it may redirect to."""
    both = Server(), Server()
    yield both
    for server in both:
        server.shutdown()
        server.server_close()


def ask_chat(url: str, tmp_path: Path) -> Any:
    chat = ChatAPI(ChatSpec(model="m", base_url=f"{url}/v1", api_key_env="A_KEY", max_retries=2))
    return chat.ask([ChatRequest("system", "what?")], ImageStore(tmp_path))[0]


def ask_editor(url: str, tmp_path: Path) -> Any:
    editor = HTTPEditor(HTTPEditorSpec(url=f"{url}/edit", model="m", api_key_env="A_KEY"))
    try:
        return editor._ask(b"{}")
    except FlipbenchError as error:
        return error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("ask", [ask_chat, ask_editor])
def test_another_server_is_not_asked(
    ask: Any,
    name: str,
    status: int,
    servers: tuple[Server, Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the status: it gets no request, and the error names both and the setting."""
    monkeypatch.setenv("A_KEY", "sk-1234567890abcdef")
    first, other = servers
    other_name = f"{name}:{other.server_address[1]}"
    first.status, first.target = status, f"http://{other_name}/v1/chat/completions"
    error = ask(f"http://{first.host}", tmp_path)
    assert isinstance(error, PrerequisiteError), error
    for part in (first.host, other_name, "base_url" if ask is ask_chat else "url"):
        assert part in str(error)
    assert other.asked == []
    assert len(first.asked) == 1, "it is not tried again"


def test_a_redirect_on_the_server_is_followed(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the key, and by a relative address."""
    monkeypatch.setenv("A_KEY", "sk-1234567890abcdef")
    first, _ = servers
    first.target = "/v1/there"
    reply = ask_chat(f"http://{first.host}", tmp_path)
    assert isinstance(reply, ChatReply) and reply.text == "A star."
    assert [asked["key"] for asked in first.asked] == ["Bearer sk-1234567890abcdef"] * 2


@pytest.mark.parametrize(
    ("location", "is_elsewhere"),
    [
        ("/v2", False),
        ("http://host:80/v1", False),
        ("HTTP://HOST/v1", False),
        ("https://host/v1", False),
        ("https://host:8443/v1", True),
        ("http://host:8080/v1", True),
        ("//other/v1", True),
        ("http://host@other/v1", True),
        ("http://host.other/v1", True),
        ("ftp://host/v1", True),
        ("http://[::1", True),
        ("http://host:99999/", True),
        ("file:///etc/passwd", True),
    ],
)
def test_which_address_is_another_server(location: str, is_elsewhere: bool) -> None:
    """Another host or port, or no address; from http to https is the same server."""
    assert bool(leads_elsewhere("http://host/v1", location, "url")) == is_elsewhere
    assert leads_elsewhere("https://host/v1", "http://host/v1", "url"), "not back to plain text"


def test_a_host_in_other_letters_is_shown_in_ascii() -> None:
    """A server's words cannot steer a terminal."""
    why = leads_elsewhere("http://host/", "http://\u202eevil\x1b[2J/", "url")
    assert why.isascii() and why.isprintable()


def test_a_picture_is_not_sent_on(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """The body with the picture goes to the first server alone."""
    first, other = servers
    first.target = f"http://{other.host}/v1/chat/completions"
    store = ImageStore(tmp_path)
    ref = store.put_image(Image.new("RGB", (8, 8)), "x")
    chat = ChatAPI(ChatSpec(model="m", base_url=f"http://{first.host}/v1", api_key_env=None))
    (error,) = chat.ask([ChatRequest("system", "what?", (ref,))], store)
    assert isinstance(error, PrerequisiteError) and other.asked == []
