"""Write the demo's figures into README.md and docs/demo.md, and name sentences that disagree.

Which figures the sentences give is in docs/claims.yaml.

    flipbench demo
    python docs/results/readme_figures.py runs/demo

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
from flipbench.evaluate.report.tables import families, gap_table
from flipbench.reporting import writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "demo.json"
README = ROOT / "README.md"
DEMO = ROOT / "docs" / "demo.md"
CLAIMS = ROOT / "docs" / "claims.yaml"


SUMMARY = (
    ("perturbation_gap", "mcnemar", "Perturbation gap, exact test", "original and redrawn images"),
    ("perturbation_gap", "sign", "Perturbation gap, sign rule", "original and redrawn images"),
    ("circular_eval", "relative", "CircularEval", "the options in every order"),
    ("guided_prompting", "paired", "Guided prompting", "a recital of the rest of a question"),
    ("min_k", "min_k_plus_plus", "Min-K %++", "the likelihood of each word"),
)
"""Detector, rule, how the README calls it, and what it looks at."""


def tables(results: Results) -> dict[Path, dict[str, str]]:
    """Return the tables of each page by name.

    README.md has a few detectors; docs/demo.md has all, and the gaps of the first family.
    """
    (models, *_) = families(results.models).values()
    return {
        README: {"summary": _rows(_summary(results))},
        DEMO: {
            "detectors": "\n\n".join(map(_rows, results.tables)),
            "gap": _rows(gap_table(models, results.gaps)),
        },
    }


def _summary(results: Results) -> Table:
    found = {(one.detector, one.rule): one for one in results.detectors}
    rows = []
    for detector, rule, name, asks in SUMMARY:
        one = found[detector, rule]
        rates = (rate_cell(one.detected), rate_cell(one.false_alarms))
        rows.append(Row(name, (Cell(asks), *rates)))
    headers = (
        Column("looks at", numeric=False),
        Column("contaminated models caught, %"),
        Column("clean models flagged, %"),
    )
    return Table("summary", "", "detector", headers, (("", tuple(rows)),))


def _rows(table: Table) -> str:
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
    for page, rows_by_name in tables(results).items():
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text, rows_by_name), encoding="utf-8")
    wrong = [one for one in check_claims(read_claims(CLAIMS), CLAIMS.parent) if not one.as_known]
    if wrong:
        print("Change these sentences by hand:", writers.markdown(claims_table(wrong)), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
