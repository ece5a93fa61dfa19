"""Settings of the policy that decides whether a pair is kept."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from flipbench.core.records import Value

Vote = Literal["all", "any", "majority", "unanimous"]
RuleName = Literal["equal-options", "wrong-size", "duplicate", "unchanged", "unrelated"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


class Policy(Value):
    """How verdicts become a decision. Only a clear "keep" keeps a pair.

    In order of precedence: an absolute rule that rejects; people, if they override or are
    required; the other rules; the judges. A rule can only reject: passing it does not make a pair
    valid.

    Votes are combined as follows. ``all`` keeps if every vote is "keep" and rejects if any is
    "reject"; ``any`` keeps if any vote is "keep" and rejects if every one is "reject";
    ``majority`` keeps or rejects if more than half of the votes do; ``unanimous`` decides only if
    all votes agree. Otherwise the pair is "unsure": neither kept nor rejected. The vote of a judge
    that failed is neither.
    """

    rules: tuple[RuleName, ...] = RULES
    """The rules to apply."""
    absolute_rules: tuple[RuleName, ...] = ("equal-options", "wrong-size", "duplicate")
    """Rules that people cannot override, as they do not concern what is visible."""
    ask_rejected: bool = False
    """Also ask the judges about pairs that a rule rejects."""
    judges: Vote = "all"
    """How the votes of several judges are combined."""
    n_runs: int = Field(default=1, ge=1)
    """How often each judge is asked."""
    runs: Vote = "all"
    """How the runs of one judge form its vote."""
    people: Literal["override", "vote", "require", "ignore"] = "override"
    """override: people's verdicts replace those of the judges; vote: they count like those of a
    judge; require: only pairs that people keep are kept; ignore: they do not count."""
    among_people: Vote = "all"
    """How several people's votes are combined."""
    reviewers: tuple[str, ...] = ()
    """The people whose verdicts count; empty: all."""
    blind: bool = False
    """Count a 'keep' only from people who chose the new answer without knowing it."""
    unjudged: Literal["drop", "keep"] = "drop"
    """What happens to pairs without a verdict."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        repeated = [rule for rule in set(self.rules) if self.rules.count(rule) > 1]
        if repeated:
            raise ValueError(f"rules contains {repeated[0]!r} twice")
        if self.reviewers and self.people == "ignore":
            raise ValueError("reviewers has no effect if people is 'ignore'")
        return self
