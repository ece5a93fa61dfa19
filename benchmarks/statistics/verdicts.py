"""How often `fb.gap` calls clean models contaminated, and how often it catches contaminated ones.

    python -m benchmarks.statistics.verdicts --label after --runs 40   # a quick look
    python -m benchmarks.statistics.verdicts --label after             # 400 runs of each cell
    python -m benchmarks.statistics.verdicts --table                   # only docs/statistics.md

Each run draws items and a model's answers (`benchmarks/statistics/simulated_answers.py`), writes
them as result files, and asks `fb.gap`, as a user does. A label names a state of the code; under
every label the same runs have the same answers. Finished runs are kept in
``runs/verdicts/LABEL.jsonl``, so that the same command goes on after an interruption; the counts
are written to ``docs/results/verdicts/LABEL.csv``, and the tables to docs/statistics.md.
"""

from __future__ import annotations

import argparse
import inspect
import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

import flipbench as fb
from benchmarks.statistics.simulated_answers import answer, draw_items
from benchmarks.statistics.verdict_scenarios import Question, Scenario, in_files, scenarios
from docs.results.demo_tables import with_tables
from flipbench.core.errors import FlipbenchError
from flipbench.core.rates import wilson_interval

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs" / "verdicts"
COUNTS = ROOT / "docs" / "results" / "verdicts"
PAGE = ROOT / "docs" / "statistics.md"
LABELS = ("before", "after")
OUTCOMES = ("contaminated", "not_detected", "inconclusive", "refused")
MAX_ALARMS = 0.06
"""What the share of false alarms of a test at .05 may be in so many runs."""
POWER = ("contaminated", "30 % memorised, exchangeable pairs", 400)
BATCH = 40
"""Runs of one cell before the next one has its turn, so that all have some early."""


@dataclass(frozen=True)
class Cell:
    """A scenario with a number of items."""

    scenario: Scenario
    n: int

    @property
    def key(self) -> str:
        """Its name in files."""
        kind = "contaminated" if self.scenario.contaminated else "clean"
        return f"{kind} | {self.scenario.name} | {self.n}"

    def n_runs(self, least: int) -> int:
        """Return the number of runs: a multiple of the answers to take turns among."""
        n_asks = len(self.scenario.asks)
        return -(-least // n_asks) * n_asks

    def outcome(self, run: int, seed: int) -> str:
        """Draw the answers of one run and return the verdict on them, one of `OUTCOMES`."""
        rng = np.random.default_rng([seed, zlib.crc32(self.key.encode()), run])
        asks = self.scenario.asks
        with tempfile.TemporaryDirectory() as folder:
            question = asks[run % len(asks)](rng, self.n, Path(folder))
            try:
                return verdict_of(question)
            except FlipbenchError:
                return "refused"


def all_cells() -> list[Cell]:
    """Return the cells of all scenarios, clean ones first."""
    return [Cell(scenario, n) for scenario in scenarios() for n in scenario.sizes]


def verdict_of(question: Question) -> str:
    """Ask `fb.gap`: "contaminated" as soon as one look is, else the last look's verdict."""
    verdict = ""
    for n_items in question.looks or (None,):
        settings: dict[str, Any] = {"judged_by": "the simulation"}
        known = inspect.signature(fb.gap).parameters
        if n_items is not None:
            settings["keep"] = [str(at) for at in range(n_items)]
            settings |= {"sequential": True} if "sequential" in known else {}
        if question.exchangeable and "exchangeable" in known:
            settings["exchangeable"] = True
        verdict = _gap(question, settings)
        if verdict == "contaminated":
            break
    return verdict


def _gap(question: Question, settings: dict[str, Any]) -> str:
    """Return the verdict.

    Where `fb.gap` takes no more than one reference, that with the weakest evidence decides, as it
    did in `flipbench detect`.
    """
    references = question.references
    if len(references) > 1 and not takes_several_references():
        results = [fb.gap(*question.sides, reference=one, **settings) for one in references]
        return str(max(results, key=lambda result: result.content.leading.p_value or 0).verdict)
    if references:
        settings["reference"] = list(references) if len(references) > 1 else references[0]
    return str(fb.gap(*question.sides, **settings).verdict)


@cache
def takes_several_references() -> bool:
    """Return whether `fb.gap` compares with a list of references."""
    rng = np.random.default_rng(0)
    items = draw_items(rng, 40)
    model, *panel = (answer(rng, items, 2.0) for _ in range(4))
    with tempfile.TemporaryDirectory() as folder:
        question = in_files(Path(folder), items, model, panel)
        try:
            fb.gap(*question.sides, reference=list(question.references), judged_by="x")  # type: ignore[arg-type]
        except (FlipbenchError, TypeError, ValueError, AttributeError):
            return False
    return True


def pending(
    cells: Sequence[Cell], done: set[tuple[str, int]], least: int
) -> Iterator[tuple[Cell, int]]:
    """Yield the runs that are left, a batch of each cell in turn."""
    for start in range(0, max(cell.n_runs(least) for cell in cells), BATCH):
        for cell in cells:
            for run in range(start, min(start + BATCH, cell.n_runs(least))):
                if (cell.key, run) not in done:
                    yield cell, run


def run_all(cells: Sequence[Cell], label: str, least: int, seed: int) -> dict[str, Counter[str]]:
    """Do the runs that are left; return the outcomes of all by cell."""
    path = RUNS / f"{label}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Counter[str]] = {}
    done: set[tuple[str, int]] = set()
    for line in path.read_text().splitlines() if path.exists() else []:
        stored = json.loads(line)
        if stored["seed"] == seed:
            done.add((stored["cell"], stored["run"]))
            outcomes.setdefault(stored["cell"], Counter())[stored["outcome"]] += 1
    left = list(pending(cells, done, least))
    with path.open("a", encoding="utf-8") as file:
        for cell, run in tqdm(left, desc=label, unit="run", mininterval=5):
            outcome = cell.outcome(run, seed)
            outcomes.setdefault(cell.key, Counter())[outcome] += 1
            stored = {"cell": cell.key, "run": run, "seed": seed, "outcome": outcome}
            file.write(json.dumps(stored) + "\n")
            file.flush()
    return outcomes


def write_counts(outcomes: dict[str, Counter[str]], path: Path) -> None:
    """Write a row for each cell that has runs, in the order of the scenarios."""
    rows = []
    for cell in all_cells():
        if counts := outcomes.get(cell.key):
            truth, name, n = cell.key.split(" | ")
            row = {"truth": truth, "scenario": name, "n": int(n), "runs": counts.total()}
            rows.append(row | {outcome: counts[outcome] for outcome in OUTCOMES})
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def read_counts() -> dict[str, pd.DataFrame]:
    """Return the counts by label, with truth, scenario and n as index."""
    return {
        label: pd.read_csv(COUNTS / f"{label}.csv").set_index(["truth", "scenario", "n"])
        for label in LABELS
        if (COUNTS / f"{label}.csv").exists()
    }


def page_tables(counts: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Return a sentence for each label and the two tables of docs/statistics.md by name."""
    tables = {"verdicts": "\n".join(f"* {summary(label, rows)}" for label, rows in counts.items())}
    for truth in ("clean", "contaminated"):
        of_truth = {
            label: rows[rows.index.get_level_values("truth") == truth].droplevel("truth")
            for label, rows in counts.items()
        }
        tables[f"verdicts-{truth}"] = _table(of_truth)
    return tables


def summary(label: str, rows: pd.DataFrame) -> str:
    """Return how many cells raise too many false alarms, and what is caught or missed."""
    shares = rows["contaminated"] / rows["runs"]
    truth = rows.index.get_level_values("truth")
    clean = shares[truth == "clean"]
    text = (
        f"{label.capitalize()}: {(clean > MAX_ALARMS).sum()} of {len(clean)} cells of clean models"
        f" are called contaminated in more than {100 * MAX_ALARMS:.0f} % of the runs"
    )
    if POWER in shares:
        text += f"; with 30 % of 400 exchangeable pairs memorised, {100 * shares[POWER]:.1f} % are"
    published = rows[rows.index.get_level_values("scenario").str.contains("published")]
    if len(published):
        missed = (published["runs"] - published["contaminated"]).tolist()
        listed = ", ".join(
            f"{k}/{n}" for k, n in zip(missed, published["runs"].tolist(), strict=True)
        )
        text += f"; of the published cells {listed} are missed"
    return f"{text}."


def _table(counts: dict[str, pd.DataFrame]) -> str:
    header = ["scenario", "pairs"]
    for label in counts:
        header += [f"contaminated, {label}, %", f"inconclusive, {label}, %"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for scenario, n in dict.fromkeys(key for rows in counts.values() for key in rows.index):
        line = [str(scenario), f"{n:,}" if n else "–"]
        for rows in counts.values():
            line += _cells(rows.loc[scenario, n]) if (scenario, n) in rows.index else ["–", "–"]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: pd.Series) -> list[str]:
    """Return the share called contaminated with its interval, and the share without a verdict."""
    k, n = int(row["contaminated"]), int(row["runs"])
    between = wilson_interval(k, n)
    withheld = int(row["inconclusive"] + row["refused"])
    return [
        f"{100 * k / n:.1f} ({k}/{n}) [{100 * between.low:.1f}, {100 * between.high:.1f}]",
        f"{100 * withheld / n:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--label", choices=LABELS, default="after", help="the state of the code")
    parser.add_argument("--runs", type=int, default=400, help="of each cell")
    parser.add_argument("--scenario", default="", help="only those whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    if not options.table:
        cells = [cell for cell in all_cells() if options.scenario in cell.scenario.name]
        outcomes = run_all(cells, options.label, options.runs, options.seed)
        write_counts(outcomes, COUNTS / f"{options.label}.csv")
    counts = read_counts()
    print("\n".join(summary(label, rows) for label, rows in counts.items()))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(text, page_tables(counts), "verdicts"), encoding="utf-8")


if __name__ == "__main__":
    main()
