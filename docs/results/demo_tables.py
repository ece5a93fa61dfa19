"""Write the demo's figures into docs/demo.md, and name sentences on any page that disagree.

Which figures the sentences give is in docs/claims.yaml. README's table is the population's, made by
docs/results/validation_tables.py.

    flipbench demo
    python docs/results/demo_tables.py runs/demo

A run's ``report/results.json`` becomes docs/results/demo.json, and its picture of the detectors
docs/detectors.png. Without a run, the pages are printed again from docs/results/demo.json; tests
check that nothing changes then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from flipbench.evaluate.published.claims import check_claims, claims_table, read_claims
from flipbench.evaluate.report.results import Results, read_results
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import gap_table
from flipbench.evaluate.report.titles import families
from flipbench.reporting import writers
from flipbench.reporting.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "demo.json"
DEMO = ROOT / "docs" / "demo.md"
CLAIMS = ROOT / "docs" / "claims.yaml"


def tables(results: Results) -> dict[str, str]:
    """Return the page's tables by name: all detectors, and the gaps of the first family."""
    (models, *_) = families(results.models).values()
    return {
        "detectors": "\n\n".join(map(table_rows, results.tables)),
        "gap": table_rows(gap_table(models, score_frame(results.gaps, models))),
    }


def table_rows(table: Table) -> str:
    """Return a table as Markdown, without its caption."""
    return writers.markdown(table).split("\n\n")[0]


def with_tables(text: str, rows_by_name: Mapping[str, str], source: str = "demo.json") -> str:
    """Return a text with the tables between its marks replaced.

    Raises
    ------
    ValueError
        If a table has no place.
    """
    for name, rows in rows_by_name.items():
        start, end = f"<!-- {name} of docs/results/{source} -->\n", "\n<!-- end -->"
        if text.count(start) != 1:
            raise ValueError(f"{text.count(start)} places for the table {name!r}: {start.strip()}")
        before, _, rest = text.partition(start)
        text = before + start + rows + end + rest.partition(end)[2]
    return text


def main() -> int:
    """Write the tables; return 1 if a sentence must be changed by hand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="a finished run of the demo")
    args = parser.parse_args()
    if args.run:
        report = args.run / "report"
        RESULTS.parent.mkdir(exist_ok=True)
        shutil.copyfile(report / "results.json", RESULTS)
        shutil.copyfile(report / "detectors.png", ROOT / "docs" / "detectors.png")
    results = read_results(RESULTS)
    text = DEMO.read_text(encoding="utf-8")
    DEMO.write_text(with_tables(text, tables(results)), encoding="utf-8")
    wrong = [one for one in check_claims(read_claims(CLAIMS), CLAIMS.parent) if not one.as_known]
    if wrong:
        print("Change these sentences by hand:", writers.markdown(claims_table(wrong)), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
