"""What damaged files do: pictures of a run, files of a checkpoint, configurations.

    python benchmarks/robustness/damage.py [--seed 0] [--n 200]

Every picture of a small run is damaged in four ways; ``flipbench generate`` must make it again.
Every file of a checkpoint is cut, emptied, and altered by a byte, and so is a configuration: each
must be read or refused by one of flipbench's own errors. The table counts what was lost (pictures
not made again, other errors, more than five seconds for a configuration).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import logging
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import flipbench as fb
from flipbench.config.experiment import load_config
from flipbench.core.errors import FlipbenchError
from flipbench.core.records import Edit
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.models.vlm.huggingface import HuggingFaceVLM

CONFIG = """\
run: {run}
seed: 1
benchmark: {{format: shapes, n_items: 6}}
models:
  tiny-llava: {{path: "shapes:llava"}}
evaluate:
  detectors: [perturbation_gap, circular_eval]
"""
SLOWEST = 5.0
MEMORY = 16 << 30
Damage = Callable[[bytes, np.random.Generator], bytes]


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: rng.integers(len(data))]


def empty(data: bytes, rng: np.random.Generator) -> bytes:
    return b""


def one_byte(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
    return bytes(changed)


def another(data: bytes, rng: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def again(data: bytes, rng: np.random.Generator) -> bytes:
    """Repeat a part of the text elsewhere."""
    at, start, end = rng.integers(len(data), size=3)
    return data[:at] + data[start:end] + data[at:]


def pictures(folder: Path, rng: np.random.Generator) -> Counter[str]:
    config = folder / "c.yaml"
    config.write_text(CONFIG.format(run=folder / "run"))
    fb.Experiment(config, progress=False).generate()
    found: Counter[str] = Counter()
    with Run(folder / "run") as run:
        edits = run.index(Edit)
    for path in sorted((folder / "run" / "images").glob("*.png")):
        for damage in (cut, empty, one_byte, another):
            path.write_bytes(damage(path.read_bytes(), rng))
            fb.Experiment(config, progress=False).generate()
            intact = hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
            with Run(folder / "run") as run:
                found["made again" if intact and run.index(Edit) == edits else "lost"] += 1
    return found


def attempt(function: Callable[[], object], slowest: float) -> str:
    start = time.monotonic()
    try:
        function()
        outcome = "read"
    except FlipbenchError:
        outcome = "refused"
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:200]}")
        return "lost"
    return outcome if time.monotonic() - start < slowest else "lost"


def checkpoints(folder: Path, n: int, rng: np.random.Generator) -> Counter[str]:
    copy = Path(shutil.copytree(resolve_path("shapes:llava"), folder / "llava"))
    files = sorted(p for p in copy.iterdir() if p.suffix in (".json", ".safetensors", ".jinja"))
    found: Counter[str] = Counter()
    for number in range(n):
        path = files[number % len(files)]
        whole = path.read_bytes()
        path.write_bytes((cut, one_byte, empty)[number // len(files) % 3](whole, rng))
        found[attempt(lambda: HuggingFaceVLM(str(copy), device="cpu"), np.inf)] += 1
        path.write_bytes(whole)
    return found


def configurations(folder: Path, n: int, rng: np.random.Generator) -> Counter[str]:
    path, whole = folder / "d.yaml", CONFIG.format(run="runs/x").encode()
    found: Counter[str] = Counter()
    for number in range(n):
        path.write_bytes((cut, one_byte, again)[number % 3](whole, rng))
        found[attempt(lambda: load_config(path), SLOWEST)] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=200, help="checkpoints, and configurations")
    args = parser.parse_args()
    logging.disable()
    # an altered size may ask for more memory than there is
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rng = np.random.default_rng(args.seed)
    rows = {}
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        rows["pictures of a run"] = pictures(folder, rng)
        rows["files of a checkpoint"] = checkpoints(folder, args.n, rng)
        rows["configurations"] = configurations(folder, args.n, rng)
    print("| damaged | tried | made again | refused | read | lost |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, found in rows.items():
        cells = [found[key] for key in ("made again", "refused", "read", "lost")]
        print(f"| {name} | {found.total()} | {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
