"""The perturbation gap of predictions made elsewhere, by the rules that serve our own answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Score, Source, content_id
from flipbench.models.engine import Answers

from ..scoring.comparison import (
    Comparison,
    Condition,
    Settings,
    mcnemar_score,
    relative_score,
    threshold_score,
)
from .gap_table import GapTable
from .join import join
from .prediction import PredictionFile, listing
from .read import Reading, read_predictions
from .scoring import ScoredPair, ScoredReply, Scoring, mark

DETECTOR = "perturbation_gap"


@dataclass(frozen=True)
class PredictedPairs(PairedBenchmark):
    """A paired benchmark known by its items' ids, answers and questions alone, without images."""

    asked: tuple[tuple[str, ...], ...] = ()

    @property
    def id(self) -> str:
        """Hash of what was asked, whatever the order."""
        return content_id(self.name, sorted(self.asked))


def gap_of_predictions(
    original: Path,
    perturbed: Path,
    *,
    model: str = "",
    benchmark: str = "",
    reading: Reading | None = None,
    scoring: Scoring = "auto",
    keep: Collection[str] | None = None,
    reference: tuple[Path, Path] | None = None,
    settings: Settings | None = None,
) -> GapTable:
    """Compare a model's predictions on the original and on the perturbed items.

    Parameters
    ----------
    original, perturbed : Path
        Files that `flipbench.evaluate.predictions.read.read_predictions` reads, of one model.
    model, benchmark : str
        Names for the table; taken from the files if not given.
    scoring : {"auto", "parse", "file"}
        See `flipbench.evaluate.predictions.scoring.mark`.
    keep : collection of str, optional
        Ids to compare; both files must have all of them.
    reference : (Path, Path), optional
        A clean model's predictions on the same items; adds the rule "relative".

    Returns
    -------
    GapTable
        The scores of rules sign (the paper's), mcnemar and, with a reference, relative.
        An item without a reply on either side is left out and counted, never taken for wrong.

    Raises
    ------
    DataError
        Where a file cannot be read, the files do not hold the same items, or nothing is left to
        compare.

    References
    ----------
    Park et al., arXiv 2511.03774, tables 2 and 13 (sign rule).
    Differs from the paper as the detector perturbation_gap does (docs/papers.md).
    """
    files = read_predictions(original, reading), read_predictions(perturbed, reading)
    pairs, how, notes = mark(join(*files, keep), scoring)
    whole = _answered(pairs)
    notes += _unanswered(pairs)
    if not whole:
        raise DataError(
            f"{original} and {perturbed}: no item has a usable reply in both;"
            f" {' '.join(notes) or 'all replies are missing'}"
        )
    items = [_item(pair, benchmark or files[0].benchmark or original.stem) for pair in whole]
    asked = tuple(_asked(pair) for pair in whole)
    name = benchmark or " / ".join(dict.fromkeys(f.benchmark or f.path.stem for f in files))
    against, conditions, more = _reference(reference, reading, how, whole)
    comparison = Comparison(
        detector=DETECTOR,
        benchmark=PredictedPairs(name, (), ImageStore(original.parent), asked=asked),
        answers=Answers(model or _model(files), _fingerprint(model, whole), {}),
        items=items,
        first=_condition("original", [pair.original for pair in whole]),
        second=_condition("perturbed", [pair.perturbed for pair in whole]),
        reference_answers=against,
        reference=conditions,
        n_left_out=len(set(keep)) - len(whole) if keep else len(files[0].predictions) - len(whole),
        notes=(*notes, *more),
        details={"files": [file.path.name for file in files], "scoring": how},
        settings=settings or Settings(),
    )
    scores: list[Score] = [threshold_score(comparison, "sign"), mcnemar_score(comparison)]
    scores += [relative_score(comparison)] if reference else []
    fell = [p.original.prediction.id for p in whole if p.original.right and not p.perturbed.right]
    counts = scores[0].paired
    assert counts is not None  # every item kept is right or wrong on both sides
    known: dict[str, object] = {"suspects": counts.suspects(fell)}
    if how == "file":
        known["unparsed"] = dict.fromkeys(("original", "perturbed"))
    return GapTable(tuple(score.model_copy(update=known) for score in scores))


def _answered(pairs: Sequence[ScoredPair]) -> list[ScoredPair]:
    return [p for p in pairs if p.original.right is not None and p.perturbed.right is not None]


def _unanswered(pairs: Sequence[ScoredPair]) -> list[str]:
    notes = []
    for side in ("original", "perturbed"):
        missing: list[ScoredReply] = [m for p in pairs if (m := getattr(p, side)).right is None]
        if missing:
            why = missing[0].prediction.error or "there is no reply"
            notes.append(
                f"{side}: {len(missing)} of {len(pairs)} items have no reply"
                f" ({listing([m.prediction.id for m in missing])}; the first: {why}); they are left"
                " out of both sides, not taken for wrong: ask them again where the file was made"
            )
    return notes


def _condition(name: str, marked: Sequence[ScoredReply]) -> Condition:
    n_unparsed = sum(m.unparsed for m in marked)
    return Condition(name, [m.right for m in marked], n_unparsed, len(marked))


def _reference(
    paths: tuple[Path, Path] | None,
    reading: Reading | None,
    how: Scoring,
    whole: Sequence[ScoredPair],
) -> tuple[Answers | None, tuple[Condition, Condition] | None, list[str]]:
    """Return the reference model's conditions on the same items, None where it did not reply."""
    if paths is None:
        return None, None, []
    files = read_predictions(paths[0], reading), read_predictions(paths[1], reading)
    pairs, _, notes = mark(join(*files), how)
    found = {_asked(pair): pair for pair in pairs}
    missing = [p.original.prediction.id for p in whole if _asked(p) not in found]
    if missing:
        raise DataError(
            f"{paths[0]} and {paths[1]}: the reference model lacks {len(missing)} of {len(whole)}"
            f" items, or has other answers for them: {listing(missing)}; compare the same items"
        )
    mine = [found[_asked(pair)] for pair in whole]
    one = _condition("original", [pair.original for pair in mine])
    two = _condition("perturbed", [pair.perturbed for pair in mine])
    notes = [f"reference model: {note}" for note in notes + _unanswered(mine)]
    return Answers(_model(files), _fingerprint("reference", mine), {}), (one, two), notes


def _asked(pair: ScoredPair) -> tuple[str, ...]:
    one, two = pair.original.prediction, pair.perturbed.prediction
    return (one.id, " ".join(one.question.split()), str(one.options), one.gold, two.gold)


def _item(pair: ScoredPair, benchmark: str) -> Item:
    """Return the item as far as the files tell, for its id and what it shares with others."""
    one = pair.original.prediction
    return Item(
        benchmark=benchmark,
        name=one.id,
        question=one.question,
        answer_text=one.gold,
        group=one.group,
        source=Source(dataset=benchmark),
    )


def _model(files: tuple[PredictionFile, PredictionFile]) -> str:
    return next((file.model for file in files if file.model), files[0].path.stem)


def _fingerprint(model: str, pairs: Sequence[ScoredPair]) -> str:
    """Return a hash of the replies: there are no weights to hash."""
    replies = [
        [_asked(p), p.original.prediction.text, p.perturbed.prediction.text, p.original.right]
        for p in pairs
    ]
    return content_id("predictions", model, sorted(replies, key=str))
