"""Read and write benchmarks: VLMEvalKit TSV, Hugging Face datasets, our own JSONL and parquet.

Reading order: ``tables`` (the rows of every table file), ``specs`` (the configuration), ``load``
(one function for a benchmark, one for existing pairs) and what it uses: ``sources`` (rows),
``build`` (one row becomes one item), ``question_text``, ``image_files``, ``report`` (its result);
``own_format`` also writes; ``guess`` writes a spec for ``flipbench init``.

Readers never guess: a row whose options and answer disagree is reported, not repaired. To add a
format, write its spec in ``specs`` and map its columns in ``load``.
"""

from __future__ import annotations

from flipbench.benchmarks.load import FoundPairs, load_benchmark, load_pairs
from flipbench.benchmarks.own_format import write_jsonl, write_parquet
from flipbench.benchmarks.report import Benchmark, Problem
from flipbench.benchmarks.specs import (
    BenchmarkSpec,
    ColumnMapping,
    HuggingFaceSpec,
    JsonlSpec,
    PairsSpec,
    ShapesSpec,
    TsvSpec,
)

__all__ = [
    "Benchmark",
    "BenchmarkSpec",
    "ColumnMapping",
    "FoundPairs",
    "HuggingFaceSpec",
    "JsonlSpec",
    "PairsSpec",
    "Problem",
    "ShapesSpec",
    "TsvSpec",
    "load_benchmark",
    "load_pairs",
    "write_jsonl",
    "write_parquet",
]
