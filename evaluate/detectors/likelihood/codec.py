"""CoDeC: items that become less likely after other items of the same benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    answer_probe,
    item_text,
    log_likelihood,
    no_likelihood_warning,
    share_scores,
    text_probe,
)

PAPER = "CoDeC, arXiv 2510.27055"
TESTS = (
    "the paper gives no test; 'half' tests whether the share is above 1/2, 'relative' (default)"
    " whether it is above the clean model's"
)

TEXTS = About(
    name="codec_text",
    title="CoDeC, one text",
    paper=PAPER,
    variant="other items, then the item, as one text; rules half, relative (default)",
    rules={"half": False, "relative": True},
    deviates_from_paper=f"{TESTS}; the text is written by the model, after an empty prompt in its"
    " chat format, where the paper's base models continue plain text; without images",
    default_rule="relative",
    needs=frozenset({"token_logprobs", "text_only"}),
    direction="the share of items that context makes less likely rises",
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"half": None},
    evidence="published, contested",
    caveat="misled by small sets and by a shift in distribution: with two other audits, right in"
    " 199 of 335 cases (arXiv 2606.03305)",
)
REPLIES = replace(
    TEXTS,
    name="codec",
    title="CoDeC, context in the prompt",
    variant="other items in the prompt, the item as the reply; rules half, relative (default)",
    deviates_from_paper=f"{TESTS}; other items are in the user's turn and the item in the model's,"
    " not in one text as in the paper (see codec_text); without images",
)
ANSWERS = replace(
    REPLIES,
    name="codec_answer",
    title="CoDeC, answers",
    needs=frozenset({"token_logprobs"}),
    variant="right answers, given question and image; rules half, relative (default)",
    deviates_from_paper=f"{TESTS}; other items are in the user's turn, without images, and only the"
    " right answer is scored",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    evidence="unpublished",
    caveat="the paper scores whole texts; other questions in the prompt can make a letter less"
    " likely in any model",
)
Scored = Literal["text", "item", "answer"]
_START = "Question:"
"""Every text starts with it, so that an item has the same tokens alone and in context."""


class _Text(NamedTuple):
    """A text to score: ``whole``, of which ``start`` (if any) is not part of the item."""

    whole: Probe
    start: Probe | None = None

    @property
    def probes(self) -> list[Probe]:
        return [probe for probe in self if probe is not None]

    def mean(self, answers: Answers) -> tuple[float, int] | None:
        """Return the item's mean log-probability per token and its tokens; None if unanswered."""
        total, n = 0.0, 0
        for sign, probe in zip((1, -1), self.probes, strict=False):
            reply, value = answers.to(probe), log_likelihood(answers, probe)
            if reply is None or value is None or not reply.n_tokens:
                return None
            total, n = total + sign * value, n + sign * reply.n_tokens
        return (total / n, n) if n > 0 else None


@dataclass
class CoDeC:
    """Share of items whose mean log-probability drops when other items precede them.

    Examples in the style of an unknown set help a model; in a set that it has memorised they
    disturb. They also disturb any model trained on single questions only, so that rule ``half``
    flags such a model: prefer ``relative``.

    Parameters
    ----------
    n_context, n_draws : int
        Number of other items shown before an item, and of draws of them; an item's value is the
        share of its draws in which it became less likely (a tie does not count).
    """

    n_context: int = 3
    n_draws: int = 2
    settings: Settings = Settings()
    scored: ClassVar[Scored] = "item"
    about = REPLIES

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each original item alone and after other items."""
        texts = self._texts(benchmark, prompt_settings).values()
        return [probe for item_texts in texts for text in item_texts for probe in text.probes]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules half and relative."""
        probes = self.probes(benchmark, prompt_settings)
        refusal = no_likelihood_warning(self.about, answers, probes)
        if not refusal and len(benchmark.pairs) < 2:
            refusal = "a benchmark of one item has no other items to show"
        scores = share_scores(
            self,
            benchmark,
            answers,
            reference,
            partial(self._shares, benchmark, prompt_settings),
            rule="half",
            settings=self.settings,
            refusal=refusal,
            details={"n_context": self.n_context, "n_draws": self.n_draws},
        )
        return list(scores)

    @cached_per_benchmark
    def _texts(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> dict[str, list[_Text]]:
        """Return by item its text alone and in context, once per draw."""
        items = sorted(benchmark.originals, key=lambda item: item.id)
        index = {item.id: i for i, item in enumerate(items)}
        return {
            item.id: [
                self._text(item, prompt_settings, context)
                for context in (
                    "",
                    *(self._context(items, index[item.id], j) for j in range(self.n_draws)),
                )
            ]
            for item in benchmark.originals
        }

    def _context(self, items: list[Item], index: int, draw: int) -> str:
        """Return other items drawn from (seed, item id), independent of the benchmark's order."""
        rng = generator(self.settings.seed, items[index].id, f"codec-{draw}")
        order = rng.permutation(len(items) - 1)[: self.n_context].tolist()
        start = f"{_START} " if self.scored == "text" else ""
        return "\n\n".join(f"{start}{item_text(items[i + (i >= index)])}" for i in order)

    def _text(self, item: Item, prompt_settings: PromptSettings, context: str) -> _Text:
        variant = "in context" if context else "alone"
        if self.scored == "answer":
            return _Text(answer_probe(item, prompt_settings, variant, context))
        if self.scored == "item":
            return _Text(text_probe(item.id, variant, item_text(item), context))
        start = f"{context}\n\n{_START}" if context else _START
        return _Text(
            text_probe(item.id, variant, f"{start} {item_text(item)}"),
            text_probe(item.id, f"start, {variant}", start),
        )

    def _shares(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
    ) -> dict[str, float]:
        """Return the share of draws in which each item became less likely."""
        shares = {}
        for item_id, texts in self._texts(benchmark, prompt_settings).items():
            baseline, *in_context = (text.mean(answers) for text in texts)
            if baseline:
                means = [mean[0] for mean in in_context if mean and mean[1] == baseline[1]]
                if means:
                    shares[item_id] = share_below([baseline[0]] * len(means), means)
        return shares


class CoDeCTexts(CoDeC):
    """`CoDeC` of items in one text with other items, as in the paper."""

    scored: ClassVar[Scored] = "text"
    about = TEXTS


class CoDeCAnswers(CoDeC):
    """`CoDeC` of the right answers only: what fine-tuning of a vision-language model trains."""

    scored: ClassVar[Scored] = "answer"
    about = ANSWERS


def share_below(baselines: list[float], in_context: list[float]) -> float:
    """Return the share of values that are strictly lower in context.

    >>> round(share_below([-2.0, -1.5, -3.0], [-1.8, -1.9, -2.5]), 4)
    0.3333
    """
    fell = [value < baseline for baseline, value in zip(baselines, in_context, strict=True)]
    return sum(fell) / len(fell)
