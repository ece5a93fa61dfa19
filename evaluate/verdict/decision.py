"""From the test to the verdict: which rule decides, and what withholds it.

The same for `flipbench detect`, which has asked the model, and for `flipbench gap`, which reads
predictions. Each guard answers one way in which a clean model has been accused, or a contaminated
one acquitted, with a small p-value beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flipbench.core.errors import ConfigError
from flipbench.core.randomness import generator
from flipbench.core.records import Count, Mean, ReferenceResult, Score, content_id
from flipbench.reporting import formats
from flipbench.reporting.pages import texts_in

from ..protocol.rules import MAX_UNPARSED, Verdict, significant
from ..scoring.old_answers import WrongAnswer, p_without_old_answers, stratified_p
from ..scoring.paired_replies import Integers, PairedReplies, Pairs, Reading, Replies
from ..scoring.soundness import Doubt, Guessing, Judged, attraction_text, images_show_nothing
from ..statistics.gap_tests import MeanDifference, drop_p, mean_difference, scaled_drop_p
from ..statistics.letters import LetterPairs, standardized_drop_p
from ..statistics.resampling import Array
from ..statistics.sequential import running_evidence

Decides = Literal["mcnemar", "relative", "old_answer_attraction", "sequential"]
DECIDES: dict[Decides, str] = {
    "mcnemar": "the exact test of the gap",
    "relative": "comparison with clean models",
    "old_answer_attraction": "old answers",
    "sequential": "evidence that is valid at every look",
}
BAD_EDITS = 0.10
"""Share of the edited pairs that may still show the old answer before attraction counts."""
UNLIKELY = 0.001
"""Level at which letters of pairs that are exchangeable by construction are not believed to be."""
UNLIKE_STRENGTH = 0.15
"""Difference in accuracy on the originals beyond which clean models' gaps are no guide."""
ENOUGH_REFERENCES = 10
"""References with which models of unlike strength are still judged rightly."""
_DOUBTS: dict[str, dict[str, str]] = texts_in(Path(__file__).with_name("doubts.yaml"))
_OPPOSITE: dict[Reading, Reading] = {
    "as read": "as read",
    "kindest": "harshest",
    "harshest": "kindest",
}


@dataclass(frozen=True)
class Reference:
    """A clean model to compare with.

    Attributes
    ----------
    score : Score
        The model's gap against it (rule "relative").
    attraction : Score or None
        Its own old-answer attraction.
    """

    replies: PairedReplies
    score: Score
    attraction: Score | None = None

    @property
    def name(self) -> str:
        """The reference model's name."""
        return self.replies.model


@dataclass(frozen=True)
class GapEvidence:
    """What the verdict on one model and one paired benchmark rests on.

    Attributes
    ----------
    exchangeable : bool or None
        As `flipbench.core.paired.PairedBenchmark.exchangeable`.
    gap : Score
        By the exact McNemar test.
    references : sequence of Reference
        All that were given.
    attraction : Score or None
        Old-answer attraction against chance.
    guessing : sequence of Guessing
        Of the model, then of its references; empty if the numbers of options are not known.
    judged_ids : set of str
        The originals whose pairs are known to have been judged valid.
    sequential : bool
        Whether pairs are asked until the evidence suffices: the verdict is then that of
        `flipbench.evaluate.statistics.sequential`, over the pairs in their order.
    confidence : mapping of str to float array, shape (N,)
        By model, the log-probability of the right letter, perturbed - original, in nats; sequential
        evidence rests on it, else on right and wrong.
    other_causes : sequence of Doubt
        What else explains that items fell; withholds "contaminated".
    """

    pairs: Pairs
    replies: PairedReplies
    gap: Score
    exchangeable: bool | None
    judged: Judged
    references: Sequence[Reference] = ()
    attraction: Score | None = None
    guessing: Sequence[Guessing] = ()
    judged_ids: Set[str] = frozenset()
    sequential: bool = False
    confidence: Mapping[str, Array] | None = None
    other_causes: Sequence[Doubt] = ()

    @property
    def alpha(self) -> float:
        """Level of the tests."""
        return self.gap.alpha

    def attraction_p(
        self, score: Score | None, replies: PairedReplies, among: Set[str] | None = None
    ) -> float:
        """Return the p-value of old-answer attraction, 1 if it has none.

        Unless the pairs are valid by construction, as many old answers are first left out as bad
        edits (`BAD_EDITS` of the pairs, which still show the old answer) would give.

        Parameters
        ----------
        score, replies
            Of the model or of a reference.
        among : set of str, optional
            Ids of the originals to look at; by default all.
        """
        if score is None or score.p_value is None or score.verdict == "inconclusive":
            return 1.0
        if among is None and (self.exchangeable or score.p_value > score.alpha):
            return score.p_value  # leaving old answers out cannot make it smaller
        ids = set(score.per_item) if among is None else set(score.per_item) & among
        pairs = self.pairs
        wrong_answers = [
            answer
            for answer in _wrong_answers(pairs, replies.perturbed, pairs.new, pairs.old)
            if answer.item_id in ids
        ]
        n_bad = 0 if self.exchangeable else math.ceil(BAD_EDITS * len(ids))
        return p_without_old_answers(wrong_answers, n_bad)


@dataclass(frozen=True)
class Decision:
    """A verdict, what decides it, and every reason to withhold it.

    Attributes
    ----------
    decides : {"mcnemar", "relative", "old_answer_attraction", "sequential"}
        The rule whose p-value it is.
    leading : Score
        The score of the gap by that rule; that of the McNemar test where old answers decide.
    score : Score
        The score that decides: ``leading``, or that of old-answer attraction.
    p_value : float or None
        Of the rule that decides.
    doubts : tuple of Doubt
        Why the verdict is "inconclusive" although the rule has one.
    references : tuple of Reference
        Those that were used.
    left_out : dict of str to str
        References that were not, and why.
    difference : MeanDifference or None
        From the mean of several references.
    evidence_by_pair : float array, shape (N,), or None
        Sequential evidence after each pair.
    """

    evidence: GapEvidence
    verdict: Verdict
    decides: Decides
    leading: Score
    score: Score
    p_value: float | None
    doubts: tuple[Doubt, ...] = ()
    references: tuple[Reference, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    difference: MeanDifference | None = None
    evidence_by_pair: Array | None = None

    @property
    def final(self) -> Score:
        """The score that decides, with the verdict itself and its reason."""
        return self.score.model_copy(update={"verdict": self.verdict, "reason": self.reason})

    @property
    def reason(self) -> str:
        """Why there is no verdict, in a few words; empty if there is one."""
        if self.doubts or self.verdict in ("contaminated", "not_detected"):
            return ", ".join(doubt.kind for doubt in self.doubts)
        return self.leading.warnings[-1] if self.leading.warnings else "no answers"


def doubt(name: str, **values: Any) -> Doubt:
    """Return one of the doubts of ``doubts.yaml``, with its numbers."""
    words = _DOUBTS[name]
    return Doubt(words["reason"].format(**values), words["remedy"], words["kind"])


def decide(evidence: GapEvidence) -> Decision:
    """Return the verdict on a model.

    1. References that are the model itself, or name old answers, are left out. With one left, the
       exact label swap of the two gaps decides; with several, the difference from their mean.
    2. Without one, pairs that are exchangeable by construction are judged by the exact McNemar
       test; edited ones, which may be harder for any model, only by old-answer attraction; pairs
       that were found not at all.
    3. The verdict is withheld if replies that cannot be read or are missing decide it, if it rests
       on letters that are right more often in one version, if the references are of unlike strength
       and the versions not equally hard, if nobody judged the pairs that it rests on, or if nothing
       shows that the perturbed images have any effect.
    """
    return _Deliberation(evidence).decision()


@dataclass(frozen=True)
class _Deliberation:
    evidence: GapEvidence

    @cached_property
    def left_out(self) -> dict[str, str]:
        """References that are no clean model: the model itself, or one drawn to old answers.

        The level of that test is divided by the number of references.
        """
        references = self.evidence.references
        reasons = {}
        for reference in references:
            p_value = self.evidence.attraction_p(reference.attraction, reference.replies)
            if p_value <= self.evidence.alpha / len(references) and reference.attraction:
                old_answers = attraction_text(reference.attraction)
                reasons[reference.name] = f"it seems to have seen the originals too: {old_answers}"
            elif self.evidence.replies.is_same_as(reference.replies):
                reasons[reference.name] = "its replies are the model's own, wrong ones included"
        return reasons

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        return tuple(r for r in self.evidence.references if r.name not in self.left_out)

    @cached_property
    def models(self) -> list[PairedReplies]:
        """Replies of the model, then of its references."""
        return [self.evidence.replies, *(reference.replies for reference in self.references)]

    @cached_property
    def difference(self) -> MeanDifference | None:
        """The difference from the mean of several references."""
        if len(self.references) < 2:
            return None
        changes, *clean_changes = self._changes("as read")
        return mean_difference(changes, clean_changes, self.evidence.pairs.clusters)

    @cached_property
    def leading(self) -> Score:
        """The score of the gap that decides, before anything is withheld."""
        if not self.references:
            return self.evidence.gap
        if self.difference is None:
            return self.references[0].score
        return _against_mean(self.references, self.difference, self.evidence.alpha)

    def decision(self) -> Decision:
        evidence, leading = self.evidence, self.leading
        decides: Decides = "relative" if self.references else "mcnemar"
        verdict, p_value, score = leading.verdict, leading.p_value, leading
        doubts: list[Doubt] = []
        running = self._running_evidence() if evidence.sequential else None
        if running is not None and verdict in ("contaminated", "not_detected"):
            decides = "sequential"
            p_value = min(1.0, 1 / float(running.max(initial=1.0)))
            verdict = significant(p_value, evidence.alpha)
            if verdict == "contaminated" and not (self.references or evidence.exchangeable):
                doubts.append(self._needs_reference())
        elif not self.references and not evidence.exchangeable:
            attraction_p = evidence.attraction_p(evidence.attraction, evidence.replies)
            if evidence.exchangeable is False:
                verdict = "not_applicable"
            elif attraction_p <= evidence.alpha:
                assert evidence.attraction is not None
                decides, score = "old_answer_attraction", evidence.attraction
                verdict, p_value = "contaminated", attraction_p
            elif verdict == "contaminated":
                doubts.append(self._needs_reference())
        if verdict in ("contaminated", "not_detected"):
            by_old_answers = decides == "old_answer_attraction"
            doubts += [*self._unknown_replies(verdict, decides), *self._strength(verdict)]
            doubts += [] if by_old_answers or doubts else self._letters(verdict)
            doubts += self._unjudged() if by_old_answers else []
            doubts += self._no_effect()
            doubts += self._swapped() if verdict == "not_detected" and not self.references else []
            doubts += evidence.other_causes if verdict == "contaminated" else ()
        return Decision(
            evidence,
            "inconclusive" if doubts else verdict,
            decides,
            leading,
            score,
            p_value,
            tuple(doubts),
            self.references,
            self.left_out,
            self.difference,
            running,
        )

    def _running_evidence(self) -> Array:
        """Return the evidence after each pair, counting for the model what cannot be read."""
        confidence, clusters = self.evidence.confidence, self.evidence.pairs.clusters
        if confidence is not None and all(m.fingerprint in confidence for m in self.models):
            values = [confidence[m.fingerprint] for m in self.models]
        else:
            values = self._changes("kindest")
        if len(values) > 2:
            raise ConfigError(
                "sequential evidence compares with one clean model at most; give one --reference"
            )
        difference = np.nan_to_num(values[0] - values[1] if values[1:] else values[0])
        totals: dict[str, float] = {}
        last_pairs = {cluster: i for i, cluster in enumerate(clusters)}
        for cluster, value in zip(clusters, difference.tolist(), strict=True):
            totals[cluster] = totals.get(cluster, 0.0) + value
        by_pair = np.zeros(len(difference))  # a cluster counts once its last pair is known
        by_pair[[last_pairs[cluster] for cluster in totals]] = list(totals.values())
        return running_evidence(by_pair)

    def _changes(self, reading: Reading) -> list[Array]:
        """Return the model's changes, then those of the references read the other way round."""
        replies, *clean_replies = self.models
        opposite = _OPPOSITE[reading]
        return [replies.changes(reading), *(clean.changes(opposite) for clean in clean_replies)]

    def _old_answers(self) -> str:
        attraction = self.evidence.attraction
        return f"; {attraction_text(attraction)}" if attraction and attraction.n else ""

    def _needs_reference(self) -> Doubt:
        p = formats.p_equation(self.evidence.gap.p_value or 0.0)
        return doubt("needs reference", p=p, old=self._old_answers())

    def _unknown_replies(self, verdict: Verdict, decides: Decides) -> list[Doubt]:
        """Withhold what replies that cannot be read, or are missing, could turn round."""
        n = len(self.evidence.pairs.ids)
        for replies in self.models:
            versions = zip(("originals", "perturbed versions"), replies.n_unknown, strict=True)
            for version, k in versions:
                if k > MAX_UNPARSED * n:
                    return [doubt("many unknown", k=k, n=n, model=replies.model, version=version)]
        n_unknown = sum(sum(replies.n_unknown) for replies in self.models)
        if decides in ("old_answer_attraction", "sequential") or not n_unknown:
            return []
        reading: Reading = "kindest" if verdict == "contaminated" else "harshest"
        changes, *clean_changes = self._changes(reading)
        p_value = drop_p(changes, self.evidence.pairs.clusters, clean_changes)
        if significant(p_value, self.evidence.alpha) == verdict:
            return []
        side = "for" if verdict == "contaminated" else "against"
        return [doubt("unknown decide", n=n_unknown, side=side, p=formats.p_equation(p_value))]

    def _letters(self, verdict: Verdict) -> list[Doubt]:
        """Withhold what a preference for a letter gives, if letters differ between the versions."""
        evidence, pairs = self.evidence, self.evidence.pairs
        usable = (pairs.old >= 0) & (pairs.new >= 0)
        for replies in self.models:
            usable &= ~(replies.original.missing | replies.perturbed.missing)
        if not usable.any():
            return []
        letters = LetterPairs(pairs.old[usable], pairs.new[usable], pairs.n_options[usable])
        # that letters differ by chance alone is expected now and then; by construction, always
        level = UNLIKELY if evidence.exchangeable else evidence.alpha
        if letters.margins_p(generator(0, evidence.gap.benchmark_id, "letters")) > level:
            return []
        model, *clean = [
            (r.original.right[usable].astype(float), r.perturbed.right[usable].astype(float))
            for r in self.models
        ]
        clusters = list(itertools.compress(pairs.clusters, usable.tolist()))
        p_value = standardized_drop_p(letters, model, clusters, clean)
        if significant(p_value, evidence.alpha) == verdict:
            return []
        return [doubt("letters", p=formats.p_equation(p_value))]

    def _strength(self, verdict: Verdict) -> list[Doubt]:
        """Withhold a verdict to which references of another strength are biased.

        Versions that are harder, or show less, cost strong and weak clean models different numbers
        of points, so that the difference of their gaps is not 0. In proportion to what each gets
        right, or in odds, it may be; so the verdict has to hold on these scales too. Old answers
        show memory whatever the strength.
        """
        evidence, references = self.evidence, [r.replies for r in self.references]
        if not 0 < len(references) < ENOUGH_REFERENCES:
            return []
        lead = evidence.replies.accuracy() - float(np.mean([r.accuracy() for r in references]))
        if abs(lead) <= UNLIKE_STRENGTH:
            return []
        if evidence.attraction_p(evidence.attraction, evidence.replies) <= evidence.alpha:
            return []
        p_values = scaled_drop_p(
            evidence.replies.outcomes(),
            [reference.outcomes() for reference in references],
            evidence.pairs.clusters,
            evidence.pairs.chances,
        )
        if {significant(p_value, evidence.alpha) for p_value in p_values} == {verdict}:
            return []
        n = len(references)
        return [
            doubt(
                "unlike strength",
                points=abs(100 * lead),
                stronger="stronger" if lead > 0 else "weaker",
                references=self.references[0].name if n == 1 else f"the {n} references",
            )
        ]

    def _unjudged(self) -> list[Doubt]:
        """Withhold what rests on edits that nobody is known to have judged."""
        evidence, ratings = self.evidence, self.evidence.judged
        if not ratings.n_judged:
            return [doubt("unjudged", judged="nobody is known to have judged the perturbed images")]
        p_value = evidence.attraction_p(evidence.attraction, evidence.replies, evidence.judged_ids)
        if p_value <= evidence.alpha:
            return []
        on_judged = (
            f"it is not ({formats.p_equation(p_value)}) on the {ratings.n_judged:,} of"
            f" {ratings.n:,} pairs that were judged valid"
        )
        return [doubt("unjudged", judged=on_judged)]

    def _swapped(self) -> list[Doubt]:
        """Ask whether the versions are swapped: wrong originals then name the other's answer."""
        pairs, gap = self.evidence.pairs, self.evidence.gap
        if gap.statistic is None or gap.statistic <= 0:
            return []
        replies = self.evidence.replies.original
        wrong_answers = [
            answer
            for answer in _wrong_answers(pairs, replies, pairs.old, pairs.new)
            if answer.n_options > 2
        ]
        if not wrong_answers or stratified_p(wrong_answers) > UNLIKELY:
            return []
        k = sum(answer.is_old for answer in wrong_answers)
        return [doubt("swapped", k=k, n=len(wrong_answers))]

    def _no_effect(self) -> list[Doubt]:
        guessing, attraction = self.evidence.guessing, self.evidence.attraction
        if not images_show_nothing(guessing, attraction, self.evidence.alpha):
            return []
        models = "; ".join(model.text() for model in guessing)
        return [doubt("no effect", models=models, old=self._old_answers())]


def _wrong_answers(
    pairs: Pairs, replies: Replies, gold: Integers, gold_elsewhere: Integers
) -> list[WrongAnswer]:
    """Return the replies that name a wrong option of one version, whose right ones are ``gold``."""
    return [
        WrongAnswer(
            pairs.ids[i],
            int(replies.choices[i]),
            int(gold_elsewhere[i]),
            int(gold[i]),
            int(pairs.n_options[i]),
            pairs.clusters[i],
        )
        for i in np.flatnonzero(replies.wrong & (replies.choices >= 0)).tolist()
    ]


def _against_mean(
    references: Sequence[Reference], difference: MeanDifference, alpha: float
) -> Score:
    """Return the score of rule "relative" against the mean of several references."""
    base = references[0].score
    gaps = [float(np.nanmean(r.replies.changes())) for r in references]
    results = [r.score.reference for r in references if r.score.reference]
    accuracies = {}
    for version in ("original", "perturbed"):
        counts = [result.accuracies[version] for result in results]
        accuracies[version] = Count(k=sum(c.k for c in counts), n=sum(c.n for c in counts))
    verdict = base.verdict
    if verdict != "inconclusive":
        verdict = significant(difference.p_below, alpha)
    return base.revised(
        statistic=difference.difference,
        interval=difference.interval,
        p_value=difference.p_below,
        verdict=verdict,
        n=difference.n,
        reference_fingerprint=content_id(*sorted(r.replies.fingerprint for r in references)),
        reference=ReferenceResult(
            model=f"the mean of {len(references)} clean models",
            statistic=float(np.mean(gaps)),
            n=difference.n,
            accuracies=accuracies,
            means={"spread": Mean(mean=difference.spread, n=len(references))},
        ),
    )
