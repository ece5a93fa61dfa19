"""Batches, against a real server on loopback; killed, expired, out of order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI, BatchFolder
from flipbench.models.chat.messages import ChatReply, ChatRequest
from tests.fixtures.openai_server import KEY, OpenAIServer

pytestmark = pytest.mark.slow

WORKER = [sys.executable, str(Path(__file__).with_name("batch_worker.py"))]


def text_of(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"][-1]["text"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with OpenAIServer() as running:
        running.reply = text_of
        yield running


def batch_api(server: OpenAIServer, folder: Path, **settings: Any) -> BatchAPI:
    prices = {"price_in": 2.0, "price_out": 8.0}
    spec = ChatSpec(model="gpt-4o-2024-08-06", base_url=server.base_url, max_retries=1, **prices)
    batch = BatchAPI(ChatAPI(spec), folder)
    vars(batch).update({"poll_seconds": 0.01} | settings)
    return batch


def questions(n: int) -> list[ChatRequest]:
    return [ChatRequest("Describe.", f"number {i}") for i in range(n)]


def uploads(server: OpenAIServer) -> list[list[dict[str, Any]]]:
    """Return the requests of each batch, as they were uploaded."""
    files = [server.files[batch.file_id] for batch in server.batches.values()]
    return [[json.loads(line) for line in file.splitlines()] for file in files]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def texts(replies: list[Any]) -> list[str]:
    return [reply.text for reply in replies]


def test_replies_are_matched_whatever_their_order(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    batch = batch_api(server, tmp_path / "batches")
    replies = batch.ask(questions(7), store)
    assert texts(replies) == [f"number {i}" for i in range(7)]
    (rows,) = uploads(server)
    assert len({row["custom_id"] for row in rows}) == 7
    assert {row["url"] for row in rows} == {"/v1/chat/completions"}
    assert rows[0]["body"]["max_tokens"] == 800
    assert not server.chats(), "nothing goes by the dear way"


def test_batches_cost_half(server: OpenAIServer, store: ImageStore, tmp_path: Path) -> None:
    batch = batch_api(server, tmp_path / "batches")
    replies = batch.ask(questions(2), store)
    cost = (1000 * 2 + 50 * 8) / 1e6 / 2
    for reply in replies:
        assert isinstance(reply, ChatReply)
        assert reply.usage["cost_usd"] == pytest.approx(cost)
        assert reply.usage["sent"] == {"temperature": 0.3, "max_tokens": 800}
        assert reply.usage["request_id"] == "req_batch"
    assert batch.api.spent.cost_usd == pytest.approx(2 * cost)


def test_shards_are_limited_by_requests(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    batch = batch_api(server, tmp_path / "batches", max_requests=3)
    assert texts(batch.ask(questions(7), store)) == [f"number {i}" for i in range(7)]
    assert [len(rows) for rows in uploads(server)] == [3, 3, 1]
    assert server.count("POST", "/v1/files") == server.count("POST", "/v1/batches") == 3


def test_shards_are_limited_by_bytes(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    one = len(batch_api(server, tmp_path)._input_line("0" * 24, questions(1)[0], store))
    batch = batch_api(server, tmp_path / "batches", max_bytes=2 * one)
    long = ChatRequest("Describe.", "x" * 2 * one)
    *good, bad = batch.ask([*questions(5), long], store)
    assert texts(good) == [f"number {i}" for i in range(5)]
    assert isinstance(bad, DataError) and "over the limit of" in str(bad)
    assert [len(rows) for rows in uploads(server)] == [2, 2, 1]
    assert max(len(server.files[b.file_id]) for b in server.batches.values()) <= 2 * one


def test_an_expired_batch_keeps_its_results_and_resends_the_rest(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.batch_script.extend(["expire", "expire"])
    batch = batch_api(server, tmp_path / "batches")
    assert texts(batch.ask(questions(8), store)) == [f"number {i}" for i in range(8)]
    assert [len(rows) for rows in uploads(server)] == [8, 4, 2]


def test_rounds_are_limited(server: OpenAIServer, store: ImageStore, tmp_path: Path) -> None:
    server.batch_script.extend(["expire", "expire"])
    batch = batch_api(server, tmp_path / "batches", max_rounds=2)
    replies = batch.ask(questions(4), store)
    assert [type(reply) for reply in replies] == [ChatReply] * 3 + [ServiceError]
    assert "batch_expired" in str(replies[3])
    again = batch_api(server, tmp_path / "batches").ask(questions(4), store)
    assert texts(again) == [f"number {i}" for i in range(4)]
    assert [len(rows) for rows in uploads(server)] == [4, 2, 1], "only what is missing is sent"


def test_errors_belong_to_their_requests(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.script.extend(["ok", "refusal", "length"])  # of the last, and so on
    batch = batch_api(server, tmp_path / "batches")
    cut, refused, good = batch.ask(questions(3), store)
    assert type(cut) is ServiceError and "cut off" in str(cut)
    assert type(refused) is ServiceError and "refused" in str(refused)
    assert isinstance(good, ChatReply)
    assert batch.api.spent.n_replies == 3
    replies = batch_api(server, tmp_path / "batches").ask(questions(3), store)
    assert texts(replies) == ["number 0", "number 1", "number 2"], "the next run tries again"
    assert [len(rows) for rows in uploads(server)] == [3, 2]


def test_a_rejected_parameter_is_not_sent_again(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.rejects = {"temperature"}
    replies = batch_api(server, tmp_path / "batches").ask(questions(3), store)
    assert texts(replies) == ["number 0", "number 1", "number 2"]
    first, second = uploads(server)
    assert "temperature" in first[0]["body"] and "temperature" not in second[0]["body"]
    assert isinstance(replies[0], ChatReply)
    assert replies[0].usage["sent"] == {"max_tokens": 800}


def test_a_batch_that_fails_as_a_whole_is_reported(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.batch_script.append("fail")
    replies = batch_api(server, tmp_path / "batches").ask(questions(2), store)
    assert all(type(reply) is ServiceError for reply in replies)
    assert "Line 1 is no JSON" in str(replies[0])


def test_an_unknown_model_stops(server: OpenAIServer, store: ImageStore, tmp_path: Path) -> None:
    spec = ChatSpec(model="gpt-99", base_url=server.base_url)
    batch = BatchAPI(ChatAPI(spec), tmp_path / "batches")
    batch.poll_seconds = 0.01
    assert all(isinstance(reply, PrerequisiteError) for reply in batch.ask(questions(2), store))
    assert len(server.batches) == 1


def test_server_errors_while_polling_are_retried(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.script.extend(["500", "500", "down", "down"])  # each try, and its one retry
    replies = batch_api(server, tmp_path / "batches").ask(questions(2), store)
    assert texts(replies) == ["number 0", "number 1"] and len(server.batches) == 1


def test_a_server_without_a_batch_api_is_refused(
    store: ImageStore, server: OpenAIServer, tmp_path: Path
) -> None:
    spec = ChatSpec(model="o3", base_url=server.base_url + "/nowhere")
    (reply,) = BatchAPI(ChatAPI(spec), tmp_path / "batches").ask(questions(1), store)
    assert isinstance(reply, PrerequisiteError) and "it has no Batch API" in str(reply)


def test_finished_work_is_not_sent_again(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    first = batch_api(server, tmp_path / "batches").ask(questions(3), store)
    n_seen = len(server.seen)
    batch = batch_api(server, tmp_path / "batches")
    assert texts(batch.ask(questions(3), store)) == texts(first)
    assert len(server.seen) == n_seen and batch.api.spent.n_replies == 0


def test_other_settings_are_sent_separately(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    batch_api(server, tmp_path / "batches").ask(questions(1), store)
    spec = ChatSpec(model="gpt-4o-2024-08-06", base_url=server.base_url, temperature=1.0)
    batch = BatchAPI(ChatAPI(spec), tmp_path / "batches")
    batch.poll_seconds = 0.01
    batch.ask(questions(1), store)
    assert [rows[0]["body"]["temperature"] for rows in uploads(server)] == [0.3, 1.0]


def test_a_damaged_line_is_requested_again(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    batch_api(server, tmp_path / "batches").ask(questions(3), store)
    (output,) = (tmp_path / "batches").glob("*.output.jsonl")
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:2]) + lines[2][:-40])
    replies = batch_api(server, tmp_path / "batches").ask(questions(3), store)
    assert texts(replies) == ["number 0", "number 1", "number 2"]
    assert [len(rows) for rows in uploads(server)] == [3, 1]


def test_a_damaged_state_stops_before_anything_is_sent(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "abc.state.json").write_text('{"name": "abc"')
    with pytest.raises(PrerequisiteError, match="abc.state.json"):
        batch_api(server, tmp_path).ask(questions(1), store)
    assert not server.seen


def test_one_process_at_a_time(server: OpenAIServer, store: ImageStore, tmp_path: Path) -> None:
    with BatchFolder(tmp_path).locked(), pytest.raises(PrerequisiteError, match="another process"):
        batch_api(server, tmp_path).ask(questions(1), store)


@pytest.mark.slow
def test_a_kill_while_polling_loses_nothing(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.batch_script.append("stuck")
    folder = tmp_path / "batches"
    _kill_when(server, folder, lambda: server.count("GET", "/v1/batches/batch_1") >= 2)
    server.release()
    replies = batch_api(server, folder).ask(questions(4), store)
    assert texts(replies) == [f"number {i}" for i in range(4)]
    assert server.count("POST", "/v1/batches") == 1, "what was sent is not sent again"


@pytest.mark.slow
def test_a_kill_before_create_returns_loses_nothing(
    server: OpenAIServer, store: ImageStore, tmp_path: Path
) -> None:
    server.create_delay = 30.0
    folder = tmp_path / "batches"
    _kill_when(server, folder, lambda: len(server.batches) == 1)
    server.create_delay = 0.0
    (state,) = BatchFolder(folder).shards()
    assert state.batch_id is None
    replies = batch_api(server, folder).ask(questions(4), store)
    assert texts(replies) == [f"number {i}" for i in range(4)]
    assert server.count("POST", "/v1/batches") == 1, "its batch was found by its file"


def test_no_key_in_any_file(server: OpenAIServer, store: ImageStore, tmp_path: Path) -> None:
    batch_api(server, tmp_path / "batches").ask(questions(2), store)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert not any(KEY.encode() in path.read_bytes() for path in files)
    assert not list((tmp_path / "batches").glob("*.input.jsonl")), "uploaded files take no room"


def _kill_when(server: OpenAIServer, folder: Path, condition: Callable[[], bool]) -> None:
    process = subprocess.Popen([*WORKER, server.base_url, str(folder), "4"], env=os.environ.copy())
    try:
        until(condition)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("status", ["in_progress", "paused"])
def test_waiting_ends_and_names_the_state(
    status: str,
    server: OpenAIServer,
    store: ImageStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.edit_batch = lambda row: row | {"status": status}
    batch = batch_api(server, tmp_path / "batches", max_wait_seconds=0.2)
    for reply in batch.ask(questions(2), store):
        assert isinstance(reply, ServiceError)
        assert f"batch_1 is still '{status}' after waiting for" in str(reply)
        assert "run the same command again to wait longer" in str(reply)
    assert caplog.text.count("unknown state 'paused'") == (status == "paused")
    server.edit_batch = lambda row: row
    again = batch_api(server, tmp_path / "batches")
    assert texts(again.ask(questions(2), store)) == ["number 0", "number 1"]
    assert len(server.batches) == 1
