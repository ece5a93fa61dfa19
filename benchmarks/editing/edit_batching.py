"""Images per second of the Flux + ControlNet editor: in batches, compared with one by one.

    python benchmarks/editing/edit_batching.py [--pictures 8] [--batch 4] [--repeats 3]
    python benchmarks/editing/edit_batching.py --pipeline FOLDER --controlnet FOLDER --size 1024

Without folders it uses a tiny random checkpoint of the real classes, where the overhead of calls
outweighs arithmetic, so batching gains most. Both methods alternate in one process, after a
warm-up; the speed-up is the median over repeats, with its range.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Item, Source
from flipbench.generate.editors.flux_editor import (
    FluxControlNetEditor,
    FluxEditorSpec,
    FluxSettings,
)
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing

CAPTIONS = ("a red square on a table", "two dogs", "a blue bus", "an empty street")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipeline")
    parser.add_argument("--controlnet")
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


def compare(args: argparse.Namespace, folder: Path) -> None:
    tiny = args.pipeline is None
    if tiny:
        torch.set_num_threads(1)  # more would only wait for each other
    pipeline, controlnet = (args.pipeline, args.controlnet) if not tiny else make_tiny(folder)
    images = ImageStore(folder / "images")
    tasks = [candidate(images, number, args.size) for number in range(args.pictures)]
    seeds = list(range(args.pictures))

    spec = FluxEditorSpec(
        pipeline=pipeline,
        controlnet=controlnet,
        settings=FluxSettings(
            steps=args.steps,
            true_cfg_start=min(5, args.steps // 2),
            max_text_tokens=24 if tiny else 512,
        ),
        sizes=SizeRule(min_edge=min(256, args.size)),
        dtype="float32" if tiny else "bfloat16",
    )
    editor = FluxControlNetEditor(spec)
    batch_sizes = {"one by one": 1, f"batches of {args.batch}": args.batch}
    seconds: dict[str, list[float]] = {name: [] for name in batch_sizes}
    edited: dict[str, list[np.ndarray]] = {}
    editor(tasks, seeds, images)  # warm up
    for _ in range(args.repeats):
        for name, batch_size in batch_sizes.items():
            editor.batches.batch_size = batch_size
            start = time.perf_counter()
            drawings = editor(tasks, seeds, images)
            seconds[name].append(time.perf_counter() - start)
            edited[name] = [pixels(drawing) for drawing in drawings]
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    difference = max(np.abs(a - b).max() for a, b in zip(*edited.values(), strict=True))
    model = "a tiny checkpoint" if tiny else args.pipeline
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"{model} on {device} ({torch.get_num_threads()} threads), {args.pictures} images of"
        f" {args.size} x {args.size}, {args.steps} steps, {args.repeats} repeats\n"
    )
    print("| method | images per second | speed-up |\n|---|---|---|")
    rates = [args.pictures / statistics.median(values) for values in seconds.values()]
    names = list(batch_sizes)
    print(f"| {names[0]} | {rates[0]:.2f} | 1 |")
    print(
        f"| {names[1]} | {rates[1]:.2f} | {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f}–{max(ratios):.2f}) |"
    )
    print(f"\nThe images of both methods differ by at most {difference} of 255 levels.")


def pixels(drawing: Drawing | Exception) -> np.ndarray:
    if isinstance(drawing, Exception):
        raise drawing
    return np.asarray(drawing.image).astype(int)


def candidate(images: ImageStore, number: int, size: int) -> Candidate:
    noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((size, size), Image.Resampling.NEAREST)
    item = Item(
        benchmark="noise",
        name=str(number),
        images=(images.put_image(image, "noise"),),
        question="?",
        answer_text="?",
        source=Source(dataset="noise"),
    )
    text = CAPTIONS[number % len(CAPTIONS)]
    return Candidate(item, None, Caption(flip_id="", captioner="", prompt="", text=text))


def make_tiny(folder: Path) -> tuple[str, str]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fixtures import tiny_flux

    pipeline = tiny_flux.build_pipeline(folder / "flux", halvings=3)
    return str(pipeline), str(tiny_flux.build_controlnet(folder / "xlabs", "xlabs"))


if __name__ == "__main__":
    main()
