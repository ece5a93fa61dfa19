"""The server itself: who is let in, what can be fetched, what a kill leaves."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from PIL import Image

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Caption, Edit, Flip, Item, Source, Verdict
from flipbench.core.run import Run
from flipbench.filters.review import app, guard
from flipbench.filters.review.ledger import Ledger
from flipbench.filters.review.serve import import_verdicts, serve_review
from flipbench.filters.review.tasks import edited_pairs
from tests.filters.review.conftest import Client, pairs_of
from tests.fixtures.edited_run import edited_run

pytestmark = pytest.mark.slow

SERVE = """
import json, sys
from flipbench.filters.review.serve import serve_review
serve_review(sys.argv[1], **json.loads(sys.argv[2]))
"""


@contextmanager
def process(run: Path, **settings: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a run in a process of its own; give its address."""
    command = [sys.executable, "-c", SERVE, str(run), json.dumps({"port": 0} | settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            line = server.stdout.readline()
            assert "http://" in line
            yield next(word for word in line.split() if word.startswith("http://")), server
        finally:
            server.kill()


@pytest.fixture
def client(serve: Any) -> Client:
    return Client(serve().address)


def test_a_kill_loses_no_verdict_that_was_acknowledged(discs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(discs, tmp_path / "run"))
    acknowledged: dict[tuple[str, str, str], int] = {}
    enough, lock = threading.Event(), threading.Lock()

    def burst(address: str, reviewer: str, pairs: list[dict[str, Any]]) -> None:
        client = Client(address)
        try:
            for turn in range(1000):
                for pair in pairs:
                    note = f"turn {turn}"
                    assert client.decide(pair, reviewer, note=note)[0] == 200
                    with lock:
                        acknowledged[reviewer, pair["key"][0], f"note: {note}"] = turn
                        if len(acknowledged) >= 150:
                            enough.set()
        except (OSError, http.client.HTTPException):
            return  # killed

    with process(run) as (address, server):
        pairs = pairs_of(Client(address), "anna", 30)
        threads = [
            threading.Thread(target=burst, args=(address, name, pairs))
            for name in ("anna", "ben", "cleo", "anna")
        ]
        for thread in threads:
            thread.start()
        assert enough.wait(120)
        os.kill(server.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
    kept = {(v.rater, v.edit_id, v.reason) for v in Run(run).read(Verdict)}
    assert len(acknowledged) >= 150
    assert set(acknowledged) <= kept
    with process(run) as (address, server):  # and the next server goes on from there
        counts = Client(address).get("/api/queue?reviewer=ben")[1]["counts"]
        assert counts["keep"] == len({e for r, e, _ in kept if r == "ben"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8765", "Origin": "http://evil.example:8765"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[bad"}, 403),
        ({"Host": "localhost:4242", "Origin": "http://localhost:4242"}, 200),
        ({"Host": "[::1]:4242"}, 200),
    ],
)
def test_other_origins_are_refused(client: Client, headers: dict[str, str], status: int) -> None:
    for path in ("/api/queue?reviewer=anna", "/export/verdicts.csv"):
        assert client.get(path, **headers)[0] == status
    assert (
        client.ask(
            "/api/undo", {"reviewer": "x"}, {k.replace("_", "-"): v for k, v in headers.items()}
        )[0]
        == status
    )


def test_a_link_on_another_site_opens_the_page_and_nothing_else(client: Client) -> None:
    link = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
    }
    assert client.get("/", **link)[0] == 200
    assert client.get("/", **link | {"Sec_Fetch_Dest": "iframe"})[0] == 403
    assert client.get("/export/verdicts.csv", **link)[0] == 403


def test_headers_keep_other_sites_out(client: Client) -> None:
    for path in ("/", "/api/queue?reviewer=a", "/nothing"):
        headers = client.ask(path)[2].headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/images/../verdicts",
        "/images/..%2f..%2fsecret",
        "/images/" + "a" * 64,
        "/images/" + quote("../config.yaml", safe=""),
        "/images/%2e%2e/config.yaml",
        "/images//etc/passwd",
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/review.html.jinja",
        "/export/../config.yaml",
        "/export/config.yaml",
        "//etc/passwd",
        "/api/pairs/30?reviewer=a",
    ],
)
def test_only_known_paths_can_be_fetched(client: Client, path: str) -> None:
    assert client.get(path)[0] == 404


def test_images_of_the_run_can_be_fetched(serve: Any) -> None:
    served = serve()
    pair = pairs_of(client := Client(served.address), "anna", 1)[0]
    status, data, response = client.ask(pair["right"]["src"])
    assert status == 200 and response.headers["content-type"] == "image/png"
    assert data == (served.run.path / "images" / f"{pair['key'][1]}.png").read_bytes()
    outside = served.run.path.parent / "outside.png"
    outside.write_bytes(b"secret")
    stored = served.run.path / "images" / f"{pair['key'][1]}.png"
    stored.unlink()
    stored.symlink_to(outside)
    assert client.get(pair["right"]["src"])[0] == 500


def test_a_format_browsers_cannot_show_is_sent_as_png(tmp_path: Path, serve: Any) -> None:
    run = edited_run(tmp_path / "run", 1)
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(buffer, "TIFF")
    ref = run.images.put(buffer.getvalue(), "tiff")
    item = Item(
        benchmark="b",
        name="tiff",
        images=(ref,),
        question="?",
        answer_text="x",
        source=Source(dataset="b"),
    )
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=None, new_text="y")
    caption = Caption(flip_id=flip.id, captioner="c", prompt="p", text="t")
    edit = Edit(
        caption_id=caption.id,
        caption_text="t",
        source_sha256=ref.sha256,
        editor="e",
        seed=0,
        image=ref,
    )
    run.append([item, flip, caption, edit])
    with process(run.path) as (address, _):
        client = Client(address)
        status, data, response = client.ask(f"/images/{ref.sha256}")
    assert status == 200 and response.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(data)).getpixel((5, 5)) == (0, 128, 128)


def test_everyone_must_give_the_token_once(serve: Any) -> None:
    token = "correct-horse-battery"
    client = Client(serve(token=token).address)
    for path in ("/", "/api/queue?reviewer=a", "/page/review.js", "/?token=wrong"):
        status, text, response = client.ask(path)
        assert status == 401 and "set-cookie" not in response.headers
        assert token not in str(text)
    status, _, response = client.ask(f"/?token={token}")
    cookie = response.headers["set-cookie"]
    assert status == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    known = {"Cookie": cookie.partition(";")[0], "Host": "lab.example:8765"}
    assert client.get("/api/queue?reviewer=a", **known)[0] == 200
    assert client.get("/api/queue?reviewer=a", **known, Origin="http://evil.example")[0] == 403
    assert client.get("/api/queue?reviewer=a", Cookie=known["Cookie"] + "x")[0] == 401


def test_a_public_address_gets_a_token(discs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(discs, tmp_path / "run"))
    with process(run, host="0.0.0.0") as (address, _):
        client, token = Client(address), urlsplit(address).query
        assert client.get("/")[0] == 401
        assert len(token) > 24 and client.get(f"/?{token}")[0] == 200
    with process(run) as (address, _):
        assert urlsplit(address).hostname == "127.0.0.1" and "token" not in address
        assert Client(address).get("/")[0] == 200
        with pytest.raises(DataError, match="a review page is open on this run"):
            serve_review(run, port=0)
        (tmp_path / "x.csv").write_text("edit_id,image_sha256,rater,decision\n")
        with pytest.raises(DataError, match="a review page is open on this run"):
            import_verdicts(run, tmp_path / "x.csv")


def test_runs_that_cannot_be_served_are_refused(discs: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}: cannot listen there .*another port"):
            serve_review(discs, port=port)
    with pytest.raises(ConfigError, match="no address"):
        serve_review(discs, host="no.such.host.invalid")
    with pytest.raises(ConfigError, match="ports range from 0"):
        serve_review(discs, port=70_000)
    with pytest.raises(ConfigError, match="16 characters"):
        serve_review(discs, port=0, token="short")
    with pytest.raises(DataError, match="not a run with edited images"):
        serve_review(tmp_path / "nothing", port=0)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "empty" / "edits").mkdir(parents=True)
    with pytest.raises(DataError, match="no edited images to review"):
        serve_review(tmp_path / "empty", port=0)


def test_malformed_requests_are_refused(serve: Any) -> None:
    served = serve()
    client = Client(served.address)
    pair = pairs_of(client, "anna", 2)[0]
    other = pairs_of(client, "anna", 2)[1]
    place = {"key": pair["key"]}
    for status, body in [
        (400, b"{"),
        (400, b""),
        (400, b'{"reviewer": "\\ud800"}'),
        (400, {"reviewer": "anna", "decision": "perhaps"} | place),
        (400, {"reviewer": "anna", "decision": "keep", "run": 7} | place),
        (400, {"reviewer": "anna", "decision": "keep", "note": "x" * 2001} | place),
        (400, {"reviewer": "anna", "decision": "reject", "reason": "ugly"} | place),
        (400, {"reviewer": "anna", "decision": "keep", "seconds": -1} | place),
        (409, {"reviewer": "", "decision": "keep"} | place),
        (409, {"reviewer": "test judge", "decision": "keep"} | place),
        (409, {"reviewer": "a", "decision": "keep"} | {"key": ["0" * 24, pair["key"][1]]}),
        (409, {"reviewer": "a", "decision": "keep"} | {"key": [other["key"][0], pair["key"][1]]}),
    ]:
        found, reply, _ = client.ask("/api/verdicts", body)
        assert found == status and reply["error"], body
    assert client.get("/api/queue?reviewer=a&show=best")[0] == 400
    assert served.verdicts == []


def test_blind_verdicts_need_an_answer(serve: Any) -> None:
    client = Client(serve(blind=True).address)
    pair = pairs_of(client, "anna", 1)[0]
    assert pair["hidden"] and "new_text" not in pair
    assert client.decide(pair, "anna")[0] == 409
    place = {"key": pair["key"]}
    status, reply, _ = client.ask("/api/answers", {"reviewer": "anna", "answer": "green"} | place)
    assert status == 200 and reply["new_text"] == "green"
    assert client.decide(pair, "anna")[0] == 200
    assert client.decide(pair, "ben")[0] == 409


def test_an_empty_answer_is_no_answer(serve: Any) -> None:
    served = serve(blind=True)
    client = Client(served.address)
    place = {"reviewer": "anna", "key": pairs_of(client, "anna", 1)[0]["key"]}
    for blank in ("", " \n"):
        status, reply, _ = client.ask("/api/answers", place | {"answer": blank})
        assert (status, reply["error"][:7]) == (400, "answer:")
    assert served.verdicts == []


def test_ctrl_c_ends_a_review_with_the_next_command(discs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(discs, tmp_path / "run"))
    command = [sys.executable, "-m", "flipbench.cli", "review", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as server:
        assert server.stdout
        address = re.search("http://[^ ]+", server.stdout.readline())
        assert address
        client = Client(address[0])
        with socket.create_connection(("127.0.0.1", client.port)) as lost:
            lost.sendall(
                b"POST /api/undo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            )
        assert client.decide(pairs_of(client, "anna", 1)[0], "anna")[0] == 200
        server.send_signal(signal.SIGINT)
        _, messages = server.communicate(timeout=30)
    assert server.returncode == 0
    assert messages == (
        f"Next:\n  flipbench filter {run}/config.yaml  # keeps the pairs by these verdicts\n"
    )


def test_blind_means_blind_on_the_server(serve: Any) -> None:
    served = serve(blind=True)
    client = Client(served.address)
    pair = pairs_of(client, "anna", 1)[0]
    edit = next(e for e in served.run.read(Edit) if e.id == pair["key"][0])
    original = f"/images/{edit.source_sha256}"
    assert client.get(original)[0] == 403, "not by its hash either"
    assert client.get(original + "?key=" + "0" * 32)[0] == 403
    assert client.get(pair["right"]["src"])[0] == 200
    for name in ("verdicts.csv", "label-studio.json"):
        assert client.get(f"/export/{name}")[0] == 403
    for query in ("show=disagreement", "show=all&judges=keep", "show=all&judges=doubt"):
        assert client.get(f"/api/queue?reviewer=anna&{query}")[1]["positions"] == []

    row = f"{pair['key'][0]},{pair['key'][1]}"
    head = "edit_id,image_sha256,rater,decision,blind_answer\n"
    status, reply, _ = client.ask("/api/import", f"{head}{row},anna,keep,green\n".encode())
    assert status == 400 and "anna has not answered" in reply["error"]
    assert served.verdicts == []

    place = {"key": pair["key"]}
    _, reply, _ = client.ask("/api/answers", {"reviewer": "anna", "answer": "green"} | place)
    assert client.get(reply["left"]["src"])[0] == 200
    queue = "/api/queue?reviewer=anna&show=all&judges="
    judged = [client.get(queue + judges)[1] for judges in ("keep", "doubt")]
    assert {p for found in judged for p in found["positions"]} == {pair["position"]}
    status, reply, _ = client.ask("/api/import", f"{head}{row},anna,keep,\n".encode())
    assert status == 200, reply
    (verdict,) = {v.blind_answer for v in served.verdicts}
    assert verdict == "green"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/api/pairs/{'9' * 5_000}?reviewer=anna", None),
        ("/api/pairs/first?reviewer=anna", None),
        ("/api/pairs/-1?reviewer=anna", None),
        ("/api/verdicts", b"[" * 100_000),
        ("/api/undo", b'{"reviewer": ' + b"9" * 5_000 + b"}"),
        ("/api/import?name=x.json", b"[" * 100_000),
        ("/api/import?name=x.json", b"[" + b"9" * 5_000 + b"]"),
        ("/api/import?name=x.csv", b"\xff\xfe"),
        ("/api/import?name=x.csv", b"edit_id,image_sha256,rater,decision\n" + b"x" * 200_000),
    ],
)
def test_a_bad_request_is_no_error_of_the_server(serve: Any, path: str, body: bytes | None) -> None:
    status, reply, _ = Client(serve().address).ask(path, body)
    assert status == 400 and reply["error"]


def test_no_verdict_is_acknowledged_on_a_full_disk(discs: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(discs, tmp_path / "run"))
    ledger = Ledger(run, edited_pairs(run))
    ledger.decide("anna", 0, "keep")
    (run.path / "verdicts").rename(run.path / "gone")
    (run.path / "verdicts").write_text("no folder")
    run.close()
    with pytest.raises(DataError, match="cannot append"):
        ledger.decide("anna", 1, "keep")
    assert ledger.queue("anna", "undecided")[0] == 1
    assert ledger.counts("anna") == {"keep": 1, "reject": 0, "unsure": 0}


@pytest.mark.parametrize("start", ["GET / HTTP/1.1\r\nX-a: ", "POST /api/undo HTTP/1.1\r\n", ""])
def test_half_sent_requests_neither_block_a_review_nor_stay(
    start: str, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with complete headers and a body that never ends, and where nothing is sent."""
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    address = serve().address
    port = urlsplit(address).port
    if start.startswith("POST"):
        start += f"Host: localhost:{port}\r\nContent-Length: 9999\r\n\r\n{{"
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(30):
            slow.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            slow[-1].sendall(start.encode())
        assert Client(address).get("/api/queue?reviewer=anna")[0] == 200
        until = time.monotonic() + 20
        for client in slow:  # a byte now and then postpones nothing
            client.settimeout(0.02)
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    try:
                        client.sendall(b"a" if start else b"")
                        if not client.recv(100):
                            break
                    except ConnectionError:
                        break
        assert time.monotonic() < until
        assert Client(address).get("/api/queue?reviewer=anna")[0] == 200


def test_large_requests_are_refused(client: Client) -> None:
    assert client.ask("/api/undo", b'{"reviewer": "' + b"a" * app.MAX_JSON + b'"}')[0] == 413
    with contextlib.suppress(ConnectionError):  # or it hangs up while they are sent
        assert client.get("/", X_a="a" * 2_000_000)[0] == 400


def test_errors_of_clients_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    with guard.few_messages(lambda: now):
        for _ in range(1000):
            logging.getLogger("asyncio").error("no descriptors", exc_info=OSError(24, "x"))
        assert len(caplog.records) == 10
        assert "left out" in caplog.messages[-1]
        now = 61.0
        logging.getLogger("uvicorn.error").error("later")
    assert caplog.messages[-1] == "later"
