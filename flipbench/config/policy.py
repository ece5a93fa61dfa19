"""Who decides that a pair is kept, and how: a part of the configuration."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from flipbench.core.records import Value

Vote = Literal["all", "any", "majority", "unanimous"]
RuleName = Literal["equal-options", "wrong-size", "duplicate", "unchanged", "unrelated"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


class Policy(Value):
    """How verdicts become a decision. Whatever is not a clear "keep" is not kept.

    In this order: an absolute rule that rejects decides; then people, where they override or are
    required; then the other rules; then the judges. A rule can only reject: that it has no
    objection makes no pair valid.

    Of several votes, ``all`` keeps where every one is "keep", ``any`` where one is, ``majority``
    where more than half are. They also reject by a rule: ``all`` where one is "reject", ``any``
    where every one is, ``majority`` where more than half are. ``unanimous`` decides either way
    only where every vote is the same. What is left is "unsure": neither kept nor rejected. A judge
    that failed has a vote that is neither.
    """

    rules: tuple[RuleName, ...] = Field(default=RULES, description="the rules that are applied")
    absolute_rules: tuple[RuleName, ...] = Field(
        default=("equal-options", "wrong-size", "duplicate"),
        description="rules that no person overrides, since they are not about what can be seen",
    )
    ask_rejected: bool = Field(
        default=False, description="put to the judges what a rule rejects already"
    )
    judges: Vote = Field(default="all", description="how several judges make one decision")
    n_runs: int = Field(default=1, ge=1, description="how often each judge is asked")
    runs: Vote = Field(default="all", description="how the runs of one judge make its vote")
    people: Literal["override", "vote", "require", "ignore"] = Field(
        default="override",
        description="people decide what they have seen; or vote beside the judges; or decide all,"
        " and what nobody has seen is not kept; or have no say",
    )
    among_people: Vote = Field(default="all", description="how several people make one decision")
    reviewers: tuple[str, ...] = Field(default=(), description="the people who count; empty: all")
    blind: bool = Field(
        default=False,
        description="a 'keep' counts only of one who chose the new answer without being told it",
    )
    unjudged: Literal["drop", "keep"] = Field(
        default="drop", description="what happens to pairs that neither judge nor person decides"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        twice = [rule for rule in set(self.rules) if self.rules.count(rule) > 1]
        if twice:
            raise ValueError(f"rules names {twice[0]!r} twice")
        if self.reviewers and self.people == "ignore":
            raise ValueError("reviewers are named, but people is 'ignore'")
        return self
