"""Export of paired benchmarks: always both sides, through one encoder and one template.

Reading order: ``pairs`` (shared by all formats), then ``vlmeval``, ``lmms_eval``, ``inspect_eval``
and ``huggingface``, which is for publishing (``licence``, ``card``, ``croissant``); ``recipe`` for
sources whose licence forbids derivatives.

Exports copy records and never change them. To add a format, write a function with the signature of
``write_vlmeval`` and add it to ``FORMATS``.
"""

from __future__ import annotations

from flipbench.export.huggingface import write_huggingface
from flipbench.export.inspect_eval import write_inspect
from flipbench.export.licence import forbids_derivatives
from flipbench.export.lmms_eval import write_lmms_eval
from flipbench.export.pairs import write_jsonl_pair, write_parquet_pair
from flipbench.export.recipe import write_recipe
from flipbench.export.vlmeval import write_vlmeval

FORMATS = {
    "jsonl": write_jsonl_pair,
    "parquet": write_parquet_pair,
    "vlmeval": write_vlmeval,
    "lmms-eval": write_lmms_eval,
    "inspect": write_inspect,
    "huggingface": write_huggingface,
}

__all__ = ["FORMATS", "forbids_derivatives", "write_huggingface", "write_recipe"]
