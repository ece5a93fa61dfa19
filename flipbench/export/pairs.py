"""Shared by all formats: names with a content hash, and one image encoder for both sides."""

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
# VLMEvalKit chooses prompt and metric by substrings of a benchmark's name; ours must contain none.
_TRIGGERS = ("mmbench", "ccbench", "circular", "mmcr", "openended", "mmmu")


def sides(benchmark: PairedBenchmark) -> Iterator[tuple[str, list[Item]]]:
    """Yield "original" and "perturbed" with their items, in the same order."""
    yield from zip(SIDES, (benchmark.originals, benchmark.perturbed), strict=True)


def export_name(benchmark: PairedBenchmark, side: str = "") -> str:
    """Return a name unique to the content, safe as a file name and in evaluation kits.

    Kits cache images and answers by name: new content under an old name would be evaluated with
    old images. The name therefore ends with the first digits of the benchmark's hash.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", benchmark.name).strip("-") or "benchmark"
    for trigger in _TRIGGERS:
        name = re.sub(trigger, lambda m: f"{m[0][:2]}-{m[0][2:]}", name, flags=re.IGNORECASE)
    return "_".join(part for part in (name, side, benchmark.id[:8]) if part)


def png_of(ref: ImageRef, images: ImageStore) -> bytes:
    """Return an image as PNG, whatever its format: both sides pass through the same encoder.

    Otherwise a JPEG original and its PNG edit would differ in more than the edit.
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
