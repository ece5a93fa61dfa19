"""Self-Critique: a second, different answer that is as certain, token by token, as the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import FIRST_REPLY, Item, JsonDict, Probe, Response, Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    two_versions,
)
from ...scoring.reasoning import MAX_NEW_TOKENS, reasoning_probe

CRITIQUE = (
    '{prompt}\n\nSomeone has answered this before, rightly or wrongly:\n"{first}"\nLook for what'
    " may be wrong with it, and answer again by another line of reasoning."
)
MIN_TOKENS = 8
"""Sequences of fewer entropies resemble each other in any model."""

ABOUT = About(
    name="self_critique",
    title="Self-Critique",
    paper="Tao et al., Detecting Data Contamination from Reinforcement Learning Post-training for"
    " Large Language Models, arXiv 2510.09259",
    variant="rules similarity (default: permutation test of original against perturbed items),"
    " relative",
    deviates_from_paper="the paper ranks members against non-members and has no threshold: an"
    " item's perturbed version is its non-member here, and the tests are ours; our wording of the"
    " request for another answer; at most 256 tokens for each reply instead of 4,096; entropies"
    " over the whole vocabulary (the paper: its 50 most likely tokens; a server: 20)",
    rules={"similarity": False, "relative": True},
    needs=frozenset({"generate", "reply_logprobs"}),
    direction="the entropies of a first answer and of a second, different one are less similar on"
    " the perturbed items than on the originals",
    catches=("answer texts",),
    must_not_catch=("question only", "image-caption"),
    on_request="it asks four long questions about each pair: name it with --detectors",
    evidence="published",
    caveat="made for reasoning models trained by reinforcement learning; short replies resemble"
    " each other in any model, and so do those of a model that ignores the request for another"
    " answer; not run on a reasoning model here",
)


def similarity(entropies: Sequence[float], critique_entropies: Sequence[float]) -> float:
    """Return the cosine of two sequences of entropies, in [0, 1], times shorter / longer length.

    The shorter sequence is padded with zeros.

    >>> similarity([1.0, 0.0], [1.0, 0.0]), similarity([1.0, 0.0], [0.0, 1.0])
    (1.0, 0.0)
    >>> similarity([1.0, 1.0, 1.0, 1.0], [1.0])
    0.125
    """
    if not entropies or not critique_entropies:
        return 0.0
    shorter, longer = sorted((len(entropies), len(critique_entropies)))
    padded = np.zeros((2, longer))
    padded[0, : len(entropies)] = entropies
    padded[1, : len(critique_entropies)] = critique_entropies
    norms = np.linalg.norm(padded, axis=1)
    if not norms.all():
        return 0.0
    cosine = float(padded[0] @ padded[1] / norms.prod())
    return min(cosine, 1.0) * shorter / longer


@dataclass
class SelfCritique(ComparingDetector):
    """Gap = similarity of both answers' entropies on perturbed items - on the same originals.

    Parameters
    ----------
    max_new_tokens : int
        Limit of each reply, at most 256: no statistics are kept of longer ones.
    """

    max_new_tokens: int = MAX_NEW_TOKENS
    about = ABOUT

    def __post_init__(self) -> None:
        """Refuse replies too long to keep their entropies."""
        if self.max_new_tokens > MAX_NEW_TOKENS:
            raise ValueError(f"max_new_tokens {self.max_new_tokens}: at most {MAX_NEW_TOKENS}")

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return a first answer and a second to every item; no settings apply."""
        rules = (if_equally_hard(partial(mcnemar_score, rule="similarity")), relative_score)
        contrast = two_versions(benchmark, self._probes, _similarity_of_replies, rules)
        return [replace(contrast, finish=partial(_with_replies, contrast.probes))]

    def _probes(self, item: Item, side: str) -> tuple[Probe, Probe]:
        answer = reasoning_probe(
            item,
            f"{side} reasoning",
            max_new_tokens=self.max_new_tokens,
            token_statistics=True,
        )
        prompt = CRITIQUE.format(prompt=answer.prompt, first=FIRST_REPLY)
        return answer, answer.revised(variant=f"{side} critique", prompt=prompt, follows=answer.id)


def _similarity_of_replies(replies: Sequence[Response]) -> float | None:
    """Return how similar the entropies of both replies are; None if either is empty."""
    if any(not reply.text.strip() or not reply.token_means for reply in replies):
        return None
    entropies, critique_entropies = ([-mean for mean in reply.token_means] for reply in replies)
    return similarity(entropies, critique_entropies)


def _with_replies(probes: Sequence[Probe], score: Score, answers: Answers) -> Score:
    """Add what the replies are like; warn if they are too short, or too often repeated."""
    replies = [
        (answer, critique)
        for probe, critique_probe in zip(probes[::2], probes[1::2], strict=True)
        if (answer := answers.to(probe)) and (critique := answers.to(critique_probe))
    ]
    n, lengths = len(replies), [len(answer.token_means) for answer, _ in replies]
    length = sum(lengths) / n if n else math.nan
    n_same = sum(answer.text.strip() == critique.text.strip() for answer, critique in replies)
    details: JsonDict = {
        "mean_length": length if n else None,
        "n_same": n_same,
        "n_critiques": n,
        "n_questions": len(probes),
    }
    warnings = []
    if score.n and length < MIN_TOKENS:
        warnings.append(
            f"first replies have {length:.1f} tokens on average: entropies of fewer than"
            f" {MIN_TOKENS} resemble each other in any model"
        )
    if score.n and 2 * n_same > n:
        warnings.append(f"{n_same} of {n} second replies repeat the first word for word")
    changes = {"warnings": (*score.warnings, *warnings), "details": score.details | details}
    return score.model_copy(update=changes)
