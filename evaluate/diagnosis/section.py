"""The diagnosis in words, tables and a figure: for a report, and for one model's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from flipbench.reporting import formats
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    Stack,
    draw_stacks,
    save_parts,
    settings,
)
from flipbench.reporting.sections import Section
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from ..protocol.grid import GridModel
from ..report.titles import as_header, families, label
from .diagnosis import CATEGORIES, PRESUMES, SYMPTOMS, Diagnosis

KEY, TITLE = "diagnosis", "Why items fell"
CAPTION = (
    "Items right on the original and wrong on the perturbed version, by what their answers look"
    " like; each is counted once, in the first category whose evidence is there, from left to"
    " right."
)
NOTES = (
    "Only fallen items are placed: an item that is wrong on both versions did not fall, and adds"
    " nothing to a gap. Models that see badly fall and rise alike, so compare the fallen items with"
    " those that rose.",
    "A category says what an item’s answers look like, not what caused them. A memory that the"
    " picture does not need is told from a prior by the order of the options only, and a memory of"
    " the answer’s text looks like weak perception.",
)
_COLORS = (*LIGHT.outcomes, *(LIGHT.lines[at] for at in (5, 0, 2, 3, 4, 7)))
_HATCHES = ("//", "", "||", "..", "\\\\", "", "xx", "", "--", "++")

Named = Sequence[tuple[str, Diagnosis]]


def sentence(diagnosis: Diagnosis) -> str:
    """Return the shares of the fallen items in a sentence or two."""
    n = diagnosis.n_fell
    if not n:
        return f"No item of {diagnosis.n:,} fell, so there is nothing to explain."
    counts = sorted(diagnosis.counts.items(), key=lambda pair: -pair[1])
    parts = [f"{name} {formats.rate(diagnosis.share(name))}" for name, k in counts if k]
    return (
        f"{n:,} of {diagnosis.n:,} items fell and {diagnosis.n_rose:,} rose. What the answers to"
        f" the fallen ones look like: {'; '.join(parts)}."
    )


def presumed(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return what each category presumes, of those that hold an item."""
    shown = [c for c in CATEGORIES if any(d.counts[c] for d in diagnoses)]
    return [f"{as_header(name)}: {PRESUMES[name]}." for name in shown]


def shares_table(groups: Mapping[str, Named]) -> Table:
    """Return the share of each category among the fallen items of each model."""
    every = [d for named in groups.values() for _, d in named]
    shown = [c for c in CATEGORIES if any(d.counts[c] for d in every)]
    rows = {
        family: tuple(
            Row(
                name,
                (
                    Cell(f"{d.n_fell}/{d.n}"),
                    Cell(f"{d.n_rose}/{d.n}"),
                    Cell(f"{d.n_both_wrong}/{d.n}"),
                    *(rate_cell(d.share(category)) for category in shown),
                ),
            )
            for name, d in named
        )
        for family, named in groups.items()
    }
    columns = ("Fell", "Rose", "Wrong on both", *(f"{as_header(c)}, %" for c in shown))
    return Table(KEY, CAPTION, "Model", tuple(map(Column, columns)), tuple(rows.items()))


def symptoms_table(groups: Mapping[str, Named]) -> Table:
    """Return how many fallen items show each symptom, alone and together with each other one."""
    names = list(SYMPTOMS)
    rows = []
    for family, named in groups.items():
        for name, d in named:
            found = []
            for symptom in names:
                rate, missing = d.symptom(symptom)
                others = [
                    f"{other} {k}"
                    for other in names
                    if other != symptom and (k := d.overlap(symptom, other))
                ]
                cells = (rate_cell(rate), Cell(str(missing)), Cell(", ".join(others) or "none"))
                found.append(Row(as_header(symptom), cells))
            title = f"{family}: {name}" if len(groups) > 1 else name
            rows.append((title, tuple(found)))
    return Table(
        "symptoms",
        "What is true of the fallen items, whatever else is: of the items asked, with those that"
        " show another symptom as well. A bad edit needs a rater, or an almost unchanged picture.",
        "Symptom",
        (Column("Items, %"), Column("Not asked"), Column("Also", "", False)),
        tuple(rows),
    )


def figure(groups: Mapping[str, Named], folder: Path | None = None) -> Figure:
    """Return stacked bars, one model a row; with a folder, also as files."""

    def canvas(families: Sequence[str]) -> Canvas:
        named = [
            (f"{family}: {name}" if len(families) > 1 else name, d)
            for family in families
            for name, d in groups[family]
        ]
        with settings():
            made = Canvas(figsize=(7.2, 1.5 + 0.34 * len(named)), layout="constrained")
            draw(made, named)
        return made

    svgs = save_parts(canvas, list(groups), folder and folder / KEY)
    panels = []
    for (family, named), svg in zip(groups.items(), svgs, strict=True):
        alt = "; ".join(
            f"{name} {', '.join(f'{c} {k}' for c, k in d.counts.items() if k) or 'none'}"
            for name, d in named
        )
        panels.append(FigurePanel(svg, f"{family}, fallen items: {alt}."))
    caption = "Share of each model’s fallen items; numbers are items."
    return Figure(KEY, TITLE, caption, tuple(panels))


def diagnosis_section(
    grid: Sequence[GridModel], diagnoses: Mapping[str, Diagnosis], folder: Path
) -> Section | None:
    """Return the section, and write its figure into ``folder``; None if nothing was asked.

    Parameters
    ----------
    diagnoses : mapping of str to Diagnosis
        By the model's fingerprint.
    """
    groups: dict[str, Named] = {}
    for family, models in families(grid).items():
        named = [
            (label(model, models), diagnoses[model.fingerprint])
            for model in models
            if model.fingerprint in diagnoses
        ]
        groups |= {family: named} if named else {}
    every = [(f"{family}: {name}", d) for family, named in groups.items() for name, d in named]
    if not any(d.was_asked for _, d in every):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    name, most = max(every, key=lambda pair: pair[1].n_fell)
    return Section(
        key=KEY,
        title=TITLE,
        status="look",
        sentence=f"The most items fell for {name}: {sentence(most)}",
        notes=(*presumed([d for _, d in every]), *NOTES),
        tables=(shares_table(groups), symptoms_table(groups)),
        figures=(figure(groups, folder),),
        data={d.fingerprint: d.to_json() for _, d in every},
    )


def diagnosis_of_one(name: str, diagnosis: Diagnosis) -> Section:
    """Return the section of one model's page, without files."""
    groups: dict[str, Named] = {"": [(name, diagnosis)]}
    return Section(
        key=KEY,
        title=TITLE,
        status="look",
        sentence=sentence(diagnosis),
        notes=(*presumed([diagnosis]), *NOTES),
        tables=(shares_table(groups), symptoms_table(groups)),
        figures=(figure(groups),),
        data=diagnosis.to_json(),
    )


def draw(canvas: Canvas, named: Named) -> None:
    """Draw each model's fallen items by category as stacked bars, one model a row."""
    axes = canvas.add_subplot()
    stacks = [
        Stack(category, [d.counts[category] for _, d in named], _COLORS[at], _HATCHES[at])
        for at, category in enumerate(CATEGORIES)
    ]
    stacks = [stack for stack in stacks if any(stack.counts)]
    draw_stacks(axes, [name for name, _ in named], stacks, shortest=5)
    axes.set_xlabel("fallen items, %")
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower right", ncols=4, fontsize=8)
