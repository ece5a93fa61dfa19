"""Settings of chat models, and what is known about a model from its name."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from flipbench.config.trust import KeyPath, is_loopback
from flipbench.core.records import JsonDict, Value

_MAX_PATCHES = 1536
_PATCH = 32
_TILE = 512
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


@dataclass(frozen=True)
class Traits:
    """The parameters that a family of models accepts, and its price of an image in tokens.

    Attributes
    ----------
    reasoning : bool
        A reasoning model: it takes no temperature, and ``max_completion_tokens`` includes its
        hidden reasoning.
    tile : tuple of int, optional
        Tokens per image, and tokens per tile of 512 x 512 pixels.
    patch : float, optional
        Tokens per patch of 32 x 32 pixels.
    """

    reasoning: bool = False
    tile: tuple[int, int] | None = None
    patch: float | None = None


TRAITS: dict[str, Traits] = {
    "gpt-4-turbo": Traits(tile=(85, 170)),
    "gpt-4o": Traits(tile=(85, 170)),
    "gpt-4o-mini": Traits(tile=(2833, 5667)),
    "chatgpt-4o": Traits(tile=(85, 170)),
    "gpt-4.1": Traits(tile=(85, 170)),
    "gpt-4.1-mini": Traits(patch=1.62),
    "gpt-4.1-nano": Traits(patch=2.46),
    "gpt-4.5": Traits(tile=(85, 170)),
    "gpt-5": Traits(reasoning=True, tile=(70, 140)),
    "gpt-5-chat": Traits(tile=(70, 140)),
    "gpt-5-mini": Traits(reasoning=True, patch=1.62),
    "gpt-5-nano": Traits(reasoning=True, patch=2.46),
    "o1": Traits(reasoning=True, tile=(75, 150)),
    "o3": Traits(reasoning=True, tile=(75, 150)),
    "o4-mini": Traits(reasoning=True, patch=1.72),
}
DEFAULT_TRAITS = Traits(tile=(85, 170))


class ChatSpec(Value):
    """A chat model behind an OpenAI-compatible server.

    The defaults of ``temperature`` and ``max_tokens`` are those of the core paper's captioner.
    """

    model: str
    base_url: str | None = None
    """e.g. http://localhost:8000/v1; null: OPENAI_BASE_URL, or OpenAI if unset."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key; null if the server needs none."""
    temperature: float | None = Field(default=0.3, ge=0)
    """null: the server's default."""
    max_tokens: int = Field(default=800, ge=1)
    """Limit of the visible reply."""
    reasoning: bool | None = None
    """Whether it is a reasoning model; null: judged by its name."""
    reasoning_tokens: int = Field(default=4096, ge=0)
    """Limit of a reasoning model's hidden reasoning."""
    reasoning_effort: str | None = None
    seed: int | None = None
    """Servers treat it as best effort."""
    detail: Literal["low", "high", "auto"] = "auto"
    """Resolution at which the server reads images."""
    structured: bool = True
    """Send a JSON schema for replies that have one."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds for a whole attempt."""
    max_retries: int = Field(default=5, ge=0)
    """After 429, 5xx and time-outs."""
    n_concurrent: int = Field(default=8, ge=1)
    """Requests at the same time."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    price_in: float | None = Field(default=None, ge=0)
    """USD per million input tokens."""
    price_out: float | None = Field(default=None, ge=0)
    """USD per million output tokens."""

    @field_validator("base_url")
    @classmethod
    def _no_secret(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("base_url must look like http://localhost:8000/v1")
        if parts.hostname.endswith(_AZURE) and (parts.query or "/deployments/" in parts.path):
            deployment = parts.path.partition("/deployments/")[2].split("/")[0] or "DEPLOYMENT"
            raise ValueError(
                f"for Azure give base_url https://{parts.hostname}/openai/v1/ without api-version,"
                f" and the deployment as the model: {deployment}"
            )
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "base_url must not contain a user, password or query: put the key into the"
                " environment variable that api_key_env names"
            )
        return url

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return server and key, but not this machine without a key, nor OpenAI with its own."""
        default = type(self).model_fields["api_key_env"].default
        address = (("base_url",),) if self.base_url is not None else ()
        if self.api_key_env is None:
            return () if is_loopback(self.base_url) else address
        is_named = bool(address) or self.api_key_env != default
        return (*address, ("api_key_env",)) if is_named else ()

    @property
    def traits(self) -> Traits:
        """The model's traits; `DEFAULT_TRAITS` if its name is unknown."""
        traits = traits_of(self.model) or DEFAULT_TRAITS
        return traits if self.reasoning is None else replace(traits, reasoning=self.reasoning)

    @property
    def settings(self) -> JsonDict:
        """What replies may depend on, for a record's id; never the server's address or a key."""
        reasoning = self.traits.reasoning
        settings = {
            "model": self.model,
            "temperature": None if reasoning else self.temperature,
            "max_tokens": self.limit,
            "reasoning_effort": self.reasoning_effort,
            "seed": self.seed,
            "detail": self.detail,
        }
        return {name: value for name, value in settings.items() if value is not None}

    @property
    def limit(self) -> int:
        """The most tokens a reply may cost, including hidden reasoning."""
        return self.max_tokens + self.reasoning_budget

    @property
    def reasoning_budget(self) -> int:
        """Tokens for hidden reasoning; 0 unless it is a reasoning model."""
        return self.reasoning_tokens if self.traits.reasoning else 0

    def usd(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """Return a price in USD, or None if no price is configured."""
        if self.price_in is None or self.price_out is None:
            return None
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / 1e6


class APISpec(Value):
    """A chat model behind a server, as captioner, judge or rewriter."""

    kind: Literal["api"] = "api"
    chat: ChatSpec
    batch: bool = False
    """Use the server's Batch API, at half the price."""


def traits_of(model: str) -> Traits | None:
    """Return what is known about a model from its name, or None.

    The longest known prefix decides; a vendor before it and a date or version after it are
    ignored.

    >>> traits_of("openai/gpt-4o-2024-08-06") == TRAITS["gpt-4o"], traits_of("llava-7b")
    (True, None)
    """
    name = model.casefold().rsplit("/", 1)[-1].removeprefix("ft:")
    prefixes = [
        k for k in TRAITS if name.startswith(k) and name[len(k) :][:1] in ("", "-", ".", ":")
    ]
    return TRAITS[max(prefixes, key=len)] if prefixes else None


def image_tokens(width: int, height: int, traits: Traits, detail: str = "auto") -> int:
    """Return the number of tokens an image costs.

    By tiles: fit into 2048 x 2048, shrink the shorter side to 768, count tiles of 512 x 512; low
    detail costs only the base. By patches: count patches of 32 x 32, at most 1,536, regardless of
    detail.

    Parameters
    ----------
    width, height : int
        In pixels.
    traits : Traits
        Of the model.
    detail : {"auto", "low", "high"}
        ``auto`` counts as ``high``, the more expensive one.

    References
    ----------
    OpenAI, *Images and vision*, "Calculating costs".

    Examples
    --------
    >>> image_tokens(1024, 1024, TRAITS["gpt-4o"]), image_tokens(2048, 4096, TRAITS["gpt-4o"])
    (765, 1105)
    """
    if traits.patch is not None:
        return math.ceil(_patches(width, height) * traits.patch)
    base, per_tile = traits.tile or (0, 0)
    if detail == "low":
        return base
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    n_tiles = _count(width * scale, _TILE) * _count(height * scale, _TILE)
    return base + per_tile * n_tiles


def _patches(width: int, height: int) -> int:
    n_patches = _count(width, _PATCH) * _count(height, _PATCH)
    if n_patches <= _MAX_PATCHES:
        return n_patches
    scale = math.sqrt(_MAX_PATCHES * _PATCH**2 / (width * height))
    wide, high = width * scale / _PATCH, height * scale / _PATCH
    scale *= min(max(1, math.floor(wide)) / wide, max(1, math.floor(high)) / high)
    n_patches = _count(width * scale, _PATCH) * _count(height * scale, _PATCH)
    return min(n_patches, _MAX_PATCHES)


def _count(pixels: float, edge: int) -> int:
    return max(1, math.ceil(round(pixels / edge, 6)))
