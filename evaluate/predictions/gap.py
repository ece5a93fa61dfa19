"""The perturbation gap of other kits' predictions, by the same rules as for our own answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Score, Source, content_id
from flipbench.models.engine import Answers

from ..scoring import old_answers
from ..scoring.comparison import (
    Comparison,
    Condition,
    Settings,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    threshold_score,
)
from ..scoring.old_answers import PerturbedReplies, WrongAnswer, against_chance
from ..scoring.paired_replies import PairedReplies, Pairs, Replies
from ..scoring.scores import cluster_of, make_score
from ..scoring.soundness import Guessing, Judged, against_guessing
from ..verdict.decision import GapEvidence, Reference
from .gap_table import GapTable
from .join import check_one_model, join, models_of
from .prediction import PredictionFile, PredictionPair, listing
from .read import ReadOptions, read_predictions
from .scoring import Scoring, score_pairs

DETECTOR = "perturbation_gap"
Files = tuple[Path | PredictionFile, Path | PredictionFile]


@dataclass(frozen=True)
class PredictedPairs(PairedBenchmark):
    """A paired benchmark known only by its items' ids, questions and answers, without images."""

    keys: tuple[tuple[str, ...], ...] = ()

    @property
    def id(self) -> str:
        """Hash of the items, independent of their order."""
        return content_id(self.name, sorted(self.keys))


def gap_of_predictions(
    original: Path | PredictionFile,
    perturbed: Path | PredictionFile,
    *,
    model: str = "",
    benchmark: str = "",
    options: ReadOptions | None = None,
    scoring: Scoring = "auto",
    keep: Collection[str] | None = None,
    references: Sequence[Files] = (),
    judged_by: str = "",
    exchangeable: bool | None = None,
    sequential: bool = False,
    settings: Settings | None = None,
) -> GapTable:
    """Compare a model's predictions on the original and on the perturbed items.

    Parameters are those of `flipbench.gap`, with files or what has been read of them.

    Returns
    -------
    GapTable
        The scores of rules sign (the paper's), mcnemar and, with a reference, relative; and, if the
        file lists the options, old-answer attraction.
        Items that lack a reply on either side are left out and counted, never counted as wrong.

    Raises
    ------
    DataError
        If a file cannot be read, the files do not hold the same items, or nothing is left to
        compare.

    References
    ----------
    Park et al., arXiv 2511.03774, tables 2 and 13 (sign rule).
    Differs from the paper as the detector perturbation_gap does (docs/papers.md).
    """
    files = _read(original, options), _read(perturbed, options)
    if not model:
        check_one_model(*files)
    pairs, scoring_used, notes = score_pairs(join(*files, keep), scoring)
    answered_pairs = [pair for pair in pairs if pair.answered]
    notes += _unanswered(pairs)
    if not answered_pairs:
        raise DataError(
            f"{files[0].path} and {files[1].path}: no item has a usable reply in both;"
            f" {' '.join(notes) or 'all replies are missing'}"
        )
    dataset = benchmark or files[0].benchmark or files[0].path.stem
    name = benchmark or " / ".join(dict.fromkeys(f.benchmark or f.path.stem for f in files))
    keys = tuple(map(_key, answered_pairs))
    items = [_item(pair, dataset) for pair in pairs]
    first, second = _conditions(answered_pairs)
    comparison = Comparison(
        detector=DETECTOR,
        benchmark=PredictedPairs(
            name, (), ImageStore(files[0].path.parent), exchangeable=exchangeable, keys=keys
        ),
        answers=Answers(model or _model(files), _fingerprint(model, answered_pairs), {}),
        items=[item for item, pair in zip(items, pairs, strict=True) if pair.answered],
        first=first,
        second=second,
        n_left_out=len(set(keep) if keep else files[0].predictions) - len(answered_pairs),
        notes=tuple(notes),
        details={"files": [file.path.name for file in files], "scoring": scoring_used},
        settings=settings or Settings(),
    )
    fell = [p.id for p in answered_pairs if p.original.right and not p.perturbed.right]
    _check_references((original, perturbed), references)
    clean = [
        _reference(files_of, options, scoring_used, pairs, comparison) for files_of in references
    ]
    rules = (partial(threshold_score, rule="sign"), mcnemar_score)
    scores: list[Score] = [if_equally_hard(rule)(comparison) for rule in rules]
    scores += [reference.score for reference in clean]
    counts = scores[0].paired
    assert counts is not None  # every item kept is right or wrong on both sides
    extra_fields: dict[str, object] = {"suspects": counts.suspects(fell)}
    if scoring_used == "file":
        extra_fields["unparsed"] = dict.fromkeys(("original", "perturbed"))
    scores = [score.model_copy(update=extra_fields) for score in scores]
    raters = {pair.id: judged_by or pair.perturbed.judged_by for pair in pairs}
    judged_ids = frozenset(name for name, rater in raters.items() if rater)
    evidence = GapEvidence(
        pairs=Pairs(
            [item.id for item in items],
            [cluster_of(item) for item in items],
            np.array([pair.golds[0] for pair in pairs]),
            np.array([pair.golds[1] for pair in pairs]),
            np.array([pair.n_options for pair in pairs]),
        ),
        replies=_paired_replies(pairs, comparison.answers),
        gap=scores[1],
        exchangeable=exchangeable,
        sequential=sequential,
        judged=Judged(
            n=len(answered_pairs),
            n_judged=sum(pair.id in judged_ids for pair in answered_pairs),
            raters="; ".join(sorted({rater for rater in raters.values() if rater})),
            by_construction=exchangeable is True,
        ),
        judged_ids=frozenset(
            item.id for item, pair in zip(items, pairs, strict=True) if pair.id in judged_ids
        ),
        references=[
            replace(reference, score=score)
            for reference, score in zip(clean, scores[2:], strict=True)
        ],
        attraction=_old_answers(comparison.benchmark, comparison.answers, pairs, comparison),
        guessing=_guessing(scores, answered_pairs),
    )
    return GapTable(tuple(scores), evidence)


def _paired_replies(pairs: Sequence[PredictionPair], answers: Answers) -> PairedReplies:
    """Return a model's replies; options that it named are known only where replies were parsed."""

    def replies(side: str) -> Replies:
        scored_replies = [pair.sides[side] for pair in pairs]
        return Replies(
            right=np.array([reply.right is True for reply in scored_replies], dtype=bool),
            unreadable=np.array([reply.unparsed for reply in scored_replies], dtype=bool),
            missing=np.array([reply.right is None for reply in scored_replies], dtype=bool),
            choices=np.array([-1 if r.choice is None else r.choice for r in scored_replies]),
        )

    return PairedReplies(
        answers.model, answers.fingerprint, replies("original"), replies("perturbed")
    )


def _guessing(scores: Sequence[Score], pairs: Sequence[PredictionPair]) -> tuple[Guessing, ...]:
    """Compare the right answers to perturbed items with guessing, if all list their options."""
    n_options = [pair.n_options for pair in pairs]
    if not all(n_options):
        return ()
    right_counts = [(scores[0].model, scores[0].accuracies)]
    right_counts += [(s.reference.model, s.reference.accuracies) for s in scores if s.reference]
    return tuple(
        against_guessing(name, of["perturbed"].k, n_options) for name, of in right_counts if of
    )


def _old_answers(
    benchmark: PairedBenchmark,
    answers: Answers,
    pairs: Sequence[PredictionPair],
    comparison: Comparison,
) -> Score | None:
    """Return a model's old-answer attraction; None if no item has three or more listed options."""
    items = {item.name: item for item in comparison.items}
    asked_pairs = [
        (items[pair.id], pair)
        for pair in pairs
        if pair.answered
        and pair.n_options > 2
        and pair.perturbed.choice is not None
        and pair.id in items
    ]
    if not asked_pairs:
        return None
    wrong_answers = [
        WrongAnswer(item.id, choice, *pair.golds, pair.n_options, cluster_of(item))
        for item, pair in asked_pairs
        if (choice := pair.perturbed.choice) is not None and choice not in (-1, pair.golds[1])
    ]
    n_unparsed = sum(pair.perturbed.unparsed for _, pair in asked_pairs)
    replies = PerturbedReplies([item.id for item, _ in asked_pairs], wrong_answers, n_unparsed)
    return make_score(
        old_answers.DETECTOR,
        benchmark,
        answers,
        "chance",
        comparison.settings,
        direction="rises",
        n=len(asked_pairs),
        n_dropped=len(comparison.items) - len(asked_pairs),
        unparsed={"perturbed": n_unparsed},
        **against_chance(replies, comparison.settings),
    )


def _read(source: Path | PredictionFile, options: ReadOptions | None) -> PredictionFile:
    return read_predictions(source, options) if isinstance(source, Path) else source


def _unanswered(pairs: Sequence[PredictionPair]) -> list[str]:
    notes = []
    for side in ("original", "perturbed"):
        unscored = [reply for p in pairs if (reply := p.sides[side]).right is None]
        if unscored:
            reason = unscored[0].error or "there is no reply"
            notes.append(
                f"{side}: {len(unscored)} of {len(pairs)} items have no reply"
                f" ({listing([m.id for m in unscored])}; the first: {reason}); they are"
                " left out on both sides, not counted as wrong: run them again in the kit that"
                " wrote it"
            )
    return notes


def _conditions(pairs: Sequence[PredictionPair]) -> tuple[Condition, Condition]:
    def condition(side: str) -> Condition:
        replies = [pair.sides[side] for pair in pairs]
        n_unparsed = sum(reply.unparsed for reply in replies)
        return Condition(side, [reply.right for reply in replies], n_unparsed, len(replies))

    return condition("original"), condition("perturbed")


def _check_references(model_files: Files, references: Sequence[Files]) -> None:
    """Refuse a reference whose files are the model's, or another reference's."""
    owners = {_paths(model_files): "the model's own"}
    for files in references:
        if None not in (paths := _paths(files)) and paths in owners:
            raise DataError(
                f"the reference {files[0]} and {files[1]}: these are {owners[paths]} files; give"
                " the files of another, clean model"
            )
        owners[paths] = "another reference's"


def _paths(files: Files) -> tuple[Path | None, ...]:
    return tuple(file.resolve() if isinstance(file, Path) else None for file in files)


def _reference(
    sources: Files,
    options: ReadOptions | None,
    scoring_used: Scoring,
    pairs: Sequence[PredictionPair],
    comparison: Comparison,
) -> Reference:
    """Return a reference model's replies to the same pairs, and the model's gap against it."""
    files = _read(sources[0], options), _read(sources[1], options)
    check_one_model(*files)
    reference_pairs, _, notes = score_pairs(join(*files), scoring_used)
    by_key = {_key(pair): pair for pair in reference_pairs}
    n_answered = sum(pair.answered for pair in pairs)
    missing_ids = [p.id for p in pairs if p.answered and _key(p) not in by_key]
    if missing_ids:
        raise DataError(
            f"{files[0].path} and {files[1].path}: the reference model lacks {len(missing_ids)} of"
            f" {n_answered} items, or has other questions, options or answers for them:"
            f" {listing(missing_ids)}; use the same items"
        )
    aligned_pairs = [by_key.get(_key(pair)) or pair.without_replies() for pair in pairs]
    answered_pairs = [by_key[_key(pair)] for pair in pairs if pair.answered]
    answers = Answers(_model(files), _fingerprint("reference", answered_pairs), {})
    notes = [f"reference model: {note}" for note in notes + _unanswered(answered_pairs)]
    against = replace(
        comparison,
        reference_answers=answers,
        reference=_conditions(answered_pairs),
        notes=(*comparison.notes, *notes),
    )
    return Reference(
        _paired_replies(aligned_pairs, answers),
        relative_score(against),
        _old_answers(comparison.benchmark, answers, aligned_pairs, comparison),
    )


def _key(pair: PredictionPair) -> tuple[str, ...]:
    """Return what identifies an item: its id, question, options and both right answers."""
    original, perturbed = pair.original, pair.perturbed
    question = " ".join(original.question.split())
    return (original.id, question, str(original.options), original.gold, perturbed.gold)


def _item(pair: PredictionPair, benchmark: str) -> Item:
    """Return the item as far as the files describe it, for its id and group."""
    original = pair.original
    return Item(
        benchmark=benchmark,
        name=original.id,
        question=original.question,
        answer_text=original.gold,
        group=original.group,
        source=Source(dataset=benchmark),
    )


def _model(files: tuple[PredictionFile, PredictionFile]) -> str:
    """Return the model's name in logs or file names, else the first file's name."""
    return next((name for name in models_of(*files) if name), files[0].path.stem)


def _fingerprint(model: str, pairs: Sequence[PredictionPair]) -> str:
    """Return a hash of the replies, since there are no weights to hash."""
    replies = [[_key(p), p.original.text, p.perturbed.text, p.original.right] for p in pairs]
    return content_id("predictions", model, sorted(replies, key=str))
