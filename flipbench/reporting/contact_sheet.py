"""An image of pairs: original beside perturbed; or of edits, with control, caption and verdicts."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.files import atomic_file
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Item, Verdict
from flipbench.prompting.prompts import LETTERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Shown = TypeVar("_Shown")


def contact_sheet(benchmark: PairedBenchmark, path: Path, n_pairs: int = 6) -> None:
    """Draw pairs from all categories, three to a row, into a .png, .svg or .pdf file.

    Raises
    ------
    DataError
        If there are none.
    ConfigError
        If the file's name ends in something else.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    if not benchmark.pairs:
        raise DataError(
            "there are no pairs to show; 'flipbench show --edits' shows edits and verdicts"
        )
    pairs = _spread(benchmark.pairs, n_pairs, lambda pair: pair.original)
    sides = [{"original": pair.original, "perturbed": pair.perturbed} for pair in pairs]
    shown = [{side: item.images[_first_changed(pair, item)] for side, item in both.items()}
             for pair, both in zip(pairs, sides, strict=True)]  # fmt: skip
    tallest = [max(ref.height / ref.width for ref in refs.values()) for refs in shown]
    heights = [0.85 + 1.8 * max(tallest[at : at + 3]) for at in range(0, len(pairs), 3)]
    figure = Figure(figsize=(11.4, sum(heights)), dpi=120, layout="constrained")
    cells = figure.subfigures(len(heights), 3, squeeze=False, height_ratios=heights)
    for cell, pair, both, refs in zip(cells.flat, pairs, sides, shown, strict=False):
        title = "\n".join(textwrap.wrap(pair.original.question, 44))
        cell.suptitle(title, fontsize=10, fontweight="bold")
        for axes, (side, item) in zip(cell.subplots(1, 2), both.items(), strict=True):
            axes.imshow(benchmark.images.open(refs[side]))
            axes.set_anchor("N")
            axes.set_xticks([])
            axes.set_yticks([])
            letter = "" if item.answer is None else f"{LETTERS[item.answer]}. "
            axes.set_xlabel(f"{side}: {letter}{item.answer_text}", fontsize=10)
    _save(figure, path)


def edit_sheet(
    candidates: Sequence[Candidate],
    verdicts: Iterable[Verdict],
    images: ImageStore,
    path: Path,
    n_edits: int = 6,
) -> None:
    """Draw edits from all categories, one to a row, into a .png, .svg or .pdf file.

    A row shows the original, its control image, the question with old and new answer, the caption,
    the edited picture, and what every rater said of it; rules are named if they object. If a
    rejected edit exists, the last row is one.

    Raises
    ------
    DataError
        If there are none.
    ConfigError
        If the file's name ends in something else.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    said: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in (v for v in verdicts if (v.rater_kind, v.decision) != ("rule", "keep")):
        said.setdefault((verdict.edit_id, verdict.image_sha256), []).append(verdict)
    edited = [candidate for candidate in candidates if candidate.edit]
    if not edited:
        raise DataError("there are no edits to show; run 'flipbench generate' first")
    about = [said.get((c.edit.id, c.edit.image.sha256), []) for c in edited if c.edit]
    shown = _spread(list(zip(edited, about, strict=True)), n_edits, lambda one: one[0].item)
    rejected = [one for one in zip(edited, about, strict=True) if _rejects(one[1])]
    if rejected and not any(_rejects(one[1]) for one in shown):
        shown[-1] = rejected[0]
    figure = Figure(figsize=(11.4, 2.15 * len(shown) + 0.2), dpi=110, layout="constrained")
    grid = figure.subplots(len(shown), 5, squeeze=False, width_ratios=(1, 1, 1.35, 1, 1.1))
    titles = ("original", "control image", "question and caption", "edited", "verdicts")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=10, fontweight="bold")
    for row, (candidate, found) in zip(grid, shown, strict=True):
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        assert candidate.edit is not None
        row[0].imshow(images.open(candidate.source))
        if control := _control_of(candidate):
            row[1].imshow(images.open(control))
        row[3].imshow(images.open(candidate.edit.image))
        texts = (2, _described(candidate)), (4, "\n".join(map(_worded, found)) or "not judged")
        for column, text in texts:
            row[column].text(0, 0.98, text, va="top", fontsize=7.5, transform=row[column].transAxes)
    _save(figure, path)


def _rejects(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.decision == "reject" for verdict in verdicts)


def _described(candidate: Candidate) -> str:
    """Return question, old and new answer, and the caption, in short lines."""
    assert candidate.flip is not None and candidate.edit is not None
    answers = f"{candidate.item.answer_text} → {candidate.flip.new_text}"
    parts = (candidate.item.question, answers, candidate.edit.caption_text)
    return "\n".join("\n".join(textwrap.wrap(part, 46)[:8]) for part in parts)


def _worded(verdict: Verdict) -> str:
    """Return what a rater said, in short lines."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return "\n".join(textwrap.wrap(f"{verdict.rater}: {verdict.decision}{reason}", 36)[:5])


def _control_of(candidate: Candidate) -> ImageRef | None:
    """Return the stored control image; None if the editor stored none."""
    assert candidate.edit is not None
    with contextlib.suppress(ValidationError):
        return ImageRef.model_validate(candidate.edit.extra.get("control"))
    return None


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in ("", ".png", ".svg", ".pdf"):
        raise ConfigError(f"{path}: name a .png, .svg or .pdf file")


def _save(figure: Figure, path: Path) -> None:
    path = path if path.suffix else path.with_suffix(".png")
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:].lower())


def _first_changed(pair: Pair, item: Item) -> int:
    """Return the position of the first image that differs, or of the item's last."""
    return min(pair.changed[0], len(item.images) - 1)


def _spread(shown: Sequence[_Shown], n: int, item_of: Callable[[_Shown], Item]) -> list[_Shown]:
    """Take pairs or edits in turn from every category, in order."""
    by_category: dict[str, list[_Shown]] = {}
    for one in shown:
        by_category.setdefault(item_of(one).category, []).append(one)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return [one for one in turns if one is not None][:n]
