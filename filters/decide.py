"""Verdicts and a policy in, one ruling for each edited pair out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flipbench.config.policy import Policy, RuleName, Vote
from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate
from flipbench.core.records import Verdict
from flipbench.models.protocols import Decision
from flipbench.prompting.parsing import parse_choice

from .effective_verdicts import effective_verdicts

Book = Mapping[tuple[str, str], Sequence[Verdict]]


@dataclass(frozen=True)
class Panel:
    """Who was asked: judges by rater name, and rules by rater name with what a policy calls them.

    Verdicts of other judges or rules that a run holds do not count.
    """

    judges: tuple[str, ...] = ()
    rules: Mapping[str, RuleName] = field(default_factory=dict)


@dataclass(frozen=True)
class Ruling:
    """What becomes of one edited pair.

    Attributes
    ----------
    loss : str
        Why it is not kept, in few words that many pairs share; empty where it is kept.
    decided_by : tuple of str
        The raters whose verdicts made the decision.
    reason : str
        What those raters said.
    """

    candidate: Candidate
    decision: Decision
    loss: str = ""
    decided_by: tuple[str, ...] = ()
    reason: str = ""

    @property
    def kept(self) -> bool:
        """Whether the pair is kept."""
        return self.decision == "keep"


def book_of(verdicts: Iterable[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """Return the effective verdicts on each (edit id, sha256 of the image)."""
    book: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in effective_verdicts(verdicts):
        book[verdict.edit_id, verdict.image_sha256].append(verdict)
    return dict(book)


def verdicts_on(candidate: Candidate, book: Book) -> list[Verdict]:
    """Return the verdicts on exactly the candidate's edited image, in an order that is fixed."""
    if candidate.edit is None:
        return []
    found = book.get((candidate.edit.id, candidate.edit.image.sha256), ())
    return sorted(found, key=lambda verdict: (verdict.rater, verdict.run))


def decide(candidate: Candidate, book: Book, policy: Policy, panel: Panel) -> Ruling:
    """Return the ruling on one edited candidate.

    Raises
    ------
    DataError
        If the candidate has no edited image.
    """
    if candidate.edit is None:
        raise DataError(f"{candidate.subject}: there is no edited image to decide on")
    given = verdicts_on(candidate, book)
    objections = _objections(given, panel)
    for verdict, slug in objections:
        if slug in policy.absolute_rules:
            return _by_rule(candidate, verdict, slug)
    people = people_in(given, policy)
    if people and policy.people in ("override", "require"):
        return _by_people(candidate, people, policy)
    for verdict, slug in objections:
        return _by_rule(candidate, verdict, slug)
    missing = [rater for rater in panel.rules if not any(v.rater == rater for v in given)]
    if missing:
        return Ruling(candidate, "unsure", "a rule could not be applied", tuple(missing))
    if policy.people == "require":
        return Ruling(candidate, "unsure", "no person has looked")
    return _by_judges(candidate, given, people, policy, panel)


def tally(decisions: Sequence[Decision | None], vote: Vote) -> Decision:
    """Return one decision of several; None is a rater who should have decided and did not.

    >>> tally(["keep", "keep", "unsure"], "majority"), tally(["keep", None], "all")
    ('keep', 'unsure')

    Raises
    ------
    ValueError
        If there is no vote.
    """
    if not decisions:
        raise ValueError("there is nothing to tally")
    n, n_keep, n_reject = len(decisions), decisions.count("keep"), decisions.count("reject")
    if vote == "majority":
        return "keep" if 2 * n_keep > n else "reject" if 2 * n_reject > n else "unsure"
    if vote == "all":
        return "keep" if n_keep == n else "reject" if n_reject else "unsure"
    kept = n_keep > 0 if vote == "any" else n_keep == n
    return "keep" if kept else "reject" if n_reject == n else "unsure"


def people_in(given: Sequence[Verdict], policy: Policy) -> list[Verdict]:
    """Return the verdicts of the people who count under ``policy``."""
    if policy.people == "ignore":
        return []
    people = [verdict for verdict in given if verdict.rater_kind == "person"]
    wanted = {name.casefold() for name in policy.reviewers}
    return [v for v in people if not wanted or v.rater.casefold() in wanted]


def counted(verdict: Verdict, candidate: Candidate, policy: Policy) -> Decision:
    """Return what a verdict counts for, which a blind policy can make less than it says."""
    if not policy.blind or verdict.decision != "keep":
        return verdict.decision
    chosen = _choice(verdict.blind_answer, candidate)
    if chosen is None:
        return "unsure"
    return "keep" if chosen else "reject"


def judge_decision(
    rater: str, candidate: Candidate, given: Sequence[Verdict], policy: Policy
) -> Decision | None:
    """Return one judge's vote over its runs; None if it gave no verdict at all."""
    by_run = {v.run: counted(v, candidate, policy) for v in given if v.rater == rater}
    runs = [by_run.get(run) for run in range(policy.n_runs)]
    return tally(runs, policy.runs) if any(runs) else None


def _objections(given: Sequence[Verdict], panel: Panel) -> list[tuple[Verdict, RuleName]]:
    """Return the rules' verdicts that are no "keep", in the order of the policy."""
    by_rater = {verdict.rater: verdict for verdict in given if verdict.rater in panel.rules}
    found = [(by_rater[rater], slug) for rater, slug in panel.rules.items() if rater in by_rater]
    return [(verdict, slug) for verdict, slug in found if verdict.decision != "keep"]


def _by_rule(candidate: Candidate, verdict: Verdict, slug: RuleName) -> Ruling:
    loss = f"rule: {slug}"
    return Ruling(candidate, verdict.decision, loss, (verdict.rater,), verdict.reason)


def _by_people(candidate: Candidate, people: Sequence[Verdict], policy: Policy) -> Ruling:
    votes = {v.rater: counted(v, candidate, policy) for v in people}
    decision = tally(list(votes.values()), policy.among_people)
    losses = ("rejected by people", "people disagree", "people are unsure")
    loss = "" if decision == "keep" else _name(decision, votes, losses)
    return Ruling(candidate, decision, loss, *_said(people, decision, votes))


def _by_judges(
    candidate: Candidate,
    given: Sequence[Verdict],
    people: Sequence[Verdict],
    policy: Policy,
    panel: Panel,
) -> Ruling:
    votes: dict[str, Decision | None] = {
        judge: judge_decision(judge, candidate, given, policy) for judge in panel.judges
    }
    votes |= {verdict.rater: counted(verdict, candidate, policy) for verdict in people}
    if not votes:
        kept = policy.unjudged == "keep"
        return Ruling(candidate, "keep" if kept else "unsure", "" if kept else "nobody judged it")
    decision = tally(list(votes.values()), policy.judges)
    loss = ""
    if decision != "keep":
        who = "judges or people" if people else "judges"
        losses = (f"rejected by {who}", f"{who} disagree", f"{who} are unsure")
        silent = [rater for rater, vote in votes.items() if vote is None]
        loss = "a judge gave no verdict" if silent else _name(decision, votes, losses)
    voters = [v for v in given if v.rater in votes]
    return Ruling(candidate, decision, loss, *_said(voters, decision, votes))


def _name(
    decision: Decision, votes: Mapping[str, Decision | None], losses: tuple[str, str, str]
) -> str:
    """Return the loss: rejected without a "keep", kept by some only, or neither."""
    rejected, disagree, unsure = losses
    if "keep" in votes.values():
        return disagree
    return rejected if decision == "reject" else unsure


def _said(
    verdicts: Sequence[Verdict], decision: Decision, votes: Mapping[str, Decision | None]
) -> tuple[tuple[str, ...], str]:
    """Return who stands behind the decision, and their distinct reasons."""
    behind = [v for v in verdicts if votes[v.rater] == decision] or list(verdicts)
    if decision != "keep":  # where they disagree, those who object have the reasons
        behind = [v for v in verdicts if votes[v.rater] != "keep"] or behind
    reasons = dict.fromkeys(v.reason for v in behind if v.reason)
    return tuple(dict.fromkeys(v.rater for v in behind)), " | ".join(reasons)


def _choice(answer: str | None, candidate: Candidate) -> bool | None:
    """Return whether a blind answer (a text or a letter) is the new one; None if unreadable."""
    if answer is None or candidate.flip is None:
        return None
    item, flip = candidate.item, candidate.flip
    said = answer.casefold().strip()
    if said == flip.new_text.casefold().strip():
        return True
    if item.options is None:
        return False
    if said in [text.casefold().strip() for text in item.options]:
        return False
    chosen = parse_choice(answer, item.options)
    return None if chosen < 0 else chosen == flip.new_answer
