"""Turn items into edited candidates: flip, choose the image to redraw, caption, edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flipbench.core.locks import Share
from flipbench.core.paired import Candidate, PictureChoice
from flipbench.core.records import Caption, Edit, Flip, Item, JsonDict
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, In, Stage, StageOptions, StageReport, run_stage
from flipbench.models.protocols import Captioner, Editor

from .caption import CaptionStage
from .edit import EditStage, made_of, versioned_settings
from .flip import FlipStage
from .pictures import ChoosePictureStage
from .propose import ProposeStage

_FLIPS_PER_BATCH = 256


@dataclass(frozen=True)
class Generator:
    """The steps from an item to its perturbed version.

    Attributes
    ----------
    new_answers : mapping of str to str
        New answers supplied by the user, by item name; all others are drawn.
    proposing : ProposeStage, optional
        Proposes the new answers of free-form items, which cannot be drawn.
    choosing : ChoosePictureStage, optional
        Chooses the image to redraw of items with several; without it, that is the first.
    asks : bool
        False in a worker that only edits: it reads stored flips and captions, so no two workers
        retry the same failed request.
    share : Share, optional
        The share of the items that a worker stores, flips and captions, if it does.
    expected : sequence of dict
        What the edits of the recipe that is rebuilt are made of: each keeps its id there.
    letters : mapping, optional
        New answers by item id, from `flipbench.generate.letters.matched_letters`; without it they
        are drawn uniformly.
    reachable : mapping, optional
        By item id, the options that the editor can make true, where it cannot with all.
    """

    captioner: Captioner
    editor: Editor
    run: Run
    seed: int = 0
    new_answers: Mapping[str, str] = field(default_factory=dict)
    proposing: ProposeStage | None = None
    choosing: ChoosePictureStage | None = None
    asks: bool = True
    share: Share | None = None
    expected: Sequence[JsonDict] = ()
    letters: Mapping[str, int | None] | None = None
    reachable: Mapping[str, Sequence[int]] | None = None

    @property
    def _flipping(self) -> FlipStage:
        return FlipStage(self.seed, self.new_answers, self.letters, self.reachable)

    def left_out(self, items: Sequence[Item]) -> list[Item]:
        """Return the items that get no new answer, so that letters stay as frequent."""
        flipping = self._flipping
        return [item for item in items if flipping.leaves_out(item)]

    @property
    def _captioning(self) -> CaptionStage:
        return CaptionStage(self.captioner, self.run.images)

    @property
    def _editing(self) -> EditStage:
        settings = versioned_settings(map(made_of, self.run.read(Edit, lost=True)))
        settings |= versioned_settings(self.expected)
        return EditStage(self.editor, self.run.images, self.seed, settings)

    def progress(self, items: Sequence[Item]) -> list[Candidate]:
        """Return how far each item has got, without calling a model or writing anything.

        Items that cannot get a new answer are left out. A drawn flip is present even if the run
        does not hold it yet; a flip that is still to be proposed is None.
        """
        flipping = self._flipping
        run, captioning, editing = self.run, self._captioning, self._editing
        flips, captions, edits = run.index(Flip), run.index(Caption), run.index(Edit)
        choices = run.index(PictureChoice) if self.choosing else {}
        candidates = []
        for item, flip_or_error in zip(items, flipping(items), strict=True):
            proposing = self._proposing_for(item)
            flip = flips.get((proposing or flipping).id_of(item))  # drawn from fewer items, perhaps
            if flip is None and flipping.leaves_out(item):
                continue
            if flip is None and proposing is None and isinstance(flip_or_error, Flip):
                flip = flip_or_error
            candidate = self._with_choice(Candidate(item, flip), choices)
            if self._is_ready(candidate):
                candidate = replace(candidate, caption=captions.get(captioning.id_of(candidate)))
            if candidate.caption:
                candidate = replace(candidate, edit=edits.get(editing.id_of(candidate)))
            if flip or proposing is not None:
                candidates.append(candidate)
        return candidates

    def flip(
        self, items: Sequence[Item], options: StageOptions = DEFAULTS
    ) -> tuple[list[Candidate], list[StageReport]]:
        """Store ``items`` in the run and set their new answers: supplied, drawn or proposed."""
        flipping = self._flipping
        items = [item for item in items if not flipping.leaves_out(item)]
        item_ids = self.run.ids(Item)
        self.run.append([i for i in items if i.id not in item_ids and self._has(i)])
        to_draw = [item for item in items if not self._proposing_for(item)]
        reports = self._ask(flipping, to_draw, replace(options, batch_size=_FLIPS_PER_BATCH))
        to_propose = [item for item in items if self._proposing_for(item)]
        if self.proposing is not None and to_propose:
            reports += self._ask(self.proposing, to_propose, options)
        flips = self.run.index(Flip)
        ids = [(self._proposing_for(item) or flipping).id_of(item) for item in items]
        candidates = [Candidate(item, flips.get(i)) for item, i in zip(items, ids, strict=True)]
        return candidates, reports

    def choose(
        self, candidates: Sequence[Candidate], options: StageOptions = DEFAULTS
    ) -> tuple[list[Candidate], list[StageReport]]:
        """Choose the image to redraw of flipped candidates with several."""
        if self.choosing is None:
            return list(candidates), []
        tasks = [c for c in candidates if c.flip and self.choosing.needs(c)]
        reports = self._ask(self.choosing, tasks, options)
        choices = self.run.index(PictureChoice)
        return [self._with_choice(c, choices) for c in candidates], reports

    def caption(
        self, candidates: Sequence[Candidate], options: StageOptions = DEFAULTS
    ) -> tuple[list[Candidate], list[StageReport]]:
        """Describe the scenes in which the new answers are true."""
        stage = self._captioning
        reports = self._ask(stage, [c for c in candidates if self._is_ready(c)], options)
        captions = self.run.index(Caption)
        return [
            replace(c, caption=captions.get(stage.id_of(c))) if self._is_ready(c) else c
            for c in candidates
        ], reports

    def edit(
        self,
        candidates: Sequence[Candidate],
        options: StageOptions = DEFAULTS,
        share: Share | None = None,
    ) -> tuple[list[Candidate], list[StageReport]]:
        """Redraw the captioned candidates; with ``share``, only a worker's share of them."""
        stage = self._editing
        tasks = [c for c in candidates if c.caption and (share is None or share.owns(c.item.id))]
        reports = [run_stage(stage, tasks, self.run, options)]
        edits = self.run.index(Edit)
        return [
            replace(c, edit=edits.get(stage.id_of(c))) if c.caption else c for c in candidates
        ], reports

    def _ask(
        self, stage: Stage[In], tasks: Sequence[In], options: StageOptions
    ) -> list[StageReport]:
        if not self.asks:
            return []
        return [run_stage(stage, [t for t in tasks if self._has(t)], self.run, options)]

    def _has(self, task: object) -> bool:
        """Return whether an item or candidate is in this worker's share."""
        item = task.item if isinstance(task, Candidate) else task
        return self.share is None or not isinstance(item, Item) or self.share.owns(item.id)

    def _with_choice(self, candidate: Candidate, choices: Mapping[str, PictureChoice]) -> Candidate:
        choosing = self.choosing
        if choosing is None or candidate.flip is None or not choosing.needs(candidate):
            return candidate
        return replace(candidate, choice=choices.get(choosing.id_of(candidate)))

    def _is_ready(self, candidate: Candidate) -> bool:
        """Return whether a candidate can be captioned: flipped, and its image chosen."""
        if self.choosing is not None and self.choosing.needs(candidate) and not candidate.choice:
            return False
        return candidate.flip is not None

    def _proposing_for(self, item: Item) -> ProposeStage | None:
        """Return the stage that proposes an item's new answer; None if supplied or drawn."""
        is_open = item.options is None and item.name not in self.new_answers
        return self.proposing if is_open else None
