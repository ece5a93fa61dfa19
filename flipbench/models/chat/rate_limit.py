"""Stay below a server's limits of requests and tokens per minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Space requests evenly, under several limits at once.

    Parameters
    ----------
    per_minute : float or None
        Limit of each quantity per minute, in the order of the costs given to `wait`; None: no
        limit.
    clock, sleep : callable
        Replacements of `time.monotonic` and `time.sleep`.

    Examples
    --------
    >>> slept = []
    >>> limiter = RateLimiter(60.0, None, clock=lambda: 0.0, sleep=slept.append)
    >>> for _ in range(3):
    ...     limiter.wait(1, 1000)
    >>> slept
    [1.0, 2.0]
    """

    def __init__(
        self,
        *per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds_each = [60.0 / n if n else 0.0 for n in per_minute]
        self._free_at = [0.0] * len(per_minute)
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()

    def wait(self, *costs: float) -> None:
        """Wait until a request with these costs, one for each limit, may be sent."""
        with self._lock:
            now = self._clock()
            start = max(now, *self._free_at)
            self._free_at = [
                start + cost * each if each else 0.0
                for cost, each in zip(costs, self._seconds_each, strict=True)
            ]
        if start > now:
            self._sleep(start - now)
