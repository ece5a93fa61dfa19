"""What hints and summaries add for the two tiny models, on scenes that are described exactly.

    python benchmarks/shapes/hints.py --items 120 --out runs/hints-shapes

Hints describe the scene by its template; the summary states the right answer. The models were
trained on short questions about pictures, never on texts that help.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import flipbench as fb
from flipbench.benchmarks.own_format import write_jsonl
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.shapes.benchmark import scene_of, shapes_vqa
from flipbench.shapes.wording import describe


def main() -> None:
    """Write the items with their texts, ask both models, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("runs/hints-shapes"))
    arguments = parser.parse_args()
    store = ImageStore(arguments.out / "source" / "images")
    items = [
        item.model_copy(
            update={
                "extra": {
                    "hints": [describe(scene_of(Candidate(item)))],
                    "summary": f"The answer is {item.answer_text}.",
                }
            }
        )
        for item in shapes_vqa(store, arguments.items)
    ]
    data = write_jsonl(items, store, arguments.out / "source")
    models = {name: {"path": f"shapes:{name}"} for name in ("llava", "qwen2_vl")}
    result = fb.reasoning(
        {
            "run": str(arguments.out),
            "benchmark": {"format": "jsonl", "path": str(data)},
            "models": models,
            "evaluate": {"hints": {"max_new_tokens": 16}},
        }
    )
    print(result.page.read_text())


if __name__ == "__main__":
    main()
