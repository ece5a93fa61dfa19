"""Limits on what a server costs: the time of an attempt, the size of a reply, requests a minute."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Awaitable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from flipbench.core.errors import need
from flipbench.core.redirects import leads_elsewhere

T = TypeVar("T")
MAX_REPLY_BYTES = 50_000_000
MAX_FILE_BYTES = 1_000_000_000
"""For the files of the Batch API."""
REDIRECTED = 421
"""The status that a redirect to another server becomes; clients do not retry it."""
_TOO_LARGE = 413


def limited_client() -> Any:
    """Return an asynchronous HTTP client for the openai package, with limits.

    The package's ``timeout`` bounds each read alone, so a server that sends a byte now and then
    could hold a request for days. This client gives an attempt, from looking up the server's name
    to the last byte of the reply, no more than that time in all.

    A reply of more than `MAX_REPLY_BYTES`, unpacked, is not read to its end; it becomes an error
    with status 413. A redirect to another server is not followed; it becomes an error with status
    `REDIRECTED`.
    """
    client: Any = need("openai", "api").DefaultAsyncHttpxClient
    httpx = import_module(client.__base__.__module__)  # or httpx2, by the version of openai

    class LimitedClient(client):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            try:
                async with asyncio.timeout(request.extensions["timeout"]["read"]):
                    response = await super().send(request, **options | {"stream": True})
                    try:
                        return await _read(response)
                    finally:
                        await response.aclose()
            except _RedirectRefused as error:
                return httpx.Response(REDIRECTED, text=str(error), request=request)
            except TimeoutError as error:
                raise httpx.ReadTimeout("the attempt took too long", request=request) from error

    return LimitedClient(event_hooks={"response": [_refuse_other_server]})


class _RedirectRefused(Exception): ...


async def _refuse_other_server(response: Any) -> None:
    if response.has_redirect_location:
        location = response.headers["location"]
        if reason := leads_elsewhere(str(response.request.url), location, "base_url"):
            raise _RedirectRefused(reason)


async def _read(response: Any) -> Any:
    """Return a response with its content, or an error in its place if that is too large."""
    is_file = response.request.url.path.endswith("/content")
    limit = MAX_FILE_BYTES if is_file else MAX_REPLY_BYTES
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > limit:
            message = f"the reply has more than {limit:,} bytes, which flipbench does not read"
            return type(response)(_TOO_LARGE, text=message, request=response.request)
    headers = response.headers.copy()
    headers.pop("content-encoding", None)  # it is unpacked
    return type(response)(
        response.status_code,
        headers=headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
    )


def run(awaitable: Awaitable[T]) -> T:
    """Wait for an asynchronous result, in any thread, also in a notebook."""

    async def result() -> T:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(result(), _event_loop()).result()


def close_with(owner: object, client: Any) -> None:
    """Close a client of the openai package once its owner is garbage-collected."""

    def close() -> None:
        asyncio.run_coroutine_threadsafe(client.close(), _event_loop())

    weakref.finalize(owner, close).atexit = False


_loop_lock = threading.RLock()  # a garbage collection within it may close a client


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop in a thread of its own; one for each process, since a fork has no threads."""
    with _loop_lock:  # threads that ask at the same time must get the same loop
        return _start_event_loop(os.getpid())


@cache
def _start_event_loop(_process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop


class RateLimiter:
    """Space requests evenly, under several limits per minute at once; None: no limit."""

    def __init__(self, *per_minute: float | None) -> None:
        self._seconds_each = [60.0 / n if n else 0.0 for n in per_minute]
        self._free_at = [0.0] * len(per_minute)
        self._lock = threading.Lock()

    def wait(self, *costs: float) -> None:
        """Wait until a request with these costs, one for each limit, may be sent."""
        with self._lock:
            time_now = time.monotonic()
            start = max(time_now, *self._free_at)
            self._free_at = [
                start + cost * seconds if seconds else 0.0
                for cost, seconds in zip(costs, self._seconds_each, strict=True)
            ]
        if start > time_now:
            time.sleep(start - time_now)
