"""One model, one benchmark, one sentence: the perturbation gap's verdict and its qualifications."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flipbench.core.records import Score

from ..protocol.rules import Verdict
from .basis import Evidence
from .decision import Decision, GapEvidence, decide
from .other_detectors import OtherDetectorResult, other_results
from .sensitivity import Changes, Sensitivity, changes_of, sensitivity
from .wording import qualifiers, sentence, summary_of


@dataclass(frozen=True)
class ModelVerdict:
    """The verdict on a model that was asked: its `decision`, in words and numbers."""

    evidence: Evidence

    @cached_property
    def of_gap(self) -> GapEvidence:
        """What the decision rests on."""
        return self.evidence.of_gap()

    @cached_property
    def decision(self) -> Decision:
        """The verdict itself, and its reasons."""
        return decide(self.of_gap)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.evidence.model

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.decision.verdict

    @property
    def gap(self) -> Score:
        """The model's own gap, by the McNemar test."""
        return self.of_gap.gap

    @property
    def leading(self) -> Score:
        """The gap, compared with clean models where there are any."""
        return self.decision.leading

    @cached_property
    def sentence(self) -> str:
        """The verdict in words; "not_detected" is never worded "clean"."""
        return sentence(self.evidence.benchmark.name, self.of_gap, self.decision, self._changes)

    @cached_property
    def qualifiers(self) -> tuple[str, ...]:
        """What it assumes, what the references show, and what supports or weakens it."""
        lines = qualifiers(self.of_gap, self.decision, self.evidence.explained)
        return (*lines, *summary_of(self.other_detectors))

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """What would change it."""
        return sensitivity(self._changes, self.leading)

    @cached_property
    def other_detectors(self) -> tuple[OtherDetectorResult, ...]:
        """The results of all other detectors, which have no vote."""
        evidence = self.evidence
        return other_results(evidence.scores, evidence.references, evidence.not_run)

    @cached_property
    def _changes(self) -> Changes:
        return changes_of(self.gap, self.evidence.clusters())
