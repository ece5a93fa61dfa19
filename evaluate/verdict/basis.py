"""What a verdict rests on besides the gap: judged pairs, guessing, and readings of the replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import formats

from ..diagnosis.diagnosis import NO_MEMORY, Diagnosis
from ..protocol.rules import Verdict
from ..report.tables import GAP, TEST
from ..scoring import old_answers
from ..scoring.scores import cluster_of
from ..scoring.soundness import Doubt, Guessing, Judged, against_guessing, drop_p
from .other_detectors import OtherDetectorResult
from .panel import Panel

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
    not_run : mapping of str to str
        Detectors that could not be run on the model, and why.
    diagnosis : Diagnosis, optional
        Why items fell.
    """

    benchmark: PairedBenchmark
    model: str
    scores: Sequence[Score]
    references: Mapping[str, Sequence[Score]]
    not_run: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None

    @property
    def explained(self) -> Diagnosis | None:
        """The diagnosis, if something fell and was asked about."""
        return self.diagnosis if self.diagnosis is not None and self.diagnosis.was_asked else None

    def clusters(self) -> dict[str, str]:
        """Return what each original shares with others, by its id."""
        return {item.id: cluster_of(item) for item in self.benchmark.originals}

    def judged(self, gap: Score) -> Judged:
        """Return how many of the pairs compared were judged valid, and by whom."""
        benchmark = self.benchmark
        valid = {p.original.id for p in benchmark.judged} & set(gap.per_item)
        changes = {item_id: v for item_id, v in gap.per_item.items() if item_id in valid}
        return Judged(
            n=gap.n,
            n_judged=len(valid),
            raters=benchmark.judged_by,
            by_construction=benchmark.exchangeable is True,
            p_value=drop_p(changes, self.clusters()),
        )

    def explained_away(self, gap: Score) -> list[Doubt]:
        """Return the doubt that the gap is no evidence of memory, if it may have another cause.

        That is the case if bad edits and expectations (`NO_MEMORY`) are most of the fallen items,
        or if the gap is not significant without these.
        """
        if (diagnosis := self.explained) is None or not diagnosis.attributed:
            return []
        left = {id_: v for id_, v in gap.per_item.items() if id_ not in diagnosis.attributed}
        p_value = drop_p(left, self.clusters()) if left else 1.0
        n_explained = len(diagnosis.attributed)
        if p_value <= gap.alpha and 2 * n_explained <= diagnosis.n_fell:
            return []
        without = f"without them the gap has {formats.p_equation(p_value)}"
        parts = " and ".join(
            f"{name} {formats.rate(diagnosis.share(name))}"
            for name in NO_MEMORY
            if diagnosis.counts[name]
        )
        return [
            Doubt(
                f"{n_explained:,} of the {diagnosis.n_fell:,} fallen items need no memory of the"
                f" item ({parts}); {without}",
                "look at these items, and compare with a clean model that has the same expectations"
                " (--reference), on pairs whose originals are as unusual as their edits",
            )
        ]

    def guessing(self, gap: Score) -> list[Guessing]:
        """Return the right answers to perturbed items of the model, then of its references."""
        found = [(self.model, gap)]
        for name, scores in self.references.items():
            found += [(name, score) for score in gap_scores(scores, TEST)[:1]]
        n_options = {p.original.id: len(p.original.options or ()) for p in self.benchmark.pairs}
        return [
            against_guessing(
                name, score.accuracies["perturbed"].k, [n_options[id_] for id_ in score.per_item]
            )
            for name, score in found
            if score.n
        ]

    def attraction(self) -> Score | None:
        """Return old-answer attraction against chance, if it was read."""
        rules = (old_answers.DETECTOR, "chance")
        return next((s for s in self.scores if (s.detector, s.rule) == rules), None)

    def readings(self) -> list[Score]:
        """Return old-answer attraction and the confidence gap, by each rule that applies."""
        readers = (old_answers.DETECTOR, CONFIDENCE)
        return [s for s in self.scores if s.detector in readers and s.statistic is not None]


@dataclass(frozen=True)
class Facts:
    """All that the words of a verdict are made from; see `DetectionVerdict` for the fields."""

    evidence: Evidence
    verdict: Verdict
    gap: Score
    leading: Score
    against: tuple[Score, ...]
    judged: Judged
    guessing: tuple[Guessing, ...]
    doubts: tuple[Doubt, ...]
    panel: Panel | None
    other_detectors: tuple[OtherDetectorResult, ...]


def gap_scores(scores: Sequence[Score], rule: str) -> list[Score]:
    """Return the scores of one rule of the perturbation gap."""
    return [score for score in scores if (score.detector, score.rule) == (GAP, rule)]
