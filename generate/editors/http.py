"""Redraw on a server of your own: an image and a caption in, an image out."""

from __future__ import annotations

import base64
import io
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from PIL import Image
from pydantic import Field, JsonValue, field_validator

from flipbench.config.kinds import Context
from flipbench.config.trust import KeyPath, is_loopback
from flipbench.core.errors import (
    ConfigError,
    PrerequisiteError,
    ServiceError,
    result_or_error,
)
from flipbench.core.images import ImageStore, check_size, open_image, png_bytes
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.core.redirects import SameServer
from flipbench.models.chat.bounds import MAX_REPLY_BYTES
from flipbench.models.chat.scrubbing import Scrubber
from flipbench.models.protocols import Drawing

from .sizes import SizeRule, fit, restore

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_SENT = ("image", "prompt", "seed", "width", "height")


class HTTPEditorSpec(Value):
    """A server that redraws images: JSON with ``image`` in, ``image`` out."""

    kind: Literal["http"] = "http"
    url: str = Field(description="e.g. http://localhost:8000/edit; not part of an edit's id")
    model: str = Field(description="name of what the server runs; part of an edit's id")
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="sent with each request, such as the number of steps"
    )
    sizes: SizeRule = SizeRule()
    factor: int = Field(default=16, ge=1, description="sides are sent as multiples of this")
    api_key_env: str | None = Field(
        default=None, description="environment variable that holds a key, sent as a bearer token"
    )
    timeout: float = Field(default=600.0, gt=0, description="seconds between two pieces of a reply")
    max_retries: int = Field(default=3, ge=0, description="after 429, 5xx and lost connections")
    n_concurrent: int = Field(default=1, ge=1, description="requests at the same time")

    @field_validator("url")
    @classmethod
    def _no_secret(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url must look like http://localhost:8000/edit")
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "url must not contain a user, password or query: put the key into the environment"
                " variable that api_key_env names, and the rest into arguments"
            )
        return url

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return server and key, unless it is this machine without a key."""
        if self.api_key_env is not None:
            return ("url",), ("api_key_env",)
        return () if is_loopback(self.url) else (("url",),)

    def build(self, context: Context) -> HTTPEditor:
        """Return the editor."""
        return HTTPEditor(self)


class HTTPEditor:
    """Redraws an image on a server.

    Each request is a POST of JSON: ``image`` (PNG, base64), ``prompt`` (the caption), ``seed``,
    ``width``, ``height`` and your ``arguments``. The reply is JSON with ``image`` (base64, also as
    a data URL), or the image itself with an image's content type. The image that is sent is
    enlarged and padded by the rule of all editors, and the reply must have its size.

    Raises
    ------
    ConfigError
        If ``arguments`` names what the editor sets itself.
    PrerequisiteError
        If the key's environment variable is not set.
    """

    name = "http"

    def __init__(self, spec: HTTPEditorSpec) -> None:
        self.spec = spec
        for name in _SENT:
            if name in spec.arguments:
                raise ConfigError(f"arguments: {name!r} is set by the editor; remove it")
        self._key = os.environ.get(spec.api_key_env, "").strip() if spec.api_key_env else ""
        if spec.api_key_env and not self._key:
            raise PrerequisiteError(
                f"{spec.url}: the environment variable {spec.api_key_env} is not set; set it, or"
                " set api_key_env: null for a server that needs no key"
            )
        self._scrub = Scrubber(self._key)
        self._opener = build_opener(SameServer("url"))
        self.settings: JsonDict = {
            "model": spec.model,
            "arguments": spec.arguments,
            "sizes": spec.sizes.model_dump(),
            "factor": spec.factor,
        }

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order."""
        with ThreadPoolExecutor(self.spec.n_concurrent) as pool:
            redraw = partial(self._redraw, images=images)
            return list(pool.map(redraw, candidates, seeds))

    def _redraw(self, candidate: Candidate, seed: int, images: ImageStore) -> Drawing | Exception:
        try:
            return result_or_error(self._draw, candidate, seed, images)
        except ServiceError as error:
            return error

    def _draw(self, candidate: Candidate, seed: int, images: ImageStore) -> Drawing:
        source = images.open(candidate.source)
        plan = self.spec.sizes.plan(*source.size, self.spec.factor, candidate.subject)
        width, height = plan.run_size
        body = self.spec.arguments | {
            "image": base64.b64encode(png_bytes(fit(source, plan))).decode(),
            "prompt": candidate.caption_text,
            "seed": seed,
            "width": width,
            "height": height,
        }
        drawing = self._ask(json.dumps(body).encode())
        return Drawing(restore(drawing, plan), {"sizes": plan.to_json()})

    def _ask(self, body: bytes) -> Image.Image:
        headers = {"Content-Type": "application/json", "Accept": "application/json, image/*"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for n_tried in range(self.spec.max_retries + 1):
            request = Request(self.spec.url, body, headers, method="POST")
            try:
                with self._opener.open(request, timeout=self.spec.timeout) as reply:
                    data = reply.read(MAX_REPLY_BYTES + 1)
                    return self._read(data, reply.headers.get_content_type())
            except HTTPError as error:
                with error:
                    detail = error.read(2000).decode(errors="replace")
                problem = f"status {error.code}: {self._scrub.error(detail)}"
                if error.code not in _TRANSIENT:
                    break
            except PrerequisiteError as error:  # a redirect, in the server's words
                raise PrerequisiteError(self._scrub.error(str(error))) from None
            except (URLError, HTTPException, OSError) as error:
                problem = self._scrub.error(str(getattr(error, "reason", error)))
            if n_tried < self.spec.max_retries:
                time.sleep(min(2.0**n_tried, 60.0))
        raise ServiceError(f"{self.spec.url}: {problem}")

    def _read(self, data: bytes, content_type: str) -> Image.Image:
        if len(data) > MAX_REPLY_BYTES:
            raise ServiceError(
                f"{self.spec.url}: the reply has more than {MAX_REPLY_BYTES:,} bytes, which"
                " flipbench does not read"
            )
        try:
            is_image = content_type.startswith("image/")
            return decode_picture(data if is_image else _image_of(json.loads(data)), self.spec.url)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServiceError(
                f"{self.spec.url}: the reply is neither an image nor JSON with a base64 'image'"
                f" ({self._scrub.error(str(error)) or type(error).__name__})"
            ) from None


def decode_picture(reply: bytes | str, server: str) -> Image.Image:
    """Return the picture in a server's reply: an image file, or base64, also as a data URL.

    Raises
    ------
    ValueError
        If it is none.
    DataError
        If it is too large or too small.
    """
    try:
        if isinstance(reply, str):
            reply = base64.b64decode(reply.rsplit(",", 1)[-1], validate=True)
        image = open_image(io.BytesIO(reply))
        check_size(*image.size, server)
        image.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    return image


def _image_of(reply: Any) -> str:
    text = reply["image"]
    if not isinstance(text, str):
        raise TypeError("'image' is not a string")
    return text
