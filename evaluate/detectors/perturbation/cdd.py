"""CDD: samples of a reply that hardly differ from the greedy one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rapidfuzz.distance import Levenshtein

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe, Response, Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, choice_prompt, open_prompt

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    two_versions,
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
    limit = tolerance * max(map(len, replies)) + 1e-9
    return sum(Levenshtein.distance(replies[0], reply) <= limit for reply in replies[1:])


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
        contrast = two_versions(
            benchmark,
            partial(self._probes, prompt_settings.instruction),
            self._share_near,
            (if_equally_hard(partial(mcnemar_score, rule="peak")), relative_score),
            self.n_samples,
        )
        greedy_probes = contrast.probes[:: 1 + self.n_samples]
        return [
            replace(
                contrast,
                describe=partial(self._describe, contrast),
                finish=partial(_with_length, greedy_probes),
            )
        ]

    def _probes(self, instruction: str, item: Item, side: str) -> list[Probe]:
        """Return the greedy probe, then the samples."""
        prompt = open_prompt(item.question)
        if item.options:
            prompt = choice_prompt(item.question, item.options, instruction)
        greedy = Probe(
            item_id=item.id,
            variant=f"{side} sampled",
            images=item.images,
            prompt=prompt,
            ask="generate",
            max_new_tokens=self.max_new_tokens,
        )
        samples = [
            greedy.revised(variant=f"{side} sample {seed}", temperature=self.temperature, seed=seed)
            for seed in range(1, self.n_samples + 1)
        ]
        return [greedy, *samples]

    def _share_near(self, replies: Sequence[Response]) -> float | None:
        """Return the share of near samples; None if the greedy reply is empty."""
        greedy, *samples = [reply.text for reply in replies]
        return peak(greedy, samples, self.tolerance) / len(samples) if tokens(greedy) else None

    def _describe(self, contrast: Contrast, answers: Answers) -> JsonDict:
        """Return the number of leaked items by the paper's rule, and of questions."""
        leaked = {}
        for side in contrast.read(answers):
            shares = [share for share in side.outcomes if share is not None]
            n_leaked = sum(share > self.threshold for share in shares)
            leaked[side.name] = {"k": n_leaked, "n": len(shares)}
        return {"leaked": leaked, "n_questions": len(contrast.probes)}


def _with_length(greedy: Sequence[Probe], score: Score, answers: Answers) -> Score:
    """Add the mean length, and a warning if replies are so short that the peak is confidence."""
    replies = [reply for probe in greedy if (reply := answers.to(probe)) is not None]
    if not replies:
        return score
    length = sum(len(tokens(reply.text)) for reply in replies) / len(replies)
    warnings = list(score.warnings)
    if score.n and length < MIN_TOKENS:
        warnings.append(
            f"greedy replies have {length:.1f} words on average: below {MIN_TOKENS}, a sample is"
            " near only if it is identical, so the peak is the confidence in a short answer"
        )
    details = score.details | {"mean_length": length}
    return score.model_copy(update={"details": details, "warnings": tuple(warnings)})
