"""Try rejected edits again: another seed, caption, new answer or editor, one attempt at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from flipbench.core.errors import ConfigError
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator as random_generator
from flipbench.core.records import Caption, Edit, Flip, Item
from flipbench.core.stage import DEFAULTS, StageOptions, StageReport, run_stage
from flipbench.models.protocols import Captioner, Editor

from .caption import CaptionStage
from .edit import EditStage, made_of, versioned_settings
from .flip import FlipStage
from .letters import drawable_options
from .pipeline import Generator

_MAX_NOTE = 1000


@runtime_checkable
class RewritingCaptioner(Protocol):
    """A captioner that can be told what was wrong with an earlier attempt."""

    def rewriting(self, attempt: int, notes: Mapping[str, str]) -> Captioner:
        """Return the captioner of a later attempt; ``notes`` are by item id."""


@dataclass(frozen=True)
class Attempt:
    """One more attempt at some items.

    Attributes
    ----------
    number : int
        From 1; the first drawing is attempt 0.
    editor : Editor
        The one that draws this attempt.
    caption, answer : bool
        Whether the caption is written again, and whether another new answer is drawn.
    step : str
        The change in words, stored with the edits.
    """

    number: int
    editor: Editor
    caption: bool = False
    answer: bool = False
    step: str = ""


def try_again(
    generator: Generator,
    tried: Sequence[Sequence[Candidate]],
    reasons: Mapping[str, str],
    attempt: Attempt,
    options: StageOptions = DEFAULTS,
    edit_ids: Collection[str] | None = None,
) -> tuple[list[Candidate], list[StageReport]]:
    """Redraw items by an attempt; what the run holds is not made again.

    Parameters
    ----------
    generator : Generator
        Of attempt 0.
    tried : sequence of sequence of Candidate, shape (N,)
        The earlier attempts at each item, the first first.
    reasons : mapping of str to str
        By item id, why the last attempt was not kept.
    attempt : Attempt
    options : StageOptions
    edit_ids : collection of str, optional
        Redraw only these edits: those of a recipe. Nobody is asked for a caption then.

    Returns
    -------
    candidates : list of Candidate
        The items that this attempt could redraw, in order.
    reports : list of StageReport

    Raises
    ------
    ConfigError
        If the captioner cannot write a caption again.
    """
    run, reports = generator.run, []
    candidates = [attempts[-1] for attempts in tried]
    if attempt.answer:
        candidates, report = _with_other_answers(generator, tried, attempt.number, options)
        reports.append(report)
    if attempt.answer or attempt.caption:
        captioner = generator.captioner
        if not attempt.answer:
            captioner = _rewriting(captioner, candidates, reasons, attempt.number)
        captioning = CaptionStage(captioner, run.images)
        if edit_ids is None:
            reports.append(run_stage(captioning, candidates, run, options))
        captions = run.index(Caption)
        candidates = [
            replace(candidate, caption=captions.get(captioning.id_of(candidate)), edit=None)
            for candidate in candidates
        ]
    known = versioned_settings(map(made_of, run.read(Edit, lost=True)))
    known |= versioned_settings(generator.expected)
    editing = EditStage(
        attempt.editor,
        run.images,
        generator.seed,
        known,
        attempt=attempt.number,
        step=attempt.step,
    )
    tasks = [replace(candidate, edit=None) for candidate in candidates if candidate.caption]
    if edit_ids is not None:
        tasks = [task for task in tasks if editing.id_of(task) in edit_ids]
    reports.append(run_stage(editing, tasks, run, options))
    edits = run.index(Edit)
    redrawn = [replace(task, edit=edits.get(editing.id_of(task))) for task in tasks]
    return [candidate for candidate in redrawn if candidate.edit], reports


def _rewriting(
    captioner: Captioner, candidates: Sequence[Candidate], reasons: Mapping[str, str], number: int
) -> Captioner:
    if not isinstance(captioner, RewritingCaptioner):
        raise ConfigError(
            f"generate.attempts.steps: the captioner {captioner.name!r} cannot be told what was"
            " wrong; drop caption: true, or use a captioner of kind api or local"
        )
    return captioner.rewriting(
        number,
        {
            candidate.item.id: _note(candidate.caption, reasons.get(candidate.item.id, ""))
            for candidate in candidates
        },
    )


def _note(caption: Caption | None, reason: str) -> str:
    """Return what a captioner is told about its last caption."""
    text = " ".join((caption.text if caption else "").split())[:_MAX_NOTE]
    why = " ".join(reason.split())[:_MAX_NOTE] or "it does not show the new answer beyond doubt"
    return (
        "An earlier text of yours led to a picture that was not accepted. Write another one, which"
        f" avoids this.\nEarlier text: {text}\nWhat was wrong with the picture: {why}"
    )


def _with_other_answers(
    generator: Generator, tried: Sequence[Sequence[Candidate]], number: int, options: StageOptions
) -> tuple[list[Candidate], StageReport]:
    """Return the items that have a new answer left to try, with it."""
    answers: dict[str, str] = {}
    items: list[Item] = []
    for attempts in tried:
        item = attempts[0].item
        used = {attempt.flip.new_answer for attempt in attempts if attempt.flip}
        unused = [i for i in drawable_options(item, generator.reachable) if i not in used]
        if item.options is None or not unused:
            continue
        rng = random_generator(generator.seed, item.id, f"flip, attempt {number}")
        answers[item.name] = item.options[unused[int(rng.integers(len(unused)))]]
        items.append(item)
    flipping = FlipStage(generator.seed, answers)
    report = run_stage(flipping, items, generator.run, options)
    flips, chosen = generator.run.index(Flip), {a[0].item.id: a[0].choice for a in tried}
    candidates = [
        Candidate(item, flips.get(flipping.id_of(item)), choice=chosen[item.id]) for item in items
    ]
    return [candidate for candidate in candidates if candidate.flip], report
