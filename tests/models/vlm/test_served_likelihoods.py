"""Log-probabilities over HTTP against a model in memory: the server speaks vLLM's protocol."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split

from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Probe, Response
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.scoring.likelihood import answer_probe, text_probe
from flipbench.models.chat.log_probs import N_WITH_STATISTICS
from flipbench.models.engine import Answers
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.served import APIVLM
from flipbench.prompting.prompts import PromptSettings
from studies.tiny_models.tiny import FAMILIES
from tests.fixtures.openai_server import KEY, OpenAIServer, Raw
from tests.fixtures.vllm_protocol import Protocol

pytestmark = pytest.mark.slow

CHOOSE = PromptSettings()
NATS = 1e-4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with OpenAIServer() as running:
        yield running


@pytest.fixture(scope="module")
def local() -> HuggingFaceVLM:
    return HuggingFaceVLM("shapes:llava")


def loaded(family: str) -> HuggingFaceVLM:
    """Return a checkpoint whose tokenizer, as Qwen2-VL's own does, splits text at line breaks."""
    model = HuggingFaceVLM(f"shapes:{family}")
    backend = model.tokenizer.backend_tokenizer
    if backend.pre_tokenizer is not None:
        lines = Split("\n", "isolated")
        backend.pre_tokenizer = PreTokenizers([lines, backend.pre_tokenizer])
    return model


def vlm(server: OpenAIServer, local: HuggingFaceVLM, **settings: Any) -> APIVLM:
    known = {name: settings.pop(name) for name in [*settings] if hasattr(Protocol, name)}
    server.answer = Protocol(local, **known).complete
    chosen: dict[str, Any] = {"max_retries": 0, "timeout": 20, "n_concurrent": 2}
    return APIVLM(
        ServedModelConfig(base_url=server.base_url, model="tiny-vlm", **(chosen | settings))
    )


def scored(items: list[Item]) -> list[Probe]:
    """Return texts with and without pictures, and with and without a prompt."""
    probes = [answer_probe(item, CHOOSE, "answer") for item in items[:4]]
    probes += [text_probe(i.id, "question", i.question, "", i.images) for i in items[4:7]]
    probes += [text_probe(i.id, "alone", f" {i.question} ", "") for i in items[7:10]]
    many = " ".join(item.question for item in items)
    return [*probes, text_probe("all", "many", many, "Questions:")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_served_model_scores_texts_as_it_does_in_memory(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, family: str
) -> None:
    local = loaded(family)
    model, probes = vlm(server, local), scored(shapes_items)
    assert model.can == {
        "choose",
        "generate",
        "reply_logprobs",
        "sample",
        "text_only",
        "token_logprobs",
    }
    expected = local.ask(probes, shapes_store)
    for probe, there, here in zip(probes, model.ask(probes, shapes_store), expected, strict=True):
        assert isinstance(there, Response) and isinstance(here, Response), there
        assert there.n_tokens == here.n_tokens
        assert there.token_log_probs == pytest.approx(here.token_log_probs, abs=NATS)
        n = there.n_tokens or 0
        assert there.log_likelihood == pytest.approx(here.log_likelihood, abs=NATS * n)
        assert bool(there.token_log_probs) == (bool(probe.images) or n <= N_WITH_STATISTICS)
        assert there.token_means == (), "no more is stored than was measured"


@pytest.mark.parametrize("name", ["codec", "loss", "min_k", "order_trend", "shared_likelihood"])
def test_a_detector_that_reads_likelihoods_finds_the_same_on_a_served_model(
    server: OpenAIServer,
    local: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    name: str,
) -> None:
    pairs = tuple(_pair(a, b) for a, b in pairwise(shapes_items[:9]) if a.options and b.images)
    benchmark, detector = PairedBenchmark("shapes", pairs, shapes_store), DETECTORS[name]
    probes = list({p.id: p for p in detector.probes(benchmark, CHOOSE)}.values())
    served = vlm(server, local)
    assert detector.about.needs <= served.can
    found = []
    for model in (served, local):
        replies = [r for r in model.ask(probes, shapes_store) if isinstance(r, Response)]
        assert len(replies) == len(probes)
        by_probe = {reply.probe_id: reply for reply in replies}
        found.append(detector.score(benchmark, CHOOSE, Answers("m", model.fingerprint, by_probe)))
    for there, here in zip(*found, strict=True):
        if there.rule == "min_k_plus_plus":
            assert there.verdict == "not_applicable", "a server sends no whole distribution"
            continue
        assert (there.rule, there.n, there.verdict) == (here.rule, here.n, here.verdict)
        assert (there.p_value is None) == (here.p_value is None)
        assert there.statistic == pytest.approx(here.statistic, abs=1e-3)


def _pair(item: Item, other: Item) -> Pair:
    assert item.options is not None and item.answer is not None
    answer = (item.answer + 1) % len(item.options)
    changed = {"id": "", "images": other.images, "answer": answer}
    changed["answer_text"] = item.options[answer]
    return Pair(item, Item(**(item.model_dump() | changed)))


@pytest.mark.parametrize("family", FAMILIES)
def test_letters_are_exact(
    server: OpenAIServer, shapes_items: list[Item], shapes_store: ImageStore, family: str
) -> None:
    local = loaded(family)
    model = vlm(server, local)
    probes = [CHOOSE.probe(item, "original") for item in shapes_items[:10]]
    probes += [_labelled(probe, "yes no") for probe in probes[:3]]
    expected = local.ask(probes, shapes_store)
    for there, here in zip(model.ask(probes, shapes_store), expected, strict=True):
        assert isinstance(there, Response) and isinstance(here, Response), there
        assert there.choice == here.choice
        assert there.option_log_probs == pytest.approx(here.option_log_probs, abs=NATS)


def _labelled(probe: Probe, labels: str) -> Probe:
    return Probe(**{**probe.__dict__, "id": "", "labels": labels, "n_options": 2})


def test_each_prompt_is_asked_once_alone(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    model = vlm(server, local)
    n_before = len(server.chats())
    model.ask([text_probe("i", t, t, "Describe.") for t in ("red", "blue", "a star")], shapes_store)
    bodies = server.chats()[n_before:]
    assert len(bodies) == 4 and all(body["prompt_logprobs"] == 0 for body in bodies)
    replies = [body for body in bodies if body["messages"][-1]["role"] == "assistant"]
    assert len(replies) == 3
    for body in replies:
        assert body["continue_final_message"] is True and body["add_generation_prompt"] is False


# what a server lacks


def test_a_server_that_ignores_the_extensions_scores_nothing(
    server: OpenAIServer,
    local: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = vlm(server, local, scores_prompts=False)
    assert "choose" in model.can and "token_logprobs" not in model.can
    assert "scores no given texts" in caplog.text
    (answer,) = model.ask([CHOOSE.probe(shapes_items[0], "original")], shapes_store)
    assert isinstance(answer, Response)
    assert "logprob_token_ids" not in server.chats()[-1]


def test_a_refused_extension_leaves_the_others(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    refused = vlm(server, local, refuses="prompt_logprobs")
    assert "choose" in refused.can and "token_logprobs" not in refused.can
    model = vlm(server, local, refuses="logprob_token_ids")
    assert {"choose", "token_logprobs"} <= model.can
    (answer,) = model.ask([CHOOSE.probe(shapes_items[0], "original")], shapes_store)
    assert isinstance(answer, Response) and server.chats()[-1]["top_logprobs"] == 20


def test_letters_among_the_most_likely_tokens_are_another_model(
    server: OpenAIServer, local: HuggingFaceVLM
) -> None:
    exact = vlm(server, local).fingerprint
    approximate = vlm(server, local, names_tokens=False)
    assert "token_logprobs" in approximate.can and approximate.fingerprint != exact
    assert vlm(server, local, scores_prompts=False).fingerprint == approximate.fingerprint


def test_a_template_that_rewrites_the_prompt_is_noticed(
    server: OpenAIServer, local: HuggingFaceVLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    changed = copy.copy(local)
    changed.processor = copy.deepcopy(local.processor)
    template = local.processor.chat_template
    changed.processor.chat_template = template.replace("'ASSISTANT: '", "'Reply: '")
    assert changed.processor.chat_template != template
    assert "token_logprobs" not in vlm(server, changed).can
    assert "unknown where the reply begins" in caplog.text


def test_a_tokenizer_that_merges_prompt_and_reply_is_noticed(server: OpenAIServer) -> None:
    model = vlm(server, HuggingFaceVLM("shapes:qwen2_vl"))
    assert "choose" in model.can and "token_logprobs" not in model.can


def test_declared_scoring_must_come(server: OpenAIServer, local: HuggingFaceVLM) -> None:
    with pytest.raises(PrerequisiteError, match="scores no given texts"):
        vlm(server, local, scores_prompts=False, prompt_logprobs=True)
    n_before = len(server.chats())
    assert "token_logprobs" not in vlm(server, local, prompt_logprobs=False).can
    asked = server.chats()[n_before:]
    assert asked and not any("prompt_logprobs" in body for body in asked)
    for settings in ({"logprobs": False}, {"reasoning": True}):
        with pytest.raises(ValidationError, match="prompt_logprobs"):
            ServedModelConfig(model="tiny-vlm", prompt_logprobs=True, **settings)


# odd replies


ODD: dict[str, Callable[[list[Any]], Any]] = {
    "a string": lambda rows: "x",
    "an object": lambda rows: {"0": rows},
    "a row that is a list": lambda rows: [None, [1], *rows[2:]],
    "an empty row": lambda rows: [None, {}, *rows[2:]],
    "a key that is no id": lambda rows: [*rows[:-1], {"B": {"logprob": -1.0}}],
    "no log-probability": lambda rows: [*rows[:-1], {"5": {"rank": 1}}],
    "null": lambda rows: [*rows[:-1], {"5": {"logprob": None}}],
    "not a number": lambda rows: [*rows[:-1], {"5": {"logprob": float("nan")}}],
    "positive": lambda rows: [*rows[:-1], {"5": {"logprob": 2.0}}],
    "not given": lambda rows: [*rows[:-1], {"5": {"logprob": -9999.0}}],
    "a missing row": lambda rows: [*rows[:-1], None],
    "cut": lambda rows: rows[:3],
    "nothing": lambda rows: [],
    "absent": lambda rows: None,
    "another prompt": lambda rows: [None, {"5": {"logprob": -1.0}}, *rows[2:]],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_log_probabilities_fail_only_their_probe(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_store: ImageStore, name: str
) -> None:
    model = vlm(server, local, n_concurrent=1)
    server.script.append("raw")
    server.raw = lambda body: Raw(
        json.dumps(body | {"prompt_logprobs": ODD[name](body["prompt_logprobs"])}).encode()
    )
    probes = [text_probe("i", text, text, "Describe.") for text in ("a red star", "a blue square")]
    odd, good = model.ask(probes, shapes_store)
    assert isinstance(odd, ServiceError) and len(str(odd)) < 400, odd
    assert isinstance(good, Response) and good.n_tokens


@pytest.mark.parametrize("n_left", [1, 3])
def test_log_probabilities_of_a_part_of_the_prompt_are_refused(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_store: ImageStore, n_left: int
) -> None:
    """The rest of the prompt would be scored as if it were the text."""
    model = vlm(server, local, n_concurrent=1)
    server.script.extend(["ok", "raw"])  # the text with its prompt; the prompt alone
    server.raw = lambda body: Raw(
        json.dumps(body | {"prompt_logprobs": body["prompt_logprobs"][:n_left]}).encode()
    )
    (answer,) = model.ask([text_probe("i", "v", "a red star", "Describe.")], shapes_store)
    assert isinstance(answer, ServiceError) and f"has {n_left} entries for" in str(answer)


def test_nothing_to_score_is_an_error(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_store: ImageStore
) -> None:
    (answer,) = vlm(server, local).ask([text_probe("i", "v", "  ", "?")], shapes_store)
    assert isinstance(answer, DataError) and "nothing to score" in str(answer)


def test_the_key_is_in_no_message_about_a_prompt_s_tokens(
    server: OpenAIServer, local: HuggingFaceVLM, shapes_store: ImageStore
) -> None:
    model = vlm(server, local, n_concurrent=1)
    server.script.extend(["raw", "echo"])
    server.raw = lambda body: Raw(
        json.dumps(
            body | {"prompt_logprobs": [None, {KEY: {"logprob": KEY, "decoded_token": KEY}}]}
        ).encode()
    )
    answers = model.ask([text_probe("i", t, t, "?") for t in ("red", "blue")], shapes_store)
    assert all(isinstance(answer, ServiceError) for answer in answers)
    assert not any(KEY[:12] in str(answer) for answer in answers)
