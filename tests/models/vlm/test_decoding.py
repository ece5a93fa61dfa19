"""Samples that follow the model's distribution and depend on their probe alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe, Response
from flipbench.models.vlm.decoding import Decoding, sample
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import choice_prompt


def ask(item: Item, **changes: Any) -> Probe:
    fields: dict[str, Any] = {
        "item_id": item.id,
        "variant": "sample",
        "images": item.images,
        "prompt": choice_prompt(item.question, item.options or ()),
        "ask": "generate",
        "max_new_tokens": 4,
    }
    return Probe(**fields | changes)


def replies_of(vlm: HuggingFaceVLM, probes: list[Probe], images: ImageStore) -> list[Response]:
    answers = vlm.ask(probes, images)
    return [answer for answer in answers if isinstance(answer, Response)]


def test_samples_are_as_frequent_as_their_probabilities() -> None:
    logits, n = torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), 4_000
    uniform = (torch.arange(n) + 0.5) / n
    drawn = sample(logits.expand(n, -1), torch.ones(n), uniform)
    counts = Counter(drawn.tolist())
    assert [counts[i] / n for i in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-3)
    colder = Counter(sample(logits.expand(n, -1), torch.full((n,), 0.5), uniform).tolist())
    assert colder[0] / n == pytest.approx(0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), abs=1e-3)


def test_the_largest_number_draws_the_last_possible_token() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    almost_one = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert sample(logits, torch.ones(1), almost_one).tolist() == [1]
    assert sample(logits, torch.ones(1), torch.zeros(1)).tolist() == [0]


def test_greedy_rows_of_a_batch_are_left_as_they_are() -> None:
    probes = [
        Probe(item_id="i", variant="v", prompt="?", ask="generate", temperature=t, seed=1)
        for t in (0.0, 1.0)
    ]
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    changed = Decoding(probes, lambda values: None)(torch.zeros(2, 1), logits)
    assert torch.equal(changed[0], logits[0])
    assert changed[1].isfinite().sum() == 1


def test_ids_of_greedy_probes_do_not_know_sampling(shapes_items: list[Item]) -> None:
    greedy = ask(shapes_items[0])
    assert greedy.id == ask(shapes_items[0], temperature=0.0, seed=0, follows="").id
    others = [
        ask(shapes_items[0], **more)
        for more in (
            {"temperature": 0.8},
            {"temperature": 0.8, "seed": 1},
            {"token_statistics": True},
            {"follows": greedy.id},
        )
    ]
    assert len({greedy.id, *(probe.id for probe in others)}) == 5


@pytest.mark.slow
def test_a_sample_depends_on_its_probe_alone(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    probes = [ask(shapes_items[n % 2], temperature=2.0, seed=n) for n in range(8)]
    together = [reply.text for reply in replies_of(vlm, probes, shapes_store)]
    turned = [reply.text for reply in replies_of(vlm, probes[::-1], shapes_store)][::-1]
    alone = [replies_of(vlm, [probe], shapes_store)[0].text for probe in probes]
    assert together == turned == alone
    assert len(set(together)) > 2, "other seeds draw other replies"
    with torch.random.fork_rng():
        torch.manual_seed(123)
        assert [reply.text for reply in replies_of(vlm, probes, shapes_store)] == together


@pytest.mark.slow
@torch.no_grad()
def test_statistics_of_a_reply_are_those_of_a_plain_forward_pass(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    probes = [ask(item, token_statistics=True) for item in shapes_items[:3]]
    replies = replies_of(vlm, probes, shapes_store)
    plain = replies_of(vlm, [ask(item) for item in shapes_items[:3]], shapes_store)
    assert [reply.text for reply in replies] == [reply.text for reply in plain]
    assert all(reply.token_means == () for reply in plain)
    for probe, reply in zip(probes, replies, strict=True):
        assert len(reply.token_means) == len(reply.token_log_probs) == reply.n_tokens
        text = vlm.conversation.render(probe.prompt, 1)
        pictures = [shapes_store.open(ref) for ref in probe.images]
        inputs = vlm.processor(text=text, images=pictures, return_tensors="pt")
        log_p = vlm.model(**inputs).logits[0, -1].log_softmax(-1)
        assert reply.token_log_probs[0] == pytest.approx(float(log_p.max()), abs=1e-3)
        mean = float((log_p.exp() * log_p).sum())
        assert reply.token_means[0] == pytest.approx(mean, abs=1e-3)


def test_statistics_end_with_the_end_token() -> None:
    (probe,) = [Probe(item_id="i", variant="v", prompt="?", ask="generate", token_statistics=True)]
    decoding = Decoding([probe, probe], lambda values: None)
    for _ in range(3):
        decoding(torch.zeros(2, 1), torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    short, long = decoding.fields(torch.tensor([[2, 9, 9], [0, 0, 0]]), [2, None])
    assert (short["n_tokens"], long["n_tokens"]) == (1, 3)
