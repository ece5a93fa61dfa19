"""A chat server that answers each request with a fault drawn at random."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.robustness.bad_files import ODD as ODD_PARTS
from benchmarks.robustness.bad_files import parts, replaced

TIMEOUT = 1.0
"""Seconds that the clients wait for a whole reply."""
KEY = "q7Zp-3fKx-91Lm-vTab"
TEXT = "B) a star"
_LETTERS = {"A": -3.0, "B": -0.25, "C": -4.0, "D": -5.0}
GOOD: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT},
            "logprobs": {
                "content": [
                    {
                        "token": "B",
                        "logprob": _LETTERS["B"],
                        "top_logprobs": [
                            {"token": token, "logprob": value} for token, value in _LETTERS.items()
                        ],
                    }
                ]
            },
            "finish_reason": "stop",
        }
    ],
    "model": "m",
}
WHOLE: list[Any] = [
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
    {"choices": [{"message": {"content": ""}, "finish_reason": "error"}]},
    {"error": {"message": f"no access for {KEY}"}},
]
"""Replies of an odd form, beside those in which one part is replaced."""
RETRIED = (
    "silence",
    "a byte of the header now and then",
    "a byte of the reply now and then",
    "later than the time-out",
    "cut",
    "connection reset",
    "429, with Retry-After",
    "429, without",
    "5xx",
    "no HTTP",
)
"""Faults that another attempt mends."""
LARGE = ("endless", "200 MB, compressed")
"""Faults that another attempt mends if the time was up before the limit of the size."""
FAULTS = (
    *RETRIED,
    *LARGE,
    "no JSON",
    "JSON of an odd form",
    "nested up to 100,000 deep",
    "another error status",
)


def prompt_tokens(text: str) -> list[Any]:
    """Return vLLM's ``prompt_logprobs`` of a text whose tokens are its characters."""
    rows = [{str(ord(c)): {"logprob": -0.5, "rank": 1, "decoded_token": c}} for c in text]
    return [None, *rows[1:]]


class FaultServer:
    """A server on loopback; the n-th request, which says "number n.", gets its fault.

    Attributes
    ----------
    base_url : str
    attempts : Counter of int
        How often each number was sent.
    """

    def __init__(self, faults: dict[int, str], seed: int, *, n_faulty: int = 10**9) -> None:
        self.faults, self.n_faulty = faults, n_faulty
        self.attempts: Counter[int] = Counter()
        self._seed, self._packed = seed, gzip.compress(b" " * 200_000_000)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.base_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(20)
            data = b""
            while b"\r\n\r\n" not in data:
                data += _received(connection)
            fields, _, body = data.partition(b"\r\n\r\n")
            names = {k.lower(): v for k, v in (f.split(b": ") for f in fields.split(b"\r\n")[1:])}
            while len(body) < int(names.get(b"content-length", 0)):
                body += _received(connection)
            messages = json.loads(body)["messages"]
            asked = "".join(_text(message["content"]) for message in messages)
            before, says_number, after = asked.partition("number ")
            number = int(after.split(".")[0]) if says_number else -1
            self.attempts[number] += 1
            is_faulty = self.attempts[number] <= self.n_faulty
            fault = self.faults.get(number, "good") if is_faulty else "good"
            rng = np.random.default_rng([self._seed, number + 1, self.attempts[number]])
            good = GOOD | {"prompt_logprobs": prompt_tokens(asked)}
            good["usage"] = {"prompt_tokens": len(asked), "completion_tokens": 1}
            self._answer(fault, good, rng, connection)

    def _answer(
        self, fault: str, good: dict[str, Any], rng: np.random.Generator, connection: socket.socket
    ) -> None:
        body = json.dumps(good).encode()
        if fault == "silence":
            time.sleep(3 * TIMEOUT)
        elif fault == "a byte of the header now and then":
            _drip(_head(len(body)), connection)
        elif fault == "a byte of the reply now and then":
            connection.sendall(_head(len(body)))
            _drip(body, connection)
        elif fault == "later than the time-out":
            time.sleep(1.5 * TIMEOUT)
            connection.sendall(_head(len(body)) + body)
        elif fault == "cut":
            connection.sendall((_head(len(body)) + body)[: rng.integers(1, len(body))])
        elif fault == "connection reset":
            connection.sendall((_head(len(body)) + body)[: rng.integers(0, len(body))])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif fault == "endless":
            connection.sendall(_head(10**12))
            while True:
                connection.sendall(b" " * 65536)
        elif fault == "200 MB, compressed":
            head = _head(len(self._packed), "content-encoding: gzip")
            connection.sendall(head + self._packed)
        elif fault == "no HTTP":
            connection.sendall(rng.bytes(200))
        elif fault == "no JSON":
            body = rng.bytes(50) + KEY.encode()
            connection.sendall(_head(len(body)) + body)
        elif fault == "nested up to 100,000 deep":
            body = b"[" * int(rng.integers(100, 100_000))
            connection.sendall(_head(len(body)) + body)
        elif fault in ("429, with Retry-After", "429, without", "5xx", "another error status"):
            _refuse(fault, rng, connection)
        else:
            body = body if fault == "good" else json.dumps(_odd(good, rng)).encode()
            connection.sendall(_head(len(body)) + body)


def _refuse(fault: str, rng: np.random.Generator, connection: socket.socket) -> None:
    fields = ["location: /nowhere"]
    if fault == "5xx":
        status = str(rng.choice(["500 Oh", "502 Bad Gateway", "503 Down", "529 Overloaded"]))
    elif fault == "another error status":
        status = str(rng.choice(["400 Bad Request", "413 Large", "418 No", "422 Odd"]))
    else:
        status = "429 Slow down"
        fields += ["retry-after: 1"] if fault == "429, with Retry-After" else []
    body = json.dumps({"error": {"message": f"key {KEY}", "code": KEY}}).encode()
    connection.sendall(_head(len(body), *fields, status=status) + body)


def _odd(good: dict[str, Any], rng: np.random.Generator) -> Any:
    """Return a reply of another form, or with another value in one place that matters."""
    if rng.random() < 0.3:
        return WHOLE[rng.integers(len(WHOLE))]
    chosen = random.Random(int(rng.integers(2**31)))
    places = [place for place in parts(good) if place[:1] != ("prompt_logprobs",)]
    places += [("prompt_logprobs", 5), ("prompt_logprobs",)] * 5
    place, odd = chosen.choice(places), chosen.choice(ODD_PARTS)
    if place[-2:] == ("message", "content") and (odd in (None, []) or isinstance(odd, str)):
        odd = 5  # those are texts, or say that there is none
    return replaced(good, place, odd)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def _received(connection: socket.socket) -> bytes:
    if not (data := connection.recv(1 << 16)):
        raise ConnectionError("the client is gone")
    return data


def _head(n_bytes: int, *lines: str, status: str = "200 OK") -> bytes:
    fields = ["content-type: application/json", f"content-length: {n_bytes}", *lines]
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "connection: close", "\r\n"]).encode()


def _drip(data: bytes, connection: socket.socket) -> None:
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(TIMEOUT / 4)
