"""What asking costs: image tokens in an estimate, and what replies have really cost."""

from __future__ import annotations

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, Item
from flipbench.generate.captioners.api import caption_prompt
from flipbench.models.chat.cost import Spent, estimate_cost, typical_request

PRICED = ChatSpec(model="gpt-4o-2024-08-06", price_in=2.5, price_out=10.0, max_tokens=800)


@pytest.fixture
def candidate(shapes_items: list[Item]) -> Candidate:
    item = shapes_items[0]
    text = next(option for option in item.options or () if option != item.answer_text)
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=None, new_text=text)
    return Candidate(item, flip)


def test_cost_counts_image_tiles(candidate: Candidate) -> None:
    prompt = caption_prompt("caption-release-v1")
    big = candidate.item.images[0].model_copy(update={"width": 2048, "height": 4096})
    item = Item.model_validate(candidate.item.model_dump() | {"id": "", "images": (big,)})
    estimate = estimate_cost(
        [typical_request(c, prompt) for c in (candidate, Candidate(item))], PRICED
    )
    assert estimate.n_requests == 2
    assert estimate.image_tokens == 255 + 1105
    n_characters = len(prompt.instruction) + len(prompt.request(candidate).text)
    assert estimate.text_tokens == pytest.approx(2 * n_characters / 4, abs=3)
    n_in = estimate.text_tokens + estimate.image_tokens
    assert estimate.usd == pytest.approx((n_in * 2.5 + 2 * 200 * 10) / 1e6)
    assert estimate.usd_at_most == pytest.approx((n_in * 2.5 + 2 * 800 * 10) / 1e6)
    half = estimate_cost([typical_request(candidate, prompt)], PRICED, price_factor=0.5)
    whole = estimate_cost([typical_request(candidate, prompt)], PRICED)
    assert half.usd and whole.usd and half.usd == pytest.approx(whole.usd / 2)


def test_an_unknown_cost_is_reported_as_unknown(candidate: Candidate) -> None:
    unknown = ChatSpec(model="my-vlm", api_key_env="NOT_SET")
    estimate = estimate_cost(
        [typical_request(candidate, caption_prompt("caption-paper-v1"))], unknown
    )
    assert estimate.usd is None and not estimate.image_rule_known
    assert "no price is configured" in str(estimate) and "gpt-4o counts" in str(estimate)


def test_spending_is_priced_only_where_prices_are_known() -> None:
    spent = Spent()
    spent.add({"prompt_tokens": 1200, "completion_tokens": 40})
    assert str(spent) == "1 reply, 1,200 tokens in, 40 out; no price is known"
    spent.add({"prompt_tokens": 800, "completion_tokens": 60, "cost_usd": 0.5})
    assert str(spent) == "2 replies, 2,000 tokens in, 100 out; $0.50 for the 1 with a known price"
    free = Spent()
    free.add({"prompt_tokens": 10, "completion_tokens": 1, "cost_usd": 0.0})
    assert str(free) == "1 reply, 10 tokens in, 1 out; $0.00"
