"""What a verdict on a model that was asked here rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import formats

from ..diagnosis.diagnosis import NO_MEMORY, Diagnosis
from ..report.titles import GAP, RELATIVE, TEST
from ..scoring import old_answers
from ..scoring.paired_replies import PairedReplies, Pairs
from ..scoring.scores import cluster_of
from ..scoring.soundness import Doubt, Judged, against_guessing
from ..statistics.gap_tests import drop_p
from ..statistics.resampling import Array
from .decision import GapEvidence, Reference

CONFIDENCE = "confidence_gap"


@dataclass(frozen=True)
class Evidence:
    """What a verdict is based on.

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

    @property
    def explained(self) -> Diagnosis | None:
        """The diagnosis, if something fell and was asked about."""
        return self.diagnosis if self.diagnosis is not None and self.diagnosis.was_asked else None

    @property
    def gap(self) -> Score:
        """The model's own gap, by the McNemar test."""
        return gap_scores(self.scores, TEST)[0]

    def clusters(self) -> dict[str, str]:
        """Return what each original shares with others, by its id."""
        return {item.id: cluster_of(item) for item in self.benchmark.originals}

    def of_gap(self) -> GapEvidence:
        """Return what the verdict itself needs."""
        benchmark, gap = self.benchmark, self.gap
        judged_ids = frozenset(pair.original.id for pair in benchmark.judged)
        pairs = Pairs.of(benchmark)
        models = [(self.model, gap)]
        for name, scores in self.references.items():
            models += [(name, score) for score in gap_scores(scores, TEST)[:1]]
        n_options = dict(zip(pairs.ids, pairs.n_options.tolist(), strict=True))
        compared = {s.reference_fingerprint: s for s in gap_scores(self.scores, RELATIVE)}
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
            ),
            judged_ids=judged_ids,
            sequential=self.sequential,
            confidence=self._confidence(pairs) if self.sequential else None,
            references=tuple(
                Reference(replies, compared[replies.fingerprint], attraction_of(scores))
                for name, scores in self.references.items()
                if (replies := self.reference_replies[name]).fingerprint in compared
            ),
            attraction=attraction_of(self.scores),
            guessing=tuple(
                against_guessing(
                    name,
                    score.accuracies["perturbed"].k,
                    [n_options[item_id] for item_id in score.per_item],
                )
                for name, score in models
                if score.n
            ),
            other_causes=self._other_causes(),
        )

    def _confidence(self, pairs: Pairs) -> dict[str, Array]:
        """Return the change of the right letter's log-probability by model, where it was read."""
        changes = {}
        for score in (*self.scores, *(s for own in self.references.values() for s in own)):
            is_read = score.per_item and not any(score.unparsed.values())
            if score.detector == CONFIDENCE and score.rule != "relative" and is_read:
                by_pair = [score.per_item.get(item_id, math.nan) for item_id in pairs.ids]
                changes[score.model_fingerprint] = np.array(by_pair)
        return changes

    def _other_causes(self) -> tuple[Doubt, ...]:
        """Return the doubt that the gap is no evidence of memory, if it may have another cause.

        That is the case if bad edits and expectations (`NO_MEMORY`) are most of the fallen items,
        or if the gap is not significant without these.
        """
        gap = self.gap
        if (diagnosis := self.explained) is None or not diagnosis.attributed:
            return ()
        pairs = Pairs.of(self.benchmark)
        changes = self.replies.changes()
        for i, item_id in enumerate(pairs.ids):
            if item_id in diagnosis.attributed:
                changes[i] = float("nan")
        p_value = drop_p(changes, pairs.clusters)
        n_explained = len(diagnosis.attributed)
        if p_value <= gap.alpha and 2 * n_explained <= diagnosis.n_fell:
            return ()
        without = f"without them the gap has {formats.p_equation(p_value)}"
        parts = " and ".join(
            f"{name} {formats.rate(diagnosis.share(name))}"
            for name in NO_MEMORY
            if diagnosis.counts[name]
        )
        return (
            Doubt(
                f"{n_explained:,} of the {diagnosis.n_fell:,} fallen items need no memory of the"
                f" item ({parts}); {without}",
                "look at these items, and compare with a clean model that has the same expectations"
                " (--reference), on pairs whose originals are as unusual as their edits",
                "other causes",
            ),
        )

    def readings(self) -> list[Score]:
        """Return old-answer attraction and the confidence gap, by each rule that applies."""
        readers = (old_answers.DETECTOR, CONFIDENCE)
        return [s for s in self.scores if s.detector in readers and s.statistic is not None]


def gap_scores(scores: Sequence[Score], rule: str) -> list[Score]:
    """Return the scores of one rule of the perturbation gap."""
    return [score for score in scores if (score.detector, score.rule) == (GAP, rule)]


def attraction_of(scores: Sequence[Score]) -> Score | None:
    """Return old-answer attraction against chance, if it was read."""
    rule = (old_answers.DETECTOR, "chance")
    return next((score for score in scores if (score.detector, score.rule) == rule), None)
