"""Original and perturbed predictions, item by item; what does not belong together is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flipbench.core.errors import DataError

from .prediction import Prediction, PredictionFile, listing


@dataclass(frozen=True)
class PredictionPair:
    """The predictions for one item's two versions."""

    original: Prediction
    perturbed: Prediction


def join(
    original: PredictionFile, perturbed: PredictionFile, keep: Collection[str] | None = None
) -> list[PredictionPair]:
    """Return one twin for each id, in the original file's order.

    Parameters
    ----------
    keep : collection of str, optional
        The ids to compare; both files must have all of them, and others are not compared.

    Raises
    ------
    DataError
        Where an id is there twice, or in one file only; where options or questions differ; where
        no right answer differs. The message names the first few ids and counts all.
    """
    one, two = _by_id(original, keep), _by_id(perturbed, keep)
    if keep is not None:
        for file, found in ((original, one), (perturbed, two)):
            _refuse_missing(list(dict.fromkeys(keep)), file, found)
    if not set(one) & set(two):
        raise DataError(
            f"{original.path} and {perturbed.path} have no id in common ({listing(list(one), 3)}"
            f" against {listing(list(two), 3)}); they are predictions for different benchmarks, or"
            " the ids stand in another column: name it"
        )
    only = [id for id in one if id not in two], [id for id in two if id not in one]
    if only[0] or only[1]:
        raise DataError(_unpaired(original, perturbed, only))
    twins = [PredictionPair(prediction, two[name]) for name, prediction in one.items()]
    _refuse_differing(twins, original, perturbed)
    return twins


def _by_id(file: PredictionFile, keep: Collection[str] | None) -> dict[str, Prediction]:
    found: dict[str, list[Prediction]] = {}
    for prediction in file.predictions:
        if keep is None or prediction.id in keep:
            found.setdefault(prediction.id, []).append(prediction)
    repeated = {name: several for name, several in found.items() if len(several) > 1}
    if repeated:
        name, several = next(iter(repeated.items()))
        raise DataError(
            f"{file.path}: {len(repeated)} ids occur more than once:"
            f" {listing(list(repeated))} ({name!r}"
            f" at {' and '.join(p.where for p in several[:3])}); keep one prediction for each item"
            + ("; of an Inspect log with several epochs name one" if _is_inspect(file) else "")
        )
    return {name: several[0] for name, several in found.items()}


def _refuse_missing(
    keep: Sequence[str], file: PredictionFile, found: Mapping[str, Prediction]
) -> None:
    missing = [name for name in keep if name not in found]
    if missing:
        raise DataError(
            f"{file.path}: {len(missing)} of {len(keep)} ids of the list to keep are not there:"
            f" {listing(missing)}; take them off the list, or ask them"
        )


def _unpaired(
    original: PredictionFile, perturbed: PredictionFile, only: tuple[list[str], list[str]]
) -> str:
    parts = [
        f"{len(names)} only in {file.path}: {listing(names)}"
        for file, names in zip((original, perturbed), only, strict=True)
        if names
    ]
    return (
        f"the two files do not hold the same items: {'; '.join(parts)}. A gap between different"
        " items means nothing: ask the missing ones, or name the ids to compare in a file and pass"
        " it as the list to keep"
    )


def _refuse_differing(
    twins: Sequence[PredictionPair], original: PredictionFile, perturbed: PredictionFile
) -> None:
    for what, values in (
        ("options", [(t.original.options, t.perturbed.options) for t in twins]),
        ("questions", [(_words(t.original.question), _words(t.perturbed.question)) for t in twins]),
    ):
        both = [bool(a) and bool(b) for a, b in values]
        differ = [i for i, (a, b) in enumerate(values) if both[i] and a != b]
        if differ:
            a, b = values[differ[0]]
            raise DataError(
                f"{original.path} and {perturbed.path}: the {what} of {len(differ)} of"
                f" {len(twins)} items differ: {listing([twins[i].original.id for i in differ])}"
                f" (the first: {_short(a)} against {_short(b)}). Only image and answer may change"
                " from original to perturbed: are these two benchmarks, or two ways of numbering?"
            )
    golds = [(_words(t.original.gold), _words(t.perturbed.gold)) for t in twins]
    if any(a for a, _ in golds) and all(a == b for a, b in golds):
        raise DataError(
            f"{original.path} and {perturbed.path}: the right answer is the same in both for all"
            f" {len(twins)} items; these are two files of one version, not original and perturbed"
        )


def _words(text: str) -> str:
    return " ".join(text.split())


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "…"


def _is_inspect(file: PredictionFile) -> bool:
    return file.layout == "inspect"
