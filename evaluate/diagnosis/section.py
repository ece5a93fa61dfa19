"""The diagnosis in words, tables and a figure: for a report, and for one model's verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict
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
from flipbench.reporting.tables import Table, build_table, text_column

from ..protocol.grid import GridModel
from ..report.titles import as_header, families, label
from .diagnosis import CATEGORIES, PRESUMES, SYMPTOMS, Category, Diagnosis

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
    return [f"{as_header(name)}: {PRESUMES[name]}." for name in _categories(diagnoses)]


def _categories(diagnoses: Sequence[Diagnosis]) -> list[Category]:
    return [c for c in CATEGORIES if any(diagnosis.counts[c] for diagnosis in diagnoses)]


def shares_table(groups: Mapping[str, Named]) -> Table:
    """Return the share of each category among the fallen items of each model."""

    def share(category: Category) -> Callable[[Diagnosis], Rate]:
        return lambda diagnosis: diagnosis.share(category)

    categories = _categories([d for models in groups.values() for _, d in models])
    return build_table(
        KEY,
        CAPTION,
        "Model",
        [
            ("Fell", lambda d: f"{d.n_fell}/{d.n}"),
            ("Rose", lambda d: f"{d.n_rose}/{d.n}"),
            ("Wrong on both", lambda d: f"{d.n_both_wrong}/{d.n}"),
            *((f"{as_header(category)}, %", share(category)) for category in categories),
        ],
        groups,
    )


def symptoms_table(groups: Mapping[str, Named]) -> Table:
    """Return how many fallen items show each symptom, alone and together with each other one."""

    def also(symptom: str, diagnosis: Diagnosis) -> str:
        overlaps = {name: diagnosis.overlap(symptom, name) for name in SYMPTOMS if name != symptom}
        return ", ".join(f"{name} {k}" for name, k in overlaps.items() if k) or "none"

    rows = {
        f"{family}: {name}" if len(groups) > 1 else name: [
            (as_header(symptom), (*diagnosis.symptom(symptom), also(symptom, diagnosis)))
            for symptom in SYMPTOMS
        ]
        for family, models in groups.items()
        for name, diagnosis in models
    }
    return build_table(
        "symptoms",
        "What is true of the fallen items, whatever else is: of the items asked, with those that"
        " show another symptom as well. A bad edit needs a rater, or an almost unchanged picture.",
        "Symptom",
        [
            ("Items, %", lambda row: row[0]),
            ("Not asked", lambda row: row[1]),
            (text_column("Also"), lambda row: row[2]),
        ],
        rows,
    )


def figure(groups: Mapping[str, Named], folder: Path | None = None) -> Figure:
    """Return stacked bars, one model a row; with a folder, also as files."""

    def canvas(families: Sequence[str]) -> Canvas:
        models = [
            (f"{family}: {name}" if len(families) > 1 else name, d)
            for family in families
            for name, d in groups[family]
        ]
        with settings():
            drawing = Canvas(figsize=(7.2, 1.5 + 0.34 * len(models)), layout="constrained")
            draw(drawing, models)
        return drawing

    svgs = save_parts(canvas, list(groups), folder and folder / KEY)
    panels = []
    for (family, models), svg in zip(groups.items(), svgs, strict=True):
        alt = "; ".join(
            f"{name} {', '.join(f'{c} {k}' for c, k in d.counts.items() if k) or 'none'}"
            for name, d in models
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
        diagnosed = [
            (label(model, models), diagnoses[model.fingerprint])
            for model in models
            if model.fingerprint in diagnoses
        ]
        groups |= {family: diagnosed} if diagnosed else {}
    models_by_name = {f"{family}: {name}": d for family in groups for name, d in groups[family]}
    if not any(diagnosis.was_asked for diagnosis in models_by_name.values()):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    name, diagnosis = max(models_by_name.items(), key=lambda pair: pair[1].n_fell)
    data = {d.fingerprint: d.to_json() for d in models_by_name.values()}
    return _section(groups, f"The most items fell for {name}: {sentence(diagnosis)}", data, folder)


def diagnosis_of_one(name: str, diagnosis: Diagnosis) -> Section:
    """Return the section of one model's page, without files."""
    return _section({"": [(name, diagnosis)]}, sentence(diagnosis), diagnosis.to_json())


def _section(
    groups: Mapping[str, Named], text: str, data: JsonDict, folder: Path | None = None
) -> Section:
    return Section(
        key=KEY,
        title=TITLE,
        status="look",
        sentence=text,
        notes=(*presumed([d for models in groups.values() for _, d in models]), *NOTES),
        tables=(shares_table(groups), symptoms_table(groups)),
        figures=(figure(groups, folder),),
        data=data,
    )


def draw(canvas: Canvas, models: Named) -> None:
    """Draw each model's fallen items by category as stacked bars, one model a row."""
    axes = canvas.add_subplot()
    stacks = [
        Stack(category, [d.counts[category] for _, d in models], _COLORS[at], _HATCHES[at])
        for at, category in enumerate(CATEGORIES)
    ]
    stacks = [stack for stack in stacks if any(stack.counts)]
    draw_stacks(axes, [name for name, _ in models], stacks, shortest=5)
    axes.set_xlabel("fallen items, %")
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower right", ncols=4, fontsize=8)
