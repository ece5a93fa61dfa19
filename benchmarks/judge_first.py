"""How much reviewing time judges save, and how many wrong pairs they let through.

    python benchmarks/judge_first.py [--run runs/judge-first] [--seconds 12] [--limit N]

Runs the ordinary commands on `shapes`, whose editor makes four of ten images wrong
(``configs/filter/judge-first.yaml``): generate; filter with judges; export the doubtful pairs;
import a person's verdicts on them; filter again. The person is simulated: they repeat the oracle's
verdicts, so they make no errors, and take ``--seconds`` per pair. Writes ``judge-first.md`` into
the run directory.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.cli import app
from flipbench.core.rates import Rate
from flipbench.core.records import Edit, Failure, Verdict
from flipbench.core.run import Run
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import write_tables

CONFIG = Path(__file__).parents[1] / "configs" / "filter" / "judge-first.yaml"
ORACLE = "shapes oracle"
MODELS = ("shapes:llava", "shapes:qwen2_vl")
SURE = 0.9  # the configuration's
OTHERS = (0.0, 0.5, 0.8, 0.99)
N_LARGE_PROMPTS = 60
Edits = frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """The edits that a procedure keeps before review, leaves to people, and keeps after review."""

    before: Edits
    doubtful: Edits
    kept: Edits


class Commands:
    """The commands on one run, printed as typed in a shell."""

    def __init__(self, run: Path, limit: int | None) -> None:
        self.run, self._n_reviewers = run, 0
        self._limit = ["--limit", str(limit)] if limit else []

    def generate(self) -> None:
        self._do("generate", CONFIG, f"run={self.run}", "-q", *self._limit)

    def filter(self, *overrides: str, limit: int | None = None, may_fail: bool = False) -> Edits:
        """Filter, and return the edits that are kept."""
        limits = ["--limit", str(limit)] if limit else self._limit
        arguments = ("filter", CONFIG, f"run={self.run}", *overrides, "-q", *limits)
        self._do(*arguments, may_fail=may_fail)
        return frozenset(row["edit_id"] for row in _rows(self.run / "filter" / "kept.csv"))

    def settle(self, judges: list[dict[str, object]], *overrides: str) -> Outcome:
        """Filter, have the simulated person decide the doubtful pairs, and filter again."""
        self._n_reviewers += 1  # so that no procedure reuses another's verdicts
        reviewer = f"simulated reviewer {self._n_reviewers}"
        settings = (
            f"filter.judges={json.dumps(judges)}",
            f"filter.policy.reviewers={json.dumps([reviewer])}",
            *overrides,
        )
        before = self.filter(*settings)
        doubtful, decided = self.run / "doubtful.csv", self.run / "decided.csv"
        self._do("review", self.run, "--doubtful", "--export", doubtful)
        reviewed = _decide(doubtful, decided, reviewer)
        self._do("review", self.run, "--import", decided)
        return Outcome(before, reviewed, self.filter(*settings))

    def _do(self, *arguments: str | Path, may_fail: bool = False) -> None:
        print("$ flipbench", shlex.join(map(str, arguments)), flush=True)
        with contextlib.redirect_stdout(io.StringIO()):
            status = app([*map(str, arguments)], standalone_mode=False)
        if status and not (may_fail and status == 1):
            raise SystemExit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/judge-first"))
    parser.add_argument("--seconds", type=float, default=12.0, help="assumed, per pair")
    parser.add_argument("--limit", type=int, help="use only the first N items")
    args = parser.parse_args()
    commands = Commands(args.run, args.limit)
    commands.generate()
    truth = ('filter.judges=["shapes"]', "filter.policy.people=ignore", "filter.policy.rules=[]")
    good = commands.filter(*truth)
    lists = ("kept.csv", "reasons.csv")
    rows = [row for name in lists for row in _rows(args.run / "filter" / name)]
    categories = {row["edit_id"]: row["category"] for row in rows}
    extras = {edit.id: edit.extra for edit in Run(args.run).read(Edit)}
    faults = {edit_id: extras[edit_id].get("fault", "none") for edit_id in categories}
    tables = [informed_and_blind(commands)]
    everything = commands.settle([], "filter.policy.rules=[]")
    outcomes = {"rules": commands.settle([])}
    outcomes |= {f"{model} first": commands.settle([_judge(model, SURE)]) for model in MODELS}
    both = {sure: commands.settle([_judge(m, sure) for m in MODELS]) for sure in (*OTHERS, SURE)}
    outcomes["both first"] = both[SURE]
    tables += [
        procedures(everything, outcomes, good, args.seconds),
        thresholds(both, good, len(faults)),
        decisions_by("fault", faults, both[SURE]),
        decisions_by("category", categories, both[SURE]),
    ]
    print(write_tables(tables, args.run, "judge-first.md", "Judges first").read_text())


def procedures(
    everything: Outcome, outcomes: Mapping[str, Outcome], good: Edits, seconds: float
) -> Table:
    n = len(everything.doubtful)
    rows = [("people on everything", *_row(everything.doubtful, everything.kept, good, n, seconds))]
    for name, outcome in outcomes.items():
        kept = outcome.before or outcome.doubtful  # without judges nothing is kept before review
        rest = "the rest kept without review" if name == "rules" else "doubtful ones dropped"
        rows.append((f"{name}, {rest}", *_row((), kept, good, n, seconds)))
        people = "people on the rest" if name == "rules" else "people on the doubtful"
        rows.append((f"{name}, {people}", *_row(outcome.doubtful, outcome.kept, good, n, seconds)))
    caption = (
        f"{n} pairs, {len(good)} of them right. Judges decide if their probability is at least"
        f" {SURE}; people (simulated, without errors) are assumed to take {seconds:g} s per pair."
        " Rules come before judges."
    )
    headers = ("procedure", "people see", "hours", "saved", "precision", "recall")
    return _table("procedures", caption, headers, tuple(rows))


def thresholds(both: Mapping[float, Outcome], good: Edits, n: int) -> Table:
    rows = []
    for sure, outcome in sorted(both.items()):
        reviewed = _rate(len(outcome.doubtful), n)
        before, after = _right(outcome.before, good), _right(outcome.kept, good)
        rows.append((f"{sure:g}", reviewed, *before, *after))
    headers = (
        "sure from",
        "people see",
        "precision, doubtful dropped",
        "recall, doubtful dropped",
        "precision, with people",
        "recall, with people",
    )
    caption = "Both judges first, by the least probability at which a judge decides."
    return _table("thresholds", caption, headers, tuple(rows))


def decisions_by(what: str, groups: Mapping[str, str], outcome: Outcome) -> Table:
    """Count the decisions of rules and judges by group, before review."""
    rows = []
    for group in sorted(set(groups.values())):
        members = {edit_id for edit_id, name in groups.items() if name == group}
        n = len(members)
        kept, doubtful = len(members & outcome.before), len(members & outcome.doubtful)
        shares = (Rate.wilson(k, n) for k in (kept, n - kept - doubtful, doubtful))
        rows.append((group, *map(str, shares)))
    caption = f"Both judges first, before people: by {what}."
    headers = (what, "kept by judges", "rejected by rules or judges", "left to people")
    return _table(what.replace(" ", "_"), caption, headers, tuple(rows))


def informed_and_blind(commands: Commands) -> Table:
    """Have both models judge with the prompts for large models, informed and blind."""
    judges = [
        {
            "kind": "local",
            "blind": blind,
            "chat": {"model": {"path": model}, "max_tokens": 16},
        }
        for model in MODELS
        for blind in (False, True)
    ]
    commands.filter(f"filter.judges={json.dumps(judges)}", limit=N_LARGE_PROMPTS, may_fail=True)
    run = Run(commands.run)
    decisions = Counter((v.rater, v.decision) for v in run.read(Verdict) if "judge-" in v.rater)
    failed = {f.record_id: f.stage.removeprefix("judge ") for f in run.read(Failure)}
    cut_off = Counter(failed.values())
    rows = []
    for rater in sorted({rater for rater, _ in decisions} | set(cut_off)):
        counts = [decisions[rater, decision] for decision in ("keep", "reject", "unsure")]
        rows.append((rater, *map(str, [*counts, cut_off[rater]])))
    headers = ("judge", "keep", "reject", "unsure (no readable answer)", "cut off at 16 tokens")
    caption = f"Both models, prompts for large models, the first {N_LARGE_PROMPTS} items."
    return _table("told_and_blind", caption, headers, tuple(rows))


def _row(
    reviewed: Iterable[str], kept: Edits, good: Edits, n: int, seconds: float
) -> tuple[str, ...]:
    n_reviewed = len(list(reviewed))
    hours, saved = (count * seconds / 3600 for count in (n_reviewed, n - n_reviewed))
    return (_rate(n_reviewed, n), f"{hours:.2f}", f"{saved:.2f}", *_right(kept, good))


def _rate(k: int, n: int) -> str:
    return formats.rate(Rate.wilson(k, n))


def _table(key: str, caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts; the first cell of a row is its header."""
    columns = tuple(map(Column, headers[1:]))
    body = tuple(Row(first, tuple(map(Cell, rest))) for first, *rest in rows)
    return Table(key, caption, headers[0], columns, (("", body),))


def _right(kept: Edits, good: Edits) -> tuple[str, str]:
    """Return precision and recall."""
    n_right = len(kept & good)
    return formats.rate(Rate.wilson(n_right, len(kept))), formats.rate(
        Rate.wilson(n_right, len(good))
    )


def _judge(model: str, sure: float) -> dict[str, object]:
    return {"kind": "vlm", "model": {"path": model}, "sure": sure}


def _decide(doubtful: Path, decided: Path, reviewer: str) -> Edits:
    """Write the oracle's verdicts on the exported pairs as ``reviewer``'s; return the edits."""
    columns = ("edit_id", "image_sha256", "rater", "decision")
    rows = [row | {"rater": reviewer} for row in _rows(doubtful) if row["rater"] == ORACLE]
    with decided.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return frozenset(row["edit_id"] for row in rows)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
