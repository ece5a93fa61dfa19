"""The outcome of an adjudication, by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from sklearn.metrics import cohen_kappa_score

from flipbench.core.records import Adjudication, ImageRef
from flipbench.core.run import Run
from flipbench.filters.agreement.adjudication import (
    adjudication_of,
    adjudication_outcome,
    adjudication_tables,
    write_adjudication,
)
from flipbench.filters.audit.corpus_overlap.flagged import FlaggedPair, write_flagged

SHORT = {
    "d": "duplicate",
    "p": "same subject",
    "v": "same view",
    "a": "ambiguous",
    "u": "unrelated",
    "-": None,
}


def flagged(n: int) -> list[FlaggedPair]:
    def ref(text: str) -> ImageRef:
        return ImageRef(sha256=text.rjust(64, "0"), format="png", width=8, height=8)

    return [
        FlaggedPair(
            benchmark=ref(f"b{i}"),
            corpus=ref(f"c{i}"),
            corpus_key=f"k{i}",
            distance=0.01,
            items=(f"item {i}",),
        )
        for i in range(n)
    ]


def labels(rater: str, text: str, run: int = 0) -> list[Adjudication]:
    """Return a rater's labels of the pairs, one letter each; a dot is no label."""
    return [
        Adjudication(
            benchmark_sha256=pair.benchmark.sha256,
            corpus_sha256=pair.corpus.sha256,
            corpus_key=pair.corpus_key,
            distance=pair.distance,
            rater=rater,
            run=run,
            label=SHORT[letter],  # type: ignore[arg-type]
            note="another patient" if letter == "v" else "",
        )
        for pair, letter in zip(flagged(len(text)), text, strict=True)
        if letter != "."
    ]


def test_nineteen_of_twenty() -> None:
    text = "v" * 19 + "a"
    outcome = adjudication_outcome(flagged(20), labels("anna", text) + labels("ben", text))
    assert outcome.counts == {
        "duplicate": 0,
        "same subject": 0,
        "same view": 19,
        "ambiguous": 1,
        "unrelated": 0,
    }
    assert (outcome.n_pairs, outcome.n_labelled, outcome.n_raters) == (20, 20, 2)
    assert outcome.kappa.value == 1 and outcome.disputed == []
    assert str(outcome).startswith(
        "19 of 20 same view, different subject, 1 of 20 ambiguous; 2 raters, kappa 1.00"
    )


def test_kappa_is_that_of_another_package() -> None:
    first, second = "vvvvdddduuaavvvpvvdu", "vvvaddduuuavvvvvpvdu"
    outcome = adjudication_outcome(flagged(20), labels("anna", first) + labels("ben", second))
    assert outcome.kappa.value == pytest.approx(cohen_kappa_score(list(first), list(second)))
    assert outcome.kappa.interval
    assert outcome.kappa.interval.low < outcome.kappa.value < outcome.kappa.interval.high
    (both,) = outcome.agreements
    assert (both.raw.k, both.raw.n) == (sum(map(str.__eq__, first, second)), 20)


def test_a_majority_decides_and_a_draw_is_ambiguous() -> None:
    given = labels("anna", "vvd.u") + labels("ben", "vda.u") + labels("cleo", "d.p.-")
    outcome = adjudication_outcome(flagged(5), given)
    assert [pair.consensus for pair in outcome.pairs] == [
        "same view",  # 2 of 3
        "ambiguous",  # 1 of 2
        "ambiguous",  # three labels
        "",
        "unrelated",  # the third label is withdrawn
    ]
    assert [pair.flagged.corpus_key for pair in outcome.disputed] == ["k1", "k2"]
    assert (outcome.n_labelled, outcome.n_pairs, sum(outcome.counts.values())) == (4, 5, 4)
    assert "(without a majority: 2), 1 not adjudicated; 3 raters, alpha" in str(outcome)
    assert len(outcome.agreements) == 3


def test_the_newest_label_counts_whatever_the_order() -> None:
    given = labels("anna", "d") + labels("anna", "v", run=1) + labels("ben", "v")
    for order in (given, given[::-1]):
        outcome = adjudication_outcome(flagged(1), order)
        assert outcome.pairs[0].labels == {"anna": "same view", "ben": "same view"}
    withdrawn = adjudication_outcome(flagged(1), [*given, *labels("anna", "-", run=2)])
    assert withdrawn.raters == ("ben",)
    assert str(withdrawn).endswith("one rater, so agreement is unknown")


def test_pairs_of_an_earlier_audit_are_ignored() -> None:
    outcome = adjudication_outcome(flagged(2), labels("anna", "vvvv"))
    assert (outcome.n_pairs, outcome.counts["same view"]) == (2, 2)
    assert outcome.counts_of({outcome.pairs[0].flagged.key})["same view"] == 1
    nobody = adjudication_outcome(flagged(3), [])
    assert str(nobody) == "none of 3 flagged pairs is adjudicated"
    assert nobody.kappa.value is None
    assert adjudication_tables(nobody)


def test_one_label_for_all_leaves_kappa_undefined() -> None:
    outcome = adjudication_outcome(flagged(3), labels("anna", "vvv") + labels("ben", "vvv"))
    assert outcome.kappa.value is None and "kappa undefined" in str(outcome)
    table = next(t for t in adjudication_tables(outcome) if t.key == "adjudication_agreement")
    assert "3/3" in table.rows[0].cells[1].plain()


def test_files_name_every_pair(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        write_flagged(run.path, flagged(4))
        run.append([*labels("anna", "vvd."), *labels("ben", "vdd.")])
        outcome = adjudication_of(run)
        page = write_adjudication(outcome, run.path)
    assert page == tmp_path / "audit" / "adjudication.md"
    text = page.read_text()
    assert "| same view, different subject | 2 | 1 | 33.3 (1/3)" in text
    assert "| item 1 | k1 | 0.0100 | same view | duplicate |" in text
    rows = list(csv.DictReader((tmp_path / "audit" / "adjudication.csv").open()))
    assert [(row["corpus_key"], row["consensus"], row["disputed"]) for row in rows] == [
        ("k0", "same view", "no"),
        ("k1", "ambiguous", "yes"),
        ("k2", "duplicate", "no"),
        ("k3", "", "no"),
    ]
    assert rows[0]["notes"] == "anna: another patient; ben: another patient"
    assert rows[1]["label of ben"] == "duplicate"
