"""The section on consistency and image reliance: checklist, tables and figures.

Sadanandan and Behzadan, arXiv 2603.20985.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import Interval, QuadrantResult, Score
from flipbench.reporting import formats
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    draw_interval,
    save,
    settings,
    svg_text,
)
from flipbench.reporting.sections import Section, Status
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell, rate_cell

from ..protocol.grid import GridModel
from ..statistics.quadrants import FLAG, QUADRANTS, QuadrantCounts
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
    by_model = {s.model_fingerprint: s.quadrants for s in scores if s.quadrants is not None}
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
        tables=(quadrant_table(groups), answers_table(groups), checklist(groups)),
        figures=(_stacked(shown, folder), _against_flips(shown, folder)),
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
        tuple(
            (family, tuple(Row(name, _fractions(result)) for name, result in found))
            for family, found in groups.items()
        ),
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


def answers_table(groups: dict[str, Found]) -> Table:
    """Return accuracy, entropy and divergence by quadrant."""
    return Table(
        "quadrant-answers",
        "Accuracy on the question as it is by quadrant, with 95 % Wilson intervals; below, the mean"
        " entropy of the answer and KL(P with picture ‖ P without), in nats, where the model gives"
        " log-probabilities. AUROC: how well a low divergence tells dangerous from other items.",
        "Model",
        (*(Column(name.capitalize()) for name in QUADRANTS), Column("All"), Column("AUROC")),
        tuple(
            (family, tuple(row for name, result in found for row in _answer_rows(name, result)))
            for family, found in groups.items()
        ),
    )


def _answer_rows(name: str, result: QuadrantResult) -> list[Row]:
    counts, nothing = [result.counts[q] for q in QUADRANTS], Cell(formats.NOTHING)
    right, n = sum(c.k for c in counts), sum(c.n for c in counts)
    auroc = nothing if result.auroc is None else estimate_cell(result.auroc, result.auroc_interval)
    rates = [rate_cell(Rate.wilson(k, m)) for k, m in (*((c.k, c.n) for c in counts), (right, n))]
    rows = [Row(f"{name}: accuracy, %", (*rates, auroc))]
    for title, means in (("entropy", result.entropies), ("divergence", result.divergences)):
        values = [means[q].mean if q in means else None for q in QUADRANTS]
        if any(value is not None for value in values):
            cells = [nothing if v is None else Cell(formats.decimals(v, 3)) for v in values]
            rows.append(Row(f"{name}: {title}, nats", (*cells, nothing, nothing)))
    return rows


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
        tuple((family, tuple(row(*one) for one in found)) for family, found in groups.items()),
    )


# --------------------------------------------------------------------------- figures

_COLORS = dict(zip(("ideal", "dangerous", "fragile", "worst"), LIGHT.outcomes, strict=True))


def draw_quadrants(axes: Axes, shown: Sequence[tuple[str, QuadrantCounts]]) -> None:
    """Draw the share of each quadrant as stacked bars, one model a row."""
    left = [0.0] * len(shown)
    for name in QUADRANTS:
        found = [getattr(counts, name) for _, counts in shown]
        widths = [100 * k / counts.n for k, (_, counts) in zip(found, shown, strict=True)]
        bars = axes.barh(
            range(len(shown)),
            widths,
            left=left,
            color=_COLORS[name],
            edgecolor=LIGHT.paper,
            linewidth=0.8,
            height=0.78,
            hatch="//" if name == "dangerous" else None,
            label=name,
        )
        axes.bar_label(
            bars,
            [str(k) if width > 7 else "" for k, width in zip(found, widths, strict=True)],
            label_type="center",
            fontsize=8,
            color=LIGHT.ink,
            bbox={"facecolor": LIGHT.paper, "edgecolor": "none", "alpha": 0.78, "pad": 1.2},
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("items, %")
    axes.tick_params(axis="y", length=0)


def draw_against_flips(axes: Axes, shown: Found) -> None:
    """Draw DF against the flip rate of each model, and the bound DF = 1 - FR."""
    axes.fill_between([0, 100], [100, 0], 100, color=LIGHT.grid, linewidth=0)
    axes.plot([0, 100], [100, 0], "-", color=LIGHT.muted, linewidth=1, label="bound: 1 − FR")
    axes.axhline(100 * FLAG, color=LIGHT.muted, linewidth=0.8, linestyle=":", label="50 %")
    for at, (name, result) in enumerate(shown):
        counts, color = counts_of(result), LIGHT.lines[at % len(LIGHT.lines)]
        flips, dangerous = 100 * (counts.flip_rate or 0), 100 * (counts.dangerous_fraction or 0)
        draw_interval(axes, flips, result.dangerous, 100, color=color, linewidth=1.1, alpha=0.75)
        axes.plot(flips, dangerous, "osD^vPX<"[at % 8], color=color, markersize=6, label=name)
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("flip rate (FR), %")
    axes.set_ylabel("dangerous fraction (DF), %")


def _stacked(shown: Found, folder: Path) -> Figure:
    rows = [(name, counts_of(result)) for name, result in shown]
    with settings():
        canvas = Canvas(figsize=(6.4, 1.35 + 0.34 * len(shown)), layout="constrained")
        axes = canvas.add_subplot()
        draw_quadrants(axes, rows)
        canvas.legend(loc="outside lower left", ncols=4, fontsize=8)
    save(canvas, folder / "quadrants")
    parts = [f"{name} {' / '.join(str(getattr(c, q)) for q in QUADRANTS)}" for name, c in rows]
    alt = f"Items that are ideal / fragile / dangerous / worst: {'; '.join(parts)}."
    caption = "Share of the items in each quadrant; numbers are items. Hatched: dangerous."
    return Figure("quadrants", "Quadrants", caption, (FigurePanel(svg_text(canvas), alt),))


def _against_flips(shown: Found, folder: Path) -> Figure:
    with settings():
        canvas = Canvas(figsize=(6.4, 4.4), layout="constrained")
        draw_against_flips(canvas.add_subplot(), shown)
        canvas.legend(loc="outside right upper", fontsize=8)
    save(canvas, folder / "quadrants_bound")
    parts = []
    for name, result in shown:
        counts = counts_of(result)
        flips, dangerous = counts.flip_rate or 0.0, counts.dangerous_fraction or 0.0
        parts.append(f"{name} {formats.percent(flips)} and {formats.percent(dangerous)}")
    alt = f"Flip rate and dangerous fraction in percent: {'; '.join(parts)}."
    caption = (
        "The grey region is impossible: a dangerous item is consistent, so DF is at most 1 − FR,"
        " and part of any fall of DF with FR follows from that. Vertical lines: 95 % intervals of"
        " DF."
    )
    panel = FigurePanel(svg_text(canvas), alt)
    return Figure("quadrants_bound", "Dangerous fraction against flip rate", caption, (panel,))
