"""Paired confidence gap: the log-probability of the right letter, original and perturbed."""

from __future__ import annotations

import math
from functools import partial

import scipy

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Response
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import FREE_FORM, Query, Reading, version_pairs

LEAST_PROBABILITY = 1e-3
"""Probabilities below it count as this one, so that no single item decides."""

ABOUT = About(
    name="confidence_gap",
    title="Paired confidence gap",
    paper="unpublished for images; PaCoST (arXiv 2406.18326) compares confidence on rewordings",
    variant="rules label_swap (default), relative",
    deviates_from_paper="the confidence is the probability of the right letter among the item's"
    " letters, at least 1/1000, and the other version is the perturbed image",
    rules={"label_swap": False, "relative": True},
    needs=frozenset({"choose"}),
    direction="the right letter is less likely on the perturbed than on the original items",
    rule_titles={"label_swap": "label swaps"},
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    signal="answers to the perturbed items",
    evidence="unpublished",
    caveat="perturbed pictures that are harder lower it in clean models too: it needs equally hard"
    " pairs or a clean model",
)


class ConfidenceGap(ComparingDetector):
    """Mean of ln p(right letter), perturbed - original, in nats.

    Where McNemar's test counts answers that change, this weighs how far they change, and needs
    fewer pairs (docs/statistics.md). Both p-values swap labels item by item (image by image, if
    items share one).
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return the original and the perturbed version of every multiple-choice pair."""
        likelihoods = prompt_settings.model_copy(update={"ask": "choose"})

        def query(item: Item, variant: str) -> Query:
            return Query(((likelihoods.probe(item, variant), log_confidence(item.answer or 0)),))

        return [
            two_conditions(
                version_pairs(benchmark, query),
                ("original", "perturbed"),
                (if_equally_hard(partial(mcnemar_score, rule="label_swap")), relative_score),
                FREE_FORM,
                (None, None),
                unit="nats",
            )
        ]


def log_confidence(gold: int) -> Reading:
    """Return the reading ln p(letter ``gold``) among the item's letters, clipped.

    >>> reply = Response(probe_id="", model_fingerprint="", model="", option_log_probs=(-1.0, -1.0))
    >>> round(log_confidence(0)(reply), 4)
    -0.6931
    """

    def read(reply: Response) -> float | None:
        if reply.is_unreadable or len(reply.option_log_probs) <= gold:
            return None
        total = float(scipy.special.logsumexp(reply.option_log_probs))
        log_p = reply.option_log_probs[gold] - total
        return None if math.isnan(log_p) else max(log_p, math.log(LEAST_PROBABILITY))

    return read
