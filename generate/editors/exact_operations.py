"""Edits of pixels without a model: mirror, recolour, remove, repeat, swap (OpenCV).

Pictures are RGB, shape (H, W, 3) of uint8; masks are bool, shape (H, W). Outside the masks that an
operation returns, pixels are the original's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Box = tuple[int, int, int, int]

MIN_EDGE = 8
"""Shortest edge of a box, in pixels."""
_GRABCUT_ROUNDS = 5
_MARGIN, _MIN_MARGIN = 0.3, 8  # of the longer edge of a box; pixels
_MIN_OBJECT_SHARE, _MAX_OBJECT_SHARE = 0.05, 0.98
_GREY_CHROMA = 14.0  # LAB units; below, a colour has no hue to speak of
_HUE_TOLERANCE = 14  # of OpenCV's 180 steps
_FEATHER = 1.2  # pixels
_LIGHTNESS_SHIFT = 0.6  # of the difference
_LARGE_LIGHTNESS_SHIFT = 0.9  # to and from grey, and where the difference is large, as to yellow
_LARGE_DIFFERENCE = 50.0
_MAX_CHROMA_GAIN = 3.0
_INPAINT_RADIUS = 5
MIN_LETTERS = 5
"""Fewest strokes in a row that count as writing."""
_RING = 6  # pixels around an object that show what it stands on
_STEP = 8  # pixels between places that are tried for a copy


def mirror(picture: Picture) -> tuple[Picture, Mask]:
    """Exchange left and right."""
    mirrored = np.ascontiguousarray(picture[:, ::-1])
    return mirrored, np.ones(picture.shape[:2], dtype=bool)


def object_mask(picture: Picture, box: Box) -> Mask:
    """Return the object in a box, separated from what surrounds it.

    References
    ----------
    Rother et al., GrabCut, ACM Transactions on Graphics 23 (2004), as `cv2.grabCut`.

    Raises
    ------
    DataError
        If the box leaves the picture, is smaller than `MIN_EDGE`, or holds no separate object.
    """
    check_box(picture, box)
    if box[2] == picture.shape[1] and box[3] == picture.shape[0]:
        raise DataError(f"the box {box} is the whole picture; draw it around the object")
    x, y, width, height = box
    margin = max(_MIN_MARGIN, round(_MARGIN * max(width, height)))  # of what the object stands on
    rows = slice(max(0, y - margin), y + height + margin)
    columns = slice(max(0, x - margin), x + width + margin)
    around = np.ascontiguousarray(picture[rows, columns])
    inner = (x - columns.start, y - rows.start, width, height)
    labels = np.zeros(around.shape[:2], np.uint8)
    background, foreground = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(0)
    cv2.grabCut(
        around, labels, inner, background, foreground, _GRABCUT_ROUNDS, cv2.GC_INIT_WITH_RECT
    )
    mask = np.zeros(picture.shape[:2], dtype=bool)
    mask[rows, columns] = (labels == cv2.GC_FGD) | (labels == cv2.GC_PR_FGD)
    share = mask.sum() / (box[2] * box[3])
    if not _MIN_OBJECT_SHARE <= share <= _MAX_OBJECT_SHARE:
        raise DataError(
            f"in the box {box}, {100 * share:.0f} % look like the object; draw it close around the"
            " object, with a little of what surrounds it"
        )
    return mask


def check_box(picture: Picture, box: Box) -> None:
    """Raise a `DataError` if a box leaves the picture or is too small."""
    x, y, width, height = box
    rows, columns = picture.shape[:2]
    if min(width, height) < MIN_EDGE:
        raise DataError(f"the box {box} has an edge below {MIN_EDGE} pixels; draw a larger one")
    if x < 0 or y < 0 or x + width > columns or y + height > rows:
        raise DataError(
            f"the box {box} (x, y, width, height) leaves the picture of {columns} x {rows} pixels"
        )


def recolour(picture: Picture, box: Box, rgb: tuple[int, int, int]) -> tuple[Picture, Mask]:
    """Give the object in a box another colour, and keep its shading.

    Of a coloured object, what shares its commonest hue changes. In LAB, its a and b are turned to
    the new hue and scaled to the new chroma; its lightness is shifted by a part of the difference.
    """
    mask = _same_hue(picture, object_mask(picture, box))
    lab = cv2.cvtColor(picture, cv2.COLOR_RGB2LAB).astype(np.float32)
    target = cv2.cvtColor(np.array([[rgb]], np.uint8), cv2.COLOR_RGB2LAB)[0, 0].astype(np.float32)
    mean_lab, chroma = lab[mask].mean(axis=0), lab[..., 1:] - 128
    old_chroma, new_chroma = mean_lab[1:] - 128, target[1:] - 128
    strength, new_strength = (float(np.linalg.norm(c)) for c in (old_chroma, new_chroma))
    is_grey = new_strength < _GREY_CHROMA
    if is_grey:
        chroma = chroma * (new_strength / max(strength, _GREY_CHROMA))
    elif strength < _GREY_CHROMA:
        chroma = chroma - old_chroma + new_chroma
    else:
        turn = np.arctan2(new_chroma[1], new_chroma[0]) - np.arctan2(old_chroma[1], old_chroma[0])
        rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        chroma = chroma @ rotation * min(new_strength / strength, _MAX_CHROMA_GAIN)
    difference = target[0] - mean_lab[0]
    is_large = is_grey or strength < _GREY_CHROMA or abs(difference) > _LARGE_DIFFERENCE
    share = _LARGE_LIGHTNESS_SHIFT if is_large else _LIGHTNESS_SHIFT
    lightness = lab[..., :1] + share * difference
    recoloured_lab = np.clip(np.concatenate([lightness, chroma + 128], axis=-1), 0, 255)
    recoloured = cv2.cvtColor(recoloured_lab.astype(np.uint8), cv2.COLOR_LAB2RGB)
    return _blend(picture, recoloured, mask)


def remove(picture: Picture, boxes: Sequence[Box]) -> tuple[Picture, Mask]:
    """Fill the objects in the boxes with what surrounds them.

    References
    ----------
    Telea, An image inpainting technique based on the fast marching method, Journal of Graphics
    Tools 9 (2004), as `cv2.inpaint`: good for small objects before an even background.
    """
    mask = np.zeros(picture.shape[:2], dtype=bool)
    for box in boxes:
        mask |= _grown(object_mask(picture, box), 3)
    filled = cv2.inpaint(picture, mask.astype(np.uint8), _INPAINT_RADIUS, cv2.INPAINT_TELEA)
    return _only_inside(picture, np.asarray(filled, np.uint8), mask), mask


def repeat(
    picture: Picture, box: Box, copies: int, other_boxes: Sequence[Box] = ()
) -> tuple[Picture, Mask]:
    """Copy the object in a box to where the background is most like its own.

    Places that overlap ``other_boxes`` or an earlier copy are not used.

    Raises
    ------
    DataError
        If there is no room.
    """
    mask = object_mask(picture, box)
    drawing, changed_pixels = picture, np.zeros(picture.shape[:2], dtype=bool)
    boxes = [box, *other_boxes]
    for _ in range(copies):
        place = _similar_place(picture, mask, box, boxes)
        drawing, pasted = _paste(drawing, picture, mask, box, place)
        changed_pixels |= pasted
        boxes.append((*place, box[2], box[3]))
    return drawing, changed_pixels


def swap(picture: Picture, first: Box, second: Box) -> tuple[Picture, Mask]:
    """Let the objects in two boxes change places; both keep their size and stand at the bottom."""
    masks = object_mask(picture, first), object_mask(picture, second)
    drawing, changed_pixels = remove(picture, [first, second])
    for mask, box, target in ((masks[0], first, second), (masks[1], second, first)):
        x = target[0] + (target[2] - box[2]) // 2
        y = target[1] + target[3] - box[3]
        place = (
            int(np.clip(x, 0, picture.shape[1] - box[2])),
            int(np.clip(y, 0, picture.shape[0] - box[3])),
        )
        drawing, pasted = _paste(drawing, picture, mask, box, place)
        changed_pixels |= pasted
    return drawing, changed_pixels


def text_lines(picture: Picture) -> list[Box]:
    """Return boxes that probably hold lines of writing, which mirroring would spoil.

    Rows of at least `MIN_LETTERS` strokes that are darker, or brighter, than what surrounds them,
    of similar height and tone, on one line and closely spaced. Form alone decides, so some fences
    count, and handwriting and single signs may not.
    """
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    lines = [line for values in (grey, 255 - grey) for line in _rows(_strokes(values))]
    return sorted(lines)


def _same_hue(picture: Picture, mask: Mask) -> Mask:
    """Return what shares the commonest hue of a mask; all of it if most is grey."""
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    hue, saturation = hsv[..., 0].astype(int), hsv[..., 1]
    coloured = mask & (saturation > 80)
    if coloured.sum() < 0.3 * mask.sum():
        return mask
    counts = np.bincount(hue[coloured], minlength=180)
    around = np.convolve(np.tile(counts, 3), np.ones(9), "same")[180:360]
    distance = np.abs(hue - int(around.argmax()))
    near = np.minimum(distance, 180 - distance) < _HUE_TOLERANCE
    hue_mask = (mask & near & (saturation > 60)).astype(np.uint8)
    closed = cv2.morphologyEx(hue_mask, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8)).astype(bool)
    return np.asarray(closed & mask, dtype=bool)


def _blend(picture: Picture, drawing: Picture, mask: Mask) -> tuple[Picture, Mask]:
    """Return ``drawn`` inside a mask, with a soft edge, and where pixels may have changed."""
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), _FEATHER)[..., None]
    mixed = np.rint(picture * (1 - soft) + drawing * soft).astype(np.uint8)
    grown_mask = _grown(mask, 3)
    return _only_inside(picture, mixed, grown_mask), grown_mask


def _only_inside(picture: Picture, drawing: Picture, mask: Mask) -> Picture:
    return np.where(mask[..., None], drawing, picture).astype(np.uint8)


def _grown(mask: Mask, pixels: int) -> Mask:
    size = 2 * pixels + 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size))
    return np.asarray(cv2.dilate(mask.astype(np.uint8), kernel), dtype=bool)


def _paste(
    drawing: Picture, source: Picture, mask: Mask, box: Box, place: tuple[int, int]
) -> tuple[Picture, Mask]:
    """Paste the object of ``source`` in a box so that the box begins at ``place`` (x, y)."""
    x, y, width, height = box
    moved, moved_mask = drawing.copy(), np.zeros_like(mask)
    target = (slice(place[1], place[1] + height), slice(place[0], place[0] + width))
    moved[target] = source[y : y + height, x : x + width]
    moved_mask[target] = mask[y : y + height, x : x + width]
    return _blend(drawing, moved, moved_mask)


def _similar_place(
    picture: Picture, mask: Mask, box: Box, used_boxes: Sequence[Box]
) -> tuple[int, int]:
    """Return the place whose pixels are most like the ring around the object."""
    x, y, width, height = box
    lab = cv2.cvtColor(picture, cv2.COLOR_RGB2LAB).astype(np.float32)
    ring = _grown(mask, _RING) & ~_grown(mask, 2)
    tone = lab[ring].mean(axis=0)
    rows, columns = picture.shape[:2]
    best: tuple[float, tuple[int, int]] | None = None
    for top in range(0, rows - height + 1, _STEP):
        for left in range(0, columns - width + 1, _STEP):
            if any(_overlap((left, top, width, height), used_box) for used_box in used_boxes):
                continue
            patch = lab[top : top + height, left : left + width].reshape(-1, 3)
            away = abs(top - y) / rows  # things of one kind stand on one ground
            cost = float(np.linalg.norm(patch.mean(axis=0) - tone) + patch.std() + 60 * away)
            if best is None or cost < best[0]:
                best = cost, (left, top)
    if best is None:
        raise DataError(f"there is no room for a copy of the object in the box {box}")
    return best[1]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def _strokes(grey: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the dark strokes of a letter's size: left, top, width, height and mean tone of each.

    Shape (N, 5), by left edge.
    """
    block = max(15, min(grey.shape) // 20) | 1
    dark = cv2.adaptiveThreshold(
        grey, 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, block, 15
    )
    n_parts, labels, stats, _ = cv2.connectedComponentsWithStats(dark, connectivity=8)
    left, top, width, height, area = stats.T.astype(float)
    tones = np.bincount(labels.ravel(), grey.ravel(), n_parts) / np.maximum(area, 1)
    is_letter = (height >= 6) & (height <= grey.shape[0] / 6) & (area >= 8)
    is_letter &= (width >= 0.1 * height) & (width <= 1.5 * height)
    is_letter &= (area >= 0.15 * width * height) & (area <= 0.9 * width * height)
    is_letter[0] = False  # the background
    strokes = np.stack([left, top, width, height, tones], axis=1)[is_letter]
    return np.asarray(strokes[np.argsort(strokes[:, 0], kind="stable")])


def _rows(strokes: NDArray[np.float64]) -> list[Box]:
    """Return the boxes around rows of neighbouring strokes of similar height and tone."""
    lines: list[Box] = []
    is_free = np.ones(len(strokes), dtype=bool)
    for start in range(len(strokes)):
        if not is_free[start]:
            continue
        row = [start]
        while (following := _next_letter(strokes, row[-1], is_free)) is not None:
            row.append(following)
        if len(row) >= MIN_LETTERS:
            is_free[row] = False
            left, top, width, height, _ = strokes[row].T
            x, y = int(left.min()), int(top.min())
            right, bottom = int((left + width).max()), int((top + height).max())
            lines.append((x, y, right - x, bottom - y))
    return lines


def _next_letter(
    strokes: NDArray[np.float64], index: int, is_free: NDArray[np.bool_]
) -> int | None:
    """Return the nearest stroke to the right that may be the next letter of a line."""
    left, top, width, height, tone = strokes[index]
    gaps = strokes[:, 0] - (left + width)
    bottoms = strokes[:, 1] + strokes[:, 3]
    ratio = strokes[:, 3] / height
    fits = is_free & (strokes[:, 0] > left) & (gaps > -0.2 * height) & (gaps < 0.7 * height)
    fits &= (np.abs(bottoms - top - height) < 0.3 * height) & (ratio > 0.6) & (ratio < 1.7)
    fits &= np.abs(strokes[:, 4] - tone) < 30
    candidates = np.flatnonzero(fits)
    return int(candidates[gaps[candidates].argmin()]) if len(candidates) else None
