"""The section on consistency and image reliance: checklist, tables and figures.

Sadanandan and Behzadan, arXiv 2603.20985.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import Count, Interval, Mean, Score
from flipbench.reporting import formats
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    Stack,
    draw_interval,
    draw_stacks,
    save_parts,
    settings,
)
from flipbench.reporting.pages import paragraphs
from flipbench.reporting.sections import Section, Status
from flipbench.reporting.tables import (
    Column,
    Content,
    Table,
    build_table,
    estimate_cell,
    text_column,
)

from ..protocol.grid import GridModel
from ..statistics.quadrants import FLAG, QUADRANTS, QuadrantCounts, QuadrantResult
from .dose_figures import MARKERS
from .titles import CAPTIONS, by_family

Named = list[tuple[str, QuadrantResult]]
Columns = Sequence[tuple[Column | str, Callable[[QuadrantResult], Content]]]

STATUS: dict[Status, str] = {"ok": "no model above 50 %", "look": "have a look"}


def quadrant_section(
    grid: Sequence[GridModel], scores: Sequence[Score], folder: Path
) -> Section | None:
    """Return the section, and write its figures into ``folder``; None without such scores."""
    by_model = {
        s.model_fingerprint: QuadrantResult.model_validate(s.quadrants)
        for s in scores
        if s.quadrants is not None
    }
    groups = by_family(grid, by_model)
    if not groups:
        return None
    everyone = [
        (f"{family}: {name}" if len(groups) > 1 else name, result)
        for family, models in groups.items()
        for name, result in models
    ]
    n_flagged = sum(_is_flagged(result) for _, result in everyone)
    has_divergences = any(result.auroc is not None for _, result in everyone)
    has_checks = any(result.unchanged for _, result in everyone)
    return Section(
        key="quadrants",
        title="Is the picture used? Four quadrants",
        status="look" if n_flagged else "ok",
        sentence=_sentence(everyone, n_flagged),
        notes=(*paragraphs(CAPTIONS["quadrant-notes"]), *_wordings_notes(everyone)),
        tables=(
            _table("quadrant-checklist", _CHECKLIST, groups),
            _table("quadrants", _FRACTIONS, groups),
            _table("quadrant-accuracy", _ACCURACIES, groups),
            *([_table("quadrant-divergence", _DIVERGENCES, groups)] if has_divergences else []),
            *([_table("quadrant-checks", _checks(everyone), groups)] if has_checks else []),
        ),
        figures=(_stacked(groups, folder), _against_flips(groups, folder)),
    )


def counts_of(result: QuadrantResult) -> QuadrantCounts:
    """Return the number of items in each quadrant."""
    return QuadrantCounts.of({name: count.n for name, count in result.counts.items()})


def _is_flagged(result: QuadrantResult) -> bool:
    return (counts_of(result).dangerous_fraction or 0.0) > FLAG


def _sentence(everyone: Named, n_flagged: int) -> str:
    name, highest = max(everyone, key=lambda pair: counts_of(pair[1]).dangerous_fraction or 0.0)
    models = "model" if len(everyone) == 1 else "models"
    return (
        f"The dangerous fraction is above 50 % in {n_flagged} of {len(everyone)} {models}; the"
        f" highest is {formats.rate(_dangerous(highest))} ({name}), where an always-right model"
        f" with the same text prior has {formats.rate(_wilson(highest.prior))}."
    )


def _wordings_notes(everyone: Named) -> list[str]:
    """Return how many wordings were left out, which is the same for all models, and by level."""
    counts = Counter(everyone[0][1].wordings)
    n_kept = counts.pop("kept", 0)
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(counts.items()))
    notes = [
        f"Other wordings of the questions: {n_kept:,} kept, {counts.total():,} left out"
        + (f" ({reasons})." if reasons else ".")
    ]
    levels = dict.fromkeys(level for _, result in everyone for level in result.levels)
    for level in levels:
        rates = [(name, r.levels[level]) for name, r in everyone if level in r.levels]
        texts = "; ".join(f"{name} {formats.rate(_wilson(count))}" for name, count in rates)
        notes.append(f"Answers that change with a {level} change of wording: {texts}.")
    return notes


# ---------------------------------------------------------------------------- tables


def _table(key: str, columns: Columns, groups: Mapping[str, Named]) -> Table:
    return build_table(key, CAPTIONS[key], "Model", columns, groups)


def _rate(k: int, n: int, interval: Interval | None) -> Rate:
    return Rate(k=k, n=n, interval=interval, n_clusters=n)


def _wilson(count: Count) -> Rate:
    return Rate.wilson(count.k, count.n)


def _flip_rate(result: QuadrantResult) -> Rate:
    counts = counts_of(result)
    return _rate(counts.n_flipped, counts.n, result.flip_rate)


def _dangerous(result: QuadrantResult) -> Rate:
    counts = counts_of(result)
    return _rate(counts.dangerous, counts.n, result.dangerous)


def _given_consistent(result: QuadrantResult) -> Rate:
    counts = counts_of(result)
    return _rate(counts.dangerous, counts.n_consistent, result.given_consistent)


def _expected(result: QuadrantResult) -> str:
    fraction = counts_of(result).expected
    return "" if fraction is None else formats.percent(fraction)


def _everything(result: QuadrantResult) -> Rate:
    counts = result.counts.values()
    return Rate.wilson(sum(c.k for c in counts), sum(c.n for c in counts))


def _distribution(result: QuadrantResult) -> str:
    counts = counts_of(result)
    return " / ".join(formats.percent(getattr(counts, q) / counts.n) for q in QUADRANTS)


def _mean(means: Mapping[str, Mean], quadrant: str) -> str:
    mean = means.get(quadrant)
    return "" if mean is None or mean.mean is None else formats.decimals(mean.mean)


def _checks(everyone: Named) -> Columns:
    """Return how many answers stay on other items' pictures and on a black one."""
    checks = dict.fromkeys(check for _, result in everyone for check in result.unchanged)

    def unchanged(result: QuadrantResult, check: str, quadrant: str) -> Rate:
        count = result.unchanged.get(check, {}).get(quadrant, Count(k=0, n=0))
        return Rate.wilson(count.k, count.n, min(count.n, result.counts[quadrant].n))

    return [
        (Column(q.capitalize(), c.capitalize()), partial(unchanged, check=c, quadrant=q))
        for c in checks
        for q in QUADRANTS
    ]


_CHECKLIST: Columns = (
    ("1. Flip rate, %", _flip_rate),
    ("2. Right without picture, %", lambda r: _wilson(r.prior)),
    ("3. Items classified", lambda r: f"{counts_of(r).n:,}"),
    ("4. Distribution, %", _distribution),
    (
        text_column("5. Dangerous fraction"),
        lambda r: "above 50 %" if _is_flagged(r) else "not above 50 %",
    ),
)
_FRACTIONS: Columns = (
    *(
        (Column(q.capitalize(), "Items"), lambda r, q=q: f"{getattr(counts_of(r), q):,}")
        for q in QUADRANTS
    ),
    (Column("FR, %", "Fractions"), _flip_rate),
    (Column("DF, %", "Fractions"), _dangerous),
    (Column("DF if consistent, %", "Fractions"), _given_consistent),
    (Column("Independent, %", "Expected DF"), _expected),
    (Column("Oracle, %", "Expected DF"), lambda r: _wilson(r.prior)),
)
_ACCURACIES: Columns = (
    *((q.capitalize(), lambda r, q=q: _wilson(r.counts[q])) for q in QUADRANTS),
    ("All", _everything),
)
_DIVERGENCES: Columns = (
    *((Column(q.capitalize(), "Entropy"), lambda r, q=q: _mean(r.entropies, q)) for q in QUADRANTS),
    *((Column(q.capitalize(), "KL"), lambda r, q=q: _mean(r.divergences, q)) for q in QUADRANTS),
    (
        Column("AUROC", "KL, dangerous or not"),
        lambda r: estimate_cell(r.auroc, r.auroc_interval),
    ),
)


# --------------------------------------------------------------------------- figures

_COLORS = dict(zip(("ideal", "dangerous", "fragile", "worst"), LIGHT.outcomes, strict=True))


def _draw_quadrants(axes: Axes, models: Named) -> None:
    """Draw the share of each quadrant as stacked bars, one model a row."""
    counts = [counts_of(result) for _, result in models]
    stacks = [
        Stack(q, [getattr(c, q) for c in counts], _COLORS[q], "//" if q == "dangerous" else "")
        for q in QUADRANTS
    ]
    draw_stacks(axes, [name for name, _ in models], stacks)
    axes.set_xlabel("items, %")


def _draw_against_flips(axes: Axes, models: Named) -> None:
    """Draw DF against the flip rate of each model, and the bound DF = 1 - FR."""
    axes.fill_between([0, 100], [100, 0], 100, color=LIGHT.grid, linewidth=0)
    axes.plot([0, 100], [100, 0], "-", color=LIGHT.muted, linewidth=1, label="bound: 1 − FR")
    axes.axhline(100 * FLAG, color=LIGHT.muted, linewidth=0.8, linestyle=":", label="50 %")
    n_colors, max_flips = len(LIGHT.lines), 0.0
    for at, (name, result) in enumerate(models):
        counts, color = counts_of(result), LIGHT.lines[at % n_colors]
        marker = MARKERS[(at + at // n_colors) % len(MARKERS)]
        flips, dangerous = 100 * (counts.flip_rate or 0), 100 * (counts.dangerous_fraction or 0)
        draw_interval(axes, flips, result.dangerous, 100, color=color, linewidth=1.1, alpha=0.75)
        axes.plot(flips, dangerous, marker, color=color, markersize=6, label=name)
        max_flips = max(max_flips, flips)
    max_flips = min(100.0, max(25.0, 1.25 * max_flips))
    axes.set_xlim(-0.02 * max_flips, 1.02 * max_flips)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("flip rate (FR), %")
    axes.set_ylabel("dangerous fraction (DF), %")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), fontsize=8)


def _stacked(groups: dict[str, Named], folder: Path) -> Figure:
    def alt(models: Named) -> str:
        parts = (
            f"{name} {' / '.join(str(getattr(counts_of(r), q)) for q in QUADRANTS)}"
            for name, r in models
        )
        return f"ideal / fragile / dangerous / worst: {'; '.join(parts)}"

    def draw(families: Sequence[str]) -> Canvas:
        canvas = _panels(groups, families, _draw_quadrants, 1.6, 0.34)
        handles = canvas.axes[-1].get_legend_handles_labels()  # the same in all panels
        with settings():
            canvas.legend(*handles, loc="outside lower right", ncols=4, fontsize=8)
        return canvas

    alts = [f"{family}, {alt(models)}." for family, models in groups.items()]
    panels = map(FigurePanel, save_parts(draw, list(groups), folder / "quadrants"), alts)
    return Figure("quadrants", "Quadrants", CAPTIONS["quadrant-shares"], tuple(panels))


def _against_flips(groups: dict[str, Named], folder: Path) -> Figure:
    def alt(models: Named) -> str:
        parts = []
        for name, result in models:
            counts = counts_of(result)
            shares = (counts.flip_rate or 0.0, counts.dangerous_fraction or 0.0)
            parts.append(f"{name} {' and '.join(map(formats.percent, shares))}")
        return f"flip rate and dangerous fraction in percent: {'; '.join(parts)}"

    def draw(families: Sequence[str]) -> Canvas:
        return _panels(groups, families, _draw_against_flips, 3.6, 0.17)

    title = "Dangerous fraction against flip rate"
    alts = [f"{family}, {alt(models)}." for family, models in groups.items()]
    panels = map(FigurePanel, save_parts(draw, list(groups), folder / "quadrants_bound"), alts)
    return Figure("quadrants_bound", title, CAPTIONS["quadrant-bound"], tuple(panels))


def _panels(
    groups: dict[str, Named],
    families: Sequence[str],
    draw: Callable[[Axes, Named], None],
    height: float,
    height_per_model: float,
) -> Canvas:
    """Draw the families side by side."""
    tallest = max(height + height_per_model * len(groups[family]) for family in families)
    with settings():
        canvas = Canvas(figsize=(5.2 * len(families), tallest), layout="constrained")
        for at, family in enumerate(families, 1):
            axes = canvas.add_subplot(1, len(families), at)
            draw(axes, groups[family])
            axes.set_title(family)
    return canvas
