"""Speed of the review page: key press to next pair, start with many pairs, verdicts per second.

    python benchmarks/review_page.py [--pairs 1500] [--many 50000] [--presses 300] [--only PART]

``key``: Chromium reviews pairs of 1024 x 1024 images (PNG, photograph-like noise, 64 different
ones in turn; the browser's cache is off, so each is fetched and decoded). Measures the time from
the key press to the first frame with the next pair; by then the verdict is on disk. As with a
person, a pause between presses lets the next pair load; ``--pause 0`` is the worst case.
``start``: seconds until the page with ``--many`` pairs responds, and the server's memory.
``verdicts``: 8 reviewers post as fast as they can, for 10 seconds.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from PIL import Image

from flipbench.core.records import Caption, Edit, Flip, ImageRef, Item, Record, Source
from flipbench.core.run import Run

SERVE = "import sys; from flipbench.filters.review.serve import serve_review as s;"
SERVE += "s(sys.argv[1], port=0)"
TIMER = """
() => {
  window.times = [];
  document.addEventListener("keydown", () => { window.pressed = performance.now(); }, true);
  new MutationObserver(() => requestAnimationFrame(() => setTimeout(() =>
    window.times.push(performance.now() - window.pressed)
  ))).observe(document.body, { attributeFilter: ["data-shown"] });
}
"""


def pictures(run: Run, n: int, size: int) -> list[ImageRef]:
    rng, refs = np.random.default_rng(0), []
    for number in range(n):
        small = rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC))
        noisy = image + rng.integers(-6, 7, image.shape)
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "PNG", compress_level=1)
        refs.append(run.images.put(buffer.getvalue(), f"picture {number}"))
    return refs


def make_run(path: Path, n: int, size: int, n_pictures: int = 64) -> Path:
    """Make a run of ``n`` pairs that share a few images; texts have typical lengths."""
    options = ("a red bus", "a blue bus", "a yellow tram", "none of these vehicles")
    with Run(path) as run:
        refs = pictures(run, n_pictures, size)
        for start in range(0, n, 1000):
            records: list[Record] = []
            for number in range(start, min(n, start + 1000)):
                item = Item(
                    benchmark="bench",
                    name=str(number),
                    images=(refs[number % n_pictures],),
                    question=f"Which vehicle stands nearest to sign {number} in the picture?",
                    options=options,
                    answer=0,
                    answer_text=options[0],
                    category=f"category {number % 8}",
                    source=Source(dataset="bench", row=number),
                )
                flip = Flip(item_id=item.id, method="m", seed=0, new_answer=1, new_text=options[1])
                text = f"A street with sign {number}; {options[1]} stands right beside it. " * 8
                caption = Caption(flip_id=flip.id, captioner="c", prompt="p/1", text=text)
                edit = Edit(
                    caption_id=caption.id,
                    caption_text=text,
                    source_sha256=item.images[0].sha256,
                    editor="e",
                    seed=0,
                    image=refs[(number + 1) % n_pictures],
                )
                records += [item, flip, caption, edit]
            run.append(records)
    return path


@contextmanager
def serving(run: Path) -> Iterator[tuple[str, psutil.Process, float]]:
    start = time.perf_counter()
    command = [sys.executable, "-c", SERVE, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            line = server.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http://"))
            get(address, "/")
            yield address, psutil.Process(server.pid), time.perf_counter() - start
        finally:
            server.kill()


def get(address: str, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port, timeout=600)
    connection.request("GET", path)
    return connection.getresponse().read()


def percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def key(run: Path, n_presses: int, pause: float) -> None:
    from playwright.sync_api import sync_playwright

    with serving(run) as (address, _, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu"],
            timeout=180_000,
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.context.new_cdp_session(page).send("Network.setCacheDisabled", {"cacheDisabled": True})
        page.goto(address)
        page.fill("#name", "bench")
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-shown='0']")
        page.wait_for_timeout(3000)
        page.evaluate(TIMER)
        for number in range(n_presses):
            page.keyboard.press("k")
            page.wait_for_selector(f"body[data-shown='{number + 1}']")
            page.wait_for_timeout(pause * 1000)
        page.wait_for_timeout(500)
        times = page.evaluate("window.times")
        version = browser.version
        browser.close()
    assert len(times) == n_presses
    print(
        f"| key press to next pair, pause {pause:g} s | {statistics.median(times):.0f} ms"
        f" | {percentile(times, 95):.0f} ms | {n_presses} presses, Chromium {version} |"
    )


def start(folder: Path, n: int) -> None:
    run = make_run(folder / "many", n, 64)
    lines = sum(1 for path in (run / "edits").glob("*.jsonl") for _ in path.open())
    with serving(run) as (address, server, seconds):
        memory = server.memory_info().rss / 2**20
        began = time.perf_counter()
        body = get(address, "/api/queue?reviewer=anna")
        queue = time.perf_counter() - began
    print(f"| start with {lines:,} pairs until the page responds | {seconds:.1f} s | | |")
    print(f"| the server's memory then | {memory:.0f} MiB | | |")
    print(f"| its list of undecided pairs | {queue * 1000:.0f} ms | | {len(body) / 1024:.0f} KiB |")


def verdicts(run: Path, n_pairs: int, seconds: float = 10.0, n_reviewers: int = 8) -> None:
    counts: dict[str, list[float]] = {}

    def review(address: str, name: str, stop: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port, timeout=60)
        times = counts.setdefault(name, [])

        def ask(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            connection.request(method, path, json.dumps(body) if body else None)
            return json.loads(connection.getresponse().read())

        turn = 0
        while time.perf_counter() < stop:
            position, decision = turn % n_pairs, ("keep", "unsure")[turn // n_pairs % 2]
            pair = ask("GET", f"/api/pairs/{position}?reviewer={name}")
            place = {"key": pair["key"]}
            began = time.perf_counter()
            ask("POST", "/api/verdicts", {"reviewer": name, "decision": decision} | place)
            times.append(time.perf_counter() - began)
            turn += 1

    with serving(run) as (address, _, _):
        stop = time.perf_counter() + seconds
        threads = [
            threading.Thread(target=review, args=(address, f"r{number}", stop))
            for number in range(n_reviewers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    times = [latency for latencies in counts.values() for latency in latencies]
    print(
        f"| verdicts per second, {n_reviewers} reviewers at once | {len(times) / seconds:.0f} | |"
        f" latency {statistics.median(times) * 1000:.0f} ms"
        f" (95 %: {percentile(times, 95) * 1000:.0f} ms); each pair is also fetched |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--many", type=int, default=50_000)
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.7)
    parser.add_argument("--only", choices=["key", "start", "verdicts"])
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| what | median | 95 % | |\n|---|---:|---:|---|")
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        if args.only != "start":
            make_run(folder / "run", args.pairs, 1024)
        if args.only in (None, "key"):
            key(folder / "run", args.presses, args.pause)
        if args.only in (None, "verdicts"):
            verdicts(folder / "run", args.pairs)
        if args.only in (None, "start"):
            start(folder, args.many)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
