"""Speed of batched evaluation, compared with ``generate`` on one item at a time as in usual kits.

    python benchmarks/batched_evaluation.py [--items 240] [--model shapes:llava] [--repeats 3]

Prints a Markdown table: probes per second (median), the speed-up over the baseline of the same
repeat (median and range), and how many answers equal the baseline's. All methods alternate in one
process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flipbench.core.images import ImageStore
from flipbench.core.records import Response
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=240)
    parser.add_argument("--model", default="shapes:llava")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    images = ImageStore(Path(tempfile.mkdtemp()))
    items = shapes_vqa(images, args.items)
    vlm = HuggingFaceVLM(args.model)

    def ask(mode: str, batch_size: int) -> Callable[[], list[Response]]:
        probes = [PromptSettings(ask=mode).probe(item, "original") for item in items]

        def answer_all() -> list[Response]:
            answers = []
            for start in range(0, len(probes), batch_size):
                answers += vlm.ask(probes[start : start + batch_size], images)
            return answers

        return answer_all

    methods = {
        "generate, one at a time (baseline)": ask("generate", 1),
        "generate, batches of 8": ask("generate", 8),
        "generate, batches of 64": ask("generate", 64),
        "option letters, one at a time": ask("choose", 1),
        "option letters, batches of 8": ask("choose", 8),
        "option letters, batches of 64": ask("choose", 64),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    choices: dict[str, list[int]] = {}
    ask("choose", 64)()  # warm up
    for _ in range(args.repeats):
        for name, answer_all in methods.items():
            start = time.perf_counter()
            choices[name] = [answer.choice for answer in answer_all()]
            seconds[name].append(time.perf_counter() - start)
    baseline = next(iter(methods))
    print(f"{args.model}, {args.items} items, {args.repeats} repeats\n")
    print("| method | probes per second | speed-up | same answers |\n|---|---:|---:|---:|")
    for name in methods:
        ratios = [a / b for a, b in zip(seconds[baseline], seconds[name], strict=True)]
        same = sum(a == b for a, b in zip(choices[baseline], choices[name], strict=True))
        print(
            f"| {name} | {len(items) / statistics.median(seconds[name]):.0f}"
            f" | {statistics.median(ratios):.1f}"
            f" ({min(ratios):.1f}–{max(ratios):.1f}) | {same}/{len(items)} |"
        )


if __name__ == "__main__":
    main()
