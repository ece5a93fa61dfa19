"""Items in, edited candidates out: flip, caption, edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Flip, Item
from flipbench.core.run import Run
from flipbench.core.stage import In, Stage, StageReport, run_stage
from flipbench.core.workers import Share
from flipbench.models.protocols import Captioner, Editor

from .caption import CaptionStage
from .edit import EditStage
from .flip import FlipStage
from .propose import ProposeStage


@dataclass
class Generation:
    """Items on their way through the three steps, each of which may be run alone.

    Attributes
    ----------
    candidates : list of Candidate
        In the items' order; one that failed lacks what could not be made.
    asks : bool
        False in a worker, which edits only: new answers and captions are read as they are, so
        that no two workers ask again for what failed.
    """

    run: Run
    candidates: list[Candidate]
    batch_size: int = 16
    progress: bool = True
    asks: bool = True
    reports: list[StageReport] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        run: Run,
        *,
        batch_size: int = 16,
        progress: bool = True,
        asks: bool = True,
    ) -> Generation:
        """Start with ``items`` and keep them with the run."""
        known = run.ids(Item)
        run.append([item for item in items if item.id not in known])
        return cls(run, [Candidate(item) for item in items], batch_size, progress, asks)

    def flip(self, flipping: FlipStage, proposing: ProposeStage | None = None) -> None:
        """Find new answers: given or drawn, and for free-form items proposed."""
        items = [candidate.item for candidate in self.candidates]
        asks = proposing is not None and any(_is_open(i, flipping) for i in items)
        drawn = [i for i in items if not (asks and _is_open(i, flipping))]
        self._ask(flipping, drawn, 256)
        ids = {item.id: flipping.id_of(item) for item in items}
        if proposing is not None and asks:
            open_items = [i for i in items if _is_open(i, flipping)]
            self._ask(proposing, open_items, self.batch_size)
            ids |= {item.id: proposing.id_of(item) for item in open_items}
        flips = self.run.index(Flip)
        self.candidates = [replace(c, flip=flips.get(ids[c.item.id])) for c in self.candidates]

    def caption(self, captioner: Captioner, at_once: int | None = None) -> None:
        """Describe the scene in which the new answer is true."""
        stage = CaptionStage(captioner, self.run.images)
        flipped = [c for c in self.candidates if c.flip]
        self._ask(stage, flipped, at_once or self.batch_size)
        found = self.run.index(Caption)
        self.candidates = [
            replace(c, caption=found.get(stage.id_of(c))) if c.flip else c for c in self.candidates
        ]

    def _ask(self, stage: Stage[In], tasks: Sequence[In], batch_size: int) -> None:
        if self.asks:
            self.reports.append(
                run_stage(stage, tasks, self.run, batch_size=batch_size, progress=self.progress)
            )

    def edit(self, editor: Editor, seed: int = 0, share: Share | None = None) -> None:
        """Redraw the pictures; with ``share`` only some of them."""
        stage = EditStage(editor, self.run.images, seed)
        captioned = [c for c in self.candidates if c.caption]
        mine = [c for c in captioned if share is None or share.has(c.item.id)]
        self.reports.append(
            run_stage(stage, mine, self.run, batch_size=self.batch_size, progress=self.progress)
        )
        found = self.run.index(Edit)
        self.candidates = [
            replace(c, edit=found.get(stage.id_of(c))) if c.caption else c for c in self.candidates
        ]


def progress_of(
    items: Sequence[Item],
    run: Run,
    flipping: FlipStage,
    captioner: Captioner,
    editor: Editor,
    *,
    proposing: ProposeStage | None = None,
    seed: int = 0,
) -> list[Candidate]:
    """Return how far ``run`` has got; nothing is asked, drawn or written.

    Items that have no new answer, and never will, are left out: one that is drawn is there whether
    or not the run holds it yet, and one that is to be proposed is None until it is.
    """
    flips, captions, edits = run.index(Flip), run.index(Caption), run.index(Edit)
    captioning, editing = CaptionStage(captioner, run.images), EditStage(editor, run.images, seed)
    candidates = []
    for item, drawn in zip(items, flipping(items), strict=True):
        asks = proposing is not None and _is_open(item, flipping)
        flip = drawn if isinstance(drawn, Flip) else None
        if proposing is not None and asks:
            flip = flips.get(proposing.id_of(item))
        candidate = Candidate(item, flip)
        if flip:
            candidate = replace(candidate, caption=captions.get(captioning.id_of(candidate)))
        if candidate.caption:
            candidate = replace(candidate, edit=edits.get(editing.id_of(candidate)))
        if flip or asks:
            candidates.append(candidate)
    return candidates


def _is_open(item: Item, flipping: FlipStage) -> bool:
    return item.options is None and item.name not in flipping.given


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
    """Carry every item as far as it goes, with backends that are at hand.

    Returns
    -------
    candidates : list of Candidate, (n_items,)
        In the items' order; one that failed lacks what could not be made.
    reports : list of StageReport
        Of flip, caption and edit.
    """
    generation = Generation.of(items, run, batch_size=batch_size, progress=progress)
    generation.flip(FlipStage(seed))
    generation.caption(captioner)
    generation.edit(editor, seed)
    return generation.candidates, generation.reports
