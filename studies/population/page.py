"""All tables and figures of a population study: ``python -m studies.population.page FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from flipbench.cli import main
from flipbench.commands.printing import say_markdown
from flipbench.reporting import figures, writers
from flipbench.reporting.tables import Table
from studies.population.kinds import (
    agreement,
    by_kind,
    conditions,
    controls,
    doses,
    models,
    overview,
)
from studies.population.other_lineages import other_lineages
from studies.population.power import audits, curves_figure, power_curves, power_table
from studies.population.results import CLEAN, CONTAMINATED, CONTROL, Results, flagged, read_results
from studies.population.rules import calibrate, decision_tree

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_ARMS = {CONTAMINATED: "contaminated models", CONTROL: "controls"}
BY_ITEMS = ("letters", "letters, dose 1", "letters, dose 12", "paraphrased")
BY_DOSE = (
    "letters, dose 1",
    "letters",
    "letters, dose 12",
    "letters, 30 % of items",
    "letters, 10 % of items",
)


def tables_of(results: Results) -> list[Table]:
    """Return every table that the results allow."""
    tables = [
        overview(results),
        controls(results),
        *by_kind(results),
        conditions(results),
        other_lineages(results),
        doses(results, BY_DOSE),
        power_table(power_curves(results, BY_ITEMS)),
        audits(results),
        agreement(results),
        decision_tree(results),
        models(results),
    ]
    return [table for table in tables if table is not None]


def counted(results: Results) -> str:
    """Return how many models and lineages there are."""
    arms = results.scores.drop_duplicates(["lineage", "kind", "arm", "dose"])["arm"]
    counts = arms.value_counts()
    n = {arm: int(counts.get(arm, 0)) for arm in (CLEAN, CONTAMINATED, CONTROL)}
    return (
        f"{results.scores['lineage'].nunique()} clean lineages: {n[CLEAN]} models as released,"
        f" {n[CONTAMINATED]} contaminated in {len(results.kinds)} kinds, {n[CONTROL]} controls."
    )


def headline(results: Results) -> str:
    """Return how many models and lineages there are, and what the calibration found."""
    calibration = calibrate(results)
    calibrated = (
        calibration.sentence()
        if calibration
        else "Rules are not fixed on one half of the lineages and counted on the other: too few."
    )
    return f"{counted(results)} {calibrated}"


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a study's run, or docs/results/population")],
    out: Annotated[Path | None, typer.Option(help="write tables and figures there, too")] = None,
) -> None:
    """Print the tables of a population study as Markdown."""
    results = read_results(folder)
    if out is not None:
        for name, figure in figures_of(results).items():
            figures.save(figure, out / name)
        writers.write_tables(tables_of(results), out, "validation.md", headline(results))
    say_markdown("\n\n".join([headline(results), *map(writers.markdown, tables_of(results))]))


def figures_of(results: Results) -> dict[str, Figure]:
    """Return the figures by name."""
    curves = curves_figure(power_curves(results, BY_ITEMS))
    return {"power": power_figure(results), "power-by-items": curves}


def power_figure(results: Results) -> Figure:
    """Draw the share of models flagged, detectors by kinds, controls below."""
    rules, kinds = results.default_rules, results.kinds
    with figures.settings():
        figure = Figure(figsize=(7.2, 2 + 0.46 * len(kinds)), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for panel, arm in zip(panels, (CONTAMINATED, CONTROL), strict=True):
            values = np.array(
                [[flagged(results.of(rule, arm, kind)).value for rule in rules] for kind in kinds],
                dtype=float,
            )
            panel.imshow(values, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            panel.set_yticks(range(len(kinds)), kinds, fontsize=8)
            panel.set_ylabel(f"{_ARMS[arm]} flagged, %", fontweight="bold")
            for (row, column), value in np.ndenumerate(values):
                if not np.isnan(value):
                    color = "white" if value > 0.6 else "black"
                    text = f"{100 * value:.0f}"
                    panel.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
        panels[0].tick_params(labeltop=True, labelbottom=False, top=True, bottom=False)
        names = [rule.title for rule in rules]
        panels[0].set_xticks(range(len(rules)), names, rotation=40, ha="left", fontsize=8)
        panels[1].tick_params(bottom=False, labelbottom=False)
    return figure


if __name__ == "__main__":
    main(app)
