"""Write a population study's tables into docs/validation.md, docs/deciding.md and README.md.

    python -m studies.population configs/validation/population.yaml
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
from flipbench.evaluate.statistics.design_effect import ClusteredRate
from flipbench.reporting import figures, writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from studies.population.other_lineages import references_summary
from studies.population.page import counted, figures_of, headline, tables_of
from studies.population.results import (
    AS_MADE,
    CLEAN,
    CONTAMINATED,
    CONTROL,
    Results,
    Rule,
    flagged,
    read_results,
)
from studies.population.rules import PAIRED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "population"
PAGE = ROOT / "docs" / "validation.md"
DECIDING = ROOT / "docs" / "deciding.md"
README = ROOT / "README.md"
FILES = ("scores.parquet", "items.parquet", "lineages.csv")
SHOWN = {
    Rule("perturbation_gap", "mcnemar"): "answers to original and redrawn images",
    Rule("perturbation_gap", "relative"): "… beside the clean model it was made from",
    Rule("confidence_gap", "label_swap"): "how sure it is of them",
    Rule("option_order", "mcnemar"): "answers with the options in another order",
    Rule("min_k", "min_k_plus_plus"): "the least likely words of a question",
}
"""The rules of README's table, and what each looks at."""
ANSWERS = ("letters", "answer texts")
MISSING = "These results have too few lineages, or too few kinds, for this table."
KEYS = (
    "overview",
    "controls",
    "power",
    "alarms",
    "auroc",
    "conditions",
    "other-lineages",
    "doses",
    "power-by-items",
    "audits",
    "agreement",
    "decision-tree",
    "lineages",
)


def summary(results: Results) -> Table:
    """Return README's table: what a few rules catch of models trained on the answers."""
    rows = []
    for rule, looks_at in SHOWN.items():
        dirty = results.of(rule, CONTAMINATED)
        caught = flagged(dirty[dirty["shows"].isin(ANSWERS)])
        cells = [Cell(looks_at), rate_cell(caught), rate_cell(_alarms(results, rule, AS_MADE))]
        rows.append(Row(rule.title, (*cells, _worst(results, rule))))
    columns = (
        Column("looks at", numeric=False),
        Column("caught, trained on the answers, %"),
        Column("clean models flagged, %"),
        Column("… in the worst condition, %"),
    )
    return Table("summary", "", "detector", columns, (("", tuple(rows)),))


def _alarms(results: Results, rule: Rule, condition: str) -> ClusteredRate:
    arms = [results.of(rule, arm, condition=condition) for arm in (CLEAN, CONTROL)]
    return flagged(pd.concat(arms), exact=True)


def _worst(results: Results, rule: Rule) -> Cell:
    """Return the false alarms in the condition that has most."""
    conditions = [str(name) for name in results.scores["condition"].unique() if name != AS_MADE]
    rates = [_alarms(results, rule, condition) for condition in conditions]
    rates = [rate for rate in rates if rate.value is not None]
    if rule.detector not in PAIRED:
        return Cell("the same")
    if not rates:
        return Cell("not measured")
    return rate_cell(max(rates, key=lambda rate: rate.value or 0))


def page_tables(results: Results) -> dict[str, str]:
    """Return the tables of docs/validation.md by name."""
    made = {table.key: writers.markdown(table).rstrip() for table in tables_of(results)}
    return {"headline": headline(results), **{key: made.get(key, MISSING) for key in KEYS}}


def deciding_tables(results: Results) -> dict[str, str]:
    """Return the table of docs/deciding.md by name."""
    made = references_summary(results)
    return {"references": writers.markdown(made).rstrip() if made else MISSING}


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
    pages = {PAGE: page_tables, DECIDING: deciding_tables, README: readme_tables}
    for page, tables in pages.items():
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text, tables(results), "population"), encoding="utf-8")


if __name__ == "__main__":
    main()
