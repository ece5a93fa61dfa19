"""A review page on loopback for each test, and who connects to it: programs and browsers."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from flipbench.core.records import Adjudication, Verdict
from flipbench.core.run import Run
from flipbench.filters.review.app import ReviewApp, make_app
from flipbench.filters.review.guard import server_config
from flipbench.filters.review.ledger import Ledger
from flipbench.filters.review.tasks import REVIEW, Task
from tests.fixtures.browser import OpenPage
from tests.fixtures.edited_run import edited_run
from tests.fixtures.flagged_run import flagged_run

Visit = Callable[..., Any]


@dataclass
class Page:
    """A page that is served, the run below it, and how to stop and start the server."""

    run: Run
    address: str
    stop: Callable[[], None]
    start: Callable[[], None]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of people as stored on disk."""
        return [v for v in Run(self.run.path).read(Verdict) if v.rater_kind == "person"]

    @property
    def adjudications(self) -> list[Adjudication]:
        """The labels of flagged pairs as stored on disk."""
        return list(Run(self.run.path).read(Adjudication))


@pytest.fixture(scope="session")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited_run(tmp_path_factory.mktemp("review") / "discs", 30).path


@pytest.fixture(scope="session")
def flagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flagged_run(tmp_path_factory.mktemp("flagged") / "scans").path


@pytest.fixture
def serve(discs: Path, flagged: Path, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Serve a copy of a run; every test has a copy and a port of its own."""
    pages: list[Page] = []

    def start(blind: bool = False, token: str | None = None, task: Task = REVIEW) -> Page:
        source = discs if task is REVIEW else flagged
        run = Run(shutil.copytree(source, tmp_path / f"{source.name}{len(pages)}"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serving: list[Any] = []

        def up(bound: socket.socket | None = None) -> None:
            ledger = Ledger(run, task.load(run, None), task)
            app = make_app(ReviewApp(ledger, run.images, source.name, blind), token)
            server = uvicorn.Server(server_config(app, timeout_graceful_shutdown=1))
            sock = bound or socket.create_server(("127.0.0.1", port))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.01)
            serving[:] = [server, thread, sock]

        def down() -> None:
            server, thread, sock = serving
            server.should_exit = True
            thread.join(30)
            sock.close()

        up(listener)
        pages.append(Page(run, f"http://127.0.0.1:{port}/", down, up))
        return pages[-1]

    yield start
    for page in pages:
        page.stop()
        page.run.close()


class Client:
    """One connection to a server."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.port = parts.port
        self.connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request("GET" if data is None else "POST", path, data, dict(headers or {}))
        response = self.connection.getresponse()
        text = response.read()
        if response.headers.get_content_type() == "application/json":
            return response.status, json.loads(text), response
        return response.status, text, response

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask(path, None, {k.replace("_", "-"): v for k, v in headers.items()})[:2]

    def decide(self, pair: Mapping[str, Any], reviewer: str, **fields: Any) -> tuple[int, Any]:
        body = {"reviewer": reviewer, "decision": "keep", "key": pair["key"]} | fields
        return self.ask("/api/verdicts", body)[:2]


def pairs_of(client: Client, reviewer: str, n: int) -> list[dict[str, Any]]:
    return [client.get(f"/api/pairs/{position}?reviewer={reviewer}")[1] for position in range(n)]


@pytest.fixture
def visit(open_page: OpenPage) -> Visit:
    """Open the review page as a named reviewer."""

    def visit_as(address: str, name: str = "anna", **settings: Any) -> Any:
        page = open_page(address, **{"viewport": {"width": 1280, "height": 800}} | settings)
        page.get_by_label("Your name").fill(name)
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-shown]")
        return page

    return visit_as
