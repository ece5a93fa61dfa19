"""The perturbation gap of free-form questions, whose replies a judge or a rule reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Probe
from flipbench.models.chat.answer_judge import JudgedReply, JudgeTask, ReplyJudge
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, open_prompt
from flipbench.prompting.wrappers import answer_text

from ...protocol.detector import About, Helpers
from ...scoring.comparison import ComparingDetector, Condition, Contrast
from ...scoring.text_match import fold
from .perturbation_gap import RULES

ABOUT = About(
    name="free_form_gap",
    title="Free-form gap",
    paper="Park et al., arXiv 2511.03774, appendix F.7: CounterCurate (Zhang et al., arXiv"
    " 2402.13254) as captioning, read by a judge model",
    variant="rules sign, mcnemar (default; the permutation test if there are half points),"
    " relative; judged by the model in evaluate.judge, or by exact match without one",
    deviates_from_paper="the judge sees both answers in both orders, and a tie or a contradiction"
    " counts as half a point; a reply identical to one of the answers is not sent to it; the paper"
    " compares only with the clean model ('relative'); exact match and tests are ours",
    rules={"sign": False, "mcnemar": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"generate"}),
    direction="replies agree with the right answer less often on the perturbed items than on the"
    " originals",
    helpers=frozenset({"answer_judge"}),
    catches=("answer texts",),
    must_not_catch=("question only", "image-caption"),
    levels={"sign": 0.5},
    evidence="published",
    caveat="as good as the judge's reading; the sign missed 3 models contaminated for one epoch"
    " (arXiv 2511.03774, table 33)",
)
Side = Literal["original", "perturbed"]
_Version = tuple[Item, Side, str, str]
"""An item, its side, and the right answers to it and to the other version."""
NO_JUDGE = (
    "no judge is configured (evaluate.judge): a reply counts only if it equals the right answer,"
    " ignoring case, articles and punctuation"
)


@dataclass
class FreeFormGap(ComparingDetector):
    """Gap = agreement with the right answer on perturbed items - on the same original items.

    A reply scores 1 if it agrees with the right answer to its version, 0 if it agrees with the
    other version's, and 0.5 if the judge cannot decide. A reply without a readable judgement is
    missing, never wrong; an empty reply scores 0.

    Parameters
    ----------
    judge : callable, optional
        A `flipbench.models.chat.answer_judge.recorded_judge`. Without one, replies are scored by
        exact match.
    """

    judge: ReplyJudge | None = None
    max_new_tokens: int = 64
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> FreeFormGap:
        """Return the detector with a judge."""
        return replace(self, judge=helpers.judge)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both versions of every free-form question; ``prompt_settings`` is not used."""
        pairs = _free_form_pairs(benchmark)
        return [
            Contrast(
                items=[pair.original for pair in pairs],
                probes=[self._probe(item, side) for p in pairs for item, side, *_ in _versions(p)],
                read=partial(self._conditions, pairs),
                rules=RULES,
                left_out="they have options; perturbation_gap covers them",
                notes=() if self.judge or not pairs else (NO_JUDGE,),
                reason="" if pairs else "no free-form pairs",
                describe=lambda _: {"read_by": "judge" if self.judge else "exact match"},
            )
        ]

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[JudgeTask]:
        """Yield the questions to the judge that this model's score depends on."""
        for pair in _free_form_pairs(benchmark):
            for item, side, own, other in _versions(pair):
                reply = answers.to(self._probe(item, side))
                if reply is not None and _by_rule(answer_text(reply.text), own, other) is None:
                    yield from JudgeTask.both_orders(
                        item.question, answer_text(reply.text).strip(), own, other
                    )

    def _probe(self, item: Item, side: Side) -> Probe:
        return Probe(
            item_id=item.id,
            variant=side,
            images=item.images,
            prompt=open_prompt(item.question),
            ask="generate",
            max_new_tokens=self.max_new_tokens,
        )

    def _conditions(self, pairs: list[Pair], answers: Answers) -> list[Condition]:
        method, n_trials = ("judged", 2) if self.judge else ("exact match", 1)
        conditions = []
        for number, side in enumerate(("original", "perturbed")):
            replies = [self._read(_versions(pair)[number], answers) for pair in pairs]
            given = [reply for reply in replies if reply is not None]
            outcomes = [None if reply is None else reply.worth for reply in replies]
            n_unread = sum(reply.unread for reply in given)
            name = f"{side}, {method}"
            conditions.append(Condition(name, outcomes, n_unread, len(given), n_trials))
        return conditions

    def _read(self, version: _Version, answers: Answers) -> JudgedReply | None:
        item, side, own, other = version
        reply = answers.to(self._probe(item, side))
        if reply is None:
            return None
        judged = _by_rule(answer_text(reply.text), own, other)
        if self.judge:
            return judged or self.judge(item.question, answer_text(reply.text).strip(), own, other)
        return JudgedReply(bool(judged.worth), judged.unread) if judged else JudgedReply(False)


def _free_form_pairs(benchmark: PairedBenchmark) -> list[Pair]:
    return [pair for pair in benchmark.pairs if pair.original.options is None]


def _versions(pair: Pair) -> tuple[_Version, _Version]:
    old, new = pair.original, pair.perturbed
    return (
        (old, "original", old.answer_text, new.answer_text),
        (new, "perturbed", new.answer_text, old.answer_text),
    )


def _by_rule(reply: str, own: str, other: str) -> JudgedReply | None:
    """Return the judgement of a reply that is empty or identical to an answer; else None."""
    if not reply.strip():
        return JudgedReply(0.0, unread=True)
    folded = fold(reply)
    if folded and folded in (fold(own), fold(other)):
        return JudgedReply(float(folded == fold(own)))
    return None
