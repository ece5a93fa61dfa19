"""What every form of export shares: names with a content hash, and one encoder for both sides."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

from flipbench.benchmarks.write import write_jsonl, write_parquet
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item

SIDES = ("original", "perturbed")
# VLMEvalKit decides by a benchmark's *name* how to ask and how to score; ours must not trip it.
_TRIGGERS = ("mmbench", "ccbench", "circular", "mmcr", "openended", "mmmu")


def sides(benchmark: PairedBenchmark) -> Iterator[tuple[str, list[Item]]]:
    """Yield "original" and "perturbed" with their items, in the same order."""
    yield from zip(SIDES, (benchmark.originals, benchmark.perturbed), strict=True)


def export_name(benchmark: PairedBenchmark, side: str = "") -> str:
    """Return a name that no other content can have, safe as a file and in evaluation kits.

    A kit keeps pictures and answers by name, so that new content under an old name would be
    answered with old pictures; hence the first digits of the benchmark's hash.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", benchmark.name).strip("-") or "benchmark"
    for trigger in _TRIGGERS:
        name = re.sub(trigger, lambda m: f"{m[0][:2]}-{m[0][2:]}", name, flags=re.IGNORECASE)
    return "_".join(part for part in (name, side, benchmark.id[:8]) if part)


def png_of(ref: ImageRef, images: ImageStore) -> bytes:
    """Return an image as PNG, whatever it was: both sides pass the same encoder.

    Otherwise a JPEG original and a PNG twin would differ in more than the edit.
    """
    out = io.BytesIO()
    images.open(ref).convert("RGB").save(out, format="PNG")
    return out.getvalue()


def write_jsonl_pair(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``original/`` and ``perturbed/``, each with ``items.jsonl`` and ``images/``."""
    return [write_jsonl(items, benchmark.images, folder / side) for side, items in sides(benchmark)]


def write_parquet_pair(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``original.parquet`` and ``perturbed.parquet``."""
    return [
        write_parquet(items, benchmark.images, folder / f"{side}.parquet")
        for side, items in sides(benchmark)
    ]
