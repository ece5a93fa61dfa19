"""Duplicate images and items of a benchmark, and its overlap with the training split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flipbench.config.audit import AuditSettings
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.image_similarity import perceptual_hash
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.core.stage import progress_bar

from .finding import Action, AuditFinding, FlaggedItem, flag, n_items, not_run, rate

TITLE = "Duplicate and near-duplicate images"
TRAIN_TITLE = "Images shared with the training split"
_LIMITS = (
    "Crops, mirrored or rotated copies, and other photographs of the same scene are not detected."
)

SIDE = 16
N_THREADS = 4
_PAIRS = 50_000  # thumbnails compared at a time
_BLOCK = 64  # rows of the distance matrix per block; fits into the CPU cache
_FLAT = 2.0  # standard deviation in grey levels below which an image is blank
_SHARP_EDGE = 20 * SIDE  # pixels; compression hardly changes the thumbnails of larger images
_MOST_NOISE = 6  # times the allowed difference, for the smallest images
_NOISE_PEAK = 16  # of mean differences: compression changes all parts, recolouring one
_GREY = np.array([0.299, 0.587, 0.114])


# --- near-duplicates of images ------------------------------------------------------------------


@dataclass(frozen=True)
class Fingerprints:
    """Hashes and thumbnails of images.

    Attributes
    ----------
    refs : list of ImageRef, length N
    hashes : uint64 array, shape (N,)
        64-bit pHash.
    thumbnails : uint8 array, shape (N, 768)
        16 x 16 pixels in colour.
    flat : bool array, shape (N,)
        Whether the image is blank; then its hash is noise, but its thumbnail is not.
    lost : dict of str to str
        Error messages of images that could not be opened, by sha256.
    """

    refs: list[ImageRef]
    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    flat: NDArray[np.bool_]
    lost: dict[str, str]

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """The shorter edges of the images, in pixels, shape (N,)."""
        return np.array([min(ref.width, ref.height) for ref in self.refs], dtype=np.int64)


def fingerprints(
    refs: Sequence[ImageRef], store: ImageStore, *, progress: bool = True
) -> Fingerprints:
    """Open each distinct image once and compute its hash and thumbnail."""
    distinct = list({ref.sha256: ref for ref in refs}.values())

    def fingerprint(ref: ImageRef) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool] | str:
        image = result_or_error(store.open, ref)
        if isinstance(image, DataError):
            return str(image)
        bits = np.packbits(perceptual_hash(image).ravel())
        small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return bits, np.asarray(small).ravel(), float(np.asarray(image.convert("L")).std()) < _FLAT

    bar = progress_bar("hash images", len(distinct), unit="img", is_shown=progress)
    results = []
    with ThreadPoolExecutor(N_THREADS) as pool, bar:
        for result in pool.map(fingerprint, distinct):
            results.append(result)
            bar.update()
    pairs = list(zip(distinct, results, strict=True))
    opened = [(ref, *result) for ref, result in pairs if not isinstance(result, str)]
    refs, bits, thumbnails, flat = zip(*opened, strict=True) if opened else ((), (), (), ())
    return Fingerprints(
        refs=list(refs),
        hashes=np.array(bits, np.uint8).reshape(-1, 8).view(np.uint64).ravel(),
        thumbnails=np.array(thumbnails, np.uint8).reshape(-1, 3 * SIDE * SIDE),
        flat=np.array(flat, bool),
        lost={ref.sha256: result for ref, result in pairs if isinstance(result, str)},
    )


def near_pairs(
    prints: Fingerprints, others: Fingerprints | None, distance: int, difference: float
) -> list[tuple[int, int]]:
    """Return the pairs (i, j) of near-duplicates; without ``others``, pairs i < j of ``prints``.

    All pairs of hashes are compared, one block of rows at a time. Those within ``distance`` bits
    count if their colour thumbnails differ by at most ``difference`` (of 1) in every pixel and
    channel: recolouring one object hardly changes the hash. Blank images are compared only with
    each other, by thumbnails alone.

    JPEG halves the resolution of colour, which shows in the thumbnails of images of less than 320
    pixels. There the colours may differ by more, in inverse proportion to the shorter edge and up
    to six times ``difference``, as long as the grey thumbnails differ by no more than
    ``difference`` and the largest difference is at most 16 mean differences above it: noise is
    everywhere, another colour is in one place.
    """
    columns = others or prints
    any_flat = bool(prints.flat.any() or columns.flat.any())
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(prints.refs), _BLOCK):
        rows = slice(start, start + _BLOCK)
        close = np.bitwise_count(prints.hashes[rows, None] ^ columns.hashes[None]) <= distance
        if any_flat:
            close &= ~prints.flat[rows, None] & ~columns.flat[None]
            close |= prints.flat[rows, None] & columns.flat[None]
        i, j = np.nonzero(close)
        i += start
        if others is None:
            is_ordered = i < j
            i, j = i[is_ordered], j[is_ordered]
        for chunk in range(0, len(i), _PAIRS):
            part = slice(chunk, chunk + _PAIRS)
            is_similar = _are_similar(prints, columns, i[part], j[part], 255 * difference)
            pairs += zip(i[part][is_similar].tolist(), j[part][is_similar].tolist(), strict=True)
    return pairs


def _are_similar(
    rows: Fingerprints,
    columns: Fingerprints,
    i: NDArray[np.intp],
    j: NDArray[np.intp],
    allowed: float,
) -> NDArray[np.bool_]:
    """Return whether the thumbnails of each pair differ by no more than allowed, in grey levels."""
    gap = np.abs(rows.thumbnails[i].astype(np.int16) - columns.thumbnails[j])
    peak = gap.max(axis=1)
    is_similar = peak <= allowed
    noise = np.clip(_SHARP_EDGE / np.minimum(rows.edges[i], columns.edges[j]), 1, _MOST_NOISE)
    for pair in np.flatnonzero(~is_similar & (peak <= noise * allowed)):
        signed_gap = rows.thumbnails[i[pair]].astype(np.int16) - columns.thumbnails[j[pair]]
        grey = np.abs(signed_gap.reshape(-1, 3) @ _GREY).max()
        spread = gap[pair].mean()
        is_similar[pair] = grey <= allowed and peak[pair] <= allowed + _NOISE_PEAK * spread
    return np.asarray(is_similar)


class ImageGroups:
    """Groups of images that are copies of one another: same bytes, or near-duplicates.

    Parameters
    ----------
    prints : Fingerprints
        The benchmark's images.
    settings : AuditSettings
        Thresholds for near-duplicates.

    Attributes
    ----------
    of : dict of str to int
        Group of each image, by sha256. Groups are transitive: if a is near b and b near c, all
        three are one group.
    sizes : Counter of int
        Distinct files in each group.
    """

    def __init__(self, prints: Fingerprints, settings: AuditSettings) -> None:
        self.prints = prints
        pairs = near_pairs(prints, None, settings.hash_distance, settings.pixel_difference)
        n = len(prints.refs)
        rows = np.array(pairs, dtype=int).reshape(-1, 2)
        graph = coo_array((np.ones(len(rows), bool), (rows[:, 0], rows[:, 1])), shape=(n, n))
        labels: list[int] = connected_components(graph, directed=False)[1].tolist() if n else []
        self.of = {r.sha256: g for r, g in zip(prints.refs, labels, strict=True)}
        self.of |= {sha256: n + i for i, sha256 in enumerate(sorted(prints.lost))}
        self.sizes = Counter(self.of.values())

    def key(self, item: Item) -> tuple[int, ...]:
        """Return the groups of an item's images, in order."""
        return tuple(self.of[ref.sha256] for ref in item.images)


def image_groups(
    items: Sequence[Item], store: ImageStore, settings: AuditSettings, *, progress: bool = True
) -> ImageGroups:
    """Hash the items' images and group the copies."""
    refs = [ref for item in items for ref in item.images]
    return ImageGroups(fingerprints(refs, store, progress=progress), settings)


def duplicates(items: Sequence[Item], groups: ImageGroups) -> AuditFinding:
    """Flag repeated items, contradictions, near-duplicate images and blank images.

    * Same image (or a near-duplicate), question, options and answer as an earlier item: drop.
    * Same bytes, question and options, another answer: a person must decide which is correct.
    * Near-duplicate images with another answer or another question: look.

    Several questions about one image file are common; they are counted, not flagged.
    """
    flagged = {item.id: f for item in items if (f := _unreadable(item, groups))}
    earliest: dict[tuple[object, ...], Item] = {}
    near: dict[int, tuple[Item, ImageRef]] = {}
    for item in items:
        if not item.images or item.id in flagged:
            continue
        earlier = earliest.setdefault((groups.key(item), *_question(item)), item)
        if earlier is not item:
            for repeat in _repeat(item, earlier):
                flagged.setdefault(repeat.item_id, repeat)
        elif copies := _near_copy(item, groups, near):
            ref, earlier_item, its = copies
            image = _its_image(item, ref)
            reason = f"{image} is nearly that of {earlier_item.name}, with another question"
            flagged[item.id] = flag(item, "look", reason, pictures=(ref, its))
        for ref in item.images:
            near.setdefault(groups.of[ref.sha256], (item, ref))
    with_images = [item for item in items if item.images]
    n_files = len(groups.of)
    n_near = sum(size for size in groups.sizes.values() if size > 1)
    for blank in _blank(with_images, groups):
        flagged.setdefault(blank.item_id, blank)
    actions = Counter(f.action for f in flagged.values())
    n_repeats = actions["drop"]
    return AuditFinding(
        check="duplicates",
        title=TITLE,
        status="defect" if actions["drop"] + actions["person"] else "look" if flagged else "ok",
        sentence=f"{n_repeats} of {n_items(len(items))} repeat an earlier item, {actions['person']}"
        f" contradict one or cannot be opened; {n_near} of {n_files:,} image files have a"
        " near-duplicate among the others.",
        todo="Leave out the repeats. For a contradiction, decide which answer is correct. If many"
        " items share an image, resample images, not items, for intervals.",
        limits=_LIMITS,
        rates=(
            rate("items that repeat an earlier one", n_repeats, len(items)),
            rate("image files with a near-duplicate", n_near, n_files),
            rate("blank images", int(groups.prints.flat.sum()), n_files),
        ),
        items=tuple(flagged[item.id] for item in items if item.id in flagged),
        details={
            "n_image_files": n_files,
            "n_image_groups": len(groups.sizes),
            "n_items_with_images": len(with_images),
        },
    )


def train_overlap(
    items: Sequence[Item],
    groups: ImageGroups,
    train: Sequence[Item] | None,
    store: ImageStore,
    settings: AuditSettings,
    *,
    progress: bool = True,
) -> AuditFinding:
    """Flag the items whose image, or a near-duplicate of it, is in the training split.

    References
    ----------
    The authors of MedGemma found that the splits of VQA-RAD share images, and split it again.
    """
    if train is None:
        reason = "No training split was given."
        remedy = "Give the benchmark’s training split, if it has one."
        return not_run("train_overlap", TRAIN_TITLE, reason, remedy)
    train_prints = fingerprints(
        [r for item in train for r in item.images], store, progress=progress
    )
    pairs = near_pairs(
        groups.prints, train_prints, settings.hash_distance, settings.pixel_difference
    )
    train_refs = {ref.sha256: ref for item in train for ref in item.images}
    matched_refs = {r.sha256: r for item in items for r in item.images if r.sha256 in train_refs}
    for i, j in pairs:
        matched_refs.setdefault(groups.prints.refs[i].sha256, train_prints.refs[j])
    uses = {ref.sha256: item for item in reversed(train) for ref in item.images}
    train_questions = {(r.sha256, _folded(item.question)) for item in train for r in item.images}
    flagged = []
    for item in items:
        matches = [
            (ref, matched_refs[ref.sha256]) for ref in item.images if ref.sha256 in matched_refs
        ]
        if not matches:
            continue
        ref, train_ref = matches[0]
        nearly = "" if ref.sha256 == train_ref.sha256 else "nearly "
        name = uses[train_ref.sha256].name
        reason = f"{_its_image(item, ref)} is {nearly}that of training item {name}"
        if any((o.sha256, _folded(item.question)) in train_questions for _, o in matches):
            reason += ", which asks the same question"
        flagged.append(flag(item, "drop", reason, pictures=(ref, train_ref)))
    n_images = len(groups.of)
    return AuditFinding(
        check="train_overlap",
        title=TRAIN_TITLE,
        status="defect" if flagged else "ok",
        sentence=f"{len(matched_refs)} of {n_images:,} image files, in {len(flagged)} of"
        f" {n_items(len(items))}, are in the training split.",
        todo="Leave these items out of the test split, or split the data again by image.",
        limits=_LIMITS,
        rates=(
            rate("image files in the training split", len(matched_refs), n_images),
            rate("items with such an image", len(flagged), len(items)),
        ),
        items=tuple(flagged),
        details={"n_train_items": len(train), "n_train_images": len(train_refs)},
    )


def _question(item: Item) -> tuple[str, tuple[str, ...]]:
    options = sorted(_folded(option) for option in item.options or ())
    return _folded(item.question), tuple(options)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _repeat(item: Item, earlier: Item) -> list[FlaggedItem]:
    """Flag an item that asks what an earlier one asks, and both if they contradict each other."""
    exact = item.images == earlier.images
    picture = "the same" if exact else "a near-duplicate"
    if _folded(item.answer_text) == _folded(earlier.answer_text):
        reason = f"repeats {earlier.name}: {picture} image, question, options and answer"
        return [_flag_pair(item, earlier, "drop", reason)]
    if not exact:
        reason = f"{picture} image and the question of {earlier.name}, but another answer: "
        return [_flag_pair(item, earlier, "look", reason + _answers(item, earlier))]
    return [
        _flag_pair(
            a,
            b,
            "person",
            f"contradicts {b.name}, image and question are the same: {_answers(a, b)}",
        )
        for a, b in ((item, earlier), (earlier, item))
    ]


def _answers(item: Item, other: Item) -> str:
    return f"“{item.answer_text}” here, “{other.answer_text}” there"


def _near_copy(
    item: Item, groups: ImageGroups, near: dict[int, tuple[Item, ImageRef]]
) -> tuple[ImageRef, Item, ImageRef] | None:
    """Return an image of the item, and an earlier item with another file of the same picture."""
    hashes = {ref.sha256 for ref in item.images}
    for ref in item.images:
        earlier, its = near.get(groups.of[ref.sha256], (None, ref))
        if earlier is not None and not hashes & {r.sha256 for r in earlier.images}:
            return ref, earlier, its
    return None


def _its_image(item: Item, ref: ImageRef) -> str:
    """Return "its image", with its place if the item has several."""
    n_images = len(item.images)
    return f"its image {item.images.index(ref) + 1} of {n_images}" if n_images > 1 else "its image"


def _flag_pair(item: Item, other: Item, action: Action, why: str) -> FlaggedItem:
    return flag(item, action, why, pictures=(item.images[0], other.images[0]))


def _unreadable(item: Item, groups: ImageGroups) -> FlaggedItem | None:
    for ref in item.images:
        if ref.sha256 in groups.prints.lost:
            reason = f"{_its_image(item, ref)} cannot be opened: {groups.prints.lost[ref.sha256]}"
            return flag(item, "person", reason)
    return None


def _blank(items: Sequence[Item], groups: ImageGroups) -> list[FlaggedItem]:
    pairs = zip(groups.prints.refs, groups.prints.flat, strict=True)
    flat = {ref.sha256 for ref, is_flat in pairs if is_flat}
    blank = [
        (item, next((ref for ref in item.images if ref.sha256 in flat), None)) for item in items
    ]
    return [
        flag(
            item,
            "look",
            f"{_its_image(item, ref)} is blank: a single uniform tone",
            pictures=(ref,),
        )
        for item, ref in blank
        if ref is not None
    ]
