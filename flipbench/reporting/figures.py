"""Figures of pages and papers: one theme for light and dark, written as SVG and PNG."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.files import atomic_file, write_atomically
from flipbench.core.records import Interval

T = TypeVar("T")


@dataclass(frozen=True)
class FigurePanel:
    """One image of a figure: SVG text for light and dark pages, and its alt text."""

    svg: str
    alt: str

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    key: str
    title: str
    caption: str
    panels: tuple[FigurePanel, ...]


@dataclass(frozen=True)
class Theme:
    """Colours for one background; lines follow Okabe and Ito, safe for colour-blind readers."""

    ink: str
    muted: str
    grid: str
    paper: str
    lines: tuple[str, ...]
    outcomes: tuple[str, str, str, str]

    def colors(self) -> tuple[str, ...]:
        """Return all colours, in the order of the fields."""
        return (self.ink, self.muted, self.grid, self.paper, *self.lines, *self.outcomes)


LIGHT = Theme(
    "#1b1f24",
    "#565e68",
    "#dfe2e6",
    "#ffffff",
    ("#0072b2", "#d55e00", "#00805f", "#a8508a", "#8a6d00", "#3d3d3d", "#5a4fcf", "#00758f"),
    ("#8fbfe0", "#d55e00", "#f0c869", "#d3d7dc"),
)
DARK = Theme(
    "#e8eaed",
    "#a9b1bb",
    "#363c44",
    "#15181c",
    ("#56b4e9", "#f0803c", "#36c99b", "#e2a1ca", "#e6c34a", "#cfd3d8", "#aaa2ff", "#4fc9dd"),
    ("#2f6a93", "#f0803c", "#c79a2e", "#4a525b"),
)

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "axes.facecolor": "none",
    "figure.facecolor": LIGHT.paper,
    "svg.fonttype": "none",
    "svg.hashsalt": "flipbench",
    "hatch.linewidth": 0.6,
    **dict.fromkeys(("text.color", "axes.titlecolor", "axes.labelcolor"), LIGHT.ink),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), LIGHT.ink),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), LIGHT.muted),
}


def settings() -> AbstractContextManager[None]:
    """Return the context in which figures are made and saved."""
    return matplotlib.rc_context(_RC)


def themed(svg: str) -> str:
    """Return a figure's SVG text, shortened, with colours for light and dark pages.

    The image follows the reader's colour scheme, so that a page contains it once.

    >>> themed('<svg width="1.23456pt"><g style="fill: #ffffff"/></svg>')[:60]
    '<svg width="1.23pt"><style>:root{--c0:#1b1f24;--c1:#565e68;-'
    """
    dark = dict(zip(LIGHT.colors(), DARK.colors(), strict=True))
    names = {color: f"--c{at}" for at, color in enumerate(dark)}

    light = ";".join(f"{name}:{color}" for color, name in names.items())
    dark_rules = ";".join(f"{names[color]}:{dark_color}" for color, dark_color in dark.items())
    style = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark_rules}}}}}"
    svg = re.sub(r"<[^>]*>", _short, svg[svg.index("<svg") :])
    for color, name in names.items():
        svg = svg.replace(color, f"var({name})")
    return svg.replace(">", f"><style>{style}</style>", 1)


def _short(tag: re.Match[str]) -> str:
    """Cut the numbers of a tag to two decimals; text between tags is for readers."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0])


def svg_text(canvas: Canvas) -> str:
    """Return a figure as SVG text for light and dark pages, the same for the same figure."""
    return themed(_drawn(canvas))


def save(canvas: Canvas, path: Path) -> str:
    """Write a figure as ``path.svg`` and ``path.png``, on white; return its `svg_text`.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    svg = _drawn(canvas)
    paper = f'<rect width="100%" height="100%" fill="{LIGHT.paper}"/>'
    opening = svg.index(">", svg.index("<svg")) + 1
    write_atomically(path.with_suffix(".svg"), svg[:opening] + paper + svg[opening:])
    with settings(), atomic_file(path.with_suffix(".png")) as partial:
        canvas.savefig(partial, format="png", dpi=200)
    return themed(svg)


def save_parts(
    canvas: Callable[[Sequence[T]], Canvas], parts: Sequence[T], path: Path | None
) -> list[str]:
    """Return the `svg_text` of each part alone, and `save` one figure of all parts.

    Parameters
    ----------
    canvas : callable
        Draws a figure of the parts that it is given.
    path : Path, optional
        Without it nothing is written.
    """
    whole = save(canvas(parts), path) if path else None
    if whole and len(parts) == 1:
        return [whole]
    return [svg_text(canvas([part])) for part in parts]


def _drawn(canvas: Canvas) -> str:
    """Draw a figure without background; its parts are placed the first time, a third of drawing."""
    buffer = io.StringIO()
    with settings():
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    canvas.set_layout_engine("none")
    return buffer.getvalue()


def draw_interval(
    axes: Axes, x: float, between: Interval | None, scale: float, **style: Any
) -> None:
    """Draw an interval, multiplied by ``scale``, as a vertical line; nothing for None."""
    if between is not None:
        axes.plot([x, x], [scale * between.low, scale * between.high], **style)


@dataclass(frozen=True)
class Stack:
    """One part of the stacked bars, such as a category: its number of items in each row."""

    name: str
    counts: Sequence[int]
    color: str
    hatch: str = ""


def draw_stacks(
    axes: Axes,
    rows: Sequence[str],
    stacks: Sequence[Stack],
    *,
    percent: bool = True,
    shortest: float = 7,
) -> None:
    """Draw stacked horizontal bars, one a row, with the counts in them.

    Parameters
    ----------
    percent : bool
        Whether bars are shares of their row in percent, not counts.
    shortest : float
        Parts of a row up to this share, in percent, have no number.
    """
    totals = [max(sum(counts), 1) for counts in zip(*(s.counts for s in stacks), strict=True)]
    units = [100 / total if percent else 1.0 for total in totals]
    starts = [0.0] * len(rows)
    for stack in stacks:
        widths = [k * unit for k, unit in zip(stack.counts, units, strict=True)]
        bars = axes.barh(
            range(len(rows)),
            widths,
            left=starts,
            color=stack.color,
            edgecolor=LIGHT.paper,
            linewidth=0.8,
            height=0.78,
            hatch=stack.hatch,
            label=stack.name,
        )
        pairs = zip(stack.counts, totals, strict=True)
        axes.bar_label(
            bars,
            [str(k) if 100 * k > shortest * total else "" for k, total in pairs],
            label_type="center",
            fontsize=8,
            color=LIGHT.ink,
            bbox={"facecolor": LIGHT.paper, "edgecolor": "none", "alpha": 0.78, "pad": 1.2},
        )
        starts = [a + b for a, b in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlim(0, 100 if percent else max(starts, default=1))
    axes.tick_params(axis="y", length=0)
