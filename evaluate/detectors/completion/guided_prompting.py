"""Guided prompting: completing a question verbatim once the prompt names the data set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, JsonDict, Response, Score
from flipbench.models.chat.labels import Labeller, LabelTask, Rubric
from flipbench.prompting.prompts import PromptSettings, lettered
from flipbench.prompting.wrappers import answer_text

from ...protocol import rules
from ...protocol.detector import About, Answers, Helpers, cached_per_benchmark
from ...protocol.rules import Verdict
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Contrast,
    complete_outcomes,
    gap_score,
    mcnemar_score,
    two_conditions,
)
from ...scoring.conditions import Query, QueryPair, open_question
from ...scoring.text_match import continuation, fold, rouge_l
from ...statistics.resampling import Array

Match = Literal["exact", "near-exact", "none"]
NEAR = 0.75
"""ROUGE-L from which a completion is near-exact if no judge is configured."""
N_TUNED = 10
"""The number of completions that the paper's counts are for."""
MATCH = Rubric(
    "completion-v1",
    "You are given the true text and a candidate that a model wrote. Say how well the candidate"
    " reproduces the true text. It is an exact match if it has the same words in the same order,"
    " whatever the letter case, punctuation and line breaks, even if more text follows. It is a"
    " near-exact match if it is not exact but has the same structure and meaning, and most of the"
    " words. A text that only fits the same question is no match.\n\n"
    "True text: C. a bus D. a tram\nCandidate: c) a bus, d) a tram. Answer: C -> exact\n"
    "True text: C. a red bus D. a tram\nCandidate: C. a bus D. a tram -> near-exact\n"
    "True text: C. a bus D. a tram\nCandidate: C. a car D. a bicycle -> none",
    "True text: {}\nCandidate: {}",
    ("exact", "near-exact", "none"),
)
GUIDED = (
    "{first}\nThis is the beginning of a question{split} of the data set {dataset}. Finish it"
    " exactly as it stands in that data set. Write only what follows."
)
GENERAL = "{first}\nThis is the beginning of a question. Finish it. Write only what follows."

ABOUT = About(
    name="guided_prompting",
    title="Guided prompting",
    paper="Golchin and Surdeanu, Time Travel in LLMs, arXiv 2308.08493",
    variant="rules overlap (the paper's first: independent bootstrap of ROUGE-L), paired (default;"
    " permutation test and bootstrap interval that keep an item's two completions together), judge"
    " (the paper's second: one exact or two near-exact completions among ten, as labelled by the"
    " model in evaluate.judge, or by words without one)",
    deviates_from_paper="all items, not ten, for overlap and paired; the answer is not in the"
    " prompt, since it is among the options; the picture is shown; our wording of the judge's"
    " prompt, and completions of the same words are not sent to it; without a judge the same words"
    " are exact, and a ROUGE-L of .75 is near-exact; for more than ten completions the counts are"
    " scaled, and for fewer 'not detected' is inconclusive; ROUGE-L, not BLEURT; 'paired'",
    rules={"overlap": False, "paired": False, "judge": False},
    default_rule="paired",
    needs=frozenset({"generate"}),
    direction="completions are closer to the true text when the prompt names the data set",
    helpers=frozenset({"answer_judge"}),
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"judge": None},
    evidence="published",
    caveat="predictable endings are completed unseen, and models tuned on instructions often do not"
    " complete at all",
)


def split_text(item: Item, seed: int) -> tuple[str, str] | None:
    """Split an item's question and options in two after a random 40 to 70 % of its parts.

    The parts are sentences and options, or words if there is only one sentence. None if there is
    only one word.
    """
    parts, glue = re.split(r"(?<=[.?!])\s+", item.question.strip()), "\n"
    parts += lettered(item.options or ())
    if len(parts) < 2:
        parts, glue = item.question.split(), " "
    if len(parts) < 2:
        return None
    share = generator(seed, item.id, "guided-prompting").uniform(0.4, 0.7)
    at = min(len(parts) - 1, max(1, round(share * len(parts))))
    return glue.join(parts[:at]), glue.join(parts[at:])


def match_by_words(true_text: str, completion: str) -> Match:
    """Return "exact" for the same words, "near-exact" for a ROUGE-L of at least .75.

    >>> match_by_words("b. red c. blue", "B. red C. Blue."), match_by_words("b. red", "x")
    ('exact', 'none')
    """
    if fold(completion) == fold(true_text):
        return "exact"
    return "near-exact" if rouge_l(true_text, completion) >= NEAR else "none"


def _by_rule(task: LabelTask) -> Match | None:
    """Return the match of a completion that is empty or exact; else None."""
    true_text, completion = task.texts
    if not completion:
        return "none"
    return "exact" if fold(completion) == fold(true_text) else None


def judge_verdict(n_exact: int, n_near: int, n: int = N_TUNED) -> Verdict:
    """Return "contaminated" for one exact or two near-exact completions in every ten of ``n``.

    Fewer than ten need as many.

    >>> judge_verdict(0, 2), judge_verdict(0, 1), judge_verdict(1, 3, n=20)
    ('contaminated', 'not_detected', 'not_detected')
    """
    tens = max(1.0, n / N_TUNED)
    return "contaminated" if n_exact >= tens or n_near >= 2 * tens else "not_detected"


def overlap_p(
    guided: Array, general: Array, rng: np.random.Generator, n_bootstrap: int = 10_000
) -> float:
    """Return 1 - the share of bootstrap samples in which the guided mean is higher.

    Both hold similarities in [0, 1], shape (N,). As in the paper, they are resampled independently
    although they are paired. If the guided mean is higher in all samples, p is
    1 / (``n_bootstrap`` + 1), since so many show no less.
    """
    n_higher, n = 0, len(guided)
    for start in range(0, n_bootstrap, 250):
        shape = (min(250, n_bootstrap - start), n)
        means = [values[rng.integers(n, size=shape)].mean(1) for values in (guided, general)]
        n_higher += int((means[0] > means[1]).sum())
    return max(1 - n_higher / n_bootstrap, 1 / (n_bootstrap + 1))


@dataclass
class GuidedPrompting(ComparingDetector):
    """Gap = mean ROUGE-L with the true text of completions with the data set named - without.

    Rule 'judge' was tuned for ten items, so it uses ten, drawn by seed; ``details["judged"]`` has
    its counts.

    Parameters
    ----------
    label : callable, optional
        A `flipbench.models.chat.labels.recorded_labels`. Without one, words decide.
    """

    label: Labeller | None = None
    n_judged: int = N_TUNED
    with_image: bool = True
    max_new_tokens: int = 64
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> GuidedPrompting:
        """Return the detector with a judge."""
        return replace(self, label=helpers.label)

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[LabelTask]:
        """Yield the completions that differ from the true text."""
        for task in self._completions(self._query_pairs(benchmark), answers):
            if _by_rule(task) is None:
                yield task

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's beginning with both prompts; ``prompt_settings`` is not used."""
        query_pairs = self._query_pairs(benchmark)
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
                unit="ROUGE-L",
            )
        ]

    @cached_per_benchmark
    def _query_pairs(self, benchmark: PairedBenchmark) -> list[QueryPair]:
        query_pairs = []
        for item in benchmark.originals:
            halves = split_text(item, self.settings.seed)
            if halves is not None:
                split = f" from the {item.source.split} split" if item.source.split else ""
                dataset = item.source.dataset or benchmark.name
                guided = GUIDED.format(first=halves[0], split=split, dataset=dataset)
                general = self._query(item, "general", GENERAL.format(first=halves[0]), halves)
                query_pairs.append(
                    QueryPair(item, general, self._query(item, "guided", guided, halves))
                )
        return query_pairs

    def _overlap(self, comparison: Comparison) -> Score:
        assert comparison.first is not None
        sides = (comparison.first, comparison.second)
        pairs = sorted(zip(*complete_outcomes(sides), strict=True))
        if not pairs:
            return gap_score(comparison, "overlap", lambda _: "not_detected")
        general, guided = np.array(pairs, dtype=float).T
        rng = generator(self.settings.seed, comparison.answers.model, "overlap")
        p = overlap_p(guided, general, rng)
        verdict = rules.significant(p, self.settings.alpha)
        refusal = rules.too_few_warning(len(pairs), self.settings.alpha)
        return gap_score(comparison, "overlap", lambda _: verdict, refusal=refusal, p_value=p)

    def _judged(self, query_pairs: list[QueryPair], comparison: Comparison) -> Score:
        labels: list[str | None] = [
            _by_rule(task) or (self.label(task) if self.label else match_by_words(*task.texts))
            for task in self._completions(query_pairs, comparison.answers)
        ]
        n = len(labels) - labels.count(None)
        n_exact, n_near = labels.count("exact"), labels.count("near-exact")
        verdict, refusal = judge_verdict(n_exact, n_near, n), None
        if n < N_TUNED and verdict != "contaminated":
            refusal = (
                f"{n} completions are judged, and the rule's counts are for {N_TUNED}; use more"
                " items, or run the same command again if judgements are missing"
            )
        by = "words" if self.label is None else "judge"
        counts: JsonDict = {"exact": n_exact, "near_exact": n_near, "n": n, "by": by}
        return gap_score(
            comparison,
            "judge",
            lambda _: verdict,
            refusal=refusal,
            tuned_threshold=True,
            details={"judged": counts},
        )

    def _completions(self, query_pairs: list[QueryPair], answers: Answers) -> Iterator[LabelTask]:
        """Yield the guided completions to judge, each beside the true text."""
        seed = self.settings.seed
        shuffled = sorted(
            query_pairs, key=lambda pair: generator(seed, pair.item.id, "judged").random()
        )
        for pair in shuffled[: self.n_judged]:
            beginning, true_text = split_text(pair.item, seed) or ("", "")
            if (reply := answers.to(pair.second.probes[0])) is not None:
                completion = continuation(answer_text(reply.text), beginning).strip()
                yield LabelTask(MATCH, (true_text, completion))

    def _query(self, item: Item, variant: str, prompt: str, halves: tuple[str, str]) -> Query:
        def similarity(reply: Response) -> float | None:
            text = answer_text(reply.text)
            return rouge_l(halves[1], continuation(text, halves[0])) if text.strip() else None

        return open_question(
            item,
            variant,
            prompt,
            similarity,
            max_new_tokens=self.max_new_tokens,
            images=None if self.with_image else (),
        )
