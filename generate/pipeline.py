"""Items in, edited candidates out: flip, caption, edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flipbench.generate.caption import CaptionStage
from flipbench.generate.edit import EditStage
from flipbench.generate.flip import FlipStage
from flipbench.models.protocols import Captioner, Editor
from flipbench.paired import Candidate
from flipbench.records import Caption, Edit, Flip, Item
from flipbench.run import Run
from flipbench.stage import StageReport, run_stage


def generate(
    items: Sequence[Item],
    captioner: Captioner,
    editor: Editor,
    run: Run,
    *,
    seed: int = 0,
    batch_size: int = 16,
    progress: bool = True,
) -> tuple[list[Candidate], list[StageReport]]:
    """Carry every item as far as it goes.

    Returns
    -------
    candidates : list of Candidate, (n_items,)
        In the items' order; one that failed lacks what could not be made.
    reports : list of StageReport
        Of flip, caption and edit.
    """
    known = run.ids(Item)
    run.append([item for item in items if item.id not in known])

    flipping = FlipStage(seed)
    reports = [run_stage(flipping, items, run, batch_size=256, progress=progress)]
    flips = run.index(Flip)
    candidates = [Candidate(item, flips.get(flipping.id_of(item))) for item in items]

    captioning = CaptionStage(captioner, run.images)
    flipped = [c for c in candidates if c.flip]
    reports.append(run_stage(captioning, flipped, run, batch_size=batch_size, progress=progress))
    captions = run.index(Caption)
    candidates = [
        replace(c, caption=captions.get(captioning.id_of(c))) if c.flip else c for c in candidates
    ]

    editing = EditStage(editor, run.images, seed)
    captioned = [c for c in candidates if c.caption]
    reports.append(run_stage(editing, captioned, run, batch_size=batch_size, progress=progress))
    edits = run.index(Edit)
    candidates = [
        replace(c, edit=edits.get(editing.id_of(c))) if c.caption else c for c in candidates
    ]
    return candidates, reports
