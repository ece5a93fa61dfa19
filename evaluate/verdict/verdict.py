"""One model, one benchmark, one sentence: the perturbation gap's verdict and its qualifications."""

from __future__ import annotations

from dataclasses import dataclass

from flipbench.core.records import Score

from ..diagnosis.diagnosis import Diagnosis
from ..protocol.rules import Verdict
from ..report.tables import RELATIVE, TEST
from ..scoring.soundness import Doubt, Guessing, Judged, doubts
from .basis import Evidence, Facts, gap_scores
from .other_detectors import OtherDetectorResult, least_significant, other_results
from .panel import Panel, panel_of
from .sensitivity import Sensitivity, changes_of, sensitivity
from .wording import qualifiers, sentence


@dataclass(frozen=True)
class DetectionVerdict:
    """A verdict in words and numbers.

    Attributes
    ----------
    rule : str
        The rule that decides: "relative" (the difference from a clean model's gap) where clean
        references are given or the two versions are not known to be equally hard, else "mcnemar".
    sentence : str
        The verdict. "not_detected" is never worded "clean".
    qualifiers : tuple of str
        What it assumes, what the references show, and what supports or weakens it.
    gap : Score
        The model's own gap: counts, interval, and p-value if any.
    leading : Score
        The score that decides; the same as ``gap`` under rule "mcnemar".
    against : tuple of Score
        The model's gap against each reference.
    other_detectors : tuple of OtherDetectorResult
        The results of all other detectors, which have no vote.
    judged : Judged
        How many of the pairs were judged valid.
    guessing : tuple of Guessing
        Right answers to the perturbed items of the model, then of its references.
    doubts : tuple of Doubt
        Why the verdict is "inconclusive" although ``leading`` has one.
    panel : Panel or None
        The gaps of several references.
    readings : tuple of Score
        Old-answer attraction and the confidence gap, which read the same replies.
    diagnosis : Diagnosis or None
        Why items fell, if they were asked about.
    """

    model: str
    verdict: Verdict
    rule: str
    sentence: str
    qualifiers: tuple[str, ...]
    gap: Score
    leading: Score
    against: tuple[Score, ...]
    sensitivity: Sensitivity
    other_detectors: tuple[OtherDetectorResult, ...]
    judged: Judged
    guessing: tuple[Guessing, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    panel: Panel | None = None
    readings: tuple[Score, ...] = ()
    diagnosis: Diagnosis | None = None


def find(evidence: Evidence) -> DetectionVerdict:
    """Return the verdict on a model.

    With clean references, rule "relative" of the perturbation gap decides, by the reference with
    the weakest evidence of contamination; without one, the exact McNemar test, unless the pairs
    were found, which have no verdict without a reference. The verdict is withheld if a significant
    gap may come from pairs that nobody judged, or if nothing shows that the perturbed images have
    any effect.
    """
    gap = gap_scores(evidence.scores, TEST)[0]
    relative = gap_scores(evidence.scores, RELATIVE)
    against = [score for score in relative if score.reference_fingerprint]
    if against:
        leading = least_significant(against)
    else:
        leading = relative[0] if evidence.benchmark.exchangeable is False else gap
    judged, guessing = evidence.judged(gap), evidence.guessing(gap)
    found = doubts(
        leading.verdict,
        judged,
        guessing,
        evidence.attraction(),
        alpha=gap.alpha,
        has_reference=bool(against),
    )
    if leading.verdict == "contaminated":
        found += evidence.explained_away(gap)
    changes = changes_of(gap, evidence.clusters())
    clean_gaps = [s.reference.statistic for s in against if s.reference is not None]
    known = [clean for clean in clean_gaps if clean is not None]
    facts = Facts(
        evidence=evidence,
        verdict="inconclusive" if found else leading.verdict,
        gap=gap,
        leading=leading,
        against=tuple(against),
        judged=judged,
        guessing=tuple(guessing),
        doubts=tuple(found),
        panel=panel_of(gap.statistic, known) if gap.statistic is not None and known[1:] else None,
        other_detectors=other_results(evidence.scores, evidence.references, evidence.not_run),
    )
    return DetectionVerdict(
        model=evidence.model,
        verdict=facts.verdict,
        rule=leading.rule,
        sentence=sentence(facts, changes),
        qualifiers=tuple(qualifiers(facts)),
        gap=gap,
        leading=leading,
        against=facts.against,
        sensitivity=sensitivity(changes, leading),
        other_detectors=facts.other_detectors,
        judged=judged,
        guessing=facts.guessing,
        doubts=facts.doubts,
        panel=facts.panel,
        readings=tuple(evidence.readings()),
        diagnosis=evidence.explained,
    )
