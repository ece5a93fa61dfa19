"""Replies of an odd form: each fails its own request, and nothing is sent twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Failure, Response
from flipbench.core.run import Run
from flipbench.core.stage import StageReport, run_stage
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from tests.fixtures.openai_server import CAPTION, OpenAIServer, Raw
from tests.fixtures.options import QUIET

DEEP = b"[" * 5_000 + b"]" * 5_000
OBJECT = {"a": [1, {"b": None}]}
ODD: list[Any] = [None, "x", 5, -1, 1e300, True, [], [None], {}, OBJECT, [[]], "\x00"]


def with_choice(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: body | {"choices": [body["choices"][0] | fields]}


def with_usage(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: body | {"usage": body["usage"] | fields}


MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "choices: [null]": lambda body: body | {"choices": [None]},
    "choices: [[]]": lambda body: body | {"choices": [[]]},
    "choices: a string": lambda body: body | {"choices": "x"},
    "choices: an object": lambda body: body | {"choices": {"0": {}}},
    "message: a string": with_choice(message="A star."),
    "message: a list": with_choice(message=["A star."]),
    "message: null": with_choice(message=None),
    "message: empty": with_choice(message={"role": "assistant"}),
    "content: a number": with_choice(message={"content": 5}),
    "content: an object": with_choice(message={"content": {"text": "A star."}}),
    "content: parts that are none": with_choice(message={"content": ["A star.", None]}),
    "content: a part whose text is none": with_choice(message={"content": [{"text": [1]}]}),
    "refusal: an object": with_choice(message={"content": None, "refusal": {"a": 1}}),
    "logprobs: a string": with_choice(logprobs="x"),
    "usage: a string": lambda body: body | {"usage": "x"},
    "usage: a list": lambda body: body | {"usage": [1]},
    "tokens: a string": with_usage(prompt_tokens="12"),
    "tokens: negative": with_usage(completion_tokens=-5),
    "tokens: not a number": with_usage(prompt_tokens=float("nan")),
    "tokens: infinite": with_usage(prompt_tokens=float("inf")),
    "tokens: beyond 64 bits": with_usage(prompt_tokens=10**30),
    "tokens: true": with_usage(prompt_tokens=True),
    "details: a string": with_usage(prompt_tokens_details="x"),
    "details: a list": with_usage(completion_tokens_details=[3]),
    "model: an object": lambda body: body | {"model": {"name": "x"}},
    "id: a list": lambda body: body | {"id": [1]},
    "null": lambda body: None,
    "a list": lambda body: [body],
    "a string": lambda body: "A star.",
    "a number": lambda body: 5,
    "half a surrogate pair": with_choice(message={"content": "a \ud800 star"}),
    "nested 500 deep": with_choice(message={"content": json.loads(b"[" * 500 + b"]" * 500)}),
}
BYTES: dict[str, bytes] = {
    "nothing": b"",
    "a byte that is not UTF-8": b'{"choices": [{"message": {"content": "a \xff star"}}]}',
    "nested 5,000 deep": DEEP,
    "deep objects": b'{"choices":' * 5_000 + b"1" + b"}" * 5_000,
    "5,000 digits": b'{"choices": ' + b"1" * 5_000 + b"}",
    "two values": b"{}{}",
    "cut": b'{"choices": [{"message": {"cont',
    "a page": b"<html>hello</html>",
}


def api(server: OpenAIServer, **settings: Any) -> ChatAPI:
    chosen: dict[str, Any] = {"model": "o3", "max_retries": 0, "n_concurrent": 1}
    chosen |= {"price_in": 1.0, "price_out": 1.0}
    return ChatAPI(ChatSpec(base_url=server.base_url, **(chosen | settings)))


def send(server: OpenAIServer, edit: Callable[[Any], Any] | bytes, status: int = 200) -> None:
    server.script.append("raw")
    server.raw = lambda body: Raw(
        edit if isinstance(edit, bytes) else json.dumps(edit(body)).encode(), status
    )


@pytest.mark.parametrize("name", [*MALFORMED, *BYTES])
def test_an_odd_reply_fails_only_its_request(
    server: OpenAIServer, store: ImageStore, name: str
) -> None:
    send(server, MALFORMED.get(name) or BYTES[name])
    chat = api(server)
    odd, *good = chat.ask([ChatRequest("D", f"number {i}") for i in range(3)], store)
    assert type(odd) is ServiceError and len(str(odd)) < 400 and "\n" not in str(odd)
    assert "not a chat completion" in str(odd) or "invalid JSON" in str(odd)
    assert [getattr(reply, "text", reply) for reply in good] == [CAPTION] * 2
    assert len(server.chats()) == 3 and chat.spent.prompt_tokens == 2000


@pytest.mark.slow
@pytest.mark.parametrize("own_limit", [None, 5])
def test_no_field_of_any_type_raises(
    server: OpenAIServer, store: ImageStore, own_limit: int | None
) -> None:
    chat = api(server)
    request = ChatRequest("D", "x", max_tokens=own_limit, top_log_probs=1)
    server.first_tokens = lambda body: [("A", -0.1)]
    paths: list[tuple[Any, ...]] = [("choices",), ("choices", 0), ("usage",), ("model",), ("id",)]
    paths += [("choices", 0, name) for name in ("message", "finish_reason", "logprobs")]
    paths += [("choices", 0, "message", name) for name in ("content", "refusal", "reasoning")]
    paths += [("choices", 0, "logprobs", "content"), ("choices", 0, "logprobs", "content", 0)]
    paths += [
        ("choices", 0, "logprobs", "content", 0, name)
        for name in ("token", "logprob", "top_logprobs")
    ]
    paths += [("usage", name) for name in ("prompt_tokens", "prompt_tokens_details")]
    answers: list[Any] = []
    for path in paths:
        for value in ODD:

            def edit(body: Any, path: tuple[Any, ...] = path, value: Any = value) -> Any:
                parent = body
                for name in path[:-1]:
                    parent = parent[name]
                parent[path[-1]] = value
                return body

            send(server, edit)
            answers += chat.ask([request], store)
    assert {type(answer) for answer in answers} == {ChatReply, ServiceError}
    replies = [answer for answer in answers if isinstance(answer, ChatReply)]
    assert {type(reply.text) for reply in replies} == {str}
    assert json.dumps([reply.usage for reply in replies], allow_nan=False)
    assert len(server.chats()) == len(paths) * len(ODD)


@pytest.mark.parametrize("status", [400, 401, 404, 500])
@pytest.mark.parametrize("name", [*BYTES, pytest.param("types", marks=pytest.mark.slow)])
def test_an_odd_error_fails_only_its_request(
    server: OpenAIServer, store: ImageStore, name: str, status: int
) -> None:
    bodies = [BYTES[name]] if name in BYTES else [json.dumps(value).encode() for value in ODD]
    for part in ("error", "detail", "code", "message", "param"):
        if name == "types":
            bodies += [json.dumps({part: value}).encode() for value in ODD]
            bodies += [json.dumps({"error": {part: value}}).encode() for value in ODD]
    chat = api(server)
    for body in bodies:
        send(server, body, status)
        (answer,) = chat.ask([ChatRequest("D", "x")], store)
        assert isinstance(answer, FlipbenchError) and len(str(answer)) < 500


class Asking:
    """A stage that asks a chat model."""

    name = "asking"
    record = Response

    def __init__(self, chat: Any, store: ImageStore) -> None:
        self.chat, self.store = chat, store

    def id_of(self, task: str) -> str:
        return Response.id_for(probe_id=task, model_fingerprint="m")

    def subject(self, task: str) -> str:
        return task

    def __call__(self, tasks: Any) -> list[Any]:
        replies = self.chat.ask([ChatRequest("D", task) for task in tasks], self.store)
        return [
            Response(probe_id=task, model_fingerprint="m", model="x", text=reply.text)
            if isinstance(reply, ChatReply)
            else reply
            for task, reply in zip(tasks, replies, strict=True)
        ]


def test_ten_items_cost_ten_requests_and_the_odd_one_is_sent_again(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    tasks = [f"number {i}" for i in range(10)]

    def work() -> StageReport:
        with Run(tmp_path / "run") as run:
            return run_stage(Asking(api(server), store), tasks, run, QUIET)

    server.script.extend(["ok"] * 4)
    send(server, MALFORMED["choices: [null]"])
    first = work()
    assert (first.n_done, first.n_failed) == (9, 1) and len(server.chats()) == 10
    second = work()
    assert (second.n_done, second.n_skipped) == (1, 9) and len(server.chats()) == 11
    with Run(tmp_path / "run") as run:
        assert not run.open_failures("asking", run.ids(Response))
        assert len(list(run.read(Failure))) == 1


# batches


@pytest.fixture
def batch(server: OpenAIServer, tmp_path: Path) -> BatchAPI:
    made = BatchAPI(api(server), tmp_path / "batches")
    made.poll_seconds, made.max_rounds = 0.01, 1
    return made


def questions(n: int) -> list[ChatRequest]:
    return [ChatRequest("D", f"number {i}") for i in range(n)]


def odd_rows() -> list[Callable[[dict[str, Any]], Any]]:
    """Return the ways in which a line of an output file may be odd."""

    def response(**fields: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda row: row | {"response": row["response"] | fields}

    edits: list[Callable[[dict[str, Any]], Any]] = [
        lambda row: None,
        lambda row: [row],
        lambda row: "x",
        lambda row: {},
        lambda row: {"custom_id": row["custom_id"]},
        lambda row: row | {"custom_id": [row["custom_id"]]},
    ]
    for value in ODD:
        edits.append(lambda row, value=value: row | {"response": value})
        edits.append(lambda row, value=value: row | {"response": None, "error": value})
        edits.append(lambda row, v=value: row | {"response": None, "error": {"code": v}})
        edits.append(lambda row, v=value: row | {"response": None, "error": {"message": v}})
        edits += [response(status_code=value), response(body=value)]
        edits.append(response(status_code=500, body=value))
        edits.append(response(status_code=400, body={"error": value}))
    return edits


@pytest.mark.slow
def test_an_odd_line_of_a_batch_fails_alone_and_the_file_can_be_read_again(
    server: OpenAIServer, store: ImageStore, batch: BatchAPI
) -> None:
    edits: list[Any] = [*odd_rows(), *BYTES.values()]
    edits += [
        lambda row, edit=edit: (
            row | {"response": row["response"] | {"body": edit(row["response"]["body"])}}
        )
        for edit in MALFORMED.values()
    ]
    requests = questions(len(edits) + 5)

    def damage(kind: str, data: bytes) -> bytes:
        rows = [json.loads(line) for line in data.splitlines()]
        lines = [
            edit if isinstance(edit, bytes) else json.dumps(edit(row)).encode()
            for edit, row in zip(edits, rows, strict=False)
        ]
        lines += [json.dumps(row).encode() for row in rows[len(edits) :]]
        return b"\n".join(lines)

    server.edit_file = damage
    answers = batch.ask(requests, store)
    good = [isinstance(answer, ChatReply) for answer in answers]
    assert 5 <= sum(good) < len(requests) / 3
    assert all(isinstance(a, ChatReply | ServiceError) for a in answers)
    server.edit_file = lambda kind, data: data
    again = BatchAPI(batch.api, batch.folder.path)
    again.poll_seconds = 0.01
    assert all(isinstance(answer, ChatReply) for answer in again.ask(requests, store))
    sent = [len(server.files[b.file_id].splitlines()) for b in server.batches.values()]
    assert sent == [len(requests), len(requests) - sum(good)], "only what failed is sent again"


@pytest.mark.parametrize("good_first", [True, False])
@pytest.mark.parametrize("other", ["refused", "good"])
def test_of_two_replies_the_first_good_one_counts(
    server: OpenAIServer,
    store: ImageStore,
    batch: BatchAPI,
    caplog: pytest.LogCaptureFixture,
    good_first: bool,
    other: str,
) -> None:
    caplog.set_level(logging.WARNING)

    def double(kind: str, data: bytes) -> bytes:
        row = json.loads(data.splitlines()[0])
        row["response"]["body"]["choices"][0]["message"]["content"] = "first"
        second = json.loads(json.dumps(row))
        message = second["response"]["body"]["choices"][0]["message"]
        message |= {"content": "second"} if other == "good" else {"refusal": "no"}
        rows = [row, second] if good_first else [second, row]
        return b"\n".join(json.dumps(r).encode() for r in rows)

    server.edit_file = double
    (reply,) = batch.ask(questions(1), store)
    assert isinstance(reply, ChatReply)
    assert reply.text == ("second" if other == "good" and not good_first else "first")
    assert "2 replies to" in caplog.text and "the first good one is used" in caplog.text
    (stored,) = BatchAPI(batch.api, batch.folder.path).ask(questions(1), store)
    assert isinstance(stored, ChatReply) and stored.text == reply.text
    assert batch.api.spent.n_replies == 2, "both are paid"


@pytest.mark.parametrize("name", ["id", "status", "errors", "output_file_id", "input_file_id"])
def test_an_odd_batch_stops_with_a_message_and_its_state_can_be_read(
    server: OpenAIServer, store: ImageStore, tmp_path: Path, name: str
) -> None:
    for number, value in enumerate([None, 5, {}, [1], {"data": "x"}, {"data": [None, 3]}]):
        made = BatchAPI(api(server), tmp_path / f"{number}")
        made.poll_seconds, made.max_rounds = 0.0, 1
        server.edit_batch = lambda row, value=value: row | {name: value}
        (answer,) = made.ask(questions(1), store)
        assert isinstance(answer, ChatReply | FlipbenchError)
        server.edit_batch = lambda row: row
        (after,) = made.ask(questions(1), store)
        assert isinstance(after, ChatReply), after
