"""Guided prompting: completing a question verbatim once the prompt names the data set."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Response, Score
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol import rules
from ...protocol.detector import About
from ...protocol.rules import Verdict
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Contrast,
    Settings,
    gap_score,
    mcnemar_score,
    two_conditions,
)
from ...scoring.conditions import Query, QueryPair, open_question
from ...scoring.scores import answered
from ...scoring.text_match import continuation, fold, rouge_l
from ...statistics.resampling import Array

Label = Literal["exact", "near-exact", "none"]
NEAR = 0.75
"""ROUGE-L from which the default judge calls a completion near-exact."""
GUIDED = (
    "{first}\nThis is the beginning of a question{split} of the data set {dataset}. Finish it"
    " exactly as it stands in that data set. Write only what follows."
)
GENERAL = "{first}\nThis is the beginning of a question. Finish it. Write only what follows."

ABOUT = About(
    name="guided_prompting",
    title="Guided prompting",
    paper="Golchin and Surdeanu, Time Travel in LLMs, arXiv 2308.08493",
    variant="rules overlap (the paper's first: independent bootstrap of ROUGE-L), paired (default),"
    " judge (the paper's second: exact and near-exact completions among ten)",
    deviates_from_paper="all items, not ten, for overlap and paired; the answer is not in the"
    " prompt, since it is among the options; the picture is shown; a rule decides between exact and"
    " near-exact (same words; ROUGE-L of .75) where the authors ask GPT-4, and can be replaced by a"
    " judge model; 'paired' pairs the two completions of an item",
    rules={"overlap": False, "paired": False, "judge": False},
    default_rule="paired",
    needs=frozenset({"generate"}),
    direction="completions are closer to the true text when the prompt names the data set",
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"judge": None},
)


def split_text(item: Item, seed: int) -> tuple[str, str] | None:
    """Split an item's question and options in two after a random 40 to 70 % of its parts.

    The parts are sentences and options, or words if there is only one sentence. None if there is
    only one word.
    """
    parts = re.split(r"(?<=[.?!])\s+", item.question.strip())
    parts += [f"{letter}. {o}" for letter, o in zip(LETTERS, item.options or (), strict=False)]
    glue = "\n"
    if len(parts) < 2:
        parts, glue = item.question.split(), " "
    if len(parts) < 2:
        return None
    share = generator(seed, item.id, "guided-prompting").uniform(0.4, 0.7)
    at = min(len(parts) - 1, max(1, round(share * len(parts))))
    return glue.join(parts[:at]), glue.join(parts[at:])


def judge_by_words(completion: str, second: str) -> Label:
    """Return "exact" for the same words, "near-exact" for a ROUGE-L of at least .75.

    >>> judge_by_words("B. red C. Blue.", "b. red c. blue"), judge_by_words("x", "b. red")
    ('exact', 'none')
    """
    if fold(completion) == fold(second):
        return "exact"
    return "near-exact" if rouge_l(second, completion) >= NEAR else "none"


def judge_verdict(n_exact: int, n_near: int) -> Verdict:
    """Return "contaminated" for one exact or two near-exact completions among ten.

    >>> judge_verdict(0, 2), judge_verdict(0, 1)
    ('contaminated', 'not_detected')
    """
    return "contaminated" if n_exact >= 1 or n_near >= 2 else "not_detected"


def overlap_p(
    guided: Array, general: Array, rng: np.random.Generator, n_bootstrap: int = 10_000
) -> float:
    """Return 1 - the share of bootstrap samples in which the guided mean is higher.

    As in the paper, the two lists are resampled independently although they are paired.

    Parameters
    ----------
    guided, general : array, shape (N,)
        Similarities in [0, 1].
    """
    n_higher, n = 0, len(guided)
    for start in range(0, n_bootstrap, 250):
        shape = (min(250, n_bootstrap - start), n)
        means = [values[rng.integers(n, size=shape)].mean(1) for values in (guided, general)]
        n_higher += int((means[0] > means[1]).sum())
    return 1 - n_higher / n_bootstrap


@dataclass
class GuidedPrompting(ComparingDetector):
    """Gap = mean similarity to the true text of completions with the data set named - without.

    Items with a predictable ending score high in both; instruction-tuned models often do not
    complete at all. Rule 'judge' was tuned for ten items, so it uses ten, drawn by seed.

    Parameters
    ----------
    similarity : callable
        Maps the true text and a completion to [0, 1]; ROUGE-L by default.
    judge : callable
        Maps a completion and the true text to exact, near-exact or none.

    References
    ----------
    Golchin and Surdeanu, arXiv 2308.08493.
    Differs from the paper as described in ``about.deviates_from_paper``.
    """

    settings: Settings = field(default_factory=Settings)
    similarity: Callable[[str, str], float] = rouge_l
    unit: str = "ROUGE-L"
    judge: Callable[[str, str], Label] = judge_by_words
    n_judged: int = 10
    with_image: bool = True
    max_new_tokens: int = 64
    about: About = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's beginning with both prompts; ``prompt_settings`` is not used."""
        query_pairs = []
        for item in benchmark.originals:
            pieces = split_text(item, self.settings.seed)
            if pieces is not None:
                general, guided = _prompts(item, pieces[0], benchmark)
                query_pairs.append(
                    QueryPair(
                        item,
                        self._query(item, "general", general, pieces),
                        self._query(item, "guided", guided, pieces),
                    )
                )
        return [
            two_conditions(
                query_pairs,
                ("general", "guided"),
                (
                    self._overlap,
                    partial(mcnemar_score, rule="paired"),
                    partial(self._judged, query_pairs),
                ),
                "their text is a single word",
                (None, None),
                direction="rises",
                unit=self.unit,
            )
        ]

    def _overlap(self, comparison: Comparison) -> Score:
        assert comparison.first is not None
        sides = (comparison.first, comparison.second)
        pairs = sorted(answered(comparison.items, sides).values())
        if not pairs:
            return gap_score(comparison, "overlap", lambda _: "not_detected")
        general, guided = np.array(pairs, dtype=float).T
        rng = generator(self.settings.seed, comparison.answers.fingerprint, "overlap")
        p = overlap_p(guided, general, rng)
        verdict = rules.significant(p, self.settings.alpha)
        return gap_score(comparison, "overlap", lambda _: verdict, p_value=p)

    def _judged(self, query_pairs: list[QueryPair], comparison: Comparison) -> Score:
        seed = self.settings.seed
        shuffled = sorted(
            query_pairs, key=lambda pair: generator(seed, pair.item.id, "judged").random()
        )
        labels: list[Label] = []
        for pair in shuffled[: self.n_judged]:
            first, second = split_text(pair.item, seed) or ("", "")
            reply = comparison.answers.to(pair.second.probes[0])
            if reply is not None:
                labels.append(self.judge(continuation(reply.text, first), second))
        n_exact, n_near = labels.count("exact"), labels.count("near-exact")
        return gap_score(
            comparison,
            "judge",
            lambda _: judge_verdict(n_exact, n_near),
            tuned_threshold=True,
            details={"judged": {"exact": n_exact, "near_exact": n_near, "n": len(labels)}},
        )

    def _query(self, item: Item, variant: str, prompt: str, pieces: tuple[str, str]) -> Query:
        def similar(reply: Response) -> float | None:
            if not reply.text.strip():
                return None
            return float(self.similarity(pieces[1], continuation(reply.text, pieces[0])))

        return open_question(
            item,
            variant,
            prompt,
            similar,
            max_new_tokens=self.max_new_tokens,
            images=None if self.with_image else (),
        )


def _prompts(item: Item, first: str, benchmark: PairedBenchmark) -> tuple[str, str]:
    split = f" from the {item.source.split} split" if item.source.split else ""
    dataset = item.source.dataset or benchmark.name
    return GENERAL.format(first=first), GUIDED.format(first=first, split=split, dataset=dataset)
