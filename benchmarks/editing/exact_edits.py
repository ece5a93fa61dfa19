"""How often exact edits show the new answer, by the embedded world's oracle, and how they look.

    python -m benchmarks.editing.exact_edits [--items 400] [--figure docs/exact-edits.png]

Each thing that a question of shapes-vqa is about is marked by its cell; the oracle reads the edited
picture off the pixels. The figure shows photographs that scikit-image ships, with boxes drawn by
hand.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage.data

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Caption, Edit, Flip, Item
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.generate.edit import EditStage
from flipbench.generate.editors import exact_operations
from flipbench.generate.editors.exact import ExactEditor
from flipbench.generate.editors.exact_rules import COLOURS, Region, exact_edits
from flipbench.generate.flip import FlipStage
from flipbench.models.protocols import JudgeDecision
from flipbench.shapes.benchmark import scene_of_item, shapes_vqa
from flipbench.shapes.render import SIZE
from flipbench.shapes.scene import GRID, Thing

_CELL = SIZE // GRID


def regions_of(item: Item) -> list[Region]:
    """Return the cells of the things that an item's question names."""
    words = item.question.casefold()
    if item.category not in ("color", "number", "relation"):
        return []
    things = scene_of_item(item).things
    return [Region(_box(thing), thing.shape) for thing in things if _is_meant(thing, item, words)]


def _is_meant(thing: Thing, item: Item, words: str) -> bool:
    by_shape = thing.shape in words
    return by_shape or (item.category == "number" and f"{thing.color} object" in words)


def _box(thing: Thing) -> tuple[int, int, int, int]:
    dx, dy = (round(_CELL * shift / 100) for shift in thing.shift)
    left, top = max(0, thing.cell[1] * _CELL + dx), max(0, thing.cell[0] * _CELL + dy)
    return left, top, min(_CELL, SIZE - left), min(_CELL, SIZE - top)


def edited_candidates(n_items: int, images: ImageStore) -> tuple[list[Candidate], list[str]]:
    """Return the items that an exact edit fits, edited, and the reasons why some failed."""
    items = shapes_vqa(images, n_items)
    regions = {item.name: regions_of(item) for item in items}
    reachable = {item.id: sorted(exact_edits(item, regions[item.name])) for item in items}
    flips = FlipStage(reachable=reachable)(items)
    candidates = [
        Candidate(item, flip, Caption(flip_id=flip.id, captioner="none", prompt="", text="-"))
        for item, flip in zip(items, flips, strict=True)
        if isinstance(flip, Flip)
    ]
    edits = EditStage(ExactEditor(regions), images)(candidates)
    pairs = list(zip(candidates, edits, strict=True))
    failures = [str(edit) for _, edit in pairs if not isinstance(edit, Edit)]
    return [replace(c, edit=edit) for c, edit in pairs if isinstance(edit, Edit)], failures


def table(candidates: Sequence[Candidate], n_items: int, images: ImageStore) -> str:
    """Return a Markdown table of what the oracle keeps, by operation."""
    n_edited, n_kept = Counter[str](), Counter[str]()
    for candidate, decision in zip(candidates, SceneJudge()(candidates, images), strict=True):
        assert candidate.edit is not None and isinstance(decision, JudgeDecision)
        for name in (candidate.edit.extra["exact"]["operation"], "all"):
            n_edited[name] += 1
            n_kept[name] += decision.decision == "keep"
    lines = [f"| edit | items of {n_items} | kept by the oracle, % |", "|---|---:|---:|"]
    for name in sorted(n_edited, key=lambda name: (name == "all", name)):
        k, n = n_kept[name], n_edited[name]
        limits = wilson_interval(k, n)
        between = f"[{100 * limits.low:.1f}, {100 * limits.high:.1f}]"
        lines.append(f"| {name} | {n} | {100 * k / n:.1f} ({k}/{n}) {between} |")
    return "\n".join(lines)


def figure(path: Path) -> None:
    """Draw photographs beside their exact edits."""
    astronaut, coffee = skimage.data.astronaut(), skimage.data.coffee()
    coins = np.stack([skimage.data.coins()] * 3, axis=-1)
    coin, large_coin = (74, 30, 52, 52), (309, 148, 74, 76)
    first_coin = (12, 26, 62, 56)
    suit, cup = (0, 230, 440, 282), (120, 50, 350, 320)
    blue_suit = exact_operations.recolour(astronaut, suit, COLOURS["blue"])[0]
    green_cup = exact_operations.recolour(coffee, cup, COLOURS["green"])[0]
    panels = [
        ("original", astronaut),
        ("recolour: the suit is blue", blue_suit),
        ("original", coffee),
        ("mirror: the spoon is on the left", exact_operations.mirror(coffee)[0]),
        ("original", coins),
        ("remove: 23 coins", exact_operations.remove(coins, [coin])[0]),
        ("swap: the largest is top left", exact_operations.swap(coins, first_coin, large_coin)[0]),
        ("where the box is too small", green_cup),
    ]
    chart, axes = plt.subplots(2, 4, figsize=(14, 6.4), layout="constrained")
    for axis, (title, picture) in zip(axes.flat, panels, strict=True):
        axis.imshow(picture)
        axis.set_title(title, fontsize=10)
        axis.set_axis_off()
    chart.savefig(path, dpi=64)


def main() -> None:
    """Print the table, and draw the figure if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure:
        figure(options.figure)
    with tempfile.TemporaryDirectory() as folder:
        images = ImageStore(Path(folder))
        start = time.process_time()
        candidates, failures = edited_candidates(options.items, images)
        seconds = (time.process_time() - start) / max(1, len(candidates))
        print(table(candidates, options.items, images))
        print(
            f"\n{len(failures)} edits failed; {seconds:.2f} CPU seconds an item, drawing included"
        )
        print("\n".join(Counter(text.partition(": ")[2][:60] for text in failures)))


if __name__ == "__main__":
    main()
