"""A server can hold a request no longer than its time-out, and send no more than the limit."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import ServiceError
from flipbench.core.images import ImageStore
from flipbench.models.chat import bounds
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest

TIMEOUT = 0.5
BODY = json.dumps(
    {"choices": [{"message": {"content": "A star."}, "finish_reason": "stop"}], "model": "m"}
).encode()
Answer = Callable[[socket.socket], None]
Serve = Callable[[Answer], str]


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "content-type: application/json", *lines]).encode()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server, which answers every request by ``answer``."""
    sockets: list[socket.socket] = []

    def start(answer: Answer) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def one(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                connection.recv(1 << 16)
                answer(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/v1"

    yield start
    for listening in sockets:
        listening.close()


def ask(url: str, store: ImageStore, **settings: Any) -> tuple[Any, float]:
    """Return the reply to one request, and the seconds that it took."""
    chosen: dict[str, Any] = {"timeout": TIMEOUT, "max_retries": 0, "api_key_env": None}
    chat = ChatAPI(ChatSpec(model="m", base_url=url, **(chosen | settings)))
    assert chat.client  # imports the openai package
    start = time.monotonic()
    (reply,) = chat.ask([ChatRequest("Describe.", "a star")], store)
    return reply, time.monotonic() - start


def drip(data: bytes, connection: socket.socket) -> None:
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(TIMEOUT / 5)


def slow_head(connection: socket.socket) -> None:
    drip(head("x-slow: " + "x" * 200) + b"\r\n\r\n", connection)


def slow_body(connection: socket.socket) -> None:
    connection.sendall(head(f"content-length: {len(BODY)}") + b"\r\n\r\n")
    drip(BODY, connection)


def no_end(connection: socket.socket) -> None:
    connection.sendall(head("transfer-encoding: chunked") + b"\r\n\r\n")
    drip(b"1\r\n \r\n" * 500, connection)


def silent(connection: socket.socket) -> None:
    time.sleep(10 * TIMEOUT)


@pytest.mark.parametrize("answer", [slow_head, slow_body, no_end, silent])
def test_the_time_out_bounds_the_whole_attempt(
    answer: Answer, serve: Serve, store: ImageStore
) -> None:
    reply, seconds = ask(serve(answer), store)
    assert isinstance(reply, ServiceError) and "did not answer within 0.5 s, 1 times" in str(reply)
    assert seconds < 4 * TIMEOUT


def test_looking_up_the_servers_name_counts(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(4 * TIMEOUT))
    reply, seconds = ask("http://server.invalid/v1", store)
    assert isinstance(reply, ServiceError) and "did not answer within 0.5 s" in str(reply)
    assert seconds < 3 * TIMEOUT


def test_every_attempt_has_the_whole_time(serve: Serve, store: ImageStore) -> None:
    n_asked = []

    def second_time(connection: socket.socket) -> None:
        n_asked.append(1)
        if len(n_asked) == 1:
            slow_body(connection)
        connection.sendall(head(f"content-length: {len(BODY)}") + b"\r\n\r\n")
        time.sleep(TIMEOUT / 2)
        connection.sendall(BODY)

    reply, _ = ask(serve(second_time), store, max_retries=1)
    assert isinstance(reply, ChatReply) and reply.usage["n_retries"] == 1


def test_a_reply_over_the_limit_is_not_read_to_its_end(
    serve: Serve, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_REPLY_BYTES", 100_000)
    sent = []

    def endless(connection: socket.socket) -> None:
        connection.sendall(head("transfer-encoding: chunked") + b"\r\n\r\n")
        for _ in range(10_000):
            connection.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
            sent.append(0x8000)

    reply, _ = ask(serve(endless), store, max_retries=3, timeout=20)
    assert isinstance(reply, ServiceError) and "more than 100,000 bytes" in str(reply)
    assert sum(sent) < 50_000_000


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_a_small_reply_that_unpacks_to_a_huge_one_is_refused(
    status: str, serve: Serve, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_REPLY_BYTES", 1_000_000)
    packed = gzip.compress(b" " * 100_000_000)

    def bomb(connection: socket.socket) -> None:
        lines = head("content-encoding: gzip", f"content-length: {len(packed)}", status=status)
        connection.sendall(lines + b"\r\n\r\n" + packed)

    reply, seconds = ask(serve(bomb), store, max_retries=3, timeout=20)
    assert isinstance(reply, ServiceError) and "more than 1,000,000 bytes" in str(reply)
    assert seconds < 10


def test_a_compressed_reply_under_the_limit_is_read(serve: Serve, store: ImageStore) -> None:
    packed = gzip.compress(BODY)

    def answer(connection: socket.socket) -> None:
        lines = head("content-encoding: gzip", f"content-length: {len(packed)}")
        connection.sendall(lines + b"\r\n\r\n" + packed)

    reply, _ = ask(serve(answer), store)
    assert isinstance(reply, ChatReply) and reply.text == "A star."
