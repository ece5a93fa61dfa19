"""How many items of each level of the embedded world the clean tiny models get right.

    python benchmarks/shapes/levels.py [--items 480]

Asks both models the fixed items and those of seed 0, at both levels, and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from flipbench.core.images import ImageStore
from flipbench.core.rates import Rate
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown
from flipbench.shapes.benchmark import Edition, shapes_vqa
from flipbench.shapes.questions import KINDS, KINDS_OF

COLUMNS = ("all", *KINDS, "neighbor")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=480)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        images = ImageStore(Path(folder))
        models = [HuggingFaceVLM(f"shapes:{family}") for family in ("llava", "qwen2_vl")]
        for edition in (Edition(seed, level) for level in KINDS_OF for seed in (None, 0)):
            items = shapes_vqa(images, args.items, edition)
            probes = [PromptSettings().probe(item, "original") for item in items]
            for model in models:
                right: dict[str, list[bool]] = {}
                for start in range(0, len(items), 120):
                    answers = model.ask(probes[start : start + 120], images)
                    for item, answer in zip(items[start : start + 120], answers, strict=True):
                        for column in ("all", item.category):
                            right.setdefault(column, []).append(
                                not isinstance(answer, Exception) and answer.choice == item.answer
                            )
                cells = [
                    rate_cell(Rate.wilson(sum(right[c]), len(right[c])))
                    if c in right
                    else Cell("–")
                    for c in COLUMNS
                ]
                rows.append(Row(f"{edition.name}, {model.name}", tuple(cells)))
    print(markdown(Table("levels", "", "items", tuple(map(Column, COLUMNS)), (("", tuple(rows)),))))


if __name__ == "__main__":
    main()
