"""A server that sends the key back, in every field and in several spellings."""

from __future__ import annotations

import html
import json
import logging
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.config.chat import ChatSpec
from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.chat.scrubbing import Scrubber, parse
from flipbench.models.engine import ask
from flipbench.models.vlm.served import APIVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.openai_server import KEY, OpenAIServer, Raw
from tests.fixtures.options import QUIET

SPELLINGS = {
    "whole": KEY,
    "header": f"Authorization: Bearer {KEY}",
    "masked": f"{KEY[:8]}********{KEY[-4:]}",
    "dots": f"{KEY[:12]}...",
    "end": f"****{KEY[-8:]}",
    "cut": KEY[:20],
}
STATUSES = (400, 401, 403, 404, 422, 429, 500)


def leaks(text: str) -> list[str]:
    """Return the pieces of the key in a text: any five characters that only a key contains."""
    secret = KEY[:16] + KEY[-8:]
    pieces = {KEY[i : i + 5] for i in range(12)} | {KEY[-5:]}
    assert all(piece in secret for piece in pieces)
    return sorted(piece for piece in pieces if piece in text)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every leaf of a JSON value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for name, child in steps:
        if isinstance(child, dict | list):
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name)


def changed(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """Return a copy with another leaf at a path."""
    copy = json.loads(json.dumps(value))
    parent = copy
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = leaf
    return copy


def spec(server: OpenAIServer, **settings: Any) -> ChatSpec:
    chosen = {"model": "gpt-4o-2024-08-06", "max_retries": 0, "timeout": 5}
    return ChatSpec(base_url=server.base_url, **(chosen | settings))


def told(answers: list[Any]) -> str:
    """Return all that a caller can see of replies and errors."""
    errors = [e for e in answers if isinstance(e, Exception)]
    shown = [repr(a) + str(a) for a in answers]
    return "".join(shown + ["".join(traceback.format_exception(e)) for e in errors])


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    """Return a function that returns the log, at any level, and what was printed."""
    caplog.set_level(logging.DEBUG)

    def everything() -> str:
        out, err = capfd.readouterr()
        return caplog.text + out + err

    return everything


@pytest.mark.parametrize("how", SPELLINGS)
def test_the_key_in_any_field_of_a_reply(
    server: OpenAIServer, store: ImageStore, heard: Any, how: str
) -> None:
    echo = SPELLINGS[how]
    request = ChatRequest("Describe.", "x", max_tokens=5, top_log_probs=2)
    server.first_tokens = lambda body: [("A", -0.1), ("B", -2.0)]
    good = server.complete({"model": "o3", "logprobs": True, "top_logprobs": 2})[1]
    edits = [changed(good, path, echo) for path in leaves(good)]
    edits += [changed(good, (echo,), echo), changed(good, ("choices",), echo)]
    edits += [changed(good, ("choices", 0), echo), changed(good, ("usage",), {echo: echo})]
    edits += [echo, [echo], {"detail": echo}]
    chat = ChatAPI(spec(server))
    answers: list[Any] = []
    for edit in edits:
        server.script.append("raw")
        server.raw = lambda body, edit=edit: Raw(json.dumps(edit).encode())
        answers += chat.ask([request], store)
    n_replies = sum(isinstance(answer, ChatReply) for answer in answers)
    assert 5 <= n_replies < len(edits) and len(server.chats()) == len(edits)
    assert not leaks(told(answers) + heard())


@pytest.mark.slow
@pytest.mark.parametrize("how", SPELLINGS)
def test_the_key_in_any_field_of_an_error(
    server: OpenAIServer, store: ImageStore, heard: Any, how: str
) -> None:
    echo = SPELLINGS[how]
    error = {"message": "no", "type": "x", "code": "y", "param": "z"}
    bodies: list[Any] = [{"error": error | {name: echo}} for name in error]
    bodies += [{"error": echo}, {"detail": [{"headers": echo}]}, echo, [echo], {echo: echo}]
    bodies += [{"error": {"message": f"logprobs are unsupported: {echo}", "param": "logprobs"}}]
    bodies += [{"error": {"message": f"{echo} temperature: {echo} not supported"}}]
    server.models = [{"id": echo}, {"id": [echo]}, echo]
    answers: list[Any] = []
    for status in STATUSES:
        chat = ChatAPI(spec(server))
        for body in bodies:
            server.script.append("raw")
            server.raw = lambda _, body=body, status=status: Raw(json.dumps(body).encode(), status)
            answers += chat.ask([ChatRequest("D", "x", top_log_probs=2)], store)
            server.script.clear()
    assert sum(isinstance(a, ServiceError | PrerequisiteError) for a in answers) > 60
    assert not leaks(told(answers) + heard())


@pytest.mark.parametrize("how", SPELLINGS)
def test_the_key_around_a_reply(
    server: OpenAIServer, store: ImageStore, heard: Any, how: str
) -> None:
    echo = SPELLINGS[how]
    good = json.dumps(server.complete({"model": "o3"})[1]).encode()
    raws = [
        Raw(good, reason=echo),
        Raw(good, headers={"x-request-id": echo, "x-echo": echo}),
        Raw(echo.encode()),
        Raw(f"<html>{html.escape(echo)} {quote(echo)}</html>".encode(), 502, echo),
        Raw(good, headers={"bad header": echo}),
        Raw(echo.encode() + b"\xff"),
        Raw(good, 302, headers={"Location": f"/v1/{quote(echo)}"}),
    ]
    chat = ChatAPI(spec(server))
    answers: list[Any] = []
    for raw in raws:
        server.script.append("raw")
        server.raw = lambda _, raw=raw: raw
        answers += chat.ask([ChatRequest("D", "x")], store)
    assert isinstance(answers[0], ChatReply) and isinstance(answers[1], ChatReply)
    assert not leaks(told(answers) + heard())


@pytest.mark.slow
@pytest.mark.parametrize("how", SPELLINGS)
def test_a_run_stores_no_key_of_a_model_under_test(
    server: OpenAIServer,
    heard: Any,
    tmp_path: Path,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    how: str,
) -> None:
    echo = SPELLINGS[how]
    server.reply = lambda body: f"B {echo}"
    server.reported_model = f"tiny {echo}"
    settings = {"model": "tiny-vlm", "max_retries": 0, "logprobs": False}
    model = APIVLM(ServedModelConfig(base_url=server.base_url, **settings))
    words: list[Raw | None] = [
        None,
        Raw(json.dumps({"error": {"message": echo}}).encode(), 400),
        Raw(json.dumps({"choices": echo}).encode()),
        Raw(json.dumps(server.complete({"model": "o3"})[1] | {"model": echo}).encode()),
    ]
    probes = [PromptSettings(ask="generate").probe(i, "original") for i in shapes_items[:4]]
    with Run(tmp_path / "run") as run:
        for probe, raw in zip(probes, words, strict=True):
            if raw:
                server.script.append("raw")
                server.raw = lambda _, raw=raw: raw
            ask([probe], model, run, shapes_store, QUIET)
    files = [path for path in (tmp_path / "run").rglob("*.jsonl")]
    assert {path.relative_to(tmp_path / "run").parts[0] for path in files} == {
        "responses",
        "failures",
    }
    assert not leaks("".join(path.read_text() for path in files) + heard())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("how", SPELLINGS)
def test_a_batch_stores_no_key(
    server: OpenAIServer, store: ImageStore, heard: Any, tmp_path: Path, how: str
) -> None:
    echo = SPELLINGS[how]
    requests = [ChatRequest("D", f"number {i}") for i in range(40)]

    def hostile(kind: str, data: bytes) -> bytes:
        rows = [json.loads(line) for line in data.splitlines()]
        paths = [path for path in leaves(rows[0]) if path != ("custom_id",)]
        edited = [changed(r, p, echo) for r, p in zip(rows, paths, strict=False)]
        errors = [
            {"custom_id": r["custom_id"], "response": None, "error": e}
            for r, e in zip(
                rows[len(paths) :],
                [echo, {"code": echo, "message": echo}, {"code": 5, "message": [echo]}, [echo]],
                strict=False,
            )
        ]
        lines = [json.dumps(r).encode() for r in edited + errors]
        return b"\n".join([*lines, echo.encode(), echo.encode() + b"\xff", b'"' + echo.encode()])

    server.edit_file = hostile
    batch = BatchAPI(ChatAPI(spec(server)), tmp_path / "batches")
    batch.poll_seconds, batch.max_rounds = 0.01, 1
    answers = batch.ask(requests, store)
    assert sum(isinstance(answer, ChatReply) for answer in answers) > 5
    server.edit_file = lambda kind, data: data
    problem = {"message": f"Line 1: {echo}", "code": echo}
    server.batch_script.append("fail")
    server.edit_batch = lambda row: row | {"errors": {"data": [problem]}, "metadata": echo}
    failed = batch.ask([ChatRequest("D", "another")], store)
    assert isinstance(failed[0], ServiceError)
    files = [path for path in (tmp_path / "batches").iterdir() if path.name != ".lock"]
    stored = "".join(path.read_text("latin-1") for path in files)
    assert {path.suffix for path in files} == {".json", ".jsonl"}
    assert not leaks(told([*answers, *failed]) + heard() + stored)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@given(
    key=st.text("abcdefgh0123456789-_/+=\"&<'", min_size=12, max_size=40),
    before=st.text(max_size=10),
    after=st.text(max_size=10),
)
def test_no_twelve_characters_of_a_key_survive(key: str, before: str, after: str) -> None:
    scrub = Scrubber(key)
    pieces = {key[i : i + 12] for i in range(len(key) - 11)}
    for spelling in (key, json.dumps(key)[1:-1], quote(key, safe=""), html.escape(key)):
        clean = scrub.text(f"{before}|{spelling}|{after}")
        assert spelling not in clean and not any(piece in clean for piece in pieces)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("sk-abcdef**********uvwxyz is wrong", "*** is wrong"),
        ("key: sk-abcd…wxyz.", "key: ***."),
        ("ends in ****wxyz", "ends in ****wxyz"),
        ("ends in ****uvwxyz", "ends in ***"),
        ("sk-abXXXXXXXXwxyz", "***"),
        ("a **bold** word ... and x2x", "a **bold** word ... and x2x"),
    ],
)
def test_a_masked_key_keeps_at_most_four_characters(text: str, clean: str) -> None:
    assert Scrubber("sk-abcdefghijklmnopqrstuvwxyz").text(text) == clean


@pytest.mark.parametrize("key", ["none", "EMPTY", "x", "", "dummy"])
def test_a_placeholder_is_no_secret(key: str) -> None:
    text = f"an EMPTY box, none of it x, a dummy {key}"
    assert Scrubber(key).text(text) == text


def test_lines_without_the_key_stay_as_they_are() -> None:
    data = b'{"a":  1.50}\n\n{"b": \xff}\n["' + KEY.encode() + b'"]\n'
    assert Scrubber(KEY).lines(data) == b'{"a":  1.50}\n\n{"b": \xff}\n["***"]\n'


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'"\xff"', b"[" * 200 + b"]" * 200, b"[" * 99_999, b'"\\ud800"', b"1" * 5000],
)
def test_json_that_no_file_can_hold_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


def test_json_is_read_as_it_is() -> None:
    value = {"a": [1, 2.5, None, "\N{GRINNING FACE}"]}
    assert parse(json.dumps(value).encode()) == value
