"""Write the demo's figures into the README, and name the sentences that do not agree with them.

Which figures the sentences give is in docs/claims.yaml.

    flipbench demo
    python docs/results/readme_figures.py runs/demo

A run's ``report/results.json`` becomes docs/results/demo.json, and its picture of the detectors
docs/detectors.png. Without a run, the README is printed again from docs/results/demo.json; tests
check that nothing changes then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from flipbench.evaluate.published.claims import check_claims, claims_table, read_claims
from flipbench.evaluate.report.results import Results, read_results
from flipbench.evaluate.report.tables import families, gap_table
from flipbench.reporting import writers
from flipbench.reporting.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "demo.json"
README = ROOT / "README.md"
CLAIMS = ROOT / "docs" / "claims.yaml"


def tables(results: Results) -> dict[str, str]:
    """Return the README's tables by name: all detectors, and the gaps of the first family."""
    (models, *_) = families(results.models).values()
    return {
        "detectors": "\n\n".join(map(_rows, results.tables)),
        "gap": _rows(gap_table(models, results.gaps)),
    }


def _rows(table: Table) -> str:
    return writers.markdown(table).split("\n\n")[0]


def with_tables(text: str, results: Results) -> str:
    """Return a text with the tables between its marks replaced.

    Raises
    ------
    ValueError
        If a table has no place.
    """
    for name, rows in tables(results).items():
        start, end = f"<!-- {name} of docs/results/demo.json -->\n", "\n<!-- end -->"
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
    README.write_text(with_tables(README.read_text(encoding="utf-8"), results), encoding="utf-8")
    wrong = [one for one in check_claims(read_claims(CLAIMS), CLAIMS.parent) if not one.as_known]
    if wrong:
        print("Change these sentences by hand:", writers.markdown(claims_table(wrong)), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
