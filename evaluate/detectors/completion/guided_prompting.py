"""Guided prompting: whether naming the data set helps a model finish a question word for word."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Response, Score
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol import rules
from ...protocol.detector import About, Answers, cached_per_benchmark
from ...protocol.rules import Verdict
from ...scoring.comparison import (
    Comparison,
    Settings,
    compare,
    gap_score,
    mcnemar_score,
)
from ...scoring.conditions import Query, QueryPair, open_question
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
    variant="rules overlap (paper's first: independent bootstrap of ROUGE-L), paired (default),"
    " judge (paper's second: exact and near-exact completions among ten)",
    deviates_from_paper="all items, not ten, for overlap and paired; the answer is not told, since"
    " it is among the options; the picture is shown; exact and near-exact are told apart by a rule"
    " (same words; ROUGE-L of .75) where the authors ask GPT-4, and a judge model can be given;"
    " 'paired' pairs the two completions of an item",
    default_rule="paired",
    needs=frozenset({"generate"}),
    direction="completions come nearer to the text when the prompt names the data set",
    needs_clean_model=False,
    practical=True,
)


def cut(item: Item, seed: int) -> tuple[str, str] | None:
    """Cut an item's question and options in two at a random 40 to 70 % of its parts.

    The parts are sentences and options, or words where there is only one of them. None where
    there is only one word.
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
    """Say "exact" for the same words, "near-exact" for ROUGE-L of at least .75.

    >>> judge_by_words("B. red C. Blue.", "b. red c. blue"), judge_by_words("x", "b. red")
    ('exact', 'none')
    """
    if fold(completion) == fold(second):
        return "exact"
    return "near-exact" if rouge_l(second, completion) >= NEAR else "none"


def judge_verdict(n_exact: int, n_near: int) -> Verdict:
    """Say "contaminated" for one exact or two near-exact completions, of ten.

    >>> judge_verdict(0, 2), judge_verdict(0, 1)
    ('contaminated', 'not_detected')
    """
    return "contaminated" if n_exact >= 1 or n_near >= 2 else "not_detected"


def overlap_p(
    guided: Array, general: Array, rng: np.random.Generator, n_bootstrap: int = 10_000
) -> float:
    """Return 1 - share of bootstrap draws in which the guided mean is higher.

    The two lists are drawn independently of each other, as the paper does though they are paired.

    Parameters
    ----------
    guided, general : array, shape (N,)
        Similarities in [0, 1].
    """
    n_higher, n = 0, len(guided)
    for start in range(0, n_bootstrap, 250):
        shape = (min(250, n_bootstrap - start), n)
        one, two = (v[rng.integers(n, size=shape)].mean(1) for v in (guided, general))
        n_higher += int((one > two).sum())
    return 1 - n_higher / n_bootstrap


@dataclass
class GuidedPrompting:
    """Gap = mean similarity of completions with the data set named - without, to the true text.

    Items whose end can be guessed score high in both; instruction-tuned models often do not
    complete at all. Rule 'judge' was tuned for ten items, so it looks at ten, drawn by seed.

    Parameters
    ----------
    similarity : callable
        From the true text and a completion to [0, 1]; ROUGE-L by default.
    judge : callable
        From a completion and the true text to exact, near-exact or none.

    References
    ----------
    Golchin and Surdeanu, arXiv 2308.08493.
    Differs from the paper as ``about.deviates_from_paper`` says.
    """

    settings: Settings = field(default_factory=Settings)
    similarity: Callable[[str, str], float] = rouge_l
    unit: str = "ROUGE-L"
    judge: Callable[[str, str], Label] = judge_by_words
    n_judged: int = 10
    with_image: bool = True
    max_new_tokens: int = 64
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each item's beginning with both prompts; ``prompt_settings`` changes nothing."""
        return [probe for query_pair in self._asked(benchmark) for probe in query_pair.probes]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules overlap, paired and judge; no reference is needed."""
        asked = self._asked(benchmark)
        comparison = compare(
            self,
            benchmark,
            asked,
            ("general", "guided"),
            answers,
            None,
            "a single word of text",
            (None, None),
            direction="rises",
            unit=self.unit,
        )
        return [
            self._overlap(comparison),
            mcnemar_score(comparison, "paired"),
            self._judged(comparison, asked),
        ]

    def _overlap(self, comparison: Comparison) -> Score:
        assert comparison.first is not None
        rows = zip(comparison.first.outcomes, comparison.second.outcomes, strict=True)
        pairs = sorted((a, b) for a, b in rows if a is not None and b is not None)
        if not pairs:
            return gap_score(comparison, "overlap", lambda _: "not_detected")
        general, guided = np.array(pairs, dtype=float).T
        rng = generator(self.settings.seed, comparison.answers.fingerprint, "overlap")
        p = overlap_p(guided, general, rng)
        verdict = rules.significant(p, self.settings.alpha)
        return gap_score(comparison, "overlap", lambda _: verdict, p_value=p)

    def _judged(self, comparison: Comparison, asked: list[QueryPair]) -> Score:
        seed = self.settings.seed
        drawn = sorted(asked, key=lambda t: generator(seed, t.item.id, "judged").random())
        labels: list[Label] = []
        for query_pair in drawn[: self.n_judged]:
            first, second = cut(query_pair.item, seed) or ("", "")
            reply = comparison.answers.to(query_pair.second.probes[0])
            if reply is not None:
                labels.append(self.judge(continuation(reply.text, first), second))
        n_exact, n_near = labels.count("exact"), labels.count("near-exact")
        verdict = judge_verdict(n_exact, n_near)
        found = {"exact": n_exact, "near_exact": n_near, "n": len(labels)}
        return gap_score(
            comparison,
            "judge",
            lambda _: verdict,
            tuned_threshold=True,
            details={"judged": found},
        )

    @cached_per_benchmark
    def _asked(self, benchmark: PairedBenchmark) -> list[QueryPair]:
        asked = []
        for item in benchmark.originals:
            pieces = cut(item, self.settings.seed)
            if pieces is not None:
                general, guided = _prompts(item, pieces[0], benchmark)
                asked.append(
                    QueryPair(
                        item,
                        self._put(item, "general", general, pieces),
                        self._put(item, "guided", guided, pieces),
                    )
                )
        return asked

    def _put(self, item: Item, variant: str, prompt: str, pieces: tuple[str, str]) -> Query:
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
