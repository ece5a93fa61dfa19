"""An image of pairs: original and perturbed side by side, with question and answers."""

from __future__ import annotations

import textwrap
from itertools import chain, zip_longest
from pathlib import Path

from flipbench.core.files import atomic_file
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS


def contact_sheet(benchmark: PairedBenchmark, path: Path, n_pairs: int = 6) -> None:
    """Draw pairs from all categories, three to a row, into a .png, .svg or .pdf file."""
    from matplotlib.figure import Figure

    pairs = _spread(benchmark.pairs, n_pairs)
    n_rows = -(-len(pairs) // 3)
    figure = Figure(figsize=(11.4, 2.75 * n_rows), dpi=120, layout="constrained")
    cells = figure.subfigures(n_rows, 3, squeeze=False)
    for cell, pair in zip(cells.flat, pairs, strict=False):
        title = "\n".join(textwrap.wrap(pair.original.question, 44))
        cell.suptitle(title, fontsize=10, fontweight="bold")
        sides = {"original": pair.original, "perturbed": pair.perturbed}
        for axes, (side, item) in zip(cell.subplots(1, 2), sides.items(), strict=True):
            axes.imshow(benchmark.images.open(item.images[_first_changed(pair, item)]))
            axes.set_xticks([])
            axes.set_yticks([])
            letter = "" if item.answer is None else f"{LETTERS[item.answer]}. "
            axes.set_xlabel(f"{side}: {letter}{item.answer_text}", fontsize=10)
    path = path if path.suffix else path.with_suffix(".png")
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:].lower())


def _first_changed(pair: Pair, item: Item) -> int:
    """Return the position of the first image that differs, or of the item's last."""
    return min(pair.changed[0], len(item.images) - 1)


def _spread(pairs: tuple[Pair, ...], n_pairs: int) -> list[Pair]:
    """Take pairs in turn from every category, in release order."""
    by_category: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_category.setdefault(pair.original.category, []).append(pair)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return [pair for pair in turns if pair][:n_pairs]
