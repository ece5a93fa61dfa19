"""Records per second of everything in generation except the models.

    python benchmarks/editing/generation_overhead.py [--n 1000] [--side 512] [--repeats 3]

Captioner and editor cost nothing (a constant text; the original with a square painted over it), so
this times our own code: flips, writing records, and reading, comparing, encoding, hashing and
storing images. The baseline is what any script must do: read the image, encode the new one, write
it. Both run in each repeat; the table shows medians and their ratio, and the ratio of the
processor times, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Item, JsonDict, Source
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport
from flipbench.generate.pipeline import Generator
from flipbench.models.protocols import CaptionText, Drawing


class ConstantCaptioner:
    name, prompt = "constant", "p/1"
    settings: JsonDict = {}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        return [CaptionText("A scene with a square in its middle. " * 8) for _ in candidates]


class Painter:
    name = "painter"
    settings: JsonDict = {}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        return [Drawing(painted(images.open(c.item.images[0]))) for c in candidates]


def painted(image: Image.Image) -> Image.Image:
    changed = image.convert("RGB")
    side = min(changed.size) // 4
    ImageDraw.Draw(changed).rectangle((side, side, 2 * side, 2 * side), fill="red")
    return changed


def pictures(n_different: int, side: int) -> list[bytes]:
    """Return smooth images with some noise, about as hard to encode as photographs."""
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(n_different):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(noisy).save(out, format="PNG")
        encoded.append(out.getvalue())
    return encoded


def ours(n: int, data: list[bytes], folder: Path) -> dict[str, float]:
    with Run(folder / "run") as run:
        refs = [run.images.put(png, "picture") for png in data]
        items = [
            Item(
                benchmark="made-up",
                name=str(i),
                images=(refs[i % len(refs)],),
                question=f"What is in place {i}?",
                options=("a red square", "a blue disc", "nothing"),
                answer=i % 3,
                answer_text=("a red square", "a blue disc", "nothing")[i % 3],
                source=Source(dataset="made-up", row=i),
            )
            for i in range(n)
        ]
        seconds: dict[str, float] = {}
        start = time.perf_counter()
        run.append(items)
        seconds["items"], start = time.perf_counter() - start, time.perf_counter()
        generator = Generator(ConstantCaptioner(), Painter(), run)
        options = StageOptions(progress=False)
        candidates, reports = generator.flip(items, options)
        seconds["flip"], start = time.perf_counter() - start, time.perf_counter()
        candidates, captioned = generator.caption(candidates, options)
        seconds["caption"], start = time.perf_counter() - start, time.perf_counter()
        _, edited = generator.edit(candidates, options)
        seconds["edit"] = time.perf_counter() - start
        check([*reports, *captioned, *edited], n)
        return seconds


def check(reports: Sequence[StageReport], n: int) -> None:
    if any(report.n_failed or report.n_done != n for report in reports):
        raise SystemExit(f"some of {n} items failed: {[str(r) for r in reports]}")


def baseline(n: int, data: list[bytes], folder: Path) -> float:
    (folder / "plain").mkdir()
    start = time.perf_counter()
    for i in range(n):
        changed = painted(Image.open(io.BytesIO(data[i % len(data)])))
        changed.save(folder / "plain" / f"{i}.png")
    return time.perf_counter() - start


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    data = pictures(20, args.side)
    rows: dict[str, list[float]] = {}
    processor: list[float] = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as name:
            begun = time.process_time()
            plain = baseline(args.n, data, Path(name))
            between = time.process_time()
            for step, seconds in ours(args.n, data, Path(name)).items():
                rows.setdefault(step, []).append(seconds)
            rows.setdefault("baseline", []).append(plain)
            processor.append((time.process_time() - between) / (between - begun))
    plain_seconds = rows.pop("baseline")
    totals = [sum(steps) for steps in zip(*rows.values(), strict=True)]
    ratios = [total / plain for total, plain in zip(totals, plain_seconds, strict=True)]
    print(f"{args.n} items, {args.side} x {args.side} pixels, median of {args.repeats}")
    for step, seconds in (rows | {"total": totals, "baseline": plain_seconds}).items():
        median = statistics.median(seconds)
        print(f"{step:>9}  {median:7.2f} s  {args.n / median:9.0f} per second")
    for name, found in (("total / baseline", ratios), ("processor time", processor)):
        low, high = min(found), max(found)
        print(f"{name}: {statistics.median(found):.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
