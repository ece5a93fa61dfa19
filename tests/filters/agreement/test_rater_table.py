"""Who decided, and how well: the reference that is chosen, the counts, what is left out."""

from __future__ import annotations

from flipbench.filters.agreement.ratings import PEOPLE, Ratings, rater_table, reference_of
from flipbench.models.protocols import Decision

N = 20
KINDS = {"truth": "oracle", "o3": "judge", "rule a": "rule", "ann": "person", "bob": "person"}


def ratings(**given: str) -> Ratings:
    """Return ratings written as one letter for each picture: k, r, u, or - for none."""
    words: dict[str, Decision] = {"k": "keep", "r": "reject", "u": "unsure"}
    decisions = {
        name.replace("_", " "): {f"e{i}": words[c] for i, c in enumerate(codes) if c != "-"}
        for name, codes in given.items()
    }
    edits = [f"e{i}" for i in range(N)]
    kinds = KINDS | {PEOPLE: "person"}
    return Ratings(decisions, kinds, dict.fromkeys(edits, "c"), {e: f"source {e}" for e in edits})


TRUTH = "k" * 12 + "r" * 8
JUDGE = "k" * 9 + "r" * 2 + "u" + "k" * 3 + "r" * 5


def test_people_are_the_reference_before_the_oracle() -> None:
    assert reference_of(ratings(truth=TRUTH, o3=JUDGE)) == "truth"
    assert reference_of(ratings(truth=TRUTH, ann=JUDGE)) == "ann"
    assert reference_of(ratings(truth=TRUTH, ann=JUDGE, bob=JUDGE, people=JUDGE)) == PEOPLE
    assert reference_of(ratings(o3=JUDGE, rule_a=JUDGE)) is None


def test_counts_precision_and_recall() -> None:
    table = rater_table(ratings(truth=TRUTH, rule_a="k" * N, o3=JUDGE))
    assert table is not None
    assert [name for name, _ in table.groups] == ["Judges", "Rules"]
    judge, rule = ([row.header, *(cell.plain() for cell in row.cells)] for row in table.rows)
    assert judge[:5] == ["o3", "9/20", "3/20", "3/20", "5/20"]
    precision, recall, rejected, kappa = judge[5:]
    assert precision.startswith("75.0 (9/12) [") and recall.startswith("75.0 (9/12) [")
    assert rejected.startswith("62.5 (5/8) [")
    assert kappa.startswith("0.37 [")  # (.7 - .52) / (1 - .52) = .375
    assert rule[0] == "rule a" and rule[7].startswith("0.0 (0/8)")
    assert "The reference rated" not in table.caption


def test_a_lone_rater_has_no_agreement_table() -> None:
    assert rater_table(ratings(truth=TRUTH)) is None
    assert rater_table(ratings(o3=JUDGE, rule_a="k" * N)) is None
    assert rater_table(ratings(truth="k" + "-" * 19, o3="-" + JUDGE[1:])) is None


def test_stale_rules_and_members_of_the_reference_are_left_out() -> None:
    people = ratings(ann=TRUTH, bob=JUDGE, people=TRUTH, o3=JUDGE, rule_a="k" * 5 + "-" * 15)
    table = rater_table(people)
    assert table is not None
    assert [row.header for row in table.rows] == ["o3"]
    assert "alpha among ann, bob, on 20 images: 0." in table.caption


def test_the_caption_counts_what_the_reference_rated() -> None:
    table = rater_table(ratings(ann=TRUTH[:8] + "-" * 12, o3=JUDGE))
    assert table is not None
    assert table.rows[0].cells[0].text == "8/8"
    assert "The reference rated 8 of 20 edited images;" in table.caption
