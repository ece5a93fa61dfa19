"""Write the tables of a population study into docs/validation.md, and draw its figure.

    flipbench run configs/validation/population.yaml
    python docs/results/validation_tables.py runs/population

The study's two parquet tables and its list of lineages become docs/results/population/. Without a
run, the page is made again from those; a test checks that nothing changes then.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from docs.results.readme_figures import with_tables
from flipbench.evaluate.population.page import headline, power_figure, tables_of
from flipbench.evaluate.population.results import Results, read_results
from flipbench.reporting import figures, writers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "population"
PAGE = ROOT / "docs" / "validation.md"
FILES = ("scores.parquet", "items.parquet", "lineages.csv")
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


def tables(results: Results) -> dict[str, str]:
    """Return the page's tables by name."""
    made = {table.key: writers.markdown(table).rstrip() for table in tables_of(results)}
    return {"headline": headline(results), **{key: made.get(key, MISSING) for key in KEYS}}


def main() -> None:
    """Copy the results of a run, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="the run directory of a study")
    args = parser.parse_args()
    if args.run:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(args.run / name, RESULTS / name)
    results = read_results(RESULTS)
    figures.save(power_figure(results), ROOT / "docs" / "validation")
    (ROOT / "docs" / "validation.svg").unlink()
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(text, tables(results), "population"), encoding="utf-8")


if __name__ == "__main__":
    main()
