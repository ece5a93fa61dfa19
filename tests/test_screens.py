"""The pictures of pages and terminals in the documentation."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs.results.screens import (
    COLUMNS,
    COMMANDS,
    FOLDER,
    N_LINES,
    REPORT,
    REVIEW,
    VERDICT,
    drawn,
    on_a_terminal,
)

NAMES = [*(screen.name for screen in (*REPORT, *VERDICT, *REVIEW)), *COMMANDS]


def test_every_picture_is_taken_by_the_command_and_shown() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)
    pages = "".join(path.read_text() for path in Path("docs").rglob("*.md"))
    assert set(re.findall(r"screens/([\w-]+)\.webp\)", pages)) == set(NAMES)


def test_a_command_sees_a_terminal_of_80_columns() -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.environ['COLUMNS']); print('é' * 5)"
    assert on_a_terminal([sys.executable, "-c", code]) == f"True {COLUMNS}\nééééé\n"


def test_a_picture_of_a_terminal_wraps_long_lines_and_stops() -> None:
    code = "print('x' * 100); [print(i) for i in range(50)]"
    svg = drawn([sys.executable, "-c", code])
    assert "x" * COLUMNS in svg and "x" * (COLUMNS + 1) not in svg
    assert f">{N_LINES - 2}</text>" in svg and f">{N_LINES - 1}</text>" not in svg
