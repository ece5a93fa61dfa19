"""Keep under a server's requests and tokens per minute, before it has to say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Space work evenly: each piece books its place in time, for every limit at once.

    Parameters
    ----------
    per_minute : float or None
        How much of each quantity may go in a minute, in the order that `wait` is given costs;
        None is no limit.
    clock, sleep : callable
        Seconds, and how to wait for some.

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
        """Return when there is room for a piece of work of these costs, one for each limit."""
        with self._lock:
            now = self._clock()
            start = max(now, *self._free_at)
            self._free_at = [
                start + cost * each if each else 0.0
                for cost, each in zip(costs, self._seconds_each, strict=True)
            ]
        if start > now:
            self._sleep(start - now)
