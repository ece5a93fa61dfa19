"""Cost of the stage runner per record, compared with a loop that only calls the stage.

    python benchmarks/stage_overhead.py [--n 20000] [--batch-size 16] [--repeats 5] [--images 100]

All methods run in each repeat, in one process; the table shows medians and the ratio to the
baseline of the same run. The stage only creates its records, so this is the worst case: a real
batch takes seconds. Each is on disk (fsync) before the next starts; one row leaves that out. A
second table shows, for images of noise of 512 x 512 pixels, what it costs to flush each to disk and
to check each against its hash.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from flipbench.core.images import ImageStore, decode
from flipbench.core.records import Caption, ImageRef, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage

TEXT = "A small scene: a red star left of a blue square, on a white ground. " * 4


class Captions:
    name = "caption"
    record: type[Record] = Caption

    def id_of(self, number: int) -> str:
        return Caption.id_for(
            flip_id=str(number),
            captioner="none",
            prompt="p/1",
            settings={"temperature": 0.7},
            picture=0,
        )

    def subject(self, number: int) -> str:
        return f"number {number}"

    def __call__(self, numbers: Sequence[int]) -> list[Record | Exception]:
        return [
            Caption(
                flip_id=str(number),
                captioner="none",
                prompt="p/1",
                settings={"temperature": 0.7},
                text=TEXT,
            )
            for number in numbers
        ]


def bare_loop(n: int, batch_size: int, folder: Path) -> None:
    stage = Captions()
    for start in range(0, n, batch_size):
        stage(range(start, min(n, start + batch_size)))


def json_lines(n: int, batch_size: int, folder: Path) -> None:
    with (folder / "plain.jsonl").open("w") as file:
        for number in range(n):
            row = {
                "flip_id": str(number),
                "captioner": "none",
                "prompt": "p/1",
                "settings": {"temperature": 0.7},
                "text": TEXT,
            }
            file.write(json.dumps(row) + "\n")


def staged(n: int, batch_size: int, folder: Path) -> None:
    with Run(folder / "run") as run:
        run_stage(Captions(), range(n), run, StageOptions(batch_size=batch_size, progress=False))


def staged_unsynced(n: int, batch_size: int, folder: Path) -> None:
    with mock.patch.object(os, "fsync"):
        staged(n, batch_size, folder)


def resumed(n: int, batch_size: int, folder: Path) -> None:
    staged(n, batch_size, folder)


def measure_images(n: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(n):
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (512, 512, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        data.append(buffer.getvalue())
    refs: list[ImageRef] = []

    def store_all(folder: Path) -> None:
        store = ImageStore(folder)
        refs[:] = [store.put(image, "noise") for image in data]

    def store_unsynced(folder: Path) -> None:
        with mock.patch.object(os, "fsync"):
            store_all(folder)

    def open_all(folder: Path) -> None:
        for ref in refs:
            ImageStore(folder).open(ref)

    def open_unchecked(folder: Path) -> None:
        for ref in refs:
            decode(ImageStore(folder).path(ref).read_bytes(), "noise")

    def check(folder: Path) -> None:
        assert all(ImageStore(folder).has(ref) for ref in refs)

    def check_again(folder: Path) -> None:
        assert all(checked.has(ref) for ref in refs)

    methods: dict[str, Callable[[Path], None]] = {
        "store": store_all,
        "store, without fsync": store_unsynced,
        "store again, all there": store_all,
        "read and decode": open_all,
        "read and decode, without the hash": open_unchecked,
        "check": check,
        "check again in the same process": check_again,
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as base:
            for name, method in methods.items():
                folder = Path(base, "unsynced" if method is store_unsynced else "shared")
                if method is check_again:
                    checked = ImageStore(folder)
                    assert all(checked.has(ref) for ref in refs)
                start = time.perf_counter()
                method(folder)
                seconds[name].append(time.perf_counter() - start)
    size = sum(map(len, data)) / n / 1e6
    print(f"\n{n:,} images of {size:.2f} MB, median of {repeats}\n")
    print("| method | ms per image |")
    print("|---|---:|")
    for name in methods:
        print(f"| {name} | {statistics.median(seconds[name]) / n * 1e3:.2f} |")


METHODS: dict[str, Callable[[int, int, Path], None]] = {
    "the bare loop over the stage (baseline)": bare_loop,
    "plain JSON lines, no records, no fsync": json_lines,
    "run_stage": staged,
    "run_stage again, all done": resumed,
    "run_stage, fsync left out": staged_unsynced,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=100)
    args = parser.parse_args()

    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    cpu: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as base:
            for name, method in METHODS.items():
                done = method is resumed  # by the method before
                folder = Path(base, staged.__name__ if done else method.__name__)
                folder.mkdir(exist_ok=True)
                start, start_cpu = time.perf_counter(), time.process_time()
                method(args.n, args.batch_size, folder)
                seconds[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - start_cpu)

    print(f"{args.n:,} records, batches of {args.batch_size}, median of {args.repeats}\n")
    print("| method | µs per record | ratio | CPU µs per record | CPU ratio |")
    print("|---|---:|---:|---:|---:|")
    base_wall = statistics.median(seconds["the bare loop over the stage (baseline)"])
    base_cpu = statistics.median(cpu["the bare loop over the stage (baseline)"])
    for name in METHODS:
        wall, busy = statistics.median(seconds[name]), statistics.median(cpu[name])
        print(
            f"| {name} | {wall / args.n * 1e6:.1f} | {wall / base_wall:.2f}"
            f" | {busy / args.n * 1e6:.1f} | {busy / base_cpu:.2f} |"
        )
    measure_images(args.images, args.repeats)


if __name__ == "__main__":
    main()
