"""Load a benchmark of any format."""

from __future__ import annotations

from flipbench.benchmarks.huggingface import load_huggingface
from flipbench.benchmarks.jsonl import load_jsonl
from flipbench.benchmarks.report import Benchmark
from flipbench.benchmarks.specs import HuggingFaceSpec, JsonlSpec, TsvSpec
from flipbench.benchmarks.tsv import load_tsv
from flipbench.core.images import ImageStore


def load_benchmark(
    spec: TsvSpec | HuggingFaceSpec | JsonlSpec, images: ImageStore, *, strict: bool = False
) -> Benchmark:
    """Return a benchmark's items in release order, and every problem with its rows.

    Parameters
    ----------
    spec : TsvSpec, HuggingFaceSpec or JsonlSpec
        The benchmark's location and format.
    images : ImageStore
        Stores the image bytes, unchanged.
    strict : bool
        Whether to raise the first problem that rejects a row.

    Returns
    -------
    Benchmark
        Its ``items`` and ``refused`` rows always add up to the file's rows.

    Raises
    ------
    DataError
        If the file as a whole cannot be used (missing, empty, not UTF-8, without an answer
        column, the same index twice), or with ``strict`` at the first refused row.
    ServiceError
        If a dataset cannot be loaded from the Hugging Face Hub.
    """
    if isinstance(spec, TsvSpec):
        return load_tsv(spec, images, strict)
    if isinstance(spec, HuggingFaceSpec):
        return load_huggingface(spec, images, strict)
    return load_jsonl(spec, images, strict)
