"""Nobody is held against a reference that includes them."""

from __future__ import annotations

import pytest

from flipbench.config.policy import Policy
from flipbench.core.paired import Candidate
from flipbench.core.records import Verdict
from flipbench.filters.agreement.ratings import PEOPLE, Ratings, compare_raters, ratings_of
from flipbench.filters.decide import index_verdicts
from flipbench.models.protocols import Decision
from tests.fixtures.edited_candidate import edited_candidate

WORDS: dict[str, Decision] = {"k": "keep", "r": "reject"}
CODES = {"ann": "kkrrkkrr", "bob": "kkrrrrkk", "eve": "kkkkkkk-"}


@pytest.fixture
def candidates() -> list[Candidate]:
    return [edited_candidate(str(n)) for n in range(8)]


def ratings(candidates: list[Candidate], *people: str) -> Ratings:
    verdicts = [
        Verdict(
            edit_id=c.edit.id,
            image_sha256=c.edit.image.sha256,
            rater=rater,
            rater_kind="person",
            decision=WORDS[code],
        )
        for rater in people
        for c, code in zip(candidates, CODES[rater], strict=True)
        if code in WORDS and c.edit
    ]
    return ratings_of(candidates, index_verdicts(verdicts), Policy())


def test_each_of_two_people_is_held_against_the_other(candidates: list[Candidate]) -> None:
    report = compare_raters(ratings(candidates, "ann", "bob"), PEOPLE)
    found = {a.first: (a.raw.k, a.raw.n, a.kappa.value) for a in report.overall}
    assert found == {"ann": (4, 8, 0.0), "bob": (4, 8, 0.0)}


def test_one_of_three_is_held_against_the_vote_of_the_other_two(
    candidates: list[Candidate],
) -> None:
    given = ratings(candidates, "ann", "bob", "eve")
    found = {a.first: a for a in compare_raters(given, PEOPLE).overall}
    # ann and bob both keep the first two only; bob and eve also the last two
    assert found["eve"].counts == ((2, 5), (0, 0)) and found["eve"].n_one_only == 1
    assert found["ann"].counts == ((2, 2), (2, 2))


def test_a_picture_that_one_person_alone_rated_is_no_agreement(
    candidates: list[Candidate],
) -> None:
    given = ratings(candidates, "ann", "eve")
    (ann,) = (a for a in compare_raters(given, PEOPLE).overall if a.first == "ann")
    assert (ann.raw.n, ann.n_one_only) == (7, 1)


def test_a_policy_is_compared_without_the_rater(candidates: list[Candidate]) -> None:
    given = ratings(candidates, "ann", "bob")
    by_bob = given.decisions["bob"]
    given = given.add("policy", given.decisions["ann"], {"ann": by_bob})
    found = {a.first: a.raw.k for a in compare_raters(given, "policy").overall}
    assert found["ann"] == 4, "against bob alone; against itself it would be 8"
    assert found["bob"] == 4
    (policy,) = (a for a in compare_raters(given, "ann").overall if a.first == "policy")
    assert policy.raw.k == 4
