"""The cost of a chat model: estimated before anything is sent, counted afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flipbench.config.chat import ChatSpec, traits_of
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, JsonDict
from flipbench.models.chat.messages import ChatRequest
from flipbench.models.chat.prompt_files import PromptFile

TYPICAL_TOKENS = 200  # in the paper, captions had 125 tokens and the filter's replies 200


@dataclass(frozen=True)
class CostEstimate:
    """Tokens and price of a stage; prices are None if none is configured.

    ``usd`` assumes replies of typical length, ``usd_at_most`` replies of maximal length.
    ``image_rule_known`` is whether images were counted by the model's own rule, not gpt-4o's.
    """

    model: str
    n_requests: int
    text_tokens: int
    image_tokens: int
    output_tokens: int
    output_tokens_at_most: int
    usd: float | None
    usd_at_most: float | None
    image_rule_known: bool

    def __str__(self) -> str:
        """Return one line for people."""
        text = (
            f"{self.model}: {self.n_requests:,} requests, about {self.text_tokens:,} text and"
            f" {self.image_tokens:,} image tokens in, {self.output_tokens:,} out (at most"
            f" {self.output_tokens_at_most:,})"
        )
        if self.usd is None or self.usd_at_most is None:
            text += "; no price is configured (price_in, price_out)"
        else:
            text += f"; about ${self.usd:,.2f}, at most ${self.usd_at_most:,.2f}"
        if not self.image_rule_known:
            text += "; images counted as gpt-4o counts them"
        return text


def typical_request(candidate: Candidate, prompt: PromptFile) -> ChatRequest:
    """Return a request about a candidate that costs as much as a captioner's or judge's.

    A missing new answer counts as long as the old one. An edited image has the size of its source.
    """
    item = candidate.item
    flip = candidate.flip or Flip(
        item_id=item.id, method="estimate", seed=0, new_answer=None, new_text=item.answer_text
    )
    return prompt.request(replace(candidate, flip=flip), item.images)


def estimate_cost(
    requests: Sequence[ChatRequest],
    spec: ChatSpec,
    *,
    typical_tokens: int = TYPICAL_TOKENS,
    price_factor: float = 1.0,
) -> CostEstimate:
    """Estimate the cost of requests, for a dry run.

    Text is counted at four characters per token, images by the model's own rule. To
    ``typical_tokens`` of a reply, half of a reasoning model's reasoning budget is added.
    ``price_factor`` is 0.5 for the Batch API.
    """
    token_counts = [request.n_tokens(spec) for request in requests]
    n_text, n_image = sum(text for text, _ in token_counts), sum(image for _, image in token_counts)
    n = len(requests)
    n_out = n * min(typical_tokens + spec.reasoning_budget // 2, spec.limit)
    usd, usd_at_most = (spec.usd(n_text + n_image, out) for out in (n_out, n * spec.limit))
    return CostEstimate(
        model=spec.model,
        n_requests=n,
        text_tokens=n_text,
        image_tokens=n_image,
        output_tokens=n_out,
        output_tokens_at_most=n * spec.limit,
        usd=None if usd is None else usd * price_factor,
        usd_at_most=None if usd_at_most is None else usd_at_most * price_factor,
        image_rule_known=traits_of(spec.model) is not None,
    )


@dataclass
class Spent:
    """The cost of replies, from their usage; ``cost_usd`` covers priced replies only."""

    n_replies: int = 0
    n_priced: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, usage: JsonDict) -> None:
        """Count one reply."""
        self.n_replies += 1
        self.n_priced += usage.get("cost_usd") is not None
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        self.cost_usd += usage.get("cost_usd") or 0.0

    def __str__(self) -> str:
        """Return one line for people."""
        noun = "reply" if self.n_replies == 1 else "replies"
        text = (
            f"{self.n_replies:,} {noun}, {self.prompt_tokens:,} tokens in,"
            f" {self.completion_tokens:,} out"
        )
        if not self.n_priced:
            return f"{text}; no price is known"
        if self.n_priced < self.n_replies:
            return f"{text}; ${self.cost_usd:,.2f} for the {self.n_priced:,} with a known price"
        return f"{text}; ${self.cost_usd:,.2f}"
