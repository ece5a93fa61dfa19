"""The generate stage of a configured experiment: a benchmark in, edited candidates out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.attempts import check_keys, redraw_listed, try_rejected_again
from flipbench.api.stages.backends import (
    api_cost,
    batch_size_for,
    missing_key,
    runs_here,
)
from flipbench.api.stages.phases import memory_plan
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Item
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.generate.editors.images_api import ImagesAPIEditorSpec
from flipbench.generate.flip import FlipStage
from flipbench.generate.pictures import ByModel, choosing_prompt
from flipbench.models.protocols import release

log = logging.getLogger(__name__)


def generate(
    assembly: Assembly,
    items: Sequence[Item] | None = None,
    listed: Collection[str] | None = None,
) -> tuple[list[Candidate], list[StageReport]]:
    """Flip, caption and edit ``items``, by default all; a worker its share of them.

    With several attempts, the edits are judged, and those that are not kept tried again; with the
    ids of ``listed`` edits, or in a rebuild, only listed attempts are drawn, and nobody judges.

    Captions from a chat model on this machine are shared out like edits; a captioner behind a
    server is asked by the main process alone. The captioner's memory is freed before the editor is
    loaded, and the editor's afterwards.
    """
    items, run = assembly.items if items is None else items, assembly.run
    spec, generator, workers = assembly.config.generate, assembly.generator, assembly.workers
    if listed is None and workers.share is None:
        check_keys(assembly)
    error = missing_key(spec.captioner) if generator.asks else None
    if error and any(c.caption is None for c in generator.progress(items)):
        raise error
    error = missing_key(spec.editor)
    if error and any(c.edit is None for c in generator.progress(items)):
        raise error
    options = assembly.options(spec.batch_size)
    asking = assembly.options(batch_size_for(spec.captioner, spec.batch_size, len(items)))
    if shares_captions := runs_here(spec.captioner) and workers.n_workers > 1:
        n_left = sum((c.caption is None) + (c.edit is None) for c in generator.progress(items))
        workers.start("generate", lambda: n_made(run), n_left, "caption and edit")
    if left_out := generator.left_out(items):
        log.warning("%s", letters_left_out(left_out, len(items)))
    candidates, flip_reports = generator.flip(items, asking)
    chooser = generator.choosing.chooser if generator.choosing else None
    if isinstance(chooser, ByModel):
        release(assembly.captioner)  # which may have proposed answers
    candidates, choice_reports = generator.choose(candidates, asking)
    release(chooser)
    candidates, caption_reports = generator.caption(candidates, asking)
    release(assembly.captioner)
    if workers.n_workers > 1 and not shares_captions:
        n_left = sum(bool(c.caption and not c.edit) for c in generator.progress(items))
        workers.start("generate", Edit, n_left, "edit")
    candidates, edit_reports = generator.edit(candidates, options, workers.share)
    release(assembly.editor)
    reports = [*flip_reports, *choice_reports, *caption_reports, *edit_reports]
    if spec.attempts.n > 1:
        if listed is None and generator.expected:
            listed = {Edit.id_for(**made_of) for made_of in generator.expected}
        if listed is not None:
            candidates, attempt_reports = redraw_listed(assembly, candidates, listed)
        elif workers.share is None:
            candidates, attempt_reports = try_rejected_again(assembly, candidates)
        else:  # a worker, which draws only first attempts
            attempt_reports = []
        reports += attempt_reports
    return candidates, reports


def letters_left_out(left_out: Sequence[Item], n: int) -> str:
    """Return a sentence on items that get no new answer, so that letters stay as frequent."""
    names = ", ".join(item.name for item in left_out[:5])
    suffix = f" and {len(left_out) - 5:,} more" if len(left_out) > 5 else ""
    return (
        f"{len(left_out):,} of {n:,} items are left out ({names}{suffix}): one letter is right in"
        " more than half of the items with as many options, and a model that prefers it would lose"
        " accuracy without memory; generate.new_letters: uniform keeps them"
    )


def n_made(run: Run) -> int:
    """Return how many captions and edits the run holds."""
    return run.count(Caption) + run.count(Edit)


def plan_generation(assembly: Assembly) -> list[str]:
    """Return the work and cost of generation and filtering, if nothing is made yet."""
    items, new_answers, config = assembly.items, assembly.new_answers, assembly.config
    flipping = FlipStage(config.seed, new_answers, assembly.new_letters, assembly.reachable_answers)
    left_out = [item for item in items if flipping.leaves_out(item)]
    notes = [letters_left_out(left_out, len(items))] if left_out else []
    items = [item for item in items if not flipping.leaves_out(item)]
    n_open = sum(item.options is None and item.name not in new_answers for item in items)
    lines = [*notes, f"would flip, caption and edit {len(items):,} items"]
    if (n := config.generate.attempts.n) > 1:
        lines.append(f"  and try those that are not kept again, up to {n - 1} times each")
    if n_open:
        lines.append(f"  {n_open:,} of them are free-form: their new answers are proposed first")
    candidates = [Candidate(item) for item in items]
    captioner, picture = config.generate.captioner, config.generate.picture
    if several := [c for c in candidates if len(c.item.images) > 1]:
        lines.append(f"  {len(several):,} of them have several images; redrawn: {picture}")
    if picture.by == "captioner":
        if cost := api_cost(captioner, several, choosing_prompt(picture.prompt)):
            lines.append(f"images to redraw: {cost}")
    if cost := api_cost(captioner, candidates):
        lines.append(f"captions: {cost}")
    if isinstance(config.generate.editor, ImagesAPIEditorSpec):
        lines.append(f"edits: {config.generate.editor.cost(candidates)}")
    for spec in config.filter.judges:
        if cost := api_cost(spec, candidates * config.filter.policy.n_runs):
            lines.append(f"verdicts: {cost}")
    return [*lines, *memory_plan(config, items)]
