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
    """Return a benchmark's items in release order, and every problem met on the way.

    Parameters
    ----------
    spec : TsvSpec, HuggingFaceSpec or JsonlSpec
        Where it is and how to read it.
    images : ImageStore
        Where image bytes go, unchanged.
    strict : bool
        True raises the first problem that keeps a row from becoming an item.

    Returns
    -------
    Benchmark
        Its ``items`` and ``refused`` rows add up to the file's rows, always.

    Raises
    ------
    DataError
        Where the file as a whole cannot be used (missing, empty, not UTF-8, without an answer
        column, the same index twice), or with ``strict`` at the first refused row.
    ServiceError
        Where the Hugging Face Hub does not give a dataset.
    """
    if isinstance(spec, TsvSpec):
        return load_tsv(spec, images, strict)
    if isinstance(spec, HuggingFaceSpec):
        return load_huggingface(spec, images, strict)
    return load_jsonl(spec, images, strict)
