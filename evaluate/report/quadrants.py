"""The section on consistency and image reliance: checklist, tables and figures.

Sadanandan and Behzadan, arXiv 2603.20985.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import Count, Interval, Score
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
from flipbench.reporting.sections import Section, Status
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell, rate_cell

from ..protocol.grid import GridModel
from ..statistics.quadrants import FLAG, QUADRANTS, QuadrantCounts, QuadrantResult
from .tables import families, label

Found = list[tuple[str, QuadrantResult]]

STATUS: dict[Status, str] = {"ok": "no model above 50 %", "look": "have a look"}
NOTES = (
    "Dangerous means: the same answer in all wordings, and the same without the picture. It is no"
    " verdict of contamination: a question may need no picture, and an answer that the text prior"
    " also gives counts as not reliant even if the picture was used. A model that is always right,"
    " with the same text prior, has the oracle’s DF.",
    "DF cannot exceed 1 − FR, so models with fewer flips have room for a higher DF: compare DF"
    " among the consistent items, and DF with what independence of the two would give.",
    "Intervals of FR and DF resample images or groups; those of accuracies and of the AUROC treat"
    " items as independent.",
)


def quadrant_section(
    grid: Sequence[GridModel], scores: Sequence[Score], folder: Path
) -> Section | None:
    """Return the section, and write its figures into ``folder``; None without such scores."""
    by_model = {
        s.model_fingerprint: QuadrantResult.model_validate(s.quadrants)
        for s in scores
        if s.quadrants is not None
    }
    groups: dict[str, Found] = {}
    for family, models in families(grid).items():
        found = [(label(m, models), by_model[m.fingerprint]) for m in models
                 if m.fingerprint in by_model]  # fmt: skip
        groups |= {family: found} if found else {}
    if not groups:
        return None
    shown = [
        (f"{family}: {name}" if len(groups) > 1 else name, result)
        for family, found in groups.items()
        for name, result in found
    ]
    flagged = [name for name, result in shown if _is_flagged(result)]
    return Section(
        key="quadrants",
        title="Is the picture used? Four quadrants",
        status="look" if flagged else "ok",
        sentence=_sentence(shown, flagged),
        notes=(*NOTES, *_wordings_notes(shown)),
        tables=(
            checklist(groups),
            quadrant_table(groups),
            accuracy_table(groups),
            *([divergence_table(groups)] if any(r.auroc is not None for _, r in shown) else []),
            *([checks_table(groups)] if any(r.unchanged for _, r in shown) else []),
        ),
        figures=(_stacked(groups, folder), _against_flips(groups, folder)),
    )


def counts_of(result: QuadrantResult) -> QuadrantCounts:
    """Return the number of items in each quadrant."""
    return QuadrantCounts.of({name: count.n for name, count in result.counts.items()})


def _is_flagged(result: QuadrantResult) -> bool:
    return (counts_of(result).dangerous_fraction or 0.0) > FLAG


def _sentence(shown: Found, flagged: Sequence[str]) -> str:
    name, highest = max(shown, key=lambda pair: counts_of(pair[1]).dangerous_fraction or 0.0)
    counts, prior = counts_of(highest), highest.prior
    rate = _rate(counts.dangerous, counts.n, highest.dangerous)
    models = "model" if len(shown) == 1 else "models"
    return (
        f"The dangerous fraction is above 50 % in {len(flagged)} of {len(shown)} {models}; the"
        f" highest is {formats.rate(rate)} ({name}), where an always-right model with the same"
        f" text prior has {formats.rate(Rate.wilson(prior.k, prior.n))}."
    )


def _rate(k: int, n: int, interval: Interval | None) -> Rate:
    return Rate(k=k, n=n, interval=interval, n_clusters=n)


def _wordings_notes(shown: Found) -> list[str]:
    """Return how many wordings were left out, which is the same for all models, and by level."""
    counts = Counter(shown[0][1].wordings)
    kept = counts.pop("kept", 0)
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(counts.items()))
    notes = [
        f"Other wordings of the questions: {kept:,} kept, {counts.total():,} left out"
        + (f" ({reasons})." if reasons else ".")
    ]
    levels = dict.fromkeys(level for _, result in shown for level in result.levels)
    for level in levels:
        rates = [(name, r.levels[level]) for name, r in shown if level in r.levels]
        texts = [f"{name} {formats.rate(Rate.wilson(c.k, c.n))}" for name, c in rates]
        notes.append(f"Answers that change with a {level} change of wording: {'; '.join(texts)}.")
    return notes


# ---------------------------------------------------------------------------- tables


def quadrant_table(groups: dict[str, Found]) -> Table:
    """Return the distribution of each model over the quadrants, and the fractions that follow."""
    return Table(
        "quadrants",
        "Items by quadrant: consistent or not over wordings, reliant or not on the picture. FR:"
        " flip rate; DF: dangerous fraction, beside DF among consistent items, DF if consistency"
        " and reliance were independent, and the DF of an always-right model with the same text"
        " prior (oracle). 95 % bootstrap intervals.",
        "Model",
        (
            *(Column(name.capitalize(), "Items") for name in QUADRANTS),
            Column("FR, %", "Fractions"),
            Column("DF, %", "Fractions"),
            Column("DF if consistent, %", "Fractions"),
            Column("Independent, %", "Expected DF"),
            Column("Oracle, %", "Expected DF"),
        ),
        _rows(groups, lambda name, result: Row(name, _fractions(result))),
    )


def _fractions(result: QuadrantResult) -> tuple[Cell, ...]:
    counts, prior = counts_of(result), result.prior
    rates = (
        _rate(counts.n_flipped, counts.n, result.flip_rate),
        _rate(counts.dangerous, counts.n, result.dangerous),
        _rate(counts.dangerous, counts.n_consistent, result.given_consistent),
    )
    expected = formats.NOTHING if counts.expected is None else formats.percent(counts.expected)
    return (
        *(Cell(f"{getattr(counts, name):,}") for name in QUADRANTS),
        *map(rate_cell, rates),
        Cell(expected),
        rate_cell(Rate.wilson(prior.k, prior.n)),
    )


def accuracy_table(groups: dict[str, Found]) -> Table:
    """Return the accuracy of each model by quadrant."""

    def row(name: str, result: QuadrantResult) -> Row:
        counts = [result.counts[q] for q in QUADRANTS]
        everything = Rate.wilson(sum(c.k for c in counts), sum(c.n for c in counts))
        rates = [*(Rate.wilson(c.k, c.n) for c in counts), everything]
        return Row(name, tuple(map(rate_cell, rates)))

    return Table(
        "quadrant-accuracy",
        "Accuracy on the question as it is, in percent, by quadrant; 95 % Wilson intervals.",
        "Model",
        (*(Column(name.capitalize()) for name in QUADRANTS), Column("All")),
        _rows(groups, row),
    )


def divergence_table(groups: dict[str, Found]) -> Table:
    """Return entropy and divergence by quadrant, of models that give log-probabilities."""

    def row(name: str, result: QuadrantResult) -> Row:
        means = [m.get(q) for m in (result.entropies, result.divergences) for q in QUADRANTS]
        values = [None if mean is None else mean.mean for mean in means]
        cells = [Cell(formats.NOTHING if v is None else formats.decimals(v)) for v in values]
        return Row(name, (*cells, estimate_cell(result.auroc, result.auroc_interval)))

    return Table(
        "quadrant-divergence",
        "Mean entropy of the answer and mean KL(P with picture ‖ P without) over the options, in"
        " nats, by quadrant. AUROC: how well a low divergence tells dangerous from other items.",
        "Model",
        (
            *(Column(name.capitalize(), "Entropy") for name in QUADRANTS),
            *(Column(name.capitalize(), "KL") for name in QUADRANTS),
            Column("AUROC", "KL, dangerous or not"),
        ),
        _rows(groups, row),
    )


def checks_table(groups: dict[str, Found]) -> Table:
    """Return by quadrant how many answers stay on other items' pictures and on a black one."""
    checks = list(dict.fromkeys(c for f in groups.values() for _, r in f for c in r.unchanged))

    def row(name: str, result: QuadrantResult) -> Row:
        cells = []
        for check in checks:
            for quadrant in QUADRANTS:
                count = result.unchanged.get(check, {}).get(quadrant, Count(k=0, n=0))
                n_items = min(count.n, result.counts[quadrant].n)
                cells.append(rate_cell(Rate.wilson(count.k, count.n, n_items)))
        return Row(name, tuple(cells))

    return Table(
        "quadrant-checks",
        "Answers that stay the same, in percent, when the picture is another item’s or black, by"
        " quadrant; 95 % Wilson intervals for as many cases as there are items.",
        "Model",
        tuple(Column(q.capitalize(), check.capitalize()) for check in checks for q in QUADRANTS),
        _rows(groups, row),
    )


def _rows(
    groups: dict[str, Found], row: Callable[[str, QuadrantResult], Row]
) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    return tuple((family, tuple(row(*one) for one in found)) for family, found in groups.items())


def checklist(groups: dict[str, Found]) -> Table:
    """Return the paper's five points for each model."""

    def row(name: str, result: QuadrantResult) -> Row:
        counts, prior = counts_of(result), result.prior
        shares = " / ".join(formats.percent(getattr(counts, q) / counts.n) for q in QUADRANTS)
        cells = (
            rate_cell(_rate(counts.n_flipped, counts.n, result.flip_rate)),
            rate_cell(Rate.wilson(prior.k, prior.n)),
            Cell(f"{counts.n:,}"),
            Cell(shares),
            Cell("above 50 %" if _is_flagged(result) else "not above 50 %"),
        )
        return Row(name, cells)

    return Table(
        "quadrant-checklist",
        "The checklist of arXiv 2603.20985: report flip rates (1) and the text-only baseline (2),"
        " classify the items (3), publish the whole distribution (4: ideal / fragile / dangerous /"
        " worst), and flag a model whose dangerous fraction is above 50 % (5).",
        "Model",
        (
            Column("1. Flip rate, %"),
            Column("2. Right without picture, %"),
            Column("3. Items classified"),
            Column("4. Distribution, %"),
            Column("5. Dangerous fraction", numeric=False),
        ),
        _rows(groups, row),
    )


# --------------------------------------------------------------------------- figures

_COLORS = dict(zip(("ideal", "dangerous", "fragile", "worst"), LIGHT.outcomes, strict=True))


_MARKERS = "osD^vPX<"


def draw_quadrants(axes: Axes, shown: Found) -> None:
    """Draw the share of each quadrant as stacked bars, one model a row."""
    counts = [counts_of(result) for _, result in shown]
    stacks = [
        Stack(
            name,
            [getattr(one, name) for one in counts],
            _COLORS[name],
            "//" if name == "dangerous" else "",
        )
        for name in QUADRANTS
    ]
    draw_stacks(axes, [name for name, _ in shown], stacks)
    axes.set_xlabel("items, %")


def draw_against_flips(axes: Axes, shown: Found) -> None:
    """Draw DF against the flip rate of each model, and the bound DF = 1 - FR."""
    axes.fill_between([0, 100], [100, 0], 100, color=LIGHT.grid, linewidth=0)
    axes.plot([0, 100], [100, 0], "-", color=LIGHT.muted, linewidth=1, label="bound: 1 − FR")
    axes.axhline(100 * FLAG, color=LIGHT.muted, linewidth=0.8, linestyle=":", label="50 %")
    n_colors, most = len(LIGHT.lines), 0.0
    for at, (name, result) in enumerate(shown):
        counts, color = counts_of(result), LIGHT.lines[at % n_colors]
        marker = _MARKERS[(at + at // n_colors) % len(_MARKERS)]
        flips, dangerous = 100 * (counts.flip_rate or 0), 100 * (counts.dangerous_fraction or 0)
        draw_interval(axes, flips, result.dangerous, 100, color=color, linewidth=1.1, alpha=0.75)
        axes.plot(flips, dangerous, marker, color=color, markersize=6, label=name)
        most = max(most, flips)
    most = min(100.0, max(25.0, 1.25 * most))
    axes.set_xlim(-0.02 * most, 1.02 * most)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("flip rate (FR), %")
    axes.set_ylabel("dangerous fraction (DF), %")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), fontsize=8)


def _stacked(groups: dict[str, Found], folder: Path) -> Figure:
    def alt(found: Found) -> str:
        parts = [
            f"{name} {' / '.join(str(getattr(counts_of(r), q)) for q in QUADRANTS)}"
            for name, r in found
        ]
        return f"ideal / fragile / dangerous / worst: {'; '.join(parts)}"

    caption = "Share of the items in each quadrant; numbers are items. Hatched: dangerous."
    heights = {family: 1.6 + 0.34 * len(found) for family, found in groups.items()}
    return _figure("quadrants", "Quadrants", caption, groups, draw_quadrants, alt, heights, folder)


def _against_flips(groups: dict[str, Found], folder: Path) -> Figure:
    def alt(found: Found) -> str:
        parts = []
        for name, result in found:
            counts = counts_of(result)
            shares = (counts.flip_rate or 0.0, counts.dangerous_fraction or 0.0)
            parts.append(f"{name} {' and '.join(map(formats.percent, shares))}")
        return f"flip rate and dangerous fraction in percent: {'; '.join(parts)}"

    caption = (
        "The grey region is impossible: a dangerous item is consistent, so DF is at most 1 − FR,"
        " and part of any fall of DF with FR follows from that. Vertical lines: 95 % intervals of"
        " DF."
    )
    title = "Dangerous fraction against flip rate"
    heights = {family: 3.6 + 0.17 * len(found) for family, found in groups.items()}
    draw = draw_against_flips
    return _figure("quadrants_bound", title, caption, groups, draw, alt, heights, folder)


def _figure(
    key: str,
    title: str,
    caption: str,
    groups: dict[str, Found],
    draw: Callable[[Axes, Found], None],
    alt: Callable[[Found], str],
    heights: dict[str, float],
    folder: Path,
) -> Figure:
    """Return a figure with a panel for each family, and write one file with all of them."""

    def canvas(families: Sequence[str]) -> Canvas:
        with settings():
            made = Canvas(
                figsize=(5.2 * len(families), max(heights[family] for family in families)),
                layout="constrained",
            )
            for at, family in enumerate(families, 1):
                axes = made.add_subplot(1, len(families), at)
                draw(axes, groups[family])
                axes.set_title(family)
            if draw is draw_quadrants:  # the same names in all panels
                handles = axes.get_legend_handles_labels()
                made.legend(*handles, loc="outside lower right", ncols=4, fontsize=8)
        return made

    alts = [f"{family}, {alt(found)}." for family, found in groups.items()]
    panels = map(FigurePanel, save_parts(canvas, list(groups), folder / key), alts)
    return Figure(key, title, caption, tuple(panels))
