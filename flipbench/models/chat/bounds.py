"""Bounds on what a server costs: time of an attempt, size of a reply, requests per minute."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any

from flipbench.core.redirects import leads_elsewhere

MAX_REPLY_BYTES = 50_000_000
MAX_FILE_BYTES = 1_000_000_000
"""For the files of the Batch API."""
REDIRECTED = 421
"""The status that a redirect to another server becomes; clients do not try it again."""
_TOO_LARGE = 413
_attempt = threading.local()  # an attempt is made by one thread from its start to its last byte


def bound(client: Any) -> None:
    """Bound all that a client of the openai package sends and receives from now on.

    The HTTP package bounds each read by ``timeout``, so a server that sends a byte now and then
    could hold a request for days. With this, ``timeout`` bounds an attempt from its first byte to
    the last of the reply. Only looking up the server's name is not bounded.

    A reply of more than `MAX_REPLY_BYTES` is not read to its end, however small it is while it is
    compressed; it becomes an error with status 413. A redirect to another server is not followed;
    it becomes an error with status `REDIRECTED`.
    """
    http = client._client  # httpx or httpx2, depending on the version of the openai package
    for name, hook in (("request", _start), ("response", _read)):
        http.event_hooks = http.event_hooks | {name: [*http.event_hooks[name], hook]}
    for transport in (http._transport, *http._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = _Backend(pool._network_backend)


def _start(request: Any) -> None:
    """Note when the attempt must have ended."""
    seconds = (request.extensions.get("timeout") or {}).get("read")
    _attempt.end = None if seconds is None else time.monotonic() + seconds


def _read(response: Any) -> None:
    """Read the reply as the client would, up to the limit; end at one that leads elsewhere."""
    if response.has_redirect_location:
        location = response.headers["location"]
        if why := leads_elsewhere(str(response.request.url), location, "base_url"):
            response.close()
            response.is_stream_consumed = True  # as far as the client needs it
            response.status_code, response._content = REDIRECTED, why.encode()
            return
    limit = MAX_FILE_BYTES if response.request.url.path.endswith("/content") else MAX_REPLY_BYTES
    chunks, n_bytes = [], 0
    for chunk in response.iter_bytes():
        chunks.append(chunk)
        n_bytes += len(chunk)
        if n_bytes > limit:
            response.close()
            response.status_code = _TOO_LARGE
            message = f"the reply has more than {limit:,} bytes, which flipbench does not read"
            chunks = [message.encode()]
            break
    response._content = b"".join(chunks)


def _left(timeout: float | None, module: Any) -> float | None:
    """Return the seconds that the next step may take."""
    end: float | None = getattr(_attempt, "end", None)
    if end is None:
        return timeout
    left = end - time.monotonic()
    if left <= 0:
        raise module.ReadTimeout("the whole attempt took too long")
    return left if timeout is None else min(left, timeout)


class RateLimiter:
    """Space requests evenly, under several limits at once.

    Parameters
    ----------
    per_minute : float or None
        Limit of each quantity per minute, in the order of the costs given to `wait`; None: no
        limit.
    """

    def __init__(self, *per_minute: float | None) -> None:
        self._seconds_each = [60.0 / n if n else 0.0 for n in per_minute]
        self._free_at = [0.0] * len(per_minute)
        self._lock = threading.Lock()

    def wait(self, *costs: float) -> None:
        """Wait until a request with these costs, one for each limit, may be sent."""
        with self._lock:
            now = time.monotonic()
            start = max(now, *self._free_at)
            self._free_at = [
                start + cost * each if each else 0.0
                for cost, each in zip(costs, self._seconds_each, strict=True)
            ]
        if start > now:
            time.sleep(start - now)


class _Backend:
    """A network backend of httpcore whose connections obey the end of the attempt."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._module = import_module(type(backend).__module__.partition(".")[0])

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> _Stream:
        timeout = _left(timeout, self._module)
        stream = self._backend.connect_tcp(host, port, timeout, *args, **kwargs)
        return _Stream(stream, self._module)

    def connect_unix_socket(self, *args: Any, **kwargs: Any) -> _Stream:
        return _Stream(self._backend.connect_unix_socket(*args, **kwargs), self._module)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream:
    """A connection; each step may take what is left of the attempt."""

    def __init__(self, stream: Any, module: Any) -> None:
        self._stream, self._module = stream, module

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._stream.read(max_bytes, _left(timeout, self._module))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout, self._module))

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> _Stream:
        timeout = _left(timeout, self._module)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._module)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
