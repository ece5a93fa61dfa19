"""A model under test behind a server on loopback, which misbehaves on demand."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ConfigError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Failure, Item, Probe, Response
from flipbench.core.run import Run
from flipbench.models.chat.messages import ChatRequest
from flipbench.models.engine import answers_of, ask
from flipbench.models.protocols import needs_of
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.served import APIVLM, resolve_reference, serve_model
from flipbench.prompting.prompts import PromptSettings
from studies.tiny_models.tiny import FAMILIES
from tests.fixtures.openai_server import KEY, OpenAIServer, Raw
from tests.fixtures.options import QUIET

pytestmark = pytest.mark.slow

CHOOSE, GENERATE = PromptSettings(), PromptSettings(ask="generate")
LETTERS = [("B", -0.2), ("A", -2.0), (" A", -2.5), ("C", -4.0), ("D", -5.0), ("The", -6.0)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with OpenAIServer() as running:
        running.reply = lambda body: "B"
        yield running


@pytest.fixture
def talking(server: OpenAIServer) -> OpenAIServer:
    """Return a server that tells log-probabilities."""
    server.first_tokens = lambda body: LETTERS
    return server


def vlm(server: OpenAIServer, name: str | None = None, **settings: Any) -> APIVLM:
    chosen: dict[str, Any] = {"base_url": server.base_url, "model": "tiny-vlm"}
    return APIVLM(ServedModelConfig(**(chosen | {"max_retries": 1, "timeout": 5} | settings)), name)


def probe(items: list[Item], prompt_settings: PromptSettings = GENERATE, number: int = 0) -> Probe:
    return prompt_settings.probe(items[number], "original")


def one(model: APIVLM, question: Probe, store: ImageStore) -> Any:
    (answer,) = model.ask([question], store)
    return answer


# what is sent


def test_the_prompt_is_exactly_the_probe_s(
    talking: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(talking)
    generate, choose = probe(shapes_items), probe(shapes_items, CHOOSE)
    model.ask([generate, choose], shapes_store)
    bodies = {body["max_tokens"]: body for body in talking.chats()[1:]}
    for body in bodies.values():
        (message,) = body["messages"]
        assert message["role"] == "user"
        assert [part["type"] for part in message["content"]] == ["image_url", "text"]
        assert message["content"][-1]["text"] == generate.prompt
        assert body["temperature"] == 0
    assert set(bodies) == {1, generate.max_new_tokens}
    assert bodies[1]["logprobs"] is True and bodies[1]["top_logprobs"] == 20
    assert "logprobs" not in bodies[generate.max_new_tokens]


def test_a_reasoning_model_has_room_to_think_and_no_temperature(
    talking: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(talking, model="o3", reasoning_tokens=500)
    assert model.can == {"generate", "text_only"}
    answer = one(model, probe(shapes_items), shapes_store)
    assert answer.choice == 1
    body = talking.chats()[-1]
    assert body["max_completion_tokens"] == GENERATE.max_new_tokens + 500
    assert not {"temperature", "logprobs", "max_tokens"} & body.keys()


# replies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reply", "text", "choice"),
    [
        ("length", "Because it is so", "Because ", -1),
        ("length", " (B) and then some more words", " (B) and then ", -1),
        ("length", "The answer is B. It is so because of it", "The answer is B. It", 1),
        ("refusal", "", "I can't help with that picture.", -1),
        ("ok", " B.", " B.", 1),
        ("ok", "<think>A? No.</think>B", "B", 1),
    ],
)
def test_any_reply_is_recorded_as_the_answer(
    server: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    how: str,
    reply: str,
    text: str,
    choice: int,
) -> None:
    model = vlm(server)
    server.reply = lambda body: reply
    server.script.append(how)
    answer = one(model, probe(shapes_items), shapes_store)
    assert (answer.text, answer.choice) == (text, choice)
    assert (answer.model, answer.model_fingerprint) == ("tiny-vlm", model.fingerprint)


@pytest.mark.parametrize(
    "fields", [{"message": {"content": [1]}}, {"message": {}}, {"finish_reason": "error"}]
)
def test_a_reply_that_is_malformed_or_broken_off_is_no_answer(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, fields: Any
) -> None:
    model = vlm(server, max_retries=0)
    server.script.append("raw")
    server.raw = lambda body: Raw(
        json.dumps(body | {"choices": [body["choices"][0] | fields]}).encode()
    )
    assert isinstance(one(model, probe(shapes_items), shapes_store), ServiceError)


@pytest.mark.parametrize(
    ("how", "reply"),
    [("thoughts", ""), ("length", "<think>It may be (B) or"), ("ok", "<think>It is (A)")],
)
def test_reasoning_is_not_parsed_as_the_answer(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, how: str, reply: str
) -> None:
    model = vlm(server)
    server.reply = lambda body: reply
    server.script.append(how)
    answer = one(model, probe(shapes_items), shapes_store)
    assert isinstance(answer, ServiceError) and "reasoning_tokens" in str(answer)


@pytest.mark.parametrize(
    ("message", "reason", "usage", "said"),
    [
        ({"content": None}, "stop", {}, "empty text (50 tokens used)"),
        ({"content": ""}, "stop", {}, "reasoning: true"),
        ({"content": " \n "}, "stop", {}, "empty text"),
        ({"content": None, "reasoning": "It may be A"}, "stop", {}, "within the model's reasoning"),
        ({"content": "", "reasoning_details": [{"text": "A"}]}, "stop", {}, "reasoning: true"),
        ({"thinking": "It may be A"}, "stop", {}, "reasoning: true"),
        ({"content": [{"type": "thinking", "thinking": []}]}, "stop", {}, "reasoning: true"),
        ({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls", {}, "called a tool"),
        ({"content": ""}, "length", {"reasoning_tokens": 50}, "reasoning: true"),
        (
            {"content": ""},
            "length",
            {},
            "limit of 16 tokens, before any text; raise max_new_tokens",
        ),
        ({"content": "\n" * 600_000}, "stop", {}, "600,000 characters"),
        ({"content": "<think>A</think>"}, "stop", {}, "within the model's reasoning"),
        (
            {"content": "<|channel|>analysis<|message|>A"},
            "stop",
            {},
            "within the model's reasoning",
        ),
    ],
)
def test_an_empty_reply_is_a_failure_that_names_the_remedy(
    server: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    message: dict[str, Any],
    reason: str,
    usage: dict[str, Any],
    said: str,
) -> None:
    def without_text(body: dict[str, Any]) -> Raw:
        choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": reason}
        more = {"completion_tokens_details": usage}
        return Raw(json.dumps(body | {"choices": [choice], "usage": body["usage"] | more}).encode())

    server.raw = without_text
    server.script.append("raw")  # an empty trial says nothing about the questions
    model = vlm(server)
    server.script.append("raw")
    failed, answered = model.ask([probe(shapes_items)] * 2, shapes_store)
    if isinstance(answered, ServiceError):  # whichever thread came first
        failed, answered = answered, failed
    assert isinstance(failed, ServiceError) and said in str(failed)
    assert answered.choice == 1
    server.script.append("raw")
    (caption,) = model._chat.ask([ChatRequest("Describe.", "x")], ImageStore(Path("none")))
    assert isinstance(caption, ServiceError)


def test_a_truncated_reasoning_model_has_not_answered(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(server, model="o3")
    server.reply = lambda body: "it could be A, or it could be B."
    server.script.append("length")
    assert isinstance(one(model, probe(shapes_items), shapes_store), ServiceError)


def test_a_truncated_caption_is_a_failure(server: OpenAIServer) -> None:
    model = vlm(server)
    server.script.append("length")
    (reply,) = model._chat.ask([ChatRequest("Describe.", "x")], ImageStore(Path("none")))
    assert isinstance(reply, ServiceError) and "cut off" in str(reply)


# letters


def test_letters_by_log_probability(
    talking: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    answer = one(vlm(talking), probe(shapes_items, CHOOSE), shapes_store)
    a = math.log(math.exp(-2.0) + math.exp(-2.5))
    k = len(shapes_items[0].options or ())
    assert answer.choice == 1 and answer.text == ""
    assert answer.option_log_probs == pytest.approx((a, -0.2, -4.0, -5.0)[:k])


def test_without_every_letter_s_log_prob_only_the_choice_is_kept(
    talking: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(talking, top_logprobs=2)
    answer = one(model, probe(shapes_items, CHOOSE), shapes_store)
    assert answer.choice == 1 and answer.option_log_probs == ()


@pytest.mark.parametrize(
    ("tokens", "share", "choice"),
    [
        ([("<think>", -0.001), ("B", -8.5), ("A", -9.0)], 0.000327, -1),
        ([("\n", -0.6), ("B", -0.9), (" A", -4.0)], 0.424885, -1),
        ([("B", -0.6), ("\n", -0.9), (" A", -4.0)], 0.567127, 1),
    ],
)
def test_letters_that_the_model_does_not_mean_are_unreadable(
    talking: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tokens: list[tuple[str, float]],
    share: float,
    choice: int,
) -> None:
    model = vlm(talking)
    talking.first_tokens = lambda body: tokens
    talking.reply = lambda body: ""
    answer = one(model, probe(shapes_items, CHOOSE), shapes_store)
    assert answer.choice == choice and answer.is_unreadable == (choice < 0)
    assert answer.letter_share == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([("**", -0.1), ("It", -3.0)], "no option letter is among the 2"),
        ([("A", math.nan), ("B", -1.0)], "log-probabilities are invalid"),
        ([("A", 3.0), ("B", -1.0)], "log-probabilities are invalid"),
        ([("A", False), ("B", -1.0)], "log-probabilities are invalid"),
        ([("A", -9999.0)], "no log-probabilities"),
    ],
)
def test_a_reply_without_a_letter_is_no_choice(
    talking: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tokens: list[tuple[str, float]],
    said: str,
) -> None:
    model = vlm(talking)
    talking.first_tokens = lambda body: tokens
    answer = one(model, probe(shapes_items, CHOOSE), shapes_store)
    assert isinstance(answer, ServiceError) and said in str(answer)


# what it can do


@pytest.mark.parametrize("how", ["ignored", "rejected", "forbidden", "declared"])
def test_without_log_probabilities_it_cannot_choose(
    server: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.rejects = {"logprobs"} if how == "rejected" else set()
    server.script.extend(["no logprobs"] * 2 if how == "forbidden" else [])
    model = vlm(server, logprobs=False if how == "declared" else None)
    assert model.can == {"generate", "sample", "text_only"}
    warned = "it supports generate, but not choose" in caplog.text
    assert warned == (how != "declared")
    n_before = len(server.chats())
    refused, answered = model.ask([probe(shapes_items, CHOOSE), probe(shapes_items)], shapes_store)
    assert isinstance(refused, ConfigError) and "does not support ask: choose" in str(refused)
    assert isinstance(answered, Response) and answered.choice == 1
    assert len(server.chats()) == n_before + 1, "what it cannot answer is not even asked"


def test_declared_log_probabilities_must_come(server: OpenAIServer) -> None:
    with pytest.raises(PrerequisiteError, match="returns no log-probabilities"):
        vlm(server, logprobs=True)


def test_each_kind_of_probe_needs_its_capability(shapes_items: list[Item]) -> None:
    score = Probe(item_id="i", variant="v", prompt="", ask="score", continuation="x")
    questions = [probe(shapes_items), probe(shapes_items, CHOOSE), score]
    assert [*map(needs_of, questions)] == [
        {"generate"},
        {"choose"},
        {"token_logprobs", "text_only"},
    ]


@pytest.mark.parametrize(
    "settings",
    [{"max_tokens": 5}, {"structured": False}, {"temperature": 0.7}]
    + [{"model": "o3", "logprobs": True}],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServedModelConfig(**({"model": "tiny-vlm"} | settings))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://me.openai.azure.com/openai/deployments/x?api-version=1", "azure.com/openai/v1/"),
        ("https://me.openai.azure.com/openai/deployments/x", "as the model: x"),
        ("https://host/v1?key=1", "must not contain a user, password or query"),
    ],
)
def test_an_address_with_a_query_names_the_one_to_use(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        serve_model("m", url)


# which model it is


def test_the_fingerprint_covers_model_and_settings(server: OpenAIServer) -> None:
    def fingerprint(**settings: Any) -> str:
        return vlm(server, **settings).fingerprint

    first = fingerprint()
    assert fingerprint(timeout=9, n_concurrent=2, max_retries=0) == first
    assert vlm(server, "another name").fingerprint == first
    others = [fingerprint(revision="abc"), fingerprint(detail="low"), fingerprint(seed=1)]
    others.append(fingerprint(model="gpt-4o-2024-08-06"))
    server.reported_model = "tiny-vlm-v2"
    others.append(fingerprint())
    server.reported_model = None
    server.rejects = {"temperature"}
    others.append(fingerprint())
    assert len({first, *others}) == 7


def test_a_model_that_changes_midway_is_a_failure(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(server)
    server.reported_model = "cheaper-vlm"
    answer = one(model, probe(shapes_items), shapes_store)
    assert isinstance(answer, ServiceError) and "'cheaper-vlm'" in str(answer)


def test_a_server_without_greedy_decoding_is_reported(
    server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.rejects = {"temperature"}
    vlm(server)
    assert "not reproducible" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "script", "said"),
    [
        ({"model": "nope"}, [], "it offers"),
        ({"base_url": "http://127.0.0.1:9/v1"}, [], "cannot be reached"),
        ({}, ["500", "500"], "does not answer a trial question"),
        ({}, ["403"], "does not allow this key"),
    ],
)
def test_a_missing_model_stops_the_run(
    server: OpenAIServer, settings: dict[str, Any], script: list[str], said: str
) -> None:
    server.script.extend(script)
    with pytest.raises(PrerequisiteError, match=said):
        vlm(server, **settings)


# through the engine


@pytest.mark.slow
def test_a_dropped_connection_is_a_failure_and_is_retried(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, tmp_path: Path
) -> None:
    model = vlm(server, max_retries=0, n_concurrent=1)
    questions = [probe(shapes_items, number=i) for i in range(6)]
    server.script.extend(["ok", "down", "broken", "ok", "500", "filter"])
    with Run(tmp_path / "run") as run:
        report = ask(questions, model, run, shapes_store, options=QUIET)
        assert (report.n_done, report.n_failed) == (2, 4)
        assert len(list(run.read(Failure))) == 4
        answers = answers_of(model.name, model.fingerprint, run)
        outcomes = answers.outcomes(questions, [1] * 6)
        assert outcomes.count(True) == 2 and outcomes.count(None) == 4, "no error is a wrong answer"
        assert ask(questions, model, run, shapes_store, options=QUIET).n_done == 4
        again = answers_of(model.name, model.fingerprint, run)
        assert again.outcomes(questions, [1] * 6) == [True] * 6


# a real model behind it


def first_tokens_of(local: HuggingFaceVLM, body: dict[str, Any]) -> list[tuple[str, float]]:
    """Return what a checkpoint in memory says first to a request as it arrived."""
    (message,) = body["messages"]
    *pictures, text = message["content"]
    data = [base64.b64decode(part["image_url"]["url"].split(",")[1]) for part in pictures]
    inputs = local.processor(
        text=[local.conversation.render(text["text"], len(data))],
        images=[[Image.open(io.BytesIO(d)).convert("RGB") for d in data]] if data else None,
        return_tensors="pt",
        add_special_tokens=False,
    )
    with torch.inference_mode():
        top = local.model(**inputs).logits[0, -1].log_softmax(-1).topk(50)
    tokens = [local.tokenizer.decode([int(i)]) for i in top.indices]
    return list(zip(tokens, top.values.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_served_model_chooses_as_it_does_in_memory(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, family: str
) -> None:
    local = HuggingFaceVLM(f"shapes:{family}")
    server.first_tokens = lambda body: first_tokens_of(local, body)
    questions = [probe(shapes_items, CHOOSE, i) for i in range(24)]
    served = vlm(server, n_concurrent=1).ask(questions, shapes_store)
    expected = local.ask(questions, shapes_store)
    assert [r.choice for r in served] == [r.choice for r in expected]
    scored = [
        (there.option_log_probs, here.option_log_probs)
        for there, here in zip(served, expected, strict=True)
        if there.option_log_probs
    ]
    assert len(scored) > 12
    for there_log_probs, here_log_probs in scored:
        assert there_log_probs == pytest.approx(here_log_probs, abs=1e-3)
    assert len({r.choice for r in expected}) > 1


def test_references_here_are_not_looked_up_on_a_server(tiny_folders: dict[str, Path]) -> None:
    folder = str(tiny_folders["llava"])
    assert resolve_reference(folder, "http://localhost:1/v1") == folder
    assert (
        resolve_reference("shapes:llava", "http://localhost:1/v1")
        == "shapes:llava"
        == resolve_reference("shapes:llava")
    )
