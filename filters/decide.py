"""Apply a policy to verdicts: one ruling for each edited pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flipbench.config.policy import Policy, RuleName, Vote
from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate
from flipbench.core.records import Verdict
from flipbench.models.protocols import Decision
from flipbench.prompting.parsing import parse_choice

from .effective_verdicts import effective_verdicts

VerdictIndex = Mapping[tuple[str, str], Sequence[Verdict]]


@dataclass(frozen=True)
class Raters:
    """The judges and rules whose verdicts count: rater names, rules with their policy names.

    Verdicts of other judges and rules in the run are ignored.
    """

    judges: tuple[str, ...] = ()
    rules: Mapping[str, RuleName] = field(default_factory=dict)


@dataclass(frozen=True)
class Ruling:
    """The decision on one item, whether or not it became an edited pair.

    Attributes
    ----------
    decision : str
        "keep", "reject" or "unsure" (a doubtful pair); empty without an edited image.
    loss : str
        Why it is not kept, as a short label that many pairs share; empty if it is kept.
    decided_by : tuple of str
        The raters whose verdicts determined the decision.
    reason : str
        Those raters' reasons.
    """

    candidate: Candidate
    decision: Decision | Literal[""]
    loss: str = ""
    decided_by: tuple[str, ...] = ()
    reason: str = ""

    @property
    def kept(self) -> bool:
        """Whether the pair is kept."""
        return self.decision == "keep"

    @property
    def missed_step(self) -> str:
        """The step that the item did not reach; empty if it is kept."""
        c = self.candidate
        for step, record in (("flipped", c.flip), ("captioned", c.caption), ("edited", c.edit)):
            if record is None:
                return step
        return "" if self.kept else "kept"


def index_verdicts(verdicts: Iterable[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """Return the effective verdicts by (edit id, sha256 of the image)."""
    index: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in effective_verdicts(verdicts):
        index[verdict.edit_id, verdict.image_sha256].append(verdict)
    return dict(index)


def verdicts_on(candidate: Candidate, index: VerdictIndex) -> list[Verdict]:
    """Return the verdicts on exactly the candidate's edited image, by rater and run."""
    if candidate.edit is None:
        return []
    verdicts = index.get((candidate.edit.id, candidate.edit.image.sha256), ())
    return sorted(verdicts, key=lambda verdict: (verdict.rater, verdict.run))


def decide(candidate: Candidate, index: VerdictIndex, policy: Policy, raters: Raters) -> Ruling:
    """Return the ruling on one edited candidate.

    An edited image that is the original byte for byte is never kept, whoever keeps it: the two
    would not be a pair.

    Raises
    ------
    DataError
        If the candidate has no edited image.
    """
    if candidate.edit is None:
        raise DataError(f"{candidate.subject}: there is no edited image to decide on")
    ruling = _ruling(candidate, verdicts_on(candidate, index), policy, raters)
    if ruling.kept and not candidate.is_redrawn:
        return Ruling(candidate, "reject", "the edited image is the original, byte for byte")
    return ruling


def tally(decisions: Sequence[Decision | None], vote: Vote) -> Decision:
    """Combine decisions into one; None stands for a missing decision.

    >>> tally(["keep", "keep", "unsure"], "majority"), tally(["keep", None], "all")
    ('keep', 'unsure')

    Raises
    ------
    ValueError
        If ``decisions`` is empty.
    """
    if not decisions:
        raise ValueError("there are no decisions to tally")
    n, n_keep, n_reject = len(decisions), decisions.count("keep"), decisions.count("reject")
    if vote == "majority":
        return "keep" if 2 * n_keep > n else "reject" if 2 * n_reject > n else "unsure"
    if vote == "all":
        return "keep" if n_keep == n else "reject" if n_reject else "unsure"
    is_kept = n_keep > 0 if vote == "any" else n_keep == n
    return "keep" if is_kept else "reject" if n_reject == n else "unsure"


def effective_decision(verdict: Verdict, candidate: Candidate, policy: Policy) -> Decision:
    """Return the decision a verdict counts as; a blind policy also checks its blind answer."""
    if not policy.blind or verdict.decision != "keep":
        return verdict.decision
    is_new = _is_new_answer(verdict.blind_answer, candidate)
    if is_new is None:
        return "unsure"
    return "keep" if is_new else "reject"


def _ruling(
    candidate: Candidate, verdicts: Sequence[Verdict], policy: Policy, raters: Raters
) -> Ruling:
    objections = _objections(verdicts, raters)
    for verdict, slug in objections:
        if slug in policy.absolute_rules:
            return _by_rule(candidate, verdict, slug)
    people = _people(verdicts, policy)
    if people and policy.people in ("override", "require"):
        return _by_people(candidate, people, policy)
    for verdict, slug in objections:
        return _by_rule(candidate, verdict, slug)
    silent = [rater for rater in raters.rules if not any(v.rater == rater for v in verdicts)]
    if silent:
        return Ruling(candidate, "unsure", "a rule could not be applied", tuple(silent))
    if policy.people == "require":
        return Ruling(candidate, "unsure", "no person has looked")
    return _by_judges(candidate, verdicts, people, policy, raters)


def _people(verdicts: Sequence[Verdict], policy: Policy) -> list[Verdict]:
    """Return the verdicts of the people who count under ``policy``."""
    if policy.people == "ignore":
        return []
    people = [verdict for verdict in verdicts if verdict.rater_kind == "person"]
    reviewers = {name.casefold() for name in policy.reviewers}
    return [v for v in people if not reviewers or v.rater.casefold() in reviewers]


def _judge_decision(
    judge: str, candidate: Candidate, verdicts: Sequence[Verdict], policy: Policy
) -> Decision | None:
    """Return one judge's vote over its runs; None if it gave no verdict at all."""
    by_run = {v.run: effective_decision(v, candidate, policy) for v in verdicts if v.rater == judge}
    runs = [by_run.get(run) for run in range(policy.n_runs)]
    return tally(runs, policy.runs) if any(runs) else None


def _objections(verdicts: Sequence[Verdict], raters: Raters) -> list[tuple[Verdict, RuleName]]:
    """Return the rules' verdicts other than "keep", in the policy's order."""
    by_rater = {verdict.rater: verdict for verdict in verdicts if verdict.decision != "keep"}
    return [(by_rater[rater], slug) for rater, slug in raters.rules.items() if rater in by_rater]


def _by_rule(candidate: Candidate, verdict: Verdict, slug: RuleName) -> Ruling:
    loss = f"rule: {slug}"
    return Ruling(candidate, verdict.decision, loss, (verdict.rater,), verdict.reason)


def _by_people(candidate: Candidate, people: Sequence[Verdict], policy: Policy) -> Ruling:
    votes = {v.rater: effective_decision(v, candidate, policy) for v in people}
    return _by_votes(candidate, people, votes, policy.among_people, "people")


def _by_judges(
    candidate: Candidate,
    verdicts: Sequence[Verdict],
    people: Sequence[Verdict],
    policy: Policy,
    raters: Raters,
) -> Ruling:
    votes: dict[str, Decision | None] = {
        judge: _judge_decision(judge, candidate, verdicts, policy) for judge in raters.judges
    }
    votes |= {v.rater: effective_decision(v, candidate, policy) for v in people}
    if votes:
        raters_text = "judges or people" if people else "judges"
        return _by_votes(candidate, verdicts, votes, policy.judges, raters_text)
    if policy.unjudged == "keep":
        return Ruling(candidate, "keep")
    return Ruling(candidate, "unsure", "nobody judged it")


def _by_votes(
    candidate: Candidate,
    verdicts: Sequence[Verdict],
    votes: Mapping[str, Decision | None],
    vote: Vote,
    raters_text: str,
) -> Ruling:
    decision = tally(list(votes.values()), vote)
    if decision == "keep":
        loss = ""
    elif None in votes.values():
        loss = "a judge gave no verdict"
    elif "keep" in votes.values():
        loss = f"{raters_text} disagree"
    else:
        is_rejected = decision == "reject"
        loss = f"rejected by {raters_text}" if is_rejected else f"{raters_text} are unsure"
    votes_cast = [v for v in verdicts if v.rater in votes]
    return Ruling(candidate, decision, loss, *_attribution(votes_cast, decision, votes))


def _attribution(
    verdicts: Sequence[Verdict], decision: Decision, votes: Mapping[str, Decision | None]
) -> tuple[tuple[str, ...], str]:
    """Return the raters behind the decision, and their distinct reasons."""
    behind = [v for v in verdicts if votes[v.rater] == decision] or list(verdicts)
    if decision != "keep":  # if raters disagree, the objections explain the loss
        behind = [v for v in verdicts if votes[v.rater] != "keep"] or behind
    reasons = dict.fromkeys(v.reason for v in behind if v.reason)
    return tuple(dict.fromkeys(v.rater for v in behind)), " | ".join(reasons)


def _is_new_answer(answer: str | None, candidate: Candidate) -> bool | None:
    """Return whether a blind answer (a text or a letter) is the new one; None if unreadable."""
    if answer is None or candidate.flip is None:
        return None
    item, flip = candidate.item, candidate.flip
    text = answer.casefold().strip()
    if text == flip.new_text.casefold().strip():
        return True
    if item.options is None or text in [option.casefold().strip() for option in item.options]:
        return False
    choice = parse_choice(answer, item.options)
    return None if choice < 0 else choice == flip.new_answer
