"""Clients that hold the review page up, or have no token: reviewers get in, and nothing is lost."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.robustness.attacks import Attack, harm
from benchmarks.robustness.commands import Command, gist

GROUP = "the review page"
PATIENCE = 15.0
"""Seconds for a reviewer's request during an attack; headers may take 10."""
MOST_LOGGED = 100_000
"""Bytes that the page may write to its log during an attack."""
Sockets = list[socket.socket]


def attacks(base: Path) -> Iterator[Attack]:
    """Yield the attacks: each opens a page of its own."""
    for name, attack in HELD.items():
        yield Attack(GROUP, name, partial(_held, base, attack), seconds=120)
    for name, request in WITHOUT_TOKEN.items():
        yield Attack(GROUP, f"no token: {name}", partial(_no_token, base, request), seconds=60)
    for name, headers in FORGED.items():
        yield Attack(GROUP, f"forged: {name}", partial(_forged, base, headers), seconds=60)


def _many(n: int, data: bytes) -> Callable[[int], Sockets]:
    def attack(port: int) -> Sockets:
        opened = []
        for _ in range(n):
            try:
                client = socket.create_connection(("127.0.0.1", port), 5)
                client.sendall(data)
                opened.append(client)
            except OSError:
                time.sleep(0.01)
        return opened

    return attack


def _slow(n: int, data: bytes) -> Callable[[int], Sockets]:
    """Connections that send a byte now and then."""

    def attack(port: int) -> Sockets:
        opened = _many(n, data)(port)
        for _ in range(3):
            for client in opened:
                try:
                    client.sendall(b"a")
                except OSError:
                    continue
            time.sleep(1)
        return opened

    return attack


def _deaf(port: int) -> Sockets:
    """Ask for the page over and over, and read nothing."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port
    opened = _many(100, request * 50)(port)
    for client in opened:
        client.settimeout(0.05)
        try:
            client.sendall(request * 2000)
        except OSError:
            continue
    return opened


def _dropped(port: int) -> Sockets:
    """Connections that are reset in the middle of a request."""
    linger = b"\1\0\0\0\0\0\0\0"
    for number in range(2000):
        try:
            client = socket.create_connection(("127.0.0.1", port), 5)
            client.sendall((_START, _BODY, b"", b"\0\xff\xfe")[number % 4])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
        except OSError:
            continue
    return []


_START = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-a: "
_BODY = b"POST /api/verdicts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_LONG = b"Content-Length: 60000000\r\n\r\n{"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"a" * 65536 + b"\r\n"
_MANY_HEADERS = b"".join(b"X-%d: a\r\n" % number for number in range(20_000))
HELD: dict[str, Callable[[int], Sockets]] = {
    "1,100 half-sent headers": _many(1100, _START),
    "1,100 half-sent bodies": _many(1100, _BODY + _LONG),
    "1,100 connections that say nothing": _many(1100, b""),
    "300 headers, a byte a second": _slow(300, _START),
    "300 bodies, a byte a second": _slow(300, _BODY + _LONG),
    "a header of 8 MB": _many(20, _START + b"a" * (8 << 20)),
    "20,000 headers": _many(20, b"GET / HTTP/1.1\r\n" + _MANY_HEADERS + b"\r\n"),
    "an address of 1 MB": _many(20, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
    "bodies of 60 MB": _many(10, _BODY + b"Content-Length: 60000000\r\n\r\n" + b"a" * 60_000_000),
    "bodies in chunks without end": _many(10, _BODY + _CHUNKED + _CHUNKED[30:] * 400),
    "a length of 10¹⁸": _many(100, _BODY + b"Content-Length: 1000000000000000000\r\n\r\n{"),
    "two lengths": _many(100, _BODY + b"Content-Length: 5\r\nContent-Length: 50\r\n\r\n{}"),
    "a negative length": _many(100, _BODY + b"Content-Length: -5\r\n\r\n{}"),
    "beginnings of TLS": _many(500, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600),
    "bytes that are no HTTP": _many(500, b"\xff\xfe\0\x1b[2J" * 100 + b"\r\n\r\n"),
    "an upgrade to WebSocket": _many(
        300,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: YQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ),
    "brackets in a body": _many(
        100, _BODY + b"Origin: http://localhost\r\nContent-Length: 40000\r\n\r\n" + b"[" * 40_000
    ),
    "replies that nobody reads": _deaf,
    "2,000 connections that are reset": _dropped,
}
"""What holds a page up: each attack gets its port, and returns the connections that it keeps."""
WITHOUT_TOKEN: dict[str, tuple[str, str, dict[str, str]]] = {
    "the page": ("GET", "/", {}),
    "the pairs": ("GET", "/api/queue?reviewer=a", {}),
    "a pair": ("GET", "/api/pairs/0", {}),
    "an export": ("GET", "/export/verdicts.csv", {}),
    "a picture": ("GET", "/images/IMAGE", {}),
    "a verdict": ("POST", "/api/verdicts", {}),
    "an import": ("POST", "/api/import", {}),
    "a wrong token": ("GET", "/?token=aaaaaaaaaaaaaaaaaaaaaaaa", {}),
    "an empty token": ("GET", "/?token=", {}),
    "two tokens": ("GET", "/?token=a&token=", {}),
    "a cookie": ("GET", "/", {"Cookie": "token=; flipbench=1; session=1"}),
    "a bearer": ("GET", "/", {"Authorization": "Bearer a"}),
    "from here, it says": ("GET", "/", {"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}),
    "another way to write the path": ("GET", "//api/../api/queue?reviewer=a", {}),
    "HEAD": ("HEAD", "/api/queue?reviewer=a", {}),
    "OPTIONS": ("OPTIONS", "/api/queue?reviewer=a", {}),
}
"""Requests to a page that other machines can reach: method, path, headers."""
_EVIL = {"Origin": "http://evil.example"}
FORGED: dict[str, dict[str, str]] = {
    "another origin": {"Origin": "http://evil.example"},
    "another origin's port": {"Origin": "http://127.0.0.1:1"},
    "no origin, a null one": {"Origin": "null"},
    "a rebound name": {"Host": "evil.example", "Origin": "http://evil.example"},
    "a form": _EVIL | {"Content-Type": "application/x-www-form-urlencoded"},
    "plain text": _EVIL | {"Content-Type": "text/plain"},
    "a part of a form": _EVIL | {"Content-Type": "multipart/form-data; boundary=a"},
    "a cross-site fetch": {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"},
}
"""Headers of requests that a page elsewhere makes a reviewer's browser send."""


def _open(base: Path, folder: Path, *more: str) -> tuple[Command, int, str]:
    """Serve a copy of the run; return the process, the port and the token."""
    shutil.copytree(base / "pairs", folder / "pairs")

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    words = [sys.executable, "-m", "flipbench.cli", "review", "pairs", "--port", "0", *more]
    page = Command(lambda: os.execv(sys.executable, words), folder, prepare)
    while not (address := re.search(rb"http://[^:/\s]+:(\d+)/(?:\?token=(\S+))?", page.text)):
        if ended := page.wait(0.02):
            raise RuntimeError(gist(ended.text))
    return page, int(address[1]), (address[2] or b"").decode()


def _ask(
    port: int, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    return reply.status, reply.read()


def _keys(folder: Path) -> list[list[str]]:
    from flipbench.core.run import Run
    from flipbench.filters.review.tasks import edited_pairs

    with Run(folder / "pairs") as run:
        return [list(pair.key) for pair in edited_pairs(run)]


def _verdict(port: int, key: list[str], note: str, headers: dict[str, str]) -> int:
    body = {"reviewer": "Ada", "key": key, "decision": "keep", "note": note}
    head = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"} | headers
    return _ask(port, "POST", "/api/verdicts", head, json.dumps(body).encode())[0]


def _notes(folder: Path) -> str:
    from flipbench.core.records import Verdict
    from flipbench.core.run import Run

    with Run(folder / "pairs") as run:
        return " ".join(verdict.reason for verdict in run.read(Verdict))


def _held(base: Path, attack: Callable[[int], Sockets], folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    shutil.copytree(base / "pairs", folder / "look" / "pairs")
    (key, *_) = _keys(folder / "look")
    page, port, _ = _open(base, folder)
    before = len(page.text)
    acknowledged = []
    held: Sockets = []
    for note in ("before.", "during.", "after."):
        if note == "during.":
            held = attack(port)
        elif note == "after.":
            for client in held:
                client.close()
            time.sleep(0.5)
        try:
            status, until = 503, time.monotonic() + PATIENCE
            while status == 503 and time.monotonic() < until:  # "try again"
                status = _verdict(port, key, note, {})
        except (OSError, http.client.HTTPException) as error:
            harm("hung", f"a verdict {note} {type(error).__name__}: {error}")
            continue
        if status == 200:
            acknowledged.append(note)
        else:
            harm("lost", f"a verdict {note} status {status}")
        page.wait(0)
    page.stop(signal.SIGINT)
    if page.wait(10) is None:
        harm("hung", "the page does not end")
        page.stop(signal.SIGKILL)
        page.wait(5)
    text = page.text.decode(errors="replace")
    if "Traceback" in text:
        harm("traceback", gist(text))
    if len(text) - before > MOST_LOGGED:
        harm("hung", f"{len(text):,} bytes of messages")
    if _RAW_BYTES.search(text):
        harm("leaked", "raw bytes in the log")
    notes = _notes(folder)
    for note in acknowledged:
        if note not in notes:
            harm("lost", f"the verdict {note}")


_RAW_BYTES = re.compile("[\x1b\x80-\x9f]")


def _no_token(base: Path, request: tuple[str, str, dict[str, str]], folder: Path) -> None:
    page, port, token = _open(base, folder, "--host", "0.0.0.0")
    if not token:
        harm("leaked", "there is no token")
    method, path, headers = request
    (name, *_) = sorted(os.listdir(folder / "pairs" / "images"))
    body = b"{}" if method == "POST" else None
    status, reply = _ask(port, method, path.replace("IMAGE", name.split(".")[0]), headers, body)
    page.wait(0)
    if status < 400:
        harm("leaked", f"status {status}: {reply[:80]!r}")
    if token and token.encode() in reply:
        harm("leaked", "the reply has the token")
    status, _ = _ask(port, "GET", f"/?token={token}", {})
    if status >= 400:
        harm("lost", f"with the token: status {status}")
    page.stop(signal.SIGKILL)
    page.wait(5)


def _forged(base: Path, headers: dict[str, str], folder: Path) -> None:
    shutil.copytree(base / "pairs", folder / "look" / "pairs")
    (key, *_) = _keys(folder / "look")
    page, port, _ = _open(base, folder)
    status = _verdict(port, key, "forged.", headers)
    if status < 400:
        harm("leaked", f"status {status}")
    status = _verdict(port, key, "good.", {})
    if status != 200:
        harm("lost", f"a good verdict: status {status}")
    page.stop(signal.SIGKILL)
    page.wait(5)
    if "forged." in _notes(folder):
        harm("leaked", "a forged verdict is stored")
