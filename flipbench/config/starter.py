"""The configuration that ``flipbench init`` writes for a user's benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import Template

import yaml
from pydantic import BaseModel

_TEXT = Template("""\
# Written by 'flipbench init'. All keys: docs/running.md. Paths are relative to the folder in which
# flipbench is started.
# The benchmark: $notes.
extends: configs/generate/reference.yaml  # the paper's captioner, editor and judge
title: $title
run: $run  # all outputs; run the same command again to continue
seed: 0
benchmark:
$benchmark

# Pairs. The reference needs OPENAI_API_KEY for captioner and judge, and a GPU with 35 GB to edit.
# generate:
#   captioner: {kind: local, chat: {model: {path: Qwen/Qwen2.5-VL-7B-Instruct, dtype: bfloat16}}}
#   editor: {kind: diffusers, pipeline: black-forest-labs/FLUX.1-Kontext-dev}
# filter:
#   judges: []  # people only: flipbench review

# Models to evaluate, under names you choose: a folder, a hub id, or a server. Dose 0: has not seen
# the benchmark, and is the reference of its family; null: unknown.
# models:
#   suspect: {path: my/checkpoint, dtype: bfloat16, family: llava, dose: null}
#   reference: {path: llava-hf/llava-1.5-7b-hf, dtype: bfloat16, family: llava, dose: 0}
#   served: {api: {model: my-model, base_url: "http://localhost:8000/v1"}, dose: null}

# Detectors, as listed by 'flipbench detectors'.
# evaluate:
#   detectors: [perturbation_gap, circular_eval, choice_confusion, text_only_leakage]

# Contaminate checkpoints on purpose, to see which detectors catch them.
# contaminate:
#   epochs: 3
#   strategies:
#     LoRA: {train: lora, learning_rate: 0.0002}
""")


def starter(name: str, benchmark: BaseModel, notes: Sequence[str] = ()) -> str:
    """Return a commented configuration that extends the reference configuration.

    ``name`` is that of the benchmark and the run directory; ``notes`` are observations about the
    file. Defaults of ``benchmark`` are left out.
    """
    data = benchmark.model_dump(mode="json", exclude_defaults=True)
    part = {"format": benchmark.model_dump()["format"], **data}
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True).strip()
    block = "\n".join(f"  {line}" for line in text.splitlines())
    return _TEXT.substitute(
        title=json.dumps(f"{name}, answers flipped", ensure_ascii=False),
        run=json.dumps(f"runs/{name}", ensure_ascii=False),
        benchmark=block,
        notes=" ".join("; ".join(notes).split()) or "no problems in its first rows",
    )
