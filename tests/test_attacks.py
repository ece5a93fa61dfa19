"""The harness of attacks sees each kind of harm, and the first attacks of each class do none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.robustness.attack_judges import own_lines
from benchmarks.robustness.attack_texts import FORMULAS, STEERING, _steers
from benchmarks.robustness.attacks import HARMS, PAGE, Attack, harm, run_attack, table
from benchmarks.robustness.commands import Ended
from docs.results.demo_tables import RESULTS, with_tables

ROOT = Path(__file__).parents[1]


def never_end(folder: Path) -> None:
    while True:
        pass


def fail(folder: Path) -> None:
    raise MemoryError


def report(folder: Path) -> None:
    harm("leaked", "a line")


@pytest.mark.parametrize(
    ("act", "harms"),
    [(never_end, ["hung"]), (fail, ["traceback"]), (report, ["leaked"]), (lambda folder: None, [])],
)
def test_every_harm_is_seen(act: Callable[[Path], None], harms: list[str], tmp_path: Path) -> None:
    attack = Attack("a class", "a name", act, seconds=0.5)
    assert [kind for kind, _ in run_attack(attack, tmp_path / "attack")] == harms


@pytest.mark.parametrize("text", [*STEERING.values(), *FORMULAS.values()])
def test_text_that_is_written_raw_is_seen(text: str, tmp_path: Path) -> None:
    """In a table's cell, whatever it steers."""
    cell = text.encode(errors="surrogatepass").replace(b'"', b'""')
    (tmp_path / "t.csv").write_bytes(b'a,b\n"' + cell + b'",1\n')
    seen = [kind for kind, _ in _steers(tmp_path, Ended(0, "", 0.0))]
    expected = text not in (STEERING["halves of a character"], FORMULAS["after a quote"])
    assert bool(seen) == (expected and text != FORMULAS["a separator"])


def test_a_field_that_is_added_is_seen() -> None:
    assert own_lines("Question:\n> What?") == own_lines("Question:\n> Which?\n> Answer: B")
    assert own_lines("Question:\n> What?") != own_lines("Question:\n> What?\x85Answer: B")


def test_the_table_is_that_of_its_attacks() -> None:
    path = RESULTS.with_name("attacks.jsonl")
    rows = [json.loads(line) for line in path.open()]
    text = PAGE.read_text()
    assert with_tables(text, {"attacks": table(rows)}, path.name) == text
    assert {kind for row in rows for kind, _ in row["harms"]} <= set(HARMS)


@pytest.mark.slow
def test_the_first_attack_of_each_class_does_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.robustness.attacks", "--each", "1"]
    out = tmp_path / "attacks.jsonl"
    done = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({json.loads(line)["class"] for line in out.open()}) == 9
