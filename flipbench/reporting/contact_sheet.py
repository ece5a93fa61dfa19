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
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import ImageRef, Item, Verdict
from flipbench.prompting.prompts import LETTERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")


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
    pairs = _from_all_categories(benchmark.pairs, n_pairs, lambda pair: pair.original)
    versions = [
        {
            side: (item, item.images[min(pair.changed[0], len(item.images) - 1)])
            for side, item in (("original", pair.original), ("perturbed", pair.perturbed))
        }
        for pair in pairs
    ]
    tallest = [max(ref.height / ref.width for _, ref in sides.values()) for sides in versions]
    heights = [0.85 + 1.8 * max(tallest[at : at + 3]) for at in range(0, len(pairs), 3)]
    figure = Figure(figsize=(11.4, sum(heights)), dpi=120, layout="constrained")
    cells = figure.subfigures(len(heights), 3, squeeze=False, height_ratios=heights)
    for cell, pair, sides in zip(cells.flat, pairs, versions, strict=False):
        title = "\n".join(textwrap.wrap(pair.original.question, 44))
        cell.suptitle(title, fontsize=10, fontweight="bold")
        for axes, (side, (item, ref)) in zip(cell.subplots(1, 2), sides.items(), strict=True):
            axes.imshow(benchmark.images.open(ref))
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
    by_edit: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if (verdict.rater_kind, verdict.decision) != ("rule", "keep"):
            by_edit.setdefault((verdict.edit_id, verdict.image_sha256), []).append(verdict)
    edits = [(c, by_edit.get((c.edit.id, c.edit.image.sha256), [])) for c in candidates if c.edit]
    if not edits:
        raise DataError("there are no edits to show; run 'flipbench generate' first")
    rows = _from_all_categories(edits, n_edits, lambda edit: edit[0].item)
    rejected = [edit for edit in edits if any(v.decision == "reject" for v in edit[1])]
    if rejected and not any(edit in rejected for edit in rows):
        rows[-1] = rejected[0]
    figure = Figure(figsize=(11.4, 2.15 * len(rows) + 0.2), dpi=110, layout="constrained")
    grid = figure.subplots(len(rows), 5, squeeze=False, width_ratios=(1, 1, 1.35, 1, 1.1))
    titles = ("original", "control image", "question and caption", "edited", "verdicts")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=10, fontweight="bold")
    for row, (candidate, about) in zip(grid, rows, strict=True):
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        assert candidate.edit is not None and candidate.flip is not None
        row[0].imshow(images.open(candidate.source))
        with contextlib.suppress(ValidationError):  # an editor may store no control image
            control = ImageRef.model_validate(candidate.edit.extra.get("control"))
            row[1].imshow(images.open(control))
        row[3].imshow(images.open(candidate.edit.image))
        answers = f"{candidate.item.answer_text} → {candidate.flip.new_text}"
        parts = (candidate.item.question, answers, candidate.edit.caption_text)
        description = "\n".join(_short_lines(part, 46, 8) for part in parts)
        for axes, text in ((row[2], description), (row[4], _in_words(about) or "not judged")):
            axes.text(0, 0.98, text, va="top", fontsize=7.5, transform=axes.transAxes)
    _save(figure, path)


def _in_words(verdicts: Sequence[Verdict]) -> str:
    """Return what raters said, in short lines."""
    texts = (
        f"{verdict.rater}: {verdict.decision}{f' ({verdict.reason})' if verdict.reason else ''}"
        for verdict in verdicts
    )
    return "\n".join(_short_lines(text, 36, 5) for text in texts)


def _short_lines(text: str, width: int, n_lines: int) -> str:
    return "\n".join(textwrap.wrap(text, width)[:n_lines])


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in ("", ".png", ".svg", ".pdf"):
        raise ConfigError(f"{path}: name a .png, .svg or .pdf file")


def _save(figure: Figure, path: Path) -> None:
    path = path if path.suffix else path.with_suffix(".png")
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:].lower())


def _from_all_categories(values: Sequence[T], n: int, item_of: Callable[[T], Item]) -> list[T]:
    """Take pairs or edits in turn from every category, in order."""
    by_category: dict[str, list[T]] = {}
    for value in values:
        by_category.setdefault(item_of(value).category, []).append(value)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return [value for value in turns if value is not None][:n]
