"""Write the tables of a population study into docs/validation.md and README.md; draw its figure.

    flipbench run configs/validation/population.yaml
    python -m docs.results.validation_tables runs/population

The study's two parquet tables and its list of lineages become docs/results/population/. Without a
run, the pages are made again from those; a test checks that nothing changes then.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pandas as pd

from docs.results.demo_tables import table_rows, with_tables
from flipbench.evaluate.population.page import counted, figures_of, headline, tables_of
from flipbench.evaluate.population.results import (
    CLEAN,
    CONTAMINATED,
    CONTROL,
    Results,
    flagged,
    read_results,
)
from flipbench.reporting import figures, writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "population"
PAGE = ROOT / "docs" / "validation.md"
README = ROOT / "README.md"
FILES = ("scores.parquet", "items.parquet", "lineages.csv")
LOOKS_AT = {
    "perturbation_gap": "answers to original and redrawn images",
    "confidence_gap": "how sure it is of them",
    "option_order": "answers with the options in another order",
    "loss": "the likelihood of the right answer to both",
    "min_k": "the least likely words of a question",
}
"""The detectors of README's table, and what each looks at."""
MISSING = "These results have too few lineages, or too few kinds, for this table."
KEYS = (
    "overview",
    "controls",
    "power",
    "alarms",
    "auroc",
    "conditions",
    "doses",
    "power-by-items",
    "audits",
    "agreement",
    "decision-tree",
    "lineages",
)


def summary(results: Results) -> Table:
    """Return README's table: a few detectors by their default rules."""
    of = {rule.detector: rule for rule in results.default_rules}
    rows = []
    for detector, what in LOOKS_AT.items():
        rule = of[detector]
        clean = pd.concat([results.of(rule, arm) for arm in (CLEAN, CONTROL)])
        rates = (
            flagged(results.of(rule, CONTAMINATED, "letters")),
            flagged(results.of(rule, CONTAMINATED)),
            flagged(clean, exact=True),
        )
        rows.append(Row(rule.title, (Cell(what), *map(rate_cell, rates))))
    columns = (
        Column("looks at", numeric=False),
        Column("caught, trained on the answers, %"),
        Column("caught, all kinds of training, %"),
        Column("clean models flagged, %"),
    )
    return Table("summary", "", "detector", columns, (("", tuple(rows)),))


def page_tables(results: Results) -> dict[str, str]:
    """Return the tables of docs/validation.md by name."""
    made = {table.key: writers.markdown(table).rstrip() for table in tables_of(results)}
    return {"headline": headline(results), **{key: made.get(key, MISSING) for key in KEYS}}


def readme_tables(results: Results) -> dict[str, str]:
    """Return the table of README.md by name, below how many models there are."""
    return {"summary": f"{counted(results)}\n\n{table_rows(summary(results))}"}


def main() -> None:
    """Copy the results of a run, if one is given, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="the run directory of a study")
    args = parser.parse_args()
    if args.run:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(args.run / name, RESULTS / name)
    results = read_results(RESULTS)
    for name, figure in figures_of(results).items():
        figures.save(figure, ROOT / "docs" / f"validation-{name}")
        (ROOT / "docs" / f"validation-{name}.svg").unlink()
    for page, made in ((PAGE, page_tables(results)), (README, readme_tables(results))):
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text, made, "population"), encoding="utf-8")


if __name__ == "__main__":
    main()
