"""What asking a chat model costs: estimated before anything is sent, counted afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flipbench.config.chat import ChatSpec, traits_of
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, JsonDict
from flipbench.models.chat.messages import ChatRequest
from flipbench.models.chat.prompt_files import PromptFile

TYPICAL_TOKENS = 200  # the paper's captions had 125 tokens, its filter's replies 200


@dataclass(frozen=True)
class CostEstimate:
    """Tokens and dollars of a stage; dollars are None where no price is configured.

    ``usd`` takes replies of ordinary length, ``usd_at_most`` replies as long as they may be.
    ``image_rule_known`` says whether the model's own image tariff was counted, or that of gpt-4o
    for want of a better one.
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


def estimate_cost(
    candidates: Sequence[Candidate],
    spec: ChatSpec,
    prompt: PromptFile,
    *,
    typical_tokens: int = TYPICAL_TOKENS,
    price_factor: float = 1.0,
) -> CostEstimate:
    """Estimate what putting every candidate to a model would cost.

    A candidate without a new answer yet counts as if that were as long as the old one; an edited
    image has the size of its source, so the same estimate serves a judge.

    Parameters
    ----------
    candidates : sequence of Candidate, shape (N,)
    prompt : PromptFile
        What it is asked with.
    spec, typical_tokens, price_factor
        As `estimate_requests` has them.
    """
    requests = []
    for candidate in candidates:
        flip = candidate.flip or Flip(
            item_id=candidate.item.id,
            method="estimate",
            seed=0,
            new_answer=None,
            new_text=candidate.item.answer_text,
        )
        requests.append(prompt.request(replace(candidate, flip=flip), candidate.item.images))
    return estimate_requests(
        requests, spec, typical_tokens=typical_tokens, price_factor=price_factor
    )


def estimate_requests(
    requests: Sequence[ChatRequest],
    spec: ChatSpec,
    *,
    typical_tokens: int = TYPICAL_TOKENS,
    price_factor: float = 1.0,
) -> CostEstimate:
    """Estimate what requests would cost.

    Text is counted at four characters to a token, images by the model's own rule.

    Parameters
    ----------
    requests : sequence of ChatRequest, shape (N,)
    spec : ChatSpec
        The model and its prices.
    typical_tokens : int
        Tokens of an ordinary reply; a reasoning model's thoughts are added, half of the room they
        have.
    price_factor : float
        0.5 for a batch API.
    """
    counted = [request.n_tokens(spec) for request in requests]
    n_text, n_image = sum(text for text, _ in counted), sum(image for _, image in counted)
    n = len(requests)
    thoughts = spec.reasoning_tokens // 2 if spec.traits.reasoning else 0
    n_out = n * min(typical_tokens + thoughts, spec.limit)
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
    """What replies have cost, as their usage tells; ``cost_usd`` counts priced replies only."""

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
            return f"{text}; ${self.cost_usd:,.2f} for the {self.n_priced:,} of known price"
        return f"{text}; ${self.cost_usd:,.2f}"
