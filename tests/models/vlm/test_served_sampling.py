"""Samples, entropies and hidden reasoning of a model behind a server on loopback."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe, Response
from flipbench.models.vlm.served import APIVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.openai_server import KEY, OpenAIServer

LETTERS = [("B", -0.2), ("A", -2.0), ("C", -4.0)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with OpenAIServer() as running:
        running.reply = lambda body: "B"
        yield running


def vlm(server: OpenAIServer, **settings: Any) -> APIVLM:
    return APIVLM(ServedModelConfig(base_url=server.base_url, model="tiny-vlm", **settings))


def probe(items: list[Item], **changes: Any) -> Probe:
    asked = PromptSettings(ask="generate").probe(items[0], "original")
    return Probe(**{**asked.__dict__, "id": "", **changes})


def test_a_sample_is_asked_for_by_temperature_and_seed(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(server, seed=7)
    sampled = probe(shapes_items, temperature=0.8, seed=3)
    answers = model.ask([sampled, probe(shapes_items)], shapes_store)
    assert [getattr(answer, "choice", None) for answer in answers] == [1, 1]
    sent = {(body["temperature"], body["seed"]) for body in server.chats()[1:]}
    assert sent == {(0.8, 3), (0, 7)}


def test_entropies_of_a_reply_are_those_of_the_most_likely_tokens(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    server.first_tokens = lambda body: LETTERS
    model, counted = vlm(server), probe(shapes_items, token_statistics=True)
    (answer,) = model.ask([counted], shapes_store)
    p = [math.exp(value) for _, value in LETTERS]
    entropy = -sum(x / sum(p) * math.log(x / sum(p)) for x in p)
    assert isinstance(answer, Response)
    assert answer.token_means == pytest.approx([-entropy], abs=1e-4)
    assert (answer.text, answer.n_tokens, answer.token_log_probs) == ("B", 1, (-0.2,))
    server.first_tokens = None
    (answer,) = model.ask([counted], shapes_store)
    assert isinstance(answer, ServiceError)


@pytest.mark.parametrize(
    ("reply", "reasoned"),
    [("B", False), ("<think>A? No.</think>B", True), ("A or B? B", False)],
)
def test_reasoning_before_a_reply_is_left_out_but_recorded(
    server: OpenAIServer,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    reply: str,
    reasoned: bool,
) -> None:
    server.reply = lambda body: reply
    (answer,) = vlm(server).ask([probe(shapes_items)], shapes_store)
    assert getattr(answer, "reasoned", None) is reasoned
