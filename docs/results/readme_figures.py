"""Write the demo's figures into the README, and name the sentences that no longer agree with them.

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

from flipbench.evaluate.report.results import Results, read_results
from flipbench.evaluate.report.tables import families, gap_table
from flipbench.reporting import writers
from flipbench.reporting.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "demo.json"
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
TEXTS = ("codec", "guided_prompting", "ngram_accuracy", "shared_likelihood")
"""Detectors that compare the likelihoods of whole texts, or ask a model to recite."""


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


def sentences(results: Results) -> dict[Path, list[str]]:
    """Return the words with which each page gives the figures outside its tables."""
    n_bad = sum(model.contaminated for model in results.models)
    n_clean = sum(model.clean for model in results.models)
    signs = [gap for gap in results.gaps if gap.rule == "sign" and gap.verdict == "contaminated"]
    accused = {gap.model_fingerprint for gap in signs}
    caught = sum(model.contaminated for model in results.models if model.fingerprint in accused)
    flagged = sum(model.clean for model in results.models if model.fingerprint in accused)
    perfect = [
        d.title
        for d in results.detectors
        if (d.detected.k, d.false_alarms.k, d.false_alarms.n) == (n_bad, 0, n_clean)
    ]
    first, last = ", ".join(perfect[:-1]), "".join(perfect[-1:])
    areas = [d.auroc for d in results.detectors if d.detector in TEXTS and d.auroc is not None]
    asked, pairs = f"{results.n_answers:,} answers", results.n_pairs
    return {
        README: [
            f"a benchmark of {pairs} questions",
            f"all {len(results.models)} checkpoints",
            f"the {results.n_detectors} detectors need ({asked})",
            f"on {n_bad} contaminated and {n_clean} clean checkpoints",
            f"all {results.n_rules} rules are in",
            f"{first} and {last} catch all {n_bad} and flag none of {n_clean}",
            f"its sign alone, catches {caught} of {n_bad} and flags {flagged} of {n_clean}",
            f"(AUROC {min(areas):.2f} to {max(areas):.2f})",
        ],
        PERFORMANCE: [
            f"{results.n_detectors} detectors, {pairs} pairs, {len(results.models)} models, {asked}"
        ],
    }


def missing(results: Results) -> list[str]:
    """Return the expected words that a page lacks."""
    return [
        f"{page.name}: {words}"
        for page, expected in sentences(results).items()
        for words in expected
        if words not in " ".join(page.read_text(encoding="utf-8").split())
    ]


def main() -> int:
    """Write the tables; return 1 if sentences must be changed by hand."""
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
    if words := missing(results):
        print("These words are not on the pages; change the sentences:", *words, sep="\n  ")
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main())
