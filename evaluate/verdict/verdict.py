"""One model that was asked, one benchmark: what is known, the verdict, and its words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import formats

from ..diagnosis.diagnosis import NO_MEMORY, Diagnosis
from ..protocol.rules import Verdict
from ..report.titles import GAP, RELATIVE, TEST
from ..scoring import old_answers
from ..scoring.paired_replies import PairedReplies, Pairs
from ..scoring.soundness import Doubt, Judged, against_guessing
from ..statistics.gap_tests import drop_p
from ..statistics.resampling import Array
from .decision import Decision, GapEvidence, Reference, decide, doubt
from .other_detectors import OtherDetectorResult, other_results
from .sensitivity import Sensitivity
from .wording import qualifiers, sentence, summary_of, what_would_change

CONFIDENCE = "confidence_gap"


@dataclass(frozen=True)
class ModelVerdict:
    """The verdict on a model that was asked, with what it is based on.

    Attributes
    ----------
    model : str
        The model's name on the page.
    scores : sequence of Score
        All scores of the model, against every reference if a rule takes one.
    references : mapping of str to sequence of Score
        The clean reference models' own scores, by model name.
    replies : PairedReplies
        The model's.
    reference_replies : mapping of str to PairedReplies
        The references', by model name.
    not_run : mapping of str to str
        Detectors that could not be run on the model, and why.
    diagnosis : Diagnosis, optional
        Why items fell.
    sequential : bool
        Whether the pairs were asked in their order until the evidence sufficed.
    """

    benchmark: PairedBenchmark
    model: str
    scores: Sequence[Score]
    references: Mapping[str, Sequence[Score]]
    replies: PairedReplies
    reference_replies: Mapping[str, PairedReplies]
    not_run: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    sequential: bool = False

    @cached_property
    def decision(self) -> Decision:
        """The verdict itself, and its reasons."""
        return decide(self.of_gap)

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.decision.verdict

    @property
    def leading(self) -> Score:
        """The gap, compared with clean models where there are any."""
        return self.decision.leading

    @property
    def gap(self) -> Score:
        """The model's own gap, by the McNemar test."""
        return scores_by_rule(self.scores, TEST)[0]

    @cached_property
    def sentence(self) -> str:
        """The verdict in words; "not_detected" is never worded "clean"."""
        return sentence(self.decision)

    @cached_property
    def qualifiers(self) -> tuple[str, ...]:
        """What it assumes, what the references show, and what supports or weakens it."""
        lines = qualifiers(self.decision, self.explained)
        return (*lines, *summary_of(self.other_detectors))

    @cached_property
    def what_would_change(self) -> list[str]:
        """What would change it, in sentences."""
        return what_would_change(self.decision)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The numbers that would change it."""
        return Sensitivity.of(self.decision)

    @cached_property
    def other_detectors(self) -> tuple[OtherDetectorResult, ...]:
        """The results of all other detectors, which have no vote."""
        return other_results(self.scores, self.references, self.not_run)

    @property
    def explained(self) -> Diagnosis | None:
        """The diagnosis, if something fell and was asked about."""
        return self.diagnosis if self.diagnosis is not None and self.diagnosis.was_asked else None

    @property
    def readings(self) -> list[Score]:
        """Old-answer attraction and the confidence gap, by each rule that applies."""
        readers = (old_answers.DETECTOR, CONFIDENCE)
        return [s for s in self.scores if s.detector in readers and s.statistic is not None]

    @cached_property
    def of_gap(self) -> GapEvidence:
        """What the decision rests on."""
        benchmark, gap, pairs = self.benchmark, self.gap, Pairs.of(self.benchmark)
        judged_ids = frozenset(pair.original.id for pair in benchmark.judged)
        gaps = [(self.model, gap)]
        for name, scores in self.references.items():
            gaps += [(name, score) for score in scores_by_rule(scores, TEST)[:1]]
        n_options = dict(zip(pairs.ids, pairs.n_options.tolist(), strict=True))
        against_clean = {s.reference_fingerprint: s for s in scores_by_rule(self.scores, RELATIVE)}
        return GapEvidence(
            pairs=pairs,
            replies=self.replies,
            gap=gap,
            exchangeable=benchmark.exchangeable,
            judged=Judged(
                n=gap.n,
                n_judged=len(judged_ids & set(gap.per_item)),
                raters=benchmark.judged_by,
                by_construction=benchmark.exchangeable is True,
                bad_edits=benchmark.bad_edits,
            ),
            judged_ids=judged_ids,
            sequential=self.sequential,
            confidence=self._confidence(pairs) if self.sequential else None,
            references=tuple(
                Reference(replies, against_clean[replies.fingerprint], attraction_of(scores))
                for name, scores in self.references.items()
                if (replies := self.reference_replies[name]).fingerprint in against_clean
            ),
            attraction=attraction_of(self.scores),
            guessing=tuple(
                against_guessing(
                    name, score.accuracies["perturbed"].k, [n_options[i] for i in score.per_item]
                )
                for name, score in gaps
                if score.n
            ),
            other_causes=self._other_causes(pairs),
        )

    def _confidence(self, pairs: Pairs) -> dict[str, Array]:
        """Return the change of the right letter's log-probability by model, where it was read."""
        changes = {}
        for score in chain(self.scores, *self.references.values()):
            is_read = score.per_item and not any(score.unparsed.values())
            if score.detector == CONFIDENCE and score.rule != RELATIVE and is_read:
                by_pair = [score.per_item.get(item_id, math.nan) for item_id in pairs.ids]
                changes[score.model_fingerprint] = np.array(by_pair)
        return changes

    def _other_causes(self, pairs: Pairs) -> tuple[Doubt, ...]:
        """Return the doubt that the gap is no evidence of memory, if it may have another cause.

        That is the case if bad edits and expectations (`NO_MEMORY`) are most of the fallen items,
        or if the gap is not significant without these.
        """
        if (diagnosis := self.explained) is None or not diagnosis.attributed:
            return ()
        changes = self.replies.changes()
        changes[np.isin(np.array(pairs.ids), list(diagnosis.attributed))] = math.nan
        p_value, n_explained = drop_p(changes, pairs.clusters), len(diagnosis.attributed)
        if p_value <= self.gap.alpha and 2 * n_explained <= diagnosis.n_fell:
            return ()
        parts = " and ".join(
            f"{name} {formats.rate(diagnosis.share(name))}"
            for name in NO_MEMORY
            if diagnosis.counts[name]
        )
        p, n = formats.p_equation(p_value), diagnosis.n_fell
        return (doubt("other causes", k=n_explained, n=n, parts=parts, p=p),)


def scores_by_rule(scores: Sequence[Score], rule: str) -> list[Score]:
    """Return the scores of one rule of the perturbation gap."""
    return [score for score in scores if (score.detector, score.rule) == (GAP, rule)]


def attraction_of(scores: Sequence[Score]) -> Score | None:
    """Return old-answer attraction against chance, if it was read."""
    rule = (old_answers.DETECTOR, "chance")
    return next((score for score in scores if (score.detector, score.rule) == rule), None)
