"""Join original and perturbed predictions item by item; mismatches are rejected."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from os.path import commonprefix

from flipbench.core.errors import DataError, shorten

from .prediction import Prediction, PredictionFile, PredictionPair, listing

_VERSIONS = frozenset(
    "o p a b orig original originals pert perturbed flipped flip edited edit redrawn clean base"
    " before after old new first second plain variant v0 v1 v2 0 1 2".split()
)
"""Words of file names that say which version a file is of, not which model answered."""


def join(
    original: PredictionFile, perturbed: PredictionFile, keep: Collection[str] | None = None
) -> list[PredictionPair]:
    """Return one pair per id, in the original file's order.

    Parameters
    ----------
    keep : collection of str, optional
        The ids to compare; both files must have all of them.

    Raises
    ------
    DataError
        If an id is repeated or only in one file, if options or questions differ, or if no right
        answer differs. The message names the first few ids and counts all.
    """
    original_by_id, perturbed_by_id = _by_id(original, keep), _by_id(perturbed, keep)
    kept_ids = list(dict.fromkeys(keep or ()))
    for file, predictions in ((original, original_by_id), (perturbed, perturbed_by_id)):
        if missing_ids := [name for name in kept_ids if name not in predictions]:
            raise DataError(
                f"{file.path}: {len(missing_ids)} of {len(kept_ids)} ids of the keep list are"
                f" missing: {listing(missing_ids)}; remove them from the list, or add their"
                " predictions"
            )
    if not set(original_by_id) & set(perturbed_by_id):
        raise DataError(
            f"{original.path} and {perturbed.path} have no id in common"
            f" ({listing(list(original_by_id), 3)} against {listing(list(perturbed_by_id), 3)});"
            " they are predictions for different benchmarks, or the ids are in another column:"
            " name it"
        )
    unpaired = (
        (original, [name for name in original_by_id if name not in perturbed_by_id]),
        (perturbed, [name for name in perturbed_by_id if name not in original_by_id]),
    )
    only = [f"{len(ids)} only in {file.path}: {listing(ids)}" for file, ids in unpaired if ids]
    if only:
        raise DataError(
            f"the two files do not hold the same items: {'; '.join(only)}. A gap between different"
            " items means nothing: add the missing predictions, or pass the ids to compare as a"
            " keep list"
        )
    pairs = [
        PredictionPair(prediction, perturbed_by_id[name])
        for name, prediction in original_by_id.items()
    ]
    _reject_differing(pairs, original, perturbed)
    return pairs


def _by_id(file: PredictionFile, keep: Collection[str] | None) -> dict[str, Prediction]:
    by_id: dict[str, list[Prediction]] = {}
    for prediction in file.predictions:
        if keep is None or prediction.id in keep:
            by_id.setdefault(prediction.id, []).append(prediction)
    repeated = {name: several for name, several in by_id.items() if len(several) > 1}
    if repeated:
        name, several = next(iter(repeated.items()))
        raise DataError(
            f"{file.path}: {len(repeated)} ids occur more than once:"
            f" {listing(list(repeated))} ({name!r}"
            f" at {' and '.join(p.where for p in several[:3])}); keep one prediction per item"
            + ("; if the log has several epochs, name one" if file.layout == "inspect" else "")
        )
    return {name: several[0] for name, several in by_id.items()}


def _reject_differing(
    pairs: Sequence[PredictionPair], original: PredictionFile, perturbed: PredictionFile
) -> None:
    for field, values in (
        ("options", [(t.original.options, t.perturbed.options) for t in pairs]),
        ("questions", [(_words(t.original.question), _words(t.perturbed.question)) for t in pairs]),
    ):
        differ = [i for i, (a, b) in enumerate(values) if a and b and a != b]
        if differ:
            a, b = values[differ[0]]
            raise DataError(
                f"{original.path} and {perturbed.path}: the {field} of {len(differ)} of"
                f" {len(pairs)} items differ: {listing([pairs[i].id for i in differ])} (the first:"
                f" {shorten(repr(a), 160)} against {shorten(repr(b), 160)}). Only image and answer"
                " may change from original to perturbed; check that both files use the same"
                " benchmark and ids"
            )
    golds = [(_words(t.original.gold), _words(t.perturbed.gold)) for t in pairs]
    if any(a for a, _ in golds) and all(a == b for a, b in golds):
        raise DataError(
            f"{original.path} and {perturbed.path}: the right answer is the same in both for all"
            f" {len(pairs)} items; these are two files of one version, not original and perturbed"
        )


def _words(text: str) -> str:
    return " ".join(text.split())


def models_of(original: PredictionFile, perturbed: PredictionFile) -> tuple[str, str]:
    """Return the models that two files name: in the log, or in VLMEvalKit's ``MODEL_DATASET``.

    Names that end alike and differ before are two models on one data set, unless what differs is a
    word for a version; names that begin alike are one model. Empty strings if neither holds.
    """
    if original.model or perturbed.model:
        return original.model, perturbed.model
    if original.path.stem == perturbed.path.stem:
        return "", ""
    parts, counterparts = (_without_version(file.path.stem) for file in (original, perturbed))
    shorter = min(len(parts), len(counterparts))
    n = min(len(commonprefix([parts, counterparts])), shorter - 1)  # the rest names the data set
    n_last = 0
    while n_last < shorter - n and _is_same_data(
        parts[-1 - n_last], counterparts[-1 - n_last], is_last=n_last == 0
    ):
        n_last += 1
    differing = [names[n : len(names) - n_last] for names in (parts, counterparts)]
    if n_last == 0 or not any(differing):
        return "_".join(parts[:n]), "_".join(parts[:n])
    if not all(differing) or any(part.lower() in _VERSIONS for part in sum(differing, [])):
        return "", ""
    return "_".join([*parts[:n], *differing[0]]), "_".join([*parts[:n], *differing[1]])


def _without_version(stem: str) -> list[str]:
    """Return the parts of a file's name, without words for a version at its end."""
    parts = stem.split("_")
    while len(parts) > 1 and parts[-1].lower() in _VERSIONS:
        parts.pop()
    return parts


def _is_same_data(part: str, counterpart: str, *, is_last: bool) -> bool:
    """Return whether two parts are the same; the last may go on, as a changed data set's does."""
    shorter, longer = sorted((part, counterpart), key=len)
    return part == counterpart or (is_last and len(shorter) > 2 and longer.startswith(shorter))


def check_one_model(original: PredictionFile, perturbed: PredictionFile) -> None:
    """Refuse files whose names or logs say that two models answered.

    Raises
    ------
    DataError
        If they do.
    """
    original_model, perturbed_model = models_of(original, perturbed)
    if original_model and perturbed_model and original_model != perturbed_model:
        raise DataError(
            f"{original.path} is of {original_model!r} and {perturbed.path} of"
            f" {perturbed_model!r}: a gap between two models means nothing; give both files of one"
            " model, or say that it is one: --model NAME"
        )
