"""CDD: samples of a reply that hardly differ from the greedy one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rapidfuzz.distance import Levenshtein

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe, Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, choice_prompt, open_prompt

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
)

MAX_TOKENS = 100
"""Tokens of each reply that are compared, as in the paper."""
MIN_TOKENS = 20
"""With the paper's tolerance of 0.05, shorter replies must be equal to count as near."""
_TOKEN = re.compile(r"\w+|[^\w\s]")

ABOUT = About(
    name="cdd",
    title="CDD",
    paper="Dong et al., Generalization or Memorization (CDD), arXiv 2402.15938",
    variant="rules peak (default: permutation test of original against perturbed items), relative",
    deviates_from_paper="the paper flags single texts whose peak is above 0.01: the number of such"
    " items is shown, and the set is judged by whether samples are nearer to the greedy reply on"
    " the originals than on the perturbed versions; words and punctuation marks are the tokens,"
    " since a server reveals no others; 20 samples instead of 50",
    rules={"peak": False, "relative": True},
    default_rule="peak",
    needs=frozenset({"generate", "sample"}),
    direction="samples are less near to the greedy reply on the perturbed items than on the"
    " originals",
    rule_titles={"peak": "peak"},
    catches=("answer texts",),
    must_not_catch=("question only", "image-caption"),
    on_request="it asks 42 questions about each pair (n_samples 20): name it with --detectors",
    evidence="published",
    caveat="needs replies that were learnt word for word: at chance after LoRA of low rank or"
    " training on paraphrases (arXiv 2603.03203); replies of a few words are peaked in any"
    " confident model: an instruction to reason (evaluate.prompt.instruction) makes them longer",
)


def peak(greedy: str, samples: Sequence[str], tolerance: float = 0.05) -> int:
    """Return how many samples are near the greedy reply.

    Near is an edit distance in tokens of at most ``tolerance`` x the length of the longest reply;
    the first 100 tokens of each count.

    >>> peak("a b c d", ["a b c d", "A b c", "a x c d", "e"], tolerance=0.25)
    2
    """
    replies = [tokens(text) for text in (greedy, *samples)]
    most = tolerance * max(map(len, replies)) + 1e-9
    return sum(Levenshtein.distance(replies[0], reply) <= most for reply in replies[1:])


def tokens(reply: str) -> list[str]:
    """Return the first words and punctuation marks of a reply.

    >>> tokens("It's B.")
    ['It', "'", 's', 'B', '.']
    """
    return _TOKEN.findall(reply)[:MAX_TOKENS]


@dataclass
class CDD(ComparingDetector):
    """Gap = share of samples near the greedy reply on perturbed items - on the same originals.

    Parameters
    ----------
    n_samples : int
        Samples of each reply.
    temperature : float
        At which they are drawn.
    tolerance, threshold : float
        The paper's alpha and xi: the distance that is near, and the share of near samples above
        which an item counts as leaked.
    """

    n_samples: int = 20
    temperature: float = 0.8
    tolerance: float = 0.05
    threshold: float = 0.01
    max_new_tokens: int = MAX_TOKENS
    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return the greedy reply and the samples of each item, asked as the benchmark asks it.

        Of ``prompt_settings``, only the instruction applies.
        """
        versions = {"original": benchmark.originals, "perturbed": benchmark.perturbed}
        asked = {
            side: [self._probes(item, side, prompt_settings.instruction) for item in items]
            for side, items in versions.items()
        }
        return [
            Contrast(
                items=benchmark.originals,
                probes=[probe for rows in asked.values() for row in rows for probe in row],
                read=lambda answers: [self._read(answers, *side) for side in asked.items()],
                rules=(if_equally_hard(partial(mcnemar_score, rule="peak")), relative_score),
                describe=partial(self._describe, asked),
                finish=partial(_with_length, [row[0] for rows in asked.values() for row in rows]),
            )
        ]

    def _probes(self, item: Item, side: str, instruction: str) -> list[Probe]:
        """Return the greedy probe, then the samples."""
        greedy = Probe(
            item_id=item.id,
            variant=f"{side} sampled",
            images=item.images,
            prompt=(
                choice_prompt(item.question, item.options, instruction)
                if item.options
                else open_prompt(item.question)
            ),
            ask="generate",
            max_new_tokens=self.max_new_tokens,
        )
        samples = [
            greedy.revised(variant=f"{side} sample {seed}", temperature=self.temperature, seed=seed)
            for seed in range(1, self.n_samples + 1)
        ]
        return [greedy, *samples]

    def _read(self, answers: Answers, side: str, asked: Sequence[Sequence[Probe]]) -> Condition:
        """Return the share of near samples, 0 for an empty greedy reply."""
        outcomes: list[float | None] = []
        n_empty = n_replies = 0
        for probes in asked:
            replies = [answers.to(probe) for probe in probes]
            greedy, *samples = [reply.text for reply in replies if reply is not None] or [""]
            if len(samples) < self.n_samples:
                outcomes.append(None)
                continue
            is_empty = not tokens(greedy)
            n_replies, n_empty = n_replies + 1, n_empty + is_empty
            n_near = 0 if is_empty else peak(greedy, samples, self.tolerance)
            outcomes.append(n_near / self.n_samples)
        return Condition(side, outcomes, n_empty, n_replies, self.n_samples)

    def _describe(
        self, asked: Mapping[str, Sequence[Sequence[Probe]]], answers: Answers
    ) -> JsonDict:
        """Return the number of leaked items by the paper's rule, and what was asked."""
        leaked, n_questions = {}, 0
        for side, rows in asked.items():
            shares = [o for o in self._read(answers, side, rows).outcomes if o is not None]
            leaked[side] = {"k": sum(o > self.threshold for o in shares), "n": len(shares)}
            n_questions += sum(map(len, rows))
        return {"leaked": leaked, "n_questions": n_questions}


def _with_length(greedy: Sequence[Probe], score: Score, answers: Answers) -> Score:
    """Add the mean length, and a warning if replies are so short that the peak is confidence."""
    replies = [reply for probe in greedy if (reply := answers.to(probe)) is not None]
    if not replies:
        return score
    length = sum(len(tokens(reply.text)) for reply in replies) / len(replies)
    score = score.model_copy(update={"details": score.details | {"mean_length": length}})
    if not score.n or length >= MIN_TOKENS:
        return score
    warning = (
        f"greedy replies have {length:.1f} words on average: below {MIN_TOKENS}, a sample is near"
        " only if it is identical, so the peak is the confidence in a short answer"
    )
    return score.model_copy(update={"warnings": (*score.warnings, warning)})
