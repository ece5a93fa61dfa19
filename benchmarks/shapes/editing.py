"""How often a tiny Flux with a ControlNet draws the new answer in the embedded world.

    python benchmarks/shapes/editing.py PIPELINE [--items 100] [settings.true_cfg=1 ...]

Draws the first items of shapes-vqa with the editor `flux-controlnet`, each from the exact caption
of the scene with another answer, and reads the pictures. Prints a Markdown table by kind of
question: pictures that show the new answer, the old answer, and an unreadable cell; and cells drawn
as wanted, among those alike before and after and among those to change. Then, how far the backdrops
of edits are from those of their originals, and those of two originals from each other.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

from flipbench.config.loading import read_mapping
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import Caption, Flip, Item
from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxEditorSpec
from flipbench.models.protocols import Drawing
from flipbench.reporting.tables import Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown
from flipbench.shapes.benchmark import family_of, scene_of, shapes_vqa
from flipbench.shapes.questions import KINDS
from flipbench.shapes.reading import fit_backdrop, read_picture
from flipbench.shapes.scene import GRID, Scene
from flipbench.shapes.wording import describe

COLUMNS = ("new answer", "old answer", "unreadable", "cells as before", "cells changed")
DEFAULTS = {"sizes": {"min_edge": 224}, "settings": {"steps": 12, "true_cfg": 1.0}}
Outcomes = dict[tuple[str, str], list[bool]]


def captioned(item: Item) -> tuple[Candidate, Scene]:
    """Return an item with another answer and its caption, and the scene to draw."""
    assert item.options and item.answer is not None
    new = (item.answer + 1) % len(item.options)
    flip = Flip(item_id=item.id, method="next", seed=0, new_answer=new, new_text=item.options[new])
    family = family_of(Candidate(item))
    wanted = family.scenes[family.options.index(flip.new_text)]
    text = describe(wanted)
    caption = Caption(flip_id=flip.id, captioner="shapes", prompt="scene", text=text)
    return Candidate(item, flip, caption), wanted


def judge(candidate: Candidate, wanted: Scene, picture: Image.Image, outcomes: Outcomes) -> None:
    """Add what a picture shows to ``outcomes``, by kind of question and column."""
    family, before, reading = family_of(candidate), scene_of(candidate), read_picture(picture)
    answer = reading.answer(family.question)
    found = [
        ("new answer", answer == candidate.flip.new_text if candidate.flip else False),
        ("old answer", answer == candidate.item.answer_text),
        ("unreadable", bool(reading.unreadable)),
    ]
    for cell in ((row, column) for row in range(GRID) for column in range(GRID)):
        read = next((t for t in reading.things if t.cell == cell), None)
        was, will, now = (
            t and (t.shape, t.color) for t in (before.at(cell), wanted.at(cell), read)
        )
        right = now == will and cell not in reading.unreadable
        found.append(("cells as before" if was == will else "cells changed", right))
    for column, outcome in found:
        for row in (family.question.kind, "all"):
            outcomes[row, column].append(outcome)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pipeline")
    parser.add_argument("changes", nargs="*", help="settings of the editor, as in a configuration")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--pictures", type=Path, help="PNG: original, edges, edit; five rows")
    args = parser.parse_args()
    images = ImageStore(Path(tempfile.mkdtemp()))
    editor = FluxControlNetEditor(
        FluxEditorSpec.model_validate(
            {
                "pipeline": args.pipeline,
                "batch_size": args.batch_size,
                **read_mapping(DEFAULTS, args.changes),
            }
        )
    )
    items = [captioned(item) for item in shapes_vqa(images, args.items)]
    outcomes: Outcomes = defaultdict(list)
    shown, start = [], time.monotonic()
    backdrops = []
    for first in range(0, len(items), args.batch_size):
        some = items[first : first + args.batch_size]
        seeds = [int(generator(0, c.item.id, "edit").integers(2**63)) for c, _ in some]
        drawn = editor([candidate for candidate, _ in some], seeds, images)
        for (candidate, wanted), drawing in zip(some, drawn, strict=True):
            if not isinstance(drawing, Drawing):
                raise drawing
            judge(candidate, wanted, drawing.image, outcomes)
            source = images.open(candidate.item.images[0])
            shown.append((source, editor.spec.control(source), drawing.image))
            backdrops.append((fit_backdrop(source), fit_backdrop(drawing.image)))
    seconds = (time.monotonic() - start) / len(items)
    rows = [
        Row(
            kind,
            tuple(
                rate_cell(Rate.wilson(sum(o), len(o))) for o in (outcomes[kind, c] for c in COLUMNS)
            ),
        )
        for kind in (*KINDS, "all")
    ]
    table = Table("editing", "", "question", tuple(map(Column, COLUMNS)), (("", tuple(rows)),))
    print(markdown(table), f"\n{seconds:.2f} s per picture, reading included")
    kept = np.mean([np.abs(was - now).mean() for was, now in backdrops])
    other = [np.abs(a[0] - b[0]).mean() for a, b in itertools.pairwise(backdrops)]
    print(
        f"backdrops of original and edit differ by {kept:.1f} grey levels on average,"
        f" those of two originals by {np.mean(other):.1f}"
    )
    if args.pictures:
        width, height = shown[0][0].size
        sheet = Image.new("RGB", (3 * width, 5 * height))
        for row, pictures in enumerate(shown[:5]):
            for column, picture in enumerate(pictures):
                sheet.paste(picture, (column * width, row * height))
        sheet.save(args.pictures)


if __name__ == "__main__":
    main()
