"""Servers of captions, judgements and answers that reply without end, or send one elsewhere."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.robustness.attacks import Attack, harm

ENDLESS = "endless replies"
ELSEWHERE = "redirects to another server"
N = 600_000
SECONDS = 5.0
"""Time for one reader and one reply of `N` characters, on a busy machine."""
REPLIES: dict[str, str] = {
    "newlines": "\n" * N,
    "spaces": " " * N,
    "tabs and line ends": "\t\r\n" * (N // 3),
    "yes no": "yes no " * (N // 7),
    "letters": "A" * N,
    "(A": "(A" * (N // 2),
    "A. B.": "A. B. " * (N // 6),
    "stars": "*" * N,
    "underscores": "_a_" * (N // 3),
    "backticks": "`" * N,
    "open thoughts": "<think>" * (N // 7),
    "closed thoughts": "</think>" * (N // 8),
    "thoughts in thoughts": "<think>" * (N // 15) + "</think>" * (N // 15),
    "open marks": "<" * N,
    "marks without names": "<|" * (N // 2),
    "odd marks": "<a " * (N // 3),
    "open braces": "{" * N,
    "braces": "{}" * (N // 2),
    "braces the wrong way": "}{" * (N // 2),
    "nested braces": '{"a":' * (N // 10) + "}" * (N // 10),
    "brackets": "[" * (N // 2) + "]" * (N // 2),
    "quotes": '"' * N,
    "backslashes": '{"a": "' + "\\" * N,
    "Answer:": "Answer: " * (N // 8),
    "lines of answers": "Answer: KEEP\n" * (N // 13),
    "the answer is": "the answer is " * (N // 14),
    "boxed": "\\boxed{" * (N // 7),
    "quotations": "> " * (N // 2),
    "negations": "not " * (N // 4),
    "steps": "1. a\n" * (N // 5),
    "the key, in part": "sk-q7Zp3fKx91L" * (N // 14),
    "masked keys": "sk-q****9e77 " * (N // 13),
    "bearer": "bearer " * (N // 7),
    "digits": "9" * N,
    "combining accents": "a" + "\u0301" * N,
    "full-width letters": "\uff21" * N,
    "invisible characters": "\u200b" * N,
    "directions": "\u202e" * N,
    "one line of words": "red blue star " * (N // 14),
}
"""Replies by kind."""


def replies() -> Iterator[Attack]:
    """Yield every reply for every reader, and some for clients behind a server."""
    for reader in READERS:
        for name in REPLIES:
            yield Attack(ENDLESS, f"{reader}: {name}", partial(_read, reader, name), seconds=20)
    for client in ("captioner", "model"):
        for name in ("newlines", "yes no", "open thoughts", "nested braces", "the key, in part"):
            yield Attack(ENDLESS, f"{client}: {name}", partial(_ask, client, name), seconds=30)


def redirects() -> Iterator[Attack]:
    """Yield every form of a redirect for every client, and every status for the captioner."""
    for client in CLIENTS:
        for status in (301, 302, 303, 307, 308) if client == "captioner" else (307,):
            for name in TARGETS:
                act = partial(_redirect, client, status, name)
                yield Attack(ELSEWHERE, f"{client}: {status}, {name}", act)


# --- readers --------------------------------------------------------------------------------------


def _choice(text: str) -> None:
    from flipbench.prompting.parsing import parse_choice

    parse_choice(text, ["yes", "no", "maybe", "three cats"])


def _cut_off(text: str) -> None:
    from flipbench.prompting.parsing import parse_choice

    parse_choice(text, ["red", "blue", "a star", "9"], cut_off=True)


def _wrappers(text: str) -> None:
    from flipbench.prompting.wrappers import answer_text, split_wrapped

    answer_text(text)
    split_wrapped(text, split_unknown=True)


def _json(text: str) -> None:
    from flipbench.models.chat.answer_judge import read_choice
    from flipbench.models.chat.labels import Rubric, read_label

    read_choice(text)
    read_label(text, Rubric("sure-v1", "Is it?", "{}", ("yes", "no")))


def _verdict(text: str) -> None:
    from flipbench.filters.judges.api import read_verdict

    read_verdict(text)


def _steps(text: str) -> None:
    from flipbench.evaluate.reasoning.replies import (
        StepVerdict,
        read_rubric,
        read_steps,
        read_verdicts,
    )

    read_steps(text)
    read_verdicts(text, [1, 2], StepVerdict)
    read_rubric(text)


def _scrubbed(text: str) -> None:
    from flipbench.models.chat.scrubbing import Scrubber

    scrubber = Scrubber(os.environ["ATTACK_KEY"])
    scrubber.text(text)
    scrubber.json({"error": {"message": text}})


def _written(text: str) -> None:
    from flipbench.core import files
    from flipbench.core.errors import shorten

    shorten(text)
    for write in (files.printable, files.spreadsheet_cell, files.markdown_text):
        write(text)
    files.without_html(text)
    files.plain_cell("'" + text)


def _cells(text: str) -> None:
    from flipbench.benchmarks.image_files import split_cell
    from flipbench.benchmarks.tables import RowError

    for cell in (text, f"['{text}']", f"[{text}]"):
        try:
            split_cell(cell)
        except RowError:
            continue


READERS: dict[str, Callable[[str], None]] = {
    "answer": _choice,
    "answer that was cut": _cut_off,
    "marks of reasoning": _wrappers,
    "judgement and label": _json,
    "verdict": _verdict,
    "steps and points": _steps,
    "removal of keys": _scrubbed,
    "text of messages and tables": _written,
    "cell of pictures": _cells,
}


def _timed(what: str, call: Callable[[], object]) -> None:
    start = time.process_time()
    call()
    if (seconds := time.process_time() - start) > SECONDS:
        harm("hung", f"{what}: {seconds:.1f} s of processor time")


def _read(reader: str, name: str, folder: Path) -> None:
    _timed(reader, partial(READERS[reader], REPLIES[name]))


# --- clients --------------------------------------------------------------------------------------


class Host(ThreadingHTTPServer):
    """A server that sends ``text``, or redirects to ``target``; it keeps what it was sent."""

    text, target, status = "A star.", "", 307
    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Host

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(self.path)
        if self.server.target:
            self.send_response(self.server.status)
            self.send_header("location", self.server.target)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        choice = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": self.server.text}}
        body = json.dumps({"choices": [choice], "model": "m", "image": self.server.text}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None: ...


def _settings(url: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"model": "m", "base_url": f"{url}/v1", "timeout": 5}
    return settings | {"api_key_env": "ATTACK_KEY", "max_retries": 1}


def _captioner(url: str, folder: Path) -> str:
    from flipbench.config.chat import ChatSpec
    from flipbench.core.images import ImageStore
    from flipbench.models.chat.api import ChatAPI
    from flipbench.models.chat.messages import ChatRequest

    store = ImageStore(folder / "images")
    ref = store.put_image(_picture(), "x")
    chat = ChatAPI(ChatSpec(**_settings(url)))
    (reply,) = chat.ask([ChatRequest("Describe.", "What?", (ref,))], store)
    return "" if isinstance(reply, Exception) else reply.text


def _picture() -> Any:
    from PIL import Image

    return Image.new("RGB", (32, 32), "red")


def _judge(url: str, folder: Path) -> str:
    from flipbench.config.chat import ChatSpec
    from flipbench.core.images import ImageStore
    from flipbench.models.chat.answer_judge import AnswerJudge, JudgeTask
    from flipbench.models.chat.api import ChatAPI

    judge = AnswerJudge(ChatAPI(ChatSpec(**_settings(url))), ImageStore(folder / "images"))
    (judgement,) = judge([JudgeTask("Which?", "It is red.", ("red", "blue"))])
    return "" if isinstance(judgement, Exception) else repr(judgement)


def _editor(url: str, folder: Path) -> str:
    from flipbench.core.errors import FlipbenchError
    from flipbench.generate.editors.http import HTTPEditor, HTTPEditorSpec

    spec = HTTPEditorSpec(url=f"{url}/edit", model="m", api_key_env="ATTACK_KEY", max_retries=1)
    try:
        return repr(HTTPEditor(spec)._ask(b"{}"))
    except FlipbenchError:
        return ""


def _model(url: str, folder: Path) -> str:
    from flipbench.config.served_model import ServedModelConfig
    from flipbench.core.errors import FlipbenchError
    from flipbench.core.images import ImageStore
    from flipbench.core.records import Probe
    from flipbench.models.vlm.served import APIVLM

    store = ImageStore(folder / "images")
    fields: dict[str, Any] = {"item_id": "i", "variant": "original", "ask": "generate"}
    fields |= {"options": ("yes", "no"), "n_options": 2, "prompt": "Which?"}
    fields |= {"images": (store.put_image(_picture(), "x"),)}
    try:
        (reply,) = APIVLM(ServedModelConfig(**_settings(url))).ask([Probe(**fields)], store)
    except FlipbenchError:
        return ""
    return "" if isinstance(reply, Exception) else repr(reply)


CLIENTS: dict[str, Callable[[str, Path], str]] = {
    "captioner": _captioner,
    "judge": _judge,
    "editor": _editor,
    "model": _model,
}
"""Clients: each asks a server once, and returns what it took for an answer."""


def _ask(client: str, name: str, folder: Path) -> None:
    host = Host()
    host.text = REPLIES[name]
    CLIENTS[client](host.url, folder)  # imports, and connects
    _timed(client, partial(CLIENTS[client], host.url, folder))


TARGETS: dict[str, Callable[[Host, Host], str]] = {
    "another port": lambda first, other: f"{other.url}/v1/chat/completions",
    "another name": lambda first, other: f"http://localhost:{other.server_address[1]}/v1",
    "another address": lambda first, other: f"http://127.0.0.2:{other.server_address[1]}/v1",
    "without a scheme": lambda first, other: f"//127.0.0.1:{other.server_address[1]}/v1",
    "with a user's name": lambda first, other: (
        f"http://{first.url[7:]}@127.0.0.1:{other.server_address[1]}/v1"
    ),
    "in capitals": lambda first, other: f"HTTP://LOCALHOST:{other.server_address[1]}/v1",
    "a backslash": lambda first, other: f"http:\\\\127.0.0.1:{other.server_address[1]}\\v1",
    "a number as address": lambda first, other: f"http://2130706433:{other.server_address[1]}/v1",
    "IPv6 of IPv4": lambda first, other: f"http://[::ffff:127.0.0.1]:{other.server_address[1]}/v1",
    "a file": lambda first, other: "file:///etc/passwd",
}
"""Where a redirect leads: to the other of two servers, or a file."""


def _redirect(client: str, status: int, name: str, folder: Path) -> None:
    first, other = Host(), Host("0.0.0.0")
    other.text = "taken from the other server"
    first.status = status
    first.target = TARGETS[name](first, other)
    answer = CLIENTS[client](first.url, folder)
    if not first.asked:
        raise AssertionError("the first server was not asked")
    if other.asked:
        harm("leaked", f"the other server was asked for {other.asked}")
    elif answer:
        harm("leaked", f"taken for an answer: {answer[:100]}")
