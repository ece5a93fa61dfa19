"""Picture divergence: how far the picture moves the distribution over the options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    mcnemar_score,
)
from ...scoring.conditions import cache_recent
from ...scoring.unchanged import NOT_CLOSED, closed_items
from ...statistics.quadrants import distribution, kl_divergence

ABOUT = About(
    name="picture_divergence",
    title="Picture divergence",
    paper="Sadanandan and Behzadan, arXiv 2603.20985, KL score",
    variant="rule label_swap",
    deviates_from_paper="compared with a clean model's, where the paper tells dangerous from other"
    " items by it (see four_quadrants); options by letter as well as yes and no",
    rules={"label_swap": True},
    needs=frozenset({"choose", "text_only"}),
    direction="the picture moves the answer's distribution less than the clean model's",
    rule_titles={"label_swap": "label swaps"},
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    on_request="it is about image reliance, not contamination alone: name it with --detectors",
    evidence="unpublished",
    caveat="a confident model diverges more than a cautious one, whatever it has seen, and a memory"
    " that the picture evokes raises it",
)


class PictureDivergence(ComparingDetector):
    """Mean KL(P with the picture || P without) over the options - the clean model's, in nats."""

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question with and without its picture, compared by likelihood."""
        likelihoods = prompt_settings.model_copy(update={"ask": "choose"})
        items = closed_items(benchmark)
        probe_pairs = [
            (
                likelihoods.closed_probe(item, "original"),
                likelihoods.closed_probe(item, "text-only", images=()),
            )
            for item in items
        ]
        return [
            Contrast(
                items=items,
                probes=[probe for pair in probe_pairs for probe in pair],
                read=cache_recent(lambda answers: [_divergences(answers, probe_pairs)]),
                rules=(partial(mcnemar_score, rule="label_swap"),),
                left_out=NOT_CLOSED,
                unit="nats",
            )
        ]


def _divergences(answers: Answers, probe_pairs: Sequence[tuple[Probe, Probe]]) -> Condition:
    """Return the divergence of each item; None without both distributions."""
    outcomes, n_unparsed, n_replies = [], 0, 0
    for pair in probe_pairs:
        replies = [reply for probe in pair if (reply := answers.to(probe)) is not None]
        distributions = [
            distribution(reply.option_log_probs)
            for reply in replies
            if len(reply.option_log_probs) == pair[0].n_options and not reply.is_unreadable
        ]
        n_replies += len(replies)
        n_unparsed += len(replies) - len(distributions)
        outcomes.append(
            float(kl_divergence(*distributions)) if len(distributions) == len(pair) else None
        )
    return Condition("divergence", outcomes, n_unparsed, n_replies, n_trials=None)
