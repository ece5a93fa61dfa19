"""The client, against a real server on loopback that misbehaves on demand."""

from __future__ import annotations

import base64
import io
import logging
import traceback
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from pydantic import BaseModel, ConfigDict

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from tests.fixtures.openai_server import CAPTION, KEY, OpenAIServer


class Colour(BaseModel):
    """A reply with a schema."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "blue"]


def api(server: OpenAIServer, **settings: Any) -> ChatAPI:
    chosen: dict[str, Any] = {"model": "gpt-4o-2024-08-06", "max_retries": 2, "timeout": 5}
    return ChatAPI(ChatSpec(base_url=server.base_url, **(chosen | settings)))


def ask(chat: ChatAPI, store: ImageStore, n: int = 1, **fields: Any) -> list[Any]:
    requests = [ChatRequest("Describe.", f"number {i}", **fields) for i in range(n)]
    return list(chat.ask(requests, store))


def picture(fmt: str, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 30, 90)).save(buffer, fmt, **options)
    return buffer.getvalue()


def text_of(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"][-1]["text"])


# what is sent


def test_messages_hold_the_instruction_then_images_then_the_item(
    server: OpenAIServer, store: ImageStore
) -> None:
    data = picture("PNG")
    ref = store.put(data, "x")
    (reply,) = ask(api(server), store, images=(ref,))
    assert reply.text == CAPTION
    (body,) = server.chats()
    system, user = body["messages"]
    assert system == {"role": "system", "content": "Describe."}
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]
    head, encoded = user["content"][0]["image_url"]["url"].split(",")
    assert head == "data:image/png;base64" and base64.b64decode(encoded) == data
    assert body["temperature"] == 0.3 and body["max_tokens"] == 800


def test_a_missing_image_fails_only_its_request(server: OpenAIServer, store: ImageStore) -> None:
    ref = store.put(picture("PNG"), "x")
    store.path(ref).unlink()
    good = ChatRequest("Describe.", "good")
    lost, answered = api(server).ask([ChatRequest("D", "lost", (ref,)), good], store)
    assert isinstance(lost, DataError) and isinstance(answered, ChatReply)


def test_a_reasoning_model_gets_no_temperature_and_room_to_think(
    server: OpenAIServer, store: ImageStore
) -> None:
    chat = api(server, model="o3", max_tokens=100, reasoning_tokens=900)
    ask(chat, store)
    (body,) = server.chats()
    assert "temperature" not in body and "max_tokens" not in body
    assert body["max_completion_tokens"] == 1000
    assert chat.settings == {"model": "o3", "max_tokens": 1000, "detail": "auto"}


def test_a_deployment_can_be_declared_a_reasoning_model(
    server: OpenAIServer, store: ImageStore
) -> None:
    ask(api(server, model="tiny-vlm", reasoning=True), store)
    assert "max_completion_tokens" in server.chats()[0]


@pytest.mark.parametrize(
    ("rejected", "sent"),
    [
        ({"temperature"}, {"max_tokens": 800, "seed": 7}),
        ({"temperature", "seed", "max_tokens"}, {"max_completion_tokens": 800}),
    ],
    ids=["one", "three"],
)
def test_rejected_parameters_are_dropped_once_and_recorded(
    server: OpenAIServer, store: ImageStore, rejected: set[str], sent: dict[str, int]
) -> None:
    server.rejects = rejected
    chat = api(server, seed=7, n_concurrent=1)
    replies = ask(chat, store, n=3)
    assert len(server.chats()) == len(rejected) + 3, "each is learnt from one request only"
    assert [reply.usage["sent"] for reply in replies] == [sent] * 3
    assert chat.settings["temperature"] == 0.3, "what an id is made of does not depend on luck"


def test_other_bad_requests_are_failures(server: OpenAIServer, store: ImageStore) -> None:
    server.script.append("echo")
    (reply,) = ask(api(server), store)
    assert isinstance(reply, ServiceError) and len(server.chats()) == 1


@pytest.mark.parametrize("how", ["detail", "list"])
def test_a_rejected_parameter_is_recognised_in_other_words(
    server: OpenAIServer, store: ImageStore, how: str
) -> None:
    server.script.append(how)
    (reply,) = ask(api(server, seed=7), store)
    assert "seed" in server.chats()[0] and "seed" not in reply.usage["sent"]


def test_structured_replies_are_parsed(server: OpenAIServer, store: ImageStore) -> None:
    server.reply = lambda body: '{"colour": "blue"}'
    (reply,) = ask(api(server), store, schema=Colour)
    assert reply.parsed == Colour(colour="blue")
    form = server.chats()[0]["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"]["required"] == ["colour"]
    assert reply.usage["sent"]["response_format"] == "Colour"


def test_an_unsupported_schema_falls_back_to_text(server: OpenAIServer, store: ImageStore) -> None:
    server.rejects = {"response_format"}
    server.reply = lambda body: "Blue, I think."
    (reply,) = ask(api(server), store, schema=Colour)
    assert reply.parsed is None and reply.text == "Blue, I think."
    assert "response_format" not in reply.usage["sent"]


@pytest.mark.parametrize("text", ['{"colour": "bl', '{"colour": "green"}', "[]"])
def test_json_that_is_cut_or_wrong_is_not_parsed(
    server: OpenAIServer, store: ImageStore, text: str
) -> None:
    server.reply = lambda body: text
    (reply,) = ask(api(server), store, schema=Colour)
    assert reply.parsed is None and reply.text == text


# what comes back


def test_usage_and_cost_are_recorded(server: OpenAIServer, store: ImageStore) -> None:
    ref = store.put(picture("PNG", (1024, 1024)), "x")
    chat = api(server, price_in=2.5, price_out=10.0)
    (reply,) = ask(chat, store, images=(ref,))
    cost = (1000 * 2.5 + 50 * 10) / 1e6
    assert reply.usage == {
        "model": "gpt-4o-2024-08-06",
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "cached_tokens": 128,
        "image_tokens_estimated": 765,
        "cost_usd": pytest.approx(cost),
        "system_fingerprint": "fp_test",
        "completion_id": "chatcmpl-1",
        "sent": {"temperature": 0.3, "max_tokens": 800},
        "server": server.base_url.split("/")[2],
        "n_retries": 0,
        "request_id": "req_test",
    }
    assert chat.spent.n_replies == 1 and chat.spent.cost_usd == pytest.approx(cost)


def test_without_a_price_there_is_no_cost(server: OpenAIServer, store: ImageStore) -> None:
    (reply,) = ask(api(server), store)
    assert "cost_usd" not in reply.usage


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("refusal", "refused: I can't help"),
        ("empty", "empty text"),
        ("length", "cut off after 50 tokens"),
        ("filter", "content filter"),
        ("broken", "invalid JSON"),
        ("nonsense", "not a chat completion"),
    ],
)
def test_empty_and_refused_replies_fail_only_their_item(
    server: OpenAIServer, store: ImageStore, how: str, says: str
) -> None:
    server.script.append(how)
    chat = api(server, n_concurrent=1, price_in=1.0, price_out=1.0)
    bad, good = ask(chat, store, n=2)
    assert type(bad) is ServiceError and says in str(bad)
    assert good.text == CAPTION
    paid = 1 if how in ("broken", "nonsense") else 2
    assert chat.spent.completion_tokens == 50 * paid, "a useless reply costs as well"


def test_reasoning_is_stripped_from_the_reply(server: OpenAIServer, store: ImageStore) -> None:
    server.reply = lambda body: "<think>\nTwo? Three.\n</think>\n\nThree people."
    assert ask(api(server), store)[0].text == "Three people."


def test_content_in_parts_is_joined(server: OpenAIServer, store: ImageStore) -> None:
    parts: Any = [{"type": "text", "text": "A "}, {"type": "text", "text": "star."}]
    server.reply = lambda body: parts
    assert ask(api(server), store)[0].text == "A star."


# order, retries, limits


def test_order_holds_with_many_threads(server: OpenAIServer, store: ImageStore) -> None:
    server.script.extend(["slow", "ok", "slow", "ok"])
    server.reply = text_of
    replies = ask(api(server, n_concurrent=3), store, n=9)
    assert [reply.text for reply in replies] == [f"number {i}" for i in range(9)]
    assert 2 <= server.most_running <= 3


def test_retry_after_is_honoured(server: OpenAIServer, store: ImageStore) -> None:
    server.script.extend(["429", "429"])
    server.retry_after = "0.2"
    (reply,) = ask(api(server), store)
    assert reply.usage["n_retries"] == 2 and len(server.chats()) == 3
    times = [seen.time for seen in server.seen]
    assert min(b - a for a, b in zip(times, times[1:], strict=False)) >= 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [("500", "500: It broke"), ("429", "429: Slow down"), ("page", "502: <html>Bad gateway")],
)
def test_retries_are_limited(server: OpenAIServer, store: ImageStore, how: str, says: str) -> None:
    server.script.extend([how] * 2)
    (reply,) = ask(api(server, max_retries=1), store)
    assert isinstance(reply, ServiceError) and says in str(reply)
    assert len(server.chats()) == 2


def test_a_timeout_is_a_failure_of_its_item(server: OpenAIServer, store: ImageStore) -> None:
    server.script.append("hang")
    slow, good = ask(api(server, max_retries=0, timeout=0.3, n_concurrent=1), store, n=2)
    assert isinstance(slow, ServiceError) and "within 0.3 s" in str(slow)
    assert isinstance(good, ChatReply)


def test_a_lost_connection_is_a_failure_after_a_first_success(
    server: OpenAIServer, store: ImageStore
) -> None:
    server.script.extend(["ok", "down"])
    _, lost, good = ask(api(server, max_retries=0, n_concurrent=1), store, n=3)
    assert isinstance(lost, ServiceError) and "cannot be reached" in str(lost)
    assert isinstance(good, ChatReply)


def test_an_unreachable_server_stops_everything(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    chat = ChatAPI(ChatSpec(model="m", base_url="http://127.0.0.1:9/v1", max_retries=0))
    replies = ask(chat, store, n=3)
    assert all(isinstance(reply, PrerequisiteError) for reply in replies)
    assert "127.0.0.1:9" in str(replies[0]) and "base_url" in str(replies[0])


def test_requests_per_minute_are_limited(server: OpenAIServer, store: ImageStore) -> None:
    ask(api(server, requests_per_minute=600), store, n=5)
    times = sorted(seen.time for seen in server.seen)
    assert times[-1] - times[0] >= 4 * 0.1 - 0.06  # the first one also connects


# what stops the work, and the key


def test_a_missing_key_is_reported_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PrerequisiteError, match="OPENAI_API_KEY is not set"):
        ChatAPI(ChatSpec(model="gpt-4o")).ask([], ImageStore(tmp_path))


def test_a_server_without_keys(server: OpenAIServer, store: ImageStore) -> None:
    (reply,) = ask(api(server, api_key_env=None), store)
    assert reply.text == CAPTION
    assert KEY not in str(server.seen[0].headers)


def test_unknown_model_names_the_models(server: OpenAIServer, store: ImageStore) -> None:
    replies = ask(api(server, model="gpt-99", n_concurrent=1), store, n=3)
    assert len(server.chats()) == 1, "the rest is not sent"
    assert all(isinstance(reply, PrerequisiteError) for reply in replies)
    assert "no model 'gpt-99'" in str(replies[0])
    assert "gpt-4o-2024-08-06, o3, tiny-vlm" in str(replies[0])


def test_a_wrong_address_is_reported(server: OpenAIServer, store: ImageStore) -> None:
    chat = ChatAPI(ChatSpec(model="o3", base_url=server.base_url.removesuffix("/v1")))
    (reply,) = ask(chat, store)
    assert isinstance(reply, PrerequisiteError) and "ends in /v1" in str(reply)


def test_an_exhausted_quota_stops_everything(server: OpenAIServer, store: ImageStore) -> None:
    server.script.append("quota")
    (reply,) = ask(api(server, max_retries=0), store)
    assert isinstance(reply, PrerequisiteError) and "quota" in str(reply)


@pytest.mark.parametrize("how", ["401", "403", "echo"])
def test_the_key_appears_nowhere(
    server: OpenAIServer,
    store: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    how: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = KEY
    if how == "401":
        secret = "sk-wrong-but-secret-1234"
        monkeypatch.setenv("OPENAI_API_KEY", secret)
    else:
        server.script.append(how)
    chat = api(server, max_retries=0)
    (error,) = ask(chat, store)
    assert isinstance(error, ServiceError if how == "echo" else PrerequisiteError)
    told = "".join(traceback.format_exception(error))
    out, err = capfd.readouterr()
    told += caplog.text + out + err + repr(chat.__dict__["spec"]) + str(chat.settings) + repr(error)
    assert secret not in told and secret[3:] not in told
    assert how == "echo" or f"({how})" in str(error)
