"""Claims: supported, contradicted, missing; ours hold, and a changed figure is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flipbench.cli import app
from flipbench.core.errors import ConfigError
from flipbench.evaluate.published.claims import (
    CheckedClaim,
    check_claims,
    claims_table,
    read_claims,
)
from flipbench.reporting.writers import markdown

ROOT = Path(__file__).parents[3]
PAPER = Path(__file__).parents[2] / "published" / "audit_claims.yaml"
RESULTS = {
    "n": 1061,
    "rate": 0.2413,
    "name": "SLAKE",
    "models": [{"name": "a", "p": 0.0005}, {"name": "b", "p": 0.2}],
}


def checked(folder: Path, claims: str) -> list[CheckedClaim]:
    (folder / "results.json").write_text(json.dumps(RESULTS))
    path = folder / "claims.yaml"
    path.write_text("claims:\n" + claims)
    return check_claims(read_claims(path), folder)


def one(folder: Path, rest: str, path: str = "n") -> CheckedClaim:
    evidence = f'evidence: {{file: results.json, path: "{path}"}}'
    [result] = checked(folder, f"  - {{claim: it holds, {evidence}, {rest}}}\n")
    return result


@pytest.mark.parametrize(
    ("rest", "path", "outcome"),
    [
        ("expected: 1061", "n", "supported"),
        ("expected: 1060", "n", "contradicted"),
        ("expected: 1060, tolerance: 1", "n", "supported"),
        ("expected: 1000, relative_tolerance: 0.1", "n", "supported"),
        ("expected: 1000, relative_tolerance: 0.01", "n", "contradicted"),
        ("at_most: 0.01", "models[?name=='a'].p | [0]", "supported"),
        ("at_most: 0.01", "models[?name=='b'].p | [0]", "contradicted"),
        ("at_least: 2", "length(models)", "supported"),
        ("expected: SLAKE", "name", "supported"),
        ("expected: VQA-RAD", "name", "contradicted"),
        ("expected: 1", "no_such_key", "missing"),
        ("expected: 1", "models", "missing"),
    ],
)
def test_outcomes(tmp_path: Path, rest: str, path: str, outcome: str) -> None:
    assert one(tmp_path, rest, path).outcome == outcome


@pytest.mark.parametrize(
    ("sentence", "outcome"),
    [
        ("A share of 24.13 was\nflagged in all 1,061 items.", "supported"),
        ("A share of 24.13 was flagged in all 1,062 items.", "contradicted"),
        ("Nothing was flagged.", "missing"),
        ("in all 1,061 items, in all 1,061 items", "missing"),
    ],
)
def test_a_figure_is_read_from_the_text(tmp_path: Path, sentence: str, outcome: str) -> None:
    (tmp_path / "paper.md").write_text(sentence)
    result = one(tmp_path, 'printed: {file: paper.md, text: "in all {} items"}')
    assert result.outcome == outcome


@pytest.mark.parametrize(("digits", "outcome"), [("0.24", "supported"), ("0.25", "contradicted")])
def test_a_printed_figure_is_rounded(tmp_path: Path, digits: str, outcome: str) -> None:
    (tmp_path / "paper.md").write_text(f"a rate of {digits} is high")
    result = one(tmp_path, 'printed: {file: paper.md, text: "a rate of {} is"}', "rate")
    assert result.outcome == outcome


def test_a_claim_must_survive_its_controls(tmp_path: Path) -> None:
    control = (
        "survives: [{name: external baseline, at_least: 0.05,"
        " evidence: {file: results.json, path: \"models[?name=='%s'].p | [0]\"}}]"
    )
    assert one(tmp_path, f"expected: 1061, {control % 'b'}").outcome == "supported"
    result = one(tmp_path, f"expected: 1061, {control % 'a'}")
    assert result.outcome == "contradicted"
    assert result.reason == "does not survive external baseline: 0.0005, below 0.05"


def test_ratios_tables_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text('slice,k,n\nSLAKE,19,96\nVQA-RAD,22,"451"\n')
    rate = "{file: rates.csv, path: \"[?slice=='%s'] | [0].%s\", divided_by: %s}"
    share = rate % ("SLAKE", "k", "{file: rates.csv, path: \"[?slice=='SLAKE'] | [0].n\"}")
    results = checked(
        tmp_path,
        f"  - {{claim: a share, expected: 0.1979, tolerance: 0.0001, evidence: {share}}}\n"
        "  - {claim: no file, expected: 1, evidence: {file: none.csv, path: a}}\n"
        "  - {claim: broken, expected: 1, evidence: {file: broken.json, path: a}}\n",
    )
    assert [result.outcome for result in results] == ["supported", "missing", "missing"]
    table = markdown(claims_table(results))
    assert "3 claims: 1 supported, 0 contradicted, 2 missing" in table


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ("  - {claim: x, evidense: {file: a.json, path: b}, expected: 1}", "did you mean"),
        ("  - {claim: x, evidence: {file: a.json, path: b}}", "give printed, expected"),
        ("  - {claim: x, evidence: {file: a.json, path: b}, printed: {file: t, text: n}}", "{}"),
        ("  []", "claims"),
        ("  - {claim: x", "not YAML"),
        ("  - {claim: x, evidence: {file: results.json, path: '[?'}, expected: 1}", "JMESPath"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, claims: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(tmp_path, claims + "\n")


def test_the_papers_claims() -> None:
    """Every claim of the audit paper has the outcome that was found by recomputing it."""
    results = check_claims(read_claims(PAPER), PAPER.parent)
    assert [result.claim.claim for result in results if not result.as_known] == []
    assert {result.outcome for result in results} == {"supported", "contradicted"}


def test_our_own_claims_hold_and_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    pages = ("README.md", "docs/demo.md", "docs/performance.md")
    for name in (*pages, "docs/claims.yaml", "docs/results/demo.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    command = ["doctor", str(tmp_path / "docs/claims.yaml")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    page = tmp_path / "docs" / "demo.md"
    text = page.read_text()
    n_answers = f"{json.loads((ROOT / 'docs/results/demo.json').read_text())['n_answers']:,}"
    assert text.count(f"({n_answers} answers)") == 1
    page.write_text(text.replace(f"({n_answers} answers)", "(1,234 answers)"))
    changed = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert changed.exit_code == 1 and "1 contradicted" in changed.output
    assert "contradicted" in (tmp_path / "out" / "claims.csv").read_text()
