"""How verdicts become a decision: votes, runs, people who think again, rules, blind answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from flipbench.config.policy import Policy, Vote
from flipbench.core.records import Verdict
from flipbench.filters.decide import Raters, Ruling, decide, index_verdicts, tally
from flipbench.filters.effective_verdicts import ANSWERED_BLIND, WITHDRAWN
from flipbench.models.protocols import Decision
from tests.fixtures.edited_candidate import edited_candidate

CANDIDATE = edited_candidate("1")
EDIT = CANDIDATE.edit
assert EDIT is not None
RATERS = Raters(("o3", "gpt"), {"rule unchanged 25": "unchanged", "rule wrong-size": "wrong-size"})
KINDS = {"o3": "judge", "gpt": "judge", "ann": "person", "bob": "person"}
NO_OBJECTIONS = {rule: "keep" for rule in RATERS.rules}


def say(
    rater: str, decision: str, run: int = 0, reason: str = "", blind: str | None = None
) -> Verdict:
    return Verdict(
        edit_id=EDIT.id,
        image_sha256=EDIT.image.sha256,
        rater=rater,
        rater_kind=KINDS.get(rater, "rule"),  # type: ignore[arg-type]
        run=run,
        decision=decision,  # type: ignore[arg-type]
        reason=reason,
        blind_answer=blind,
    )


def rule(policy: Policy, *verdicts: Verdict, raters: Raters = RATERS, **decisions: Any) -> Ruling:
    """Return the ruling; by default, rules have no objection."""
    given = [say(rater, decision) for rater, decision in (NO_OBJECTIONS | decisions).items()]
    explicit = {verdict.rater for verdict in verdicts}
    given = [verdict for verdict in given if verdict.rater not in explicit]
    return decide(CANDIDATE, index_verdicts([*given, *verdicts]), policy, raters)


@pytest.mark.parametrize("vote", ["all", "any", "majority", "unanimous"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_voting_rules_do_what_their_names_say(vote: Vote, n: int) -> None:
    choices: Sequence[Decision | None] = ("keep", "reject", "unsure", None)
    for votes in itertools.product(choices, repeat=n):
        keeps, rejects = votes.count("keep"), votes.count("reject")
        kept = {"all": keeps == n, "any": keeps >= 1, "majority": keeps > n - keeps}
        kept["unanimous"] = set(votes) == {"keep"}
        rejected = {"all": rejects >= 1, "any": rejects == n, "majority": rejects > n - rejects}
        rejected["unanimous"] = set(votes) == {"reject"}
        expected = "keep" if kept[vote] else "reject" if rejected[vote] else "unsure"
        assert tally(votes, vote) == expected, votes


@pytest.mark.parametrize(
    ("vote", "decisions", "decision", "loss"),
    [
        ("all", {"o3": "keep", "gpt": "keep"}, "keep", ""),
        ("all", {"o3": "keep", "gpt": "reject"}, "reject", "judges disagree"),
        ("any", {"o3": "keep", "gpt": "reject"}, "keep", ""),
        ("majority", {"o3": "keep", "gpt": "reject"}, "unsure", "judges disagree"),
        ("all", {"o3": "reject", "gpt": "reject"}, "reject", "rejected by judges"),
        ("all", {"o3": "unsure", "gpt": "unsure"}, "unsure", "judges are unsure"),
        ("all", {"o3": "keep"}, "unsure", "a judge gave no verdict"),
        ("unanimous", {"o3": "keep", "gpt": "keep"}, "keep", ""),
        ("unanimous", {"o3": "reject", "gpt": "reject"}, "reject", "rejected by judges"),
        ("unanimous", {"o3": "keep", "gpt": "reject"}, "unsure", "judges disagree"),
        ("unanimous", {"o3": "reject", "gpt": "unsure"}, "unsure", "judges are unsure"),
        ("unanimous", {"o3": "reject"}, "unsure", "a judge gave no verdict"),
        ("all", {"o3": "reject", "gpt": "unsure"}, "reject", "rejected by judges"),
        ("any", {"o3": "keep"}, "keep", ""),
        ("any", {}, "unsure", "a judge gave no verdict"),
    ],
)
def test_judges_decide_together(
    vote: Vote, decisions: dict[str, Any], decision: str, loss: str
) -> None:
    ruling = rule(Policy(judges=vote), **decisions)
    assert (ruling.decision, ruling.loss) == (decision, loss)


@pytest.mark.parametrize(
    ("runs", "vote", "decision"),
    [
        ("kkk", "all", "keep"),
        ("kkr", "all", "reject"),
        ("kkr", "majority", "keep"),
        ("krr", "any", "keep"),
        ("kk", "all", "unsure"),  # the third run failed
        ("kk", "majority", "keep"),
        ("krrk", "majority", "reject"),  # a fourth run, of an earlier configuration
    ],
)
def test_repeated_runs_of_a_judge_are_one_vote(runs: str, vote: Vote, decision: str) -> None:
    words = {"k": "keep", "r": "reject"}
    verdicts = [say("o3", words[c], number) for number, c in enumerate(runs)]
    policy = Policy(n_runs=3, runs=vote)
    assert rule(policy, *verdicts, raters=Raters(("o3",), RATERS.rules)).decision == decision


def test_people_override_judges_and_each_person_s_newest_verdict_counts() -> None:
    judges: dict[str, Any] = {"o3": "reject", "gpt": "reject"}
    first, second = say("ann", "reject", 0, "ambiguous"), say("ann", "keep", 3)
    policy = Policy()
    assert rule(policy, first, **judges).loss == "rejected by people"
    assert rule(policy, second, first, **judges).decided_by == ("ann",)
    assert rule(policy, second, first, **judges).kept
    assert not rule(policy, second, say("bob", "reject"), **judges).kept
    assert rule(policy, second, say("bob", "reject"), **judges).loss == "people disagree"
    assert rule(Policy(reviewers=("Ann",)), second, say("bob", "reject"), **judges).kept
    assert rule(Policy(among_people="any"), second, say("bob", "reject"), **judges).kept


def test_retracted_and_blind_answers_decide_nothing() -> None:
    judges: dict[str, Any] = {"o3": "keep", "gpt": "keep"}
    kept, undone = say("ann", "reject", 0), say("ann", "unsure", 1, WITHDRAWN)
    assert rule(Policy(), kept, **judges).loss == "rejected by people"
    assert rule(Policy(), kept, undone, **judges).decided_by == ("gpt", "o3")
    assert rule(Policy(), say("ann", "unsure", 0, ANSWERED_BLIND, "fig"), **judges).kept


@pytest.mark.parametrize(
    ("people", "decisions", "decision"),
    [
        ("require", {"o3": "keep", "gpt": "keep"}, "unsure"),
        ("require", {"ann": "keep"}, "keep"),
        ("ignore", {"o3": "keep", "gpt": "keep", "ann": "reject"}, "keep"),
        ("vote", {"o3": "keep", "gpt": "reject", "ann": "keep"}, "keep"),
        ("vote", {"o3": "keep", "gpt": "reject", "ann": "reject"}, "reject"),
        ("vote", {"o3": "keep", "gpt": "reject"}, "unsure"),
    ],
)
def test_verdicts_of_people_follow_the_policy(
    people: str, decisions: dict[str, Any], decision: str
) -> None:
    policy = Policy(people=people, judges="majority")  # type: ignore[arg-type]
    assert rule(policy, **decisions).decision == decision


def test_people_can_overrule_rules_about_visible_defects() -> None:
    judges: dict[str, Any] = {"o3": "keep", "gpt": "keep"}
    unchanged = say("rule unchanged 25", "reject", 0, "no part differs")
    size = say("rule wrong-size", "reject")
    found = rule(Policy(), unchanged, **judges)
    assert (found.loss, found.reason) == ("rule: unchanged", "no part differs")
    assert rule(Policy(), unchanged, say("ann", "keep")).kept
    assert rule(Policy(), size, say("ann", "keep")).loss == "rule: wrong-size"
    assert rule(Policy(absolute_rules=()), size, say("ann", "keep")).kept
    stale = say("rule unchanged 99", "reject")
    assert rule(Policy(), stale, **judges).kept  # of another threshold


def test_nobody_can_keep_an_edit_that_is_its_original() -> None:
    same = replace(CANDIDATE, edit=EDIT.revised(image=CANDIDATE.item.images[0]))
    assert same.edit is not None
    ann = Verdict(
        edit_id=same.edit.id,
        image_sha256=same.edit.image.sha256,
        rater="ann",
        rater_kind="person",
        decision="keep",
    )
    for verdicts, policy in (([ann], Policy()), ([], Policy(unjudged="keep"))):
        ruling = decide(same, index_verdicts(verdicts), policy, Raters())
        assert ruling.decision == "reject"
        assert ruling.loss == "the edited image is the original, byte for byte"


def test_a_rule_alone_never_keeps_a_pair() -> None:
    nobody = Raters((), RATERS.rules)
    assert rule(Policy(), raters=nobody).loss == "nobody judged it"
    assert rule(Policy(unjudged="keep"), raters=nobody).kept
    silent = decide(CANDIDATE, {}, Policy(unjudged="keep"), nobody)
    assert silent.loss == "a rule could not be applied"


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("pear", "keep"),
        (" Pear", "keep"),
        ("B", "keep"),
        ("fig", "reject"),
        ("C", "reject"),
        ("UNCLEAR", "unsure"),
        (None, "unsure"),
    ],
)
def test_a_blind_keep_counts_only_with_the_new_answer(answer: str | None, decision: str) -> None:
    blind = say("o3", "keep", 0, "", answer)
    only = Raters(("o3",), RATERS.rules)
    assert rule(Policy(blind=True), blind, raters=only).decision == decision
    assert rule(Policy(), blind, raters=only).kept
    person = say("ann", "keep", 1, "", answer)
    assert rule(Policy(blind=True), person).decision == decision


def test_verdicts_on_another_picture_do_not_count() -> None:
    other = say("ann", "reject").model_dump() | {"id": "", "image_sha256": "c" * 64}
    assert rule(Policy(), Verdict.model_validate(other), o3="keep", gpt="keep").kept


@pytest.mark.parametrize(
    "wrong",
    [{"rules": ("unchanged", "unchanged")}, {"n_runs": 0}, {"rules": ("nice",)}, {"vote": "all"}],
)
def test_a_contradictory_policy_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate(wrong)
    with pytest.raises(ValidationError, match="ignore"):
        Policy(people="ignore", reviewers=("ann",))


def test_the_policy_in_the_docs_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs" / "filtering.md").read_text()
    blocks = [yaml.safe_load(part.split("```")[0]) for part in text.split("```yaml\n")[1:]]
    block = next(block for block in blocks if "policy" in block["filter"])  # the whole of it
    policy = Policy.model_validate(block["filter"]["policy"])
    assert (policy.n_runs, policy.reviewers) == (3, ("ann", "bob"))
    assert set(block["filter"]["policy"]) == set(Policy.model_fields)
