"""Who may connect to the page, and what clients can take: connections, time, and lines of the log.

Any user of the machine can connect to a loopback address, with a token or without. Half-sent
requests must not use up the descriptors, block reviewers, or fill the disk with messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that refuses other origins, foreign host names and unauthenticated requests.

    Without a token, only loopback host names are accepted, so that no web page can reach the server
    through DNS rebinding. A token, if there is one, is required for every request; it is given once
    in the query and then stored in a cookie that scripts and other sites cannot use.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token
        digest = hashlib.sha256((token or "").encode()).hexdigest()
        self._cookie = f"flipbench-{digest[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        has_token = self._is_token(request.query_params.get("token"))
        refusal = self._refusal(request, has_token)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = dict(_HEADERS)
                if has_token and not refusal:
                    extra["set-cookie"] = (
                        f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    )
                pairs = [(name.encode(), value.encode()) for name, value in extra.items()]
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        if refusal:
            status, why = refusal
            await PlainTextResponse(why + "\n", status)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def _refusal(self, request: Request, has_token: bool) -> tuple[int, str] | None:
        if not _same_origin(request):
            return 403, "refused: the request comes from another origin"
        if self.token is None:
            name = _host(request)
            if not is_loopback(name):
                return 403, f"refused: {name!r} is not a name of this machine; use localhost"
        elif not has_token and not self._is_token(request.cookies.get(self._cookie)):
            return 401, "refused: open the address with the token that flipbench printed"
        return None

    def _is_token(self, value: str | None) -> bool:
        if self.token is None or value is None:
            return False
        return secrets.compare_digest(value.encode(), self.token.encode())


def _host(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:  # set by the browser; scripts cannot change it
        followed_link = (
            request.method == "GET"
            and request.url.path == "/"
            and request.headers.get("sec-fetch-mode") == "navigate"
            and request.headers.get("sec-fetch-dest") == "document"
        )
        return site in ("same-origin", "none") or followed_link
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


# --- what clients can take ------------------------------------------------------------------------

_N_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
MAX_CONNECTIONS = min(128, _N_FILES // 2) if _N_FILES > 0 else 128  # negative: no limit
"""Open connections; a browser keeps up to six."""

MAX_HEADERS = 16 * 1024
"""Bytes of a request's line and headers."""

HEADER_SECONDS, BODY_SECONDS = 10.0, 60.0
"""Time to send headers, and then a body."""

_LOGGERS = ("uvicorn.error", "asyncio")
_LOG_LINES, _LOG_SECONDS = 10, 60.0


def server_config(app: Any, **settings: Any) -> uvicorn.Config:
    """Return the settings of a server that few slow or broken clients cannot block.

    ``settings`` replace uvicorn's.
    """
    bounded: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "backlog": MAX_CONNECTIONS,
        "limit_concurrency": 2 * MAX_CONNECTIONS,  # requests: those cut off end a moment later
        "h11_max_incomplete_event_size": MAX_HEADERS,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 2,
        "access_log": False,
        "log_config": None,  # the command's own handler
        "log_level": "error",
        "proxy_headers": False,
        "server_header": False,
    }
    return uvicorn.Config(app, **(bounded | settings))


class BoundedProtocol(H11Protocol):
    """A connection with a deadline for each request, which makes room when there are too many.

    Room is made by the connection whose last complete request, or else beginning, is the oldest: a
    reviewer gets in however many half-sent requests there are.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        self._since = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        connections: set[Any] = self.connections  # all of them of this class
        if len(connections) >= MAX_CONNECTIONS:
            oldest = min(connections, key=lambda connection: connection._since)
            connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)
        self._waiting_for = "headers"
        self._wait(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Read on; a request that is not complete has to be by its deadline."""
        super().data_received(data)
        waiting_for = ""
        if self.conn.their_state is h11.SEND_BODY:
            waiting_for = "body"
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            waiting_for = "headers"
        else:
            self._since = self.loop.time()
        if waiting_for != self._waiting_for:
            self._waiting_for = waiting_for
            self._wait({"headers": HEADER_SECONDS, "body": BODY_SECONDS}.get(waiting_for))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._wait(None)
        super().connection_lost(exc)

    def _wait(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        late = self.transport.abort
        self._deadline = None if seconds is None else self.loop.call_later(seconds, late)


class _RateLimit(logging.Filter):
    """Lets some messages a minute pass, and says so when it drops the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._start, self._n = clock, -_LOG_SECONDS, 0

    def filter(self, record: logging.LogRecord) -> bool:
        if (now := self._clock()) - self._start >= _LOG_SECONDS:
            self._start, self._n = now, 0
        self._n += 1
        if self._n == _LOG_LINES:
            record.msg, record.args = "further messages of this minute are left out", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return self._n <= _LOG_LINES


@contextlib.contextmanager
def few_messages(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Bound what the server logs, however many requests go wrong."""
    limit = _RateLimit(clock)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)
