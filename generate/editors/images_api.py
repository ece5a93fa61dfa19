"""Redraw through ``/v1/images/edits``: a picture and an instruction in, a picture out.

OpenAI's image models, vLLM-Omni, DeepInfra, and a LiteLLM proxy before Gemini, FLUX or Azure serve
this route.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Literal, Self

from PIL import Image
from pydantic import Field, JsonValue, field_validator, model_validator

from flipbench.config.chat import ChatSpec
from flipbench.config.kinds import Context
from flipbench.config.trust import KeyPath
from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore, png_bytes
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.models.chat.api import ODD_REPLY, ChatAPI
from flipbench.models.chat.bounds import RateLimiter, run
from flipbench.models.chat.scrubbing import parse
from flipbench.models.protocols import Drawing

from .http import decode_picture
from .sizes import Fit, SizeRule, fit

Size = tuple[int, int]
_SET_HERE = ("model", "image", "prompt", "size", "n", "seed", "mask", "stream")
_MAX_DISTORTION = 0.02
_FACTOR = 16
_SIZE = re.compile(r"(\d{2,5})x(\d{2,5})")


class ImagesAPIEditorSpec(Value):
    """The images-edit route of an OpenAI-compatible server."""

    kind: Literal["api"] = "api"
    reads: ClassVar[Literal["caption", "instruction"] | None] = "instruction"
    model: str = Field(description="e.g. gpt-image-1; part of an edit's id, the address is not")
    base_url: str | None = Field(
        default=None,
        description="e.g. http://localhost:8000/v1; null: OPENAI_BASE_URL, or OpenAI if unset",
    )
    api_key_env: str | None = Field(
        default="OPENAI_API_KEY",
        description="environment variable that holds the key; null if the server needs none",
    )
    sizes: tuple[str, ...] | Literal["any"] = Field(
        default=("1024x1024", "1536x1024", "1024x1536"),
        description="WIDTHxHEIGHT that the model offers; any: multiples of 16 near the source",
    )
    seeded: bool = Field(
        default=False, description="send each item's seed, to a server that takes one (vLLM-Omni)"
    )
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="sent with each request, e.g. quality, input_fidelity, num_inference_steps",
    )
    price: float | dict[str, float] | None = Field(
        default=None, description="USD for an image, or by size: {1024x1024: 0.04}"
    )
    timeout: float = Field(default=300.0, gt=0, description="seconds for a whole attempt")
    max_retries: int = Field(default=5, ge=0, description="after 429, 5xx and time-outs")
    n_concurrent: int = Field(default=4, ge=1, description="requests at the same time")
    requests_per_minute: float | None = Field(default=None, gt=0)

    @field_validator("sizes")
    @classmethod
    def _are_sizes(cls, sizes: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for size in () if sizes == "any" else sizes:
            if not _SIZE.fullmatch(size):
                raise ValueError(f"{size!r} is no size; write it as 1024x1024, or sizes: any")
        if not sizes:
            raise ValueError("name at least one size, or write sizes: any")
        return sizes

    @field_validator("extra_body")
    @classmethod
    def _sets_nothing_twice(cls, extra_body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in _SET_HERE:
            if name in extra_body:
                remedy = "write seeded: true" if name == "seed" else "remove it"
                raise ValueError(f"{name!r} is set by the editor; {remedy}")
        return extra_body

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.as_chat()  # checks the address
        if isinstance(self.price, Mapping) and self.sizes != "any":
            if unpriced := set(self.sizes) - set(self.price):
                raise ValueError(f"price names no price for {min(unpriced)}")
        return self

    @property
    def repeatable(self) -> bool:
        """Whether the same request gives the same picture, so that a recipe can redraw it."""
        return self.seeded

    def build(self, context: Context) -> ImagesAPIEditor:
        """Return the editor; nothing is sent before its first call."""
        return ImagesAPIEditor(self)

    def as_chat(self) -> ChatSpec:
        """Return the server and its limits as the chat client knows them."""
        return ChatSpec(
            model=self.model,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            max_retries=self.max_retries,
        )

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return server and key, but not this machine without a key, nor OpenAI with its own."""
        return self.as_chat().needs_trust()

    def usd(self, size: Size) -> float | None:
        """Return the price of an image in USD; None if none is configured."""
        if isinstance(self.price, dict):
            return self.price.get(_text(size))
        return self.price

    def cost(self, candidates: Sequence[Candidate]) -> str:
        """Return what it costs to redraw candidates, in words."""
        sources = [candidate.source for candidate in candidates if candidate.item.images]
        sizes = [self.plan(s.width, s.height, "a picture").run_size for s in sources]
        listed = [f"{n} of {size}" for size, n in Counter(map(_text, sizes)).most_common(3)]
        text = f"{self.model}: {len(sizes):,} images ({', '.join(listed)})"
        prices = [self.usd(size) for size in sizes]
        if None in prices or not prices:
            return f"{text}; no price is configured (price)"
        return f"{text}; about ${sum(price or 0.0 for price in prices):,.2f}"

    def plan(self, width: int, height: int, subject: str) -> Fit:
        """Return how a picture is fitted into a size that the model offers.

        Of the sizes offered, the one with the least padding, then the smallest.

        >>> ImagesAPIEditorSpec(model="m").plan(640, 480, "x")
        Fit(source_size=(640, 480), scaled_size=(1365, 1024), run_size=(1536, 1024))

        Raises
        ------
        DataError
            With ``sizes: any``, if the picture is too large.
        """
        if self.sizes == "any":
            return SizeRule().plan(width, height, _FACTOR, subject)
        offered = [(int(w), int(h)) for w, h in (size.split("x") for size in self.sizes)]
        plans = [_fitted((width, height), size) for size in offered]
        return min(plans, key=lambda plan: (_padded_share(plan), plan.run_size))


class ImagesAPIEditor:
    """Redraws an image by an instruction, through the images-edit route of a server.

    Most servers take no seed: the same request gives another picture, so a recipe cannot redraw
    it. What a server refuses to draw is a failure of that item, with the server's reason.

    Parameters
    ----------
    spec : ImagesAPIEditorSpec
        Model, server, sizes, limits and prices.
    """

    name = "images api"

    def __init__(self, spec: ImagesAPIEditorSpec) -> None:
        self.spec = spec
        self.api = ChatAPI(spec.as_chat())
        self._limiter = RateLimiter(spec.requests_per_minute)
        self.settings: JsonDict = {
            "model": spec.model,
            "sizes": spec.sizes if spec.sizes == "any" else list(spec.sizes),
            "seeded": spec.seeded,
            "extra_body": spec.extra_body,
        }

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order.

        Raises
        ------
        PrerequisiteError
            For an error that would affect every request: no key, a refused key, no such model, a
            redirect, or no server.
        """
        _ = self.api.scrub  # with the client, built once, before the threads
        with ThreadPoolExecutor(self.spec.n_concurrent) as pool:
            return list(pool.map(partial(self._redraw, images=images), candidates, seeds))

    def _redraw(self, candidate: Candidate, seed: int, images: ImageStore) -> Drawing | Exception:
        try:
            source = candidate.source
            plan = self.spec.plan(source.width, source.height, candidate.subject)
            body = self._ask(fit(images.open(source), plan), candidate.caption_text, plan, seed)
            drawing = self._read(body)
            image = _restored(drawing, plan)
        except (DataError, ServiceError) as error:
            return error
        usage = {"cost_usd": self.spec.usd(plan.run_size), **_token_counts(body)}
        sizes = {
            "source": list(plan.source_size),
            "scaled": list(plan.scaled_size),
            "sent": list(plan.run_size),
            "received": list(drawing.size),
        }
        return Drawing(image, {"sizes": sizes, "usage": usage})

    def _ask(self, image: Image.Image, prompt: str, plan: Fit, seed: int) -> Any:
        self._limiter.wait(1)
        seeded = {"seed": seed % 2**31} if self.spec.seeded else {}
        try:
            raw = run(
                self.api.client.images.with_raw_response.edit(
                    model=self.spec.model,
                    image=("picture.png", png_bytes(image), "image/png"),
                    prompt=prompt,
                    size=_text(plan.run_size),
                    extra_body=self.spec.extra_body | seeded or None,
                )
            )
            body = self.api.scrub.json(parse(raw.http_response.content))
        except self.api.openai.OpenAIError as error:
            raise self.api.explain(error) from None
        except ODD_REPLY as error:
            raise self._odd(f"invalid JSON ({self.api.scrub.error(str(error))})") from None
        self.api.answered = True
        return body

    def _read(self, body: Any) -> Image.Image:
        try:
            entry = body["data"][0]
            encoded = entry.get("b64_json")
        except (AttributeError, IndexError, KeyError, TypeError):
            raise self._odd("JSON without a picture") from None
        if not isinstance(encoded, str):
            if isinstance(entry.get("url"), str):
                raise PrerequisiteError(
                    f"{self.api.server} answers with an address instead of a picture; set"
                    " extra_body: {response_format: b64_json}"
                )
            raise self._odd("JSON without a picture")
        try:
            return decode_picture(encoded, self.api.server)
        except ValueError as error:
            raise self._odd(f"no picture ({self.api.scrub.error(str(error))})") from None

    def _odd(self, problem: str) -> ServiceError:
        return ServiceError(f"{self.api.server} answered with {problem}")


def _fitted(source: Size, sent: Size) -> Fit:
    scale = min(sent[0] / source[0], sent[1] / source[1])
    width, height = (max(1, round(edge * scale)) for edge in source)
    return Fit(source, (min(width, sent[0]), min(height, sent[1])), sent)


def _padded_share(plan: Fit) -> float:
    """Return the share of the sent picture that is padding."""
    return round(1 - math.prod(plan.scaled_size) / math.prod(plan.run_size), 6)


def _restored(drawing: Image.Image, plan: Fit) -> Image.Image:
    """Return what was drawn, at whatever size, without the padding and at the source's size."""
    scale_x, scale_y = (got / sent for got, sent in zip(drawing.size, plan.run_size, strict=True))
    if abs(scale_x / scale_y - 1) > _MAX_DISTORTION:
        raise ServiceError(
            f"the server drew {_text(drawing.size)} pixels instead of {_text(plan.run_size)}; set"
            " sizes to those that the model offers"
        )
    area = (0, 0, round(plan.scaled_size[0] * scale_x), round(plan.scaled_size[1] * scale_y))
    drawing = drawing.convert("RGB").crop(area)
    if drawing.size != plan.source_size:
        drawing = drawing.resize(plan.source_size, Image.Resampling.LANCZOS)
    return drawing


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _token_counts(body: Any) -> JsonDict:
    usage = body.get("usage") if isinstance(body, dict) else None
    names = ("input_tokens", "output_tokens")
    counts = {name: usage.get(name) for name in names} if isinstance(usage, dict) else {}
    return {name: count for name, count in counts.items() if isinstance(count, int)}
