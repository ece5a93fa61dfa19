"""Take the pictures of pages and of the terminal that the documentation shows.

    flipbench demo
    flipbench demo --diffusion
    flipbench detect --model runs/demo/checkpoints/PLAN/epoch-2 --benchmark runs/demo \
        --reference shapes:llava --out runs/verdict
    python docs/results/screens.py --report runs/demo --verdict runs/verdict \
        --review runs/demo-diffusion --terminal

What is not given keeps its pictures. Pages are opened in Chromium, as wide as a laptop's screen
(1440 pixels) or a phone's (390), light and dark. A terminal is 80 columns wide; what it shows is
printed by the real commands, on a pseudo-terminal.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "screens"
LAPTOP, PHONE = (1440, 900), (390, 844)
COLUMNS = 80


@dataclass(frozen=True)
class Screen:
    """A page as one person sees it: name of the picture, part of the page, size, and scheme."""

    name: str
    part: str = ""
    size: tuple[int, int] = LAPTOP
    scheme: str = "light"


REPORT = (
    Screen("report"),
    Screen("report-phone", size=PHONE, scheme="dark"),
    Screen("report-item", part="#item={item}"),
)
VERDICT = (Screen("verdict"), Screen("verdict-phone", size=PHONE, scheme="dark"))
REVIEW = (Screen("review"), Screen("review-phone", size=PHONE, scheme="dark"))
COMMANDS = {
    "terminal": ("flipbench", "demo", "--dry-run"),
    "terminal-detectors": ("flipbench", "detectors"),
}
N_LINES = 24


def photograph(browser: Any, page: str, screens: Sequence[Screen]) -> Iterator[tuple[str, bytes]]:
    """Yield name and PNG of each screen of the page at an address."""
    for screen in screens:
        width, height = screen.size
        opened = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=screen.scheme
        )
        opened.goto(page)
        if screen.part:
            item = opened.locator("a.example").first.get_attribute("href").partition("=")[2]
            opened.evaluate("part => { location.hash = part }", screen.part.format(item=item))
            opened.locator("#viewer .stage").wait_for()
        if (name := opened.get_by_label("Your name")).is_visible():  # before a review
            name.fill("Ada")
            name.press("Enter")
            opened.locator("body[data-shown]").wait_for()
        opened.wait_for_timeout(500)
        yield screen.name, opened.screenshot()
        opened.close()


@contextmanager
def reviewed(run: Path) -> Iterator[str]:
    """Serve the review page of a run; yield its address."""
    command = ["flipbench", "review", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().partition("open ")[2].partition(" ")[0]
        finally:
            server.terminate()


def on_a_terminal(command: Sequence[str]) -> str:
    """Return what a command prints on a terminal of 80 columns, with its colours."""
    main, other = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "LINES": "50"}
    process = subprocess.Popen(command, stdout=other, stderr=other, env=environment)
    os.close(other)
    pieces = []
    while True:
        try:
            piece = os.read(main, 65_536)
        except OSError:  # Linux says so at the end
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(main)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed:\n{b''.join(pieces).decode()}")
    return b"".join(pieces).decode().replace("\r\n", "\n")


def drawn(command: Sequence[str]) -> str:
    """Return the first lines of a command's output on a terminal, as SVG."""
    console = Console(
        width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, highlight=False
    )
    lines = on_a_terminal(command).splitlines()[:N_LINES]
    console.print(f"$ {' '.join(command)}", markup=False)
    for line in lines:
        console.print(Text.from_ansi(line), overflow="fold")
    return console.export_svg(title=f"{COLUMNS} columns")


def save(png: bytes, name: str) -> None:
    """Write a picture without its white margin."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    margin = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).getbbox()
    picture = picture if picture.size in (LAPTOP, PHONE) else picture.crop(margin)
    picture.save(FOLDER / f"{name}.webp", quality=85)
    print(FOLDER / f"{name}.webp", f"{(FOLDER / f'{name}.webp').stat().st_size:,} bytes")


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--report", type=Path, help="run directory of flipbench demo")
    parser.add_argument("--verdict", type=Path, help="run directory of flipbench detect")
    parser.add_argument("--review", type=Path, help="run directory with edits to review")
    parser.add_argument("--terminal", action="store_true", help="what commands print")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium on this machine: install it first")
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, TemporaryDirectory() as temporary:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        for run, screens in ((args.report, REPORT), (args.verdict, VERDICT)):
            if run is not None:
                page = (run / "report" / "index.html").resolve().as_uri()
                for name, png in photograph(browser, page, screens):
                    save(png, name)
        if args.review is not None:
            with reviewed(args.review) as address:
                for name, png in photograph(browser, address, REVIEW):
                    save(png, name)
        for name, command in COMMANDS.items() if args.terminal else ():
            svg = Path(temporary) / f"{name}.svg"
            svg.write_text(drawn(command))
            opened = browser.new_page(viewport={"width": 1000, "height": 700})
            opened.goto(svg.as_uri())
            save(opened.locator("svg").screenshot(), name)
            opened.close()
        browser.close()


if __name__ == "__main__":
    main()
