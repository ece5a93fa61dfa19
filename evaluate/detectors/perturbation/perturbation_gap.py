"""Semantic perturbation: the accuracy drop when picture and answer change together."""

from __future__ import annotations

from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    threshold_score,
    two_conditions,
)
from ...scoring.conditions import FREE_FORM, choice, version_pairs

ABOUT = About(
    name="perturbation_gap",
    title="Perturbation gap",
    paper="Park et al., Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation,"
    " arXiv 2511.03774, tables 1, 2 and 13",
    variant="rules sign (paper), mcnemar (default), relative",
    deviates_from_paper="the paper calls every negative gap contamination; the default rule is an"
    " exact one-sided McNemar test on the same items, and 'relative' compares with a clean model in"
    " case the variant is harder by construction; pairs that were found, not made, get a verdict"
    " from 'relative' only",
    rules={"sign": False, "mcnemar": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops from the original to the perturbed items",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    signal="answers to the perturbed items",
    levels={"sign": 0.5},
    evidence="published",
    caveat="perturbed pictures that are harder, or that contradict what models expect (clean ones"
    " answered about 17 % in arXiv 2505.23941), widen the gap of clean models too",
)


class PerturbationGap(ComparingDetector):
    """Gap = accuracy on perturbed items - accuracy on the same items in their original version.

    ``suspects`` counts the items answered right on the original and wrong on the perturbed
    version: ``rate`` = b/n, ``share`` = b/(n11 + b), the share of right answers lost.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return the original and the perturbed version of every multiple-choice pair."""
        query_pairs = version_pairs(benchmark, partial(choice, prompt_settings))
        names = ("original", "perturbed")
        return [two_conditions(query_pairs, names, RULES, FREE_FORM, finish=_with_suspects)]


def _with_suspects(score: Score, answers: Answers) -> Score:
    assert score.paired is not None  # choices are either right or wrong
    return score.model_copy(update={"suspects": score.paired.suspects()})


RULES = (
    if_equally_hard(partial(threshold_score, rule="sign")),
    if_equally_hard(mcnemar_score),
    relative_score,
)
"""Sign, mcnemar and relative."""
