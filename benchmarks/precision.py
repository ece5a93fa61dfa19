"""How much low precision and batching change answers.

    python benchmarks/precision.py [--items 100] [--batch 64] [--models shapes:llava ...]

Prints a Markdown table: for each precision, the largest difference of an option's log-probability
and the number of different choices, between batches and one item at a time, and between one item at
a time and the same in float32.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa

DTYPES = ("float32", "bfloat16", "float16")


def answers(
    vlm: HuggingFaceVLM, probes: Sequence[Probe], images: ImageStore, size: int
) -> list[Response]:
    responses: list[Response] = []
    for start in range(0, len(probes), size):
        for response in vlm.ask(probes[start : start + size], images):
            if isinstance(response, Exception):
                raise response
            responses.append(response)
    return responses


def difference(one: Sequence[Response], other: Sequence[Response]) -> str:
    """Return the largest difference in nats, and the number of different choices."""
    largest, changed = 0.0, 0
    for a, b in zip(one, other, strict=True):
        pairs = zip(a.option_log_probs, b.option_log_probs, strict=True)
        largest = max(largest, *(abs(x - y) for x, y in pairs))
        changed += a.choice != b.choice
    return f"{largest:.2g} | {changed}/{len(one)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--models", nargs="+", default=["shapes:llava", "shapes:qwen2_vl"])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    images = ImageStore(Path(tempfile.mkdtemp()))
    probes = [PromptSettings().probe(item, "original") for item in shapes_vqa(images, args.items)]
    print(f"{args.items} items, batches of {args.batch}\n")
    print(
        "| model | precision | batches, one at a time: max \\|Δ log p\\| | choices changed"
        " | one at a time, float32 one at a time: max \\|Δ log p\\| | choices changed |"
    )
    print("|---|---|---:|---:|---:|---:|")
    for model in args.models:
        exact: list[Response] = []
        for dtype in DTYPES:
            vlm = HuggingFaceVLM(model, dtype=dtype, device=args.device)
            single = answers(vlm, probes, images, 1)
            exact = exact or single
            batched = answers(vlm, probes, images, args.batch)
            cells = f"{difference(batched, single)} | {difference(single, exact)}"
            print(f"| {model} | {dtype} | {cells} |")


if __name__ == "__main__":
    main()
