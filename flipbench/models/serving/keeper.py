"""Run a server that ends with the process that started this one, however that ends.

``python keeper.py SECONDS COMMAND…`` starts the command in a session of its own, so that Ctrl-C at
the terminal does not reach it. When standard input ends, or the parent is gone, even by ``kill
-9``, the command's whole process group gets SIGTERM, and SIGKILL after SECONDS. If this program is
killed itself, Linux sends the command SIGTERM. Only the standard library is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_POLL = 0.1  # seconds


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parent, is_over = os.getppid(), False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    child = subprocess.Popen(
        arguments[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent
    )
    while child.poll() is None and not is_over and os.getppid() == parent:
        if select.select([0], [], [], _POLL)[0] and not os.read(0, 1):
            end()
    if child.poll() is None:
        _signal_group(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(float(arguments[0]))
    _signal_group(child.pid, signal.SIGKILL)  # also what a server leaves behind
    status = child.wait()
    return status if status >= 0 else 128 - status  # as shells say it


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
