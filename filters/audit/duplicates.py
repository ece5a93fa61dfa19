"""Images and items that a benchmark holds twice, and what it shares with its training split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flipbench.config.audit import AuditSettings
from flipbench.core.images import ImageStore
from flipbench.core.records import Item

from .finding import AuditFinding, Named, n_items, not_run, rate
from .image_hashes import Fingerprints, fingerprints, near_pairs

TITLE = "Duplicate and near-duplicate images"
TRAIN_TITLE = "Images shared with the training split"
_LIMITS = (
    "Crops, mirrored and turned copies, and other photographs of the same scene are not found."
)


class ImageGroups:
    """Which images are copies of one another: same bytes, or near-duplicates.

    Parameters
    ----------
    prints : Fingerprints
        The benchmark's images.
    settings : AuditSettings
        How near is near.

    Attributes
    ----------
    of : dict of str to int
        Group of each image, by sha256. Chains join: where a is near b and b near c, all are one.
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
        lost = {sha: n + i for i, sha in enumerate(sorted(prints.lost))}
        self.of |= lost
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
    """Name repeated items, contradictions, near-duplicate images, and images that show nothing.

    * Same image (or a near-duplicate), question, options and answer as an earlier item: drop.
    * The same bytes, question and options, another answer: a person must say which is right.
    * Near-duplicate images with another answer, or another question: look.

    Several questions about one image file are usual and are counted, not named.
    """
    named = {item.id: found for item in items if (found := _unreadable(item, groups))}
    first: dict[tuple[object, ...], Item] = {}
    near: dict[int, Item] = {}
    for item in items:
        if not item.images or item.id in named:
            continue
        asked = (groups.key(item), *_question(item))
        earlier = first.setdefault(asked, item)
        if earlier is not item:
            for found in _repeat(item, earlier):
                named.setdefault(found.item_id, found)
        elif other := _near_copy(item, groups, near):
            named[item.id] = _pair(
                item, other, "look", f"its image is nearly that of {other.name}, asked otherwise"
            )
        for ref in item.images:
            near.setdefault(groups.of[ref.sha256], item)
    with_images = [item for item in items if item.images]
    n_files = len(groups.of)
    n_near = sum(size for size in groups.sizes.values() if size > 1)
    blank = _blank(with_images, groups)
    for found in blank:
        named.setdefault(found.item_id, found)
    actions = Counter(found.action for found in named.values())
    n_repeats = actions["drop"]
    return AuditFinding(
        check="duplicates",
        title=TITLE,
        status="defect" if actions["drop"] + actions["person"] else "look" if named else "ok",
        sentence=f"{n_repeats} of {n_items(len(items))} repeat an earlier item, {actions['person']}"
        f" contradict one or cannot be opened; {n_near} of {n_files:,} image files have a"
        " near-duplicate among the others.",
        todo="Leave out the repeats. For a contradiction, decide which answer is right. Draw"
        " intervals over images, not items, where many items share one.",
        limits=_LIMITS,
        rates=(
            rate("items that repeat an earlier one", n_repeats, len(items)),
            rate("image files with a near-duplicate", n_near, n_files),
            rate("images that show nothing", int(groups.prints.flat.sum()), n_files),
        ),
        items=tuple(named[item.id] for item in items if item.id in named),
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
    """Name the items whose image, or a near-duplicate of it, is in the training split.

    References
    ----------
    The authors of MedGemma found that VQA-RAD's splits share images and split it anew.
    """
    if train is None:
        why = "No training split was given."
        how = "Name the benchmark’s own training split, if it has one."
        return not_run("train_overlap", TRAIN_TITLE, why, how)
    theirs = fingerprints([r for item in train for r in item.images], store, progress=progress)
    pairs = near_pairs(groups.prints, theirs, settings.hash_distance, settings.pixel_difference)
    known = {ref.sha256: ref for item in train for ref in item.images}
    seen = {r.sha256: r for item in items for r in item.images if r.sha256 in known}
    for i, j in pairs:
        seen.setdefault(groups.prints.refs[i].sha256, theirs.refs[j])
    uses = {ref.sha256: item for item in reversed(train) for ref in item.images}
    asked = {(r.sha256, _question(item)[0]) for item in train for r in item.images}
    named = []
    for item in items:
        hits = [(ref, seen[ref.sha256]) for ref in item.images if ref.sha256 in seen]
        if not hits:
            continue
        mine, other = hits[0]
        same = "" if mine.sha256 == other.sha256 else "nearly "
        why = f"its image is {same}that of training item {uses[other.sha256].name}"
        if any((o.sha256, _question(item)[0]) in asked for _, o in hits):
            why += ", which asks the same"
        pictures = (mine, other)
        named.append(
            Named(item_id=item.id, name=item.name, action="drop", why=why, pictures=pictures)
        )
    n_images = len(groups.of)
    return AuditFinding(
        check="train_overlap",
        title=TRAIN_TITLE,
        status="defect" if named else "ok",
        sentence=f"{len(seen)} of {n_images:,} image files, in {len(named)} of"
        f" {n_items(len(items))}, are in the training split.",
        todo="Leave these items out of the test split, or split anew by image.",
        limits=_LIMITS,
        rates=(
            rate("image files in the training split", len(seen), n_images),
            rate("items with such an image", len(named), len(items)),
        ),
        items=tuple(named),
        details={"n_train_items": len(train), "n_train_images": len(known)},
    )


def _question(item: Item) -> tuple[str, tuple[str, ...]]:
    options = sorted(_folded(option) for option in item.options or ())
    return _folded(item.question), tuple(options)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _repeat(item: Item, earlier: Item) -> list[Named]:
    """Return what to say of an item that asks what an earlier one asked."""
    exact = item.images == earlier.images
    picture = "the same" if exact else "a near-duplicate"
    if _folded(item.answer_text) == _folded(earlier.answer_text):
        why = f"repeats {earlier.name}: {picture} image, question, options and answer"
        return [_pair(item, earlier, "drop", why)]
    answers = f"“{item.answer_text}” here, “{earlier.answer_text}” there"
    if not exact:
        why = f"{picture} image and the question of {earlier.name}, but another answer: {answers}"
        return [_pair(item, earlier, "look", why)]
    return [
        _pair(one, two, "person", f"contradicts {two.name}, image and question are the same:{a}")
        for one, two, a in (
            (item, earlier, f" {answers}"),
            (earlier, item, f" “{earlier.answer_text}” here, “{item.answer_text}” there"),
        )
    ]


def _near_copy(item: Item, groups: ImageGroups, near: dict[int, Item]) -> Item | None:
    """Return an earlier item with another file of the same picture."""
    own = {ref.sha256 for ref in item.images}
    for ref in item.images:
        earlier = near.get(groups.of[ref.sha256])
        if earlier is not None and not own & {r.sha256 for r in earlier.images}:
            return earlier
    return None


def _pair(item: Item, other: Item, action: str, why: str) -> Named:
    pictures = (item.images[0], other.images[0])
    return Named.model_validate(
        {"item_id": item.id, "name": item.name, "action": action, "why": why, "pictures": pictures}
    )


def _unreadable(item: Item, groups: ImageGroups) -> Named | None:
    for ref in item.images:
        if ref.sha256 in groups.prints.lost:
            why = f"its image cannot be opened: {groups.prints.lost[ref.sha256]}"
            return Named(item_id=item.id, name=item.name, action="person", why=why)
    return None


def _blank(items: Sequence[Item], groups: ImageGroups) -> list[Named]:
    pairs = zip(groups.prints.refs, groups.prints.flat, strict=True)
    flat = {ref.sha256 for ref, is_flat in pairs if is_flat}
    why = "its image shows nothing: one even tone"
    return [
        Named(item_id=i.id, name=i.name, action="look", why=why, pictures=i.images[:1])
        for i in items
        if any(ref.sha256 in flat for ref in i.images)
    ]
