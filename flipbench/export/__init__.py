"""Paired benchmarks out: always both sides, through one encoder and one template.

Reading order: ``pairs`` (what all forms share), then ``vlmeval``, ``lmms_eval`` and
``huggingface``, and for sources that allow no derivatives ``recipe``.
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
