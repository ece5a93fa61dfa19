"""The perturbation gap of free-form questions, whose replies a judge or a rule reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flipbench.core.paired import PairedBenchmark
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
        versions = _versions(benchmark)
        originals, perturbed = versions[::2], versions[1::2]
        return [
            Contrast(
                items=[version.item for version in originals],
                probes=[self._probe(version) for version in versions],
                read=lambda answers: [
                    self._condition("original", originals, answers),
                    self._condition("perturbed", perturbed, answers),
                ],
                rules=RULES,
                left_out="they have options; perturbation_gap covers them",
                notes=() if self.judge or not versions else (NO_JUDGE,),
                reason="" if versions else "no free-form pairs",
                describe=lambda _: {"read_by": "judge" if self.judge else "exact match"},
            )
        ]

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[JudgeTask]:
        """Yield the questions to the judge that this model's score depends on."""
        for version in _versions(benchmark):
            reply = answers.to(self._probe(version))
            if reply is not None and _by_rule(answer_text(reply.text), version) is None:
                yield from JudgeTask.both_orders(
                    version.item.question,
                    answer_text(reply.text).strip(),
                    version.item.answer_text,
                    version.other_answer,
                )

    def _probe(self, version: _Version) -> Probe:
        item = version.item
        return Probe(
            item_id=item.id,
            variant=version.side,
            images=item.images,
            prompt=open_prompt(item.question),
            ask="generate",
            max_new_tokens=self.max_new_tokens,
        )

    def _condition(self, side: str, versions: Sequence[_Version], answers: Answers) -> Condition:
        method, n_trials = ("judged", 2) if self.judge else ("exact match", 1)
        judgements = [self._judgement(version, answers) for version in versions]
        readings = [judgement for judgement in judgements if judgement is not None]
        return Condition(
            f"{side}, {method}",
            [None if judgement is None else judgement.worth for judgement in judgements],
            sum(judgement.unread for judgement in readings),
            len(readings),
            n_trials,
        )

    def _judgement(self, version: _Version, answers: Answers) -> JudgedReply | None:
        reply = answers.to(self._probe(version))
        if reply is None:
            return None
        text, item = answer_text(reply.text), version.item
        judgement = _by_rule(text, version)
        if self.judge:
            return judgement or self.judge(
                item.question, text.strip(), item.answer_text, version.other_answer
            )
        if judgement is None:
            return JudgedReply(False)
        return JudgedReply(bool(judgement.worth), judgement.unread)


class _Version(NamedTuple):
    """One version of a free-form pair, and the right answer to the other one."""

    item: Item
    side: str
    other_answer: str


def _versions(benchmark: PairedBenchmark) -> list[_Version]:
    """Return the original and the perturbed version of each free-form pair in turn."""
    return [
        version
        for pair in benchmark.pairs
        if pair.original.options is None
        for version in (
            _Version(pair.original, "original", pair.perturbed.answer_text),
            _Version(pair.perturbed, "perturbed", pair.original.answer_text),
        )
    ]


def _by_rule(reply: str, version: _Version) -> JudgedReply | None:
    """Return the judgement of a reply that is empty or identical to an answer; else None."""
    if not reply.strip():
        return JudgedReply(0.0, unread=True)
    folded, right_answer = fold(reply), fold(version.item.answer_text)
    if folded and folded in (right_answer, fold(version.other_answer)):
        return JudgedReply(float(folded == right_answer))
    return None
