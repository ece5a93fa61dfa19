"""How a chat model is reached and asked, and what is known of a model by its name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from flipbench.core.records import JsonDict, Value

_MAX_PATCHES = 1536
_PATCH = 32
_TILE = 512


@dataclass(frozen=True)
class Traits:
    """What a family of models accepts, and what it charges for an image.

    Attributes
    ----------
    reasoning : bool
        It thinks before it answers: no temperature, and ``max_completion_tokens`` counts the
        hidden thoughts too.
    tile : tuple of int, optional
        Tokens of an image: a base, and so many for each tile of 512 pixels square.
    patch : float, optional
        Tokens of an image for each patch of 32 pixels square.
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
ASSUMED = Traits(tile=(85, 170))


class ChatSpec(Value):
    """A chat model behind an OpenAI-compatible server, as a configuration names it.

    The defaults for ``temperature`` and ``max_tokens`` are those of the core paper's captioner.
    """

    model: str
    base_url: str | None = Field(
        default=None,
        description="e.g. http://localhost:8000/v1; OPENAI_BASE_URL or OpenAI if unset",
    )
    api_key_env: str | None = Field(
        default="OPENAI_API_KEY",
        description="environment variable that holds the key; null where the server wants none",
    )
    temperature: float | None = Field(default=0.3, ge=0, description="null: the server's default")
    max_tokens: int = Field(default=800, ge=1, description="of the visible answer")
    reasoning: bool | None = Field(
        default=None, description="whether it is a reasoning model, where its name does not tell"
    )
    reasoning_tokens: int = Field(
        default=4096, ge=0, description="room for a reasoning model's hidden thoughts"
    )
    reasoning_effort: str | None = None
    seed: int | None = Field(default=None, description="best effort of the server, no promise")
    detail: Literal["low", "high", "auto"] = "auto"
    structured: bool = Field(default=True, description="ask for JSON where a schema is known")
    timeout: float = Field(default=120.0, gt=0, description="seconds for one attempt")
    max_retries: int = Field(default=5, ge=0, description="after 429, 5xx and time-outs")
    n_concurrent: int = Field(default=8, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    price_in: float | None = Field(default=None, ge=0, description="USD per million input tokens")
    price_out: float | None = Field(default=None, ge=0, description="USD per million output tokens")

    @field_validator("base_url")
    @classmethod
    def _no_secret(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("base_url must look like http://localhost:8000/v1")
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "base_url must hold no user, password or query: secrets come from the environment"
                " variable that api_key_env names"
            )
        return url

    @property
    def traits(self) -> Traits:
        """What is known of the model; an unknown one is taken for a plain, tile-priced one."""
        found = traits_of(self.model) or ASSUMED
        if self.reasoning is None:
            return found
        return Traits(self.reasoning, found.tile, found.patch)

    @property
    def settings(self) -> JsonDict:
        """What an answer may depend on, for a record's id; never where the server is or a key."""
        reasoning = self.traits.reasoning
        chosen = {
            "model": self.model,
            "temperature": None if reasoning else self.temperature,
            "max_tokens": self.limit,
            "reasoning_effort": self.reasoning_effort,
            "seed": self.seed,
            "detail": self.detail,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def limit(self) -> int:
        """The most tokens a reply may cost, hidden thoughts included."""
        return self.max_tokens + self.room_to_think

    @property
    def room_to_think(self) -> int:
        """Tokens for hidden thoughts: 0 but for a reasoning model."""
        return self.reasoning_tokens if self.traits.reasoning else 0

    def usd(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """Return a price in USD, or None where no price is configured."""
        if self.price_in is None or self.price_out is None:
            return None
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / 1e6


class APISpec(Value):
    """Whoever writes or judges with a chat model behind a server."""

    kind: Literal["api"] = "api"
    chat: ChatSpec
    batch: bool = Field(default=False, description="by the server's Batch API: half the price")


def traits_of(model: str) -> Traits | None:
    """Return what is known of a model by name, or None.

    The longest known name decides; a vendor before it and a date or version behind it do not
    matter.

    >>> traits_of("openai/gpt-4o-2024-08-06") == TRAITS["gpt-4o"], traits_of("llava-7b")
    (True, None)
    """
    name = model.casefold().rsplit("/", 1)[-1].removeprefix("ft:")
    known = [k for k in TRAITS if name.startswith(k) and name[len(k) :][:1] in ("", "-", ".", ":")]
    return TRAITS[max(known, key=len)] if known else None


def image_tokens(width: int, height: int, traits: Traits, detail: str = "auto") -> int:
    """Return how many tokens an image costs.

    By tiles: fit into 2048 x 2048, shrink the shorter side to 768, count tiles of 512 x 512; low
    detail costs the base alone. By patches: count patches of 32 x 32, at most 1,536, whatever
    the detail.

    Parameters
    ----------
    width, height : int
        In pixels.
    traits : Traits
        Of the model.
    detail : {"auto", "low", "high"}
        ``auto`` counts as ``high``, the dearer one.

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
