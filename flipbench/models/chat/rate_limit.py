"""Stay below a server's limits of requests and tokens per minute."""

from __future__ import annotations

import threading
import time


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
