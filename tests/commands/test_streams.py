"""Standard streams that are closed, full or not read: no traceback, and the right status."""

from __future__ import annotations

import subprocess
import sys

import pytest

FLIPBENCH = [sys.executable, "-m", "flipbench.cli"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "redirection", "status"),
    [
        ("detectors", "2>&- >&- <&-", 0),
        ("detectors", "2>&1 | true", 0),
        ("--help", "| true", 0),
        ("detectors", ">/dev/full", 2),
        ("nope", "2>&- | true", 2),
    ],
)
def test_a_command_ends_with_its_own_status(command: str, redirection: str, status: int) -> None:
    """`true` ends before the command has begun to write."""
    script = f'set -o pipefail; "$@" {command} {redirection}'
    done = subprocess.run(["bash", "-c", script, "bash", *FLIPBENCH], capture_output=True)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr + done.stdout
    assert b"Exception ignored" not in done.stderr


def test_a_warning_cannot_steer_a_terminal() -> None:
    """Libraries quote what they warn of, as matplotlib does a model's name."""
    script = (
        "import warnings; from flipbench.cli import main; main(lambda: warnings.warn('\\x1b[2J'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert b"\\x1b[2J" in done.stderr
    assert b"\x1b" not in done.stderr
