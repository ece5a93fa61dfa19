"""What servers that misbehave do to the chat client.

    python benchmarks/robustness/servers.py [--seed 0] [--n 240]

A server answers each request with a fault drawn at random: silence, a byte now and then, a cut
reply, an endless or a compressed huge one, no HTTP, no JSON, JSON of an odd form, an error status;
some echo the key. One request in ten gets a good reply. The table counts what came back. "Lost"
is a fault taken for an answer, a good reply that was refused, any other error, the key in a
message, or more than twice the time-out.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import logging
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError
from flipbench.core.images import ImageStore
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest

TIMEOUT = 1.0
KEY = "q7Zp-3fKx-91Lm-vTab"
GOOD: dict[str, Any] = {
    "choices": [{"message": {"content": "A star."}, "finish_reason": "stop"}],
    "model": "m",
}
ODD: list[Any] = [
    None,
    [],
    3,
    KEY,
    {},
    {"choices": None},
    {"choices": []},
    {"choices": [None]},
    {"choices": [{"message": KEY}]},
    {"choices": [{"message": {"content": [1]}}]},
    {"choices": [{"message": {"content": ""}}]},
    GOOD | {"usage": "x"},
    GOOD | {"usage": {"prompt_tokens": "many"}},
    {"error": {"message": f"no access for {KEY}"}},
]
FAULTS = (
    "silence",
    "a byte of the header now and then",
    "a byte of the reply now and then",
    "cut",
    "endless",
    "200 MB, compressed",
    "no HTTP",
    "no JSON",
    "JSON of an odd form",
    "nested up to 100,000 deep",
    "an error status",
)


def head(n_bytes: int, *lines: str, status: str = "200 OK") -> bytes:
    fields = ["content-type: application/json", f"content-length: {n_bytes}", *lines]
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "\r\n"]).encode()


def drip(data: bytes, connection: socket.socket) -> None:
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(TIMEOUT / 4)


def answer(fault: str, rng: np.random.Generator, connection: socket.socket) -> None:
    good = json.dumps(GOOD).encode()
    packed = gzip.compress(b" " * 200_000_000) if fault == "200 MB, compressed" else b""
    if fault == "silence":
        time.sleep(3 * TIMEOUT)
    elif fault == "a byte of the header now and then":
        drip(head(len(good)), connection)
    elif fault == "a byte of the reply now and then":
        connection.sendall(head(len(good)))
        drip(good, connection)
    elif fault == "cut":
        connection.sendall((head(len(good)) + good)[: rng.integers(1, 80 + len(good) // 2)])
    elif fault == "endless":
        connection.sendall(head(10**12))
        while True:
            connection.sendall(b" " * 65536)
    elif fault == "200 MB, compressed":
        connection.sendall(head(len(packed), "content-encoding: gzip") + packed)
    elif fault == "no HTTP":
        connection.sendall(rng.bytes(200))
    elif fault == "no JSON":
        body = rng.bytes(50) + KEY.encode()
        connection.sendall(head(len(body)) + body)
    elif fault == "nested up to 100,000 deep":
        body = b"[" * int(rng.integers(100, 100_000))
        connection.sendall(head(len(body)) + body)
    elif fault == "an error status":
        code = rng.choice(["400 Bad Request", "418 No", "500 Oh", "503 Down", "301 Moved"])
        body = json.dumps({"error": {"message": f"key {KEY}", "code": KEY}}).encode()
        connection.sendall(head(len(body), "location: /nowhere", status=code) + body)
    else:
        body = json.dumps(GOOD if fault == "good" else ODD[rng.integers(len(ODD))]).encode()
        connection.sendall(head(len(body)) + body)


def serve(rng: np.random.Generator, faults: dict[int, str]) -> str:
    """Start a server; the n-th request of ``faults`` gets its fault."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)

    def one(connection: socket.socket, own: np.random.Generator) -> None:
        with contextlib.suppress(OSError), connection:
            asked = connection.recv(1 << 16)
            while b"number " not in asked:
                asked += connection.recv(1 << 16) or b"number 0."
            number = int(asked.split(b"number ")[1].split(b".")[0])
            answer(faults[number], own, connection)

    def accept() -> None:
        for own in iter(lambda: rng.spawn(1)[0], None):
            connection, _ = listening.accept()
            threading.Thread(target=one, args=(connection, own), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def outcome(chat: ChatAPI, number: int, fault: str) -> str:
    start = time.monotonic()
    request = ChatRequest("Describe.", f"number {number}.")
    try:
        (reply,) = chat.ask([request], ImageStore(Path("nowhere")))
    except Exception as error:
        print(f"{fault}: {type(error).__name__}: {str(error)[:200]}")
        return "lost"
    in_time = time.monotonic() - start < 2 * TIMEOUT
    if isinstance(reply, ChatReply):
        answered = fault in ("good", "JSON of an odd form") and reply.text == "A star."
        return "answered" if answered and in_time else "lost"
    is_clean = isinstance(reply, FlipbenchError) and KEY not in str(reply)
    if not (is_clean and in_time and fault != "good"):
        print(f"{fault}: {time.monotonic() - start:.1f} s, {reply}")
        return "lost"
    return "failed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=240)
    args = parser.parse_args()
    logging.disable()
    rng = np.random.default_rng(args.seed)
    faults = {
        number: "good" if number % 10 == 0 else str(rng.choice(FAULTS)) for number in range(args.n)
    }
    os.environ["FLIPBENCH_TEST_KEY"] = KEY
    settings: dict[str, Any] = {"timeout": TIMEOUT, "max_retries": 0}
    spec = ChatSpec(
        model="m", base_url=serve(rng, faults), api_key_env="FLIPBENCH_TEST_KEY", **settings
    )
    found: dict[str, Counter[str]] = {fault: Counter() for fault in ("good", *FAULTS)}
    chat = ChatAPI(spec)
    chat.answered = True
    for number, fault in faults.items():
        found[fault][outcome(chat, number, fault)] += 1
    print("| reply | requests | answered | failed | lost |")
    print("|---|---:|---:|---:|---:|")
    total = Counter[str]()
    for fault, counts in found.items():
        total += counts
        cells = [counts[key] for key in ("answered", "failed", "lost")]
        print(f"| {fault} | {counts.total()} | {' | '.join(map(str, cells))} |")
    cells = [total[key] for key in ("answered", "failed", "lost")]
    print(f"| all | {total.total()} | {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
