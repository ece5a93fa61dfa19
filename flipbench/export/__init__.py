"""Paired benchmarks out: always both sides, through one encoder and one template.

Reading order: ``pairs`` (what all formats share), then ``vlmeval``, ``lmms_eval`` and
``huggingface``; for sources that allow no derivatives ``licences`` and ``recipe``.

Exports copy records and never change them. To add a format, write a function with the signature of
``write_vlmeval`` and add it to ``FORMS``.
"""

from __future__ import annotations

from flipbench.export.huggingface import write_huggingface
from flipbench.export.licences import forbids_derivatives
from flipbench.export.lmms_eval import write_lmms_eval
from flipbench.export.pairs import write_jsonl_pair, write_parquet_pair
from flipbench.export.recipe import write_recipe
from flipbench.export.vlmeval import write_vlmeval

FORMS = {
    "jsonl": write_jsonl_pair,
    "parquet": write_parquet_pair,
    "vlmeval": write_vlmeval,
    "lmms-eval": write_lmms_eval,
    "huggingface": write_huggingface,
}

__all__ = ["FORMS", "forbids_derivatives", "write_recipe"]
