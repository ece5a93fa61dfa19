"""What judges save people, and what it costs in wrong pairs, where the truth is known.

    python benchmarks/judge_first.py [--run runs/judge-first] [--seconds 12] [--limit N]

Strings the ordinary commands together on `shapes`, whose editor draws four pictures of ten wrong
(``configs/filter/judge-first.yaml``): generate; filter by judges; export the doubtful pairs; import
a person's verdicts on them; filter again. The person is simulated: it repeats the oracle's
verdicts, so it makes no error, and it takes as many seconds a pair as you say. Writes
``judge-first.md`` into the run directory.
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
N_TOLD = 60
Edits = frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """Which edits a procedure keeps alone, which it leaves to people, which it keeps with them."""

    alone: Edits
    doubtful: Edits
    kept: Edits


class Commands:
    """The commands on one run, printed as one would type them."""

    def __init__(self, run: Path, limit: int | None) -> None:
        self.run, self._n_reviewers = run, 0
        self._limit = ["--limit", str(limit)] if limit else []

    def generate(self) -> None:
        self._do("generate", CONFIG, f"run={self.run}", "-q", *self._limit)

    def filter(self, *overrides: str, limit: int | None = None, may_fail: bool = False) -> Edits:
        """Filter, and return the edits that are kept."""
        limits = ["--limit", str(limit)] if limit else self._limit
        words = ("filter", CONFIG, f"run={self.run}", *overrides, "-q", *limits)
        self._do(*words, may_fail=may_fail)
        return frozenset(row["edit_id"] for row in _rows(self.run / "filter" / "kept.csv"))

    def settle(self, judges: list[dict[str, object]], *overrides: str) -> Outcome:
        """Filter, have the simulated person decide what is doubtful, and filter again."""
        self._n_reviewers += 1  # so that no procedure profits from what another has asked
        reviewer = f"simulated reviewer {self._n_reviewers}"
        settings = (
            f"filter.judges={json.dumps(judges)}",
            f"filter.policy.reviewers={json.dumps([reviewer])}",
            *overrides,
        )
        alone = self.filter(*settings)
        doubtful, decided = self.run / "doubtful.csv", self.run / "decided.csv"
        self._do("review", self.run, "--doubtful", "--export", doubtful)
        seen = _decide(doubtful, decided, reviewer)
        self._do("review", self.run, "--import", decided)
        return Outcome(alone, seen, self.filter(*settings))

    def _do(self, *words: str | Path, may_fail: bool = False) -> None:
        print("$ flipbench", shlex.join(map(str, words)), flush=True)
        with contextlib.redirect_stdout(io.StringIO()):
            status = app([*map(str, words)], standalone_mode=False)
        if status and not (may_fail and status == 1):
            raise SystemExit(status)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--run", type=Path, default=Path("runs/judge-first"))
    arguments.add_argument("--seconds", type=float, default=12.0, help="assumed, for each pair")
    arguments.add_argument("--limit", type=int, help="the first N items")
    given = arguments.parse_args()
    commands = Commands(given.run, given.limit)
    commands.generate()
    truth = ('filter.judges=["shapes"]', "filter.policy.people=ignore", "filter.policy.rules=[]")
    good = commands.filter(*truth)
    lists = ("kept.csv", "reasons.csv")
    rows = [row for name in lists for row in _rows(given.run / "filter" / name)]
    categories = {row["edit_id"]: row["category"] for row in rows}
    extras = {edit.id: edit.extra for edit in Run(given.run).read(Edit)}
    faults = {edit_id: extras[edit_id].get("fault", "none") for edit_id in categories}
    tables = [told_and_blind(commands)]
    everything = commands.settle([], "filter.policy.rules=[]")
    found = {"rules": commands.settle([])}
    found |= {f"{model} first": commands.settle([_judge(model, SURE)]) for model in MODELS}
    both = {sure: commands.settle([_judge(m, sure) for m in MODELS]) for sure in (*OTHERS, SURE)}
    found["both first"] = both[SURE]
    tables += [
        procedures(everything, found, good, given.seconds),
        thresholds(both, good, len(faults)),
        what_became("fault", faults, both[SURE]),
        what_became("category", categories, both[SURE]),
    ]
    print(write_tables(tables, given.run, "judge-first.md", "Judges first").read_text())


def procedures(
    everything: Outcome, found: Mapping[str, Outcome], good: Edits, seconds: float
) -> Table:
    n = len(everything.doubtful)
    rows = [("people on everything", *_row(everything.doubtful, everything.kept, good, n, seconds))]
    for name, outcome in found.items():
        alone = outcome.alone or outcome.doubtful  # rules alone have no judge to keep a pair
        rest = "the rest kept unseen" if name == "rules" else "doubtful ones dropped"
        rows.append((f"{name}, {rest}", *_row((), alone, good, n, seconds)))
        people = "people on the rest" if name == "rules" else "people on the doubtful"
        rows.append((f"{name}, {people}", *_row(outcome.doubtful, outcome.kept, good, n, seconds)))
    caption = (
        f"{n} pairs, {len(good)} of them right. Judges are sure from {SURE} on; people (simulated:"
        f" no error) take {seconds:g} s a pair, which is an assumption. Rules come before judges."
    )
    headers = ("procedure", "people see", "hours", "saved", "precision", "recall")
    return _table("procedures", caption, headers, tuple(rows))


def thresholds(both: Mapping[float, Outcome], good: Edits, n: int) -> Table:
    rows = []
    for sure, outcome in sorted(both.items()):
        seen = _rate(len(outcome.doubtful), n)
        rows.append((f"{sure:g}", seen, *_right(outcome.alone, good), *_right(outcome.kept, good)))
    headers = (
        "sure from",
        "people see",
        "precision, doubtful dropped",
        "recall, doubtful dropped",
        "precision, with people",
        "recall, with people",
    )
    caption = "Both judges first, by what counts as sure (share of the options' probability)."
    return _table("thresholds", caption, headers, tuple(rows))


def what_became(what: str, groups: Mapping[str, str], outcome: Outcome) -> Table:
    """Count, by group, what rules and judges make of the pairs before people see any."""
    rows = []
    for group in sorted(set(groups.values())):
        members = {edit_id for edit_id, name in groups.items() if name == group}
        n = len(members)
        kept, doubtful = len(members & outcome.alone), len(members & outcome.doubtful)
        shares = (Rate.wilson(k, n) for k in (kept, n - kept - doubtful, doubtful))
        rows.append((group, *map(str, shares)))
    caption = f"Both judges first, before people: by {what}."
    headers = (what, "kept by judges", "rejected by rules or judges", "left to people")
    return _table(what.replace(" ", "_"), caption, headers, tuple(rows))


def told_and_blind(commands: Commands) -> Table:
    """Have the same two models judge by the prompts for large models, told and blind."""
    judges = [
        {
            "kind": "local",
            "blind": blind,
            "chat": {"model": {"path": model}, "max_tokens": 16},
        }
        for model in MODELS
        for blind in (False, True)
    ]
    commands.filter(f"filter.judges={json.dumps(judges)}", limit=N_TOLD, may_fail=True)
    run = Run(commands.run)
    said = Counter((v.rater, v.decision) for v in run.read(Verdict) if "judge-" in v.rater)
    failed = {f.record_id: f.stage.removeprefix("judge ") for f in run.read(Failure)}
    cut_off = Counter(failed.values())
    rows = []
    for rater in sorted({rater for rater, _ in said} | set(cut_off)):
        counts = [said[rater, decision] for decision in ("keep", "reject", "unsure")]
        rows.append((rater, *map(str, [*counts, cut_off[rater]])))
    headers = ("judge", "keep", "reject", "unsure (no readable answer)", "cut off at 16 tokens")
    caption = f"The same models by the prompts for large models, on the first {N_TOLD} items."
    return _table("told_and_blind", caption, headers, tuple(rows))


def _row(seen: Iterable[str], kept: Edits, good: Edits, n: int, seconds: float) -> tuple[str, ...]:
    n_seen = len(list(seen))
    hours, all_hours = (count * seconds / 3600 for count in (n_seen, n))
    saved = f"{all_hours - hours:.2f}"
    return (_rate(n_seen, n), f"{hours:.2f}", saved, *_right(kept, good))


def _rate(k: int, n: int) -> str:
    return formats.rate(Rate.wilson(k, n))


def _table(key: str, caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts; the first of a row is its header."""
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
