"""CoDeC: items that become less likely after other items of the same benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    answer_probe,
    item_text,
    mean_log_prob,
    no_likelihood_warning,
    text_probe,
)
from ...scoring.shares import share_scores

PAPER = "CoDeC, arXiv 2510.27055"
DEVIATES = (
    "the paper gives no test; 'half' tests whether the share is above 1/2, 'relative' (default)"
    " whether it is above the clean model's; other items are in the user's turn, without images"
)

WHOLE_ITEMS = About(
    name="codec",
    title="CoDeC",
    paper=PAPER,
    variant="whole items as text; rules half, relative (default)",
    deviates_from_paper=DEVIATES,
    default_rule="relative",
    needs=frozenset({"token_logprobs", "text_only"}),
    direction="the share of items that context makes less likely rises",
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"half": None},
)
ANSWERS = replace(
    WHOLE_ITEMS,
    name="codec_answer",
    title="CoDeC, answers",
    needs=frozenset({"token_logprobs"}),
    variant="right answers, given question and image; rules half, relative (default)",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
)


@dataclass
class CoDeC:
    """Share of items whose mean log-probability drops when other items precede them.

    Examples in the style of an unknown set help a model; in a set that it has memorised they
    disturb. They also disturb any model trained on single questions only, so that rule ``half``
    flags such a model: prefer ``relative``.

    Parameters
    ----------
    scored : {"item", "answer"}
        The whole text of an item without its image, as in the paper, or only the right answer, as
        a reply to question and image: what fine-tuning of a vision-language model trains.
    n_context, n_draws : int
        Number of other items shown before an item, and of draws of them; an item's value is the
        share of its draws in which it became less likely (a tie does not count).

    References
    ----------
    CoDeC, arXiv 2510.27055, known to us only from its description. Differs from it as described in
    ``about``.
    """

    scored: Literal["item", "answer"] = "item"
    n_context: int = 3
    n_draws: int = 2
    settings: Settings = field(default_factory=Settings)
    about: About = field(init=False)

    def __post_init__(self) -> None:
        """Set the facts that belong to what is scored."""
        self.about = WHOLE_ITEMS if self.scored == "item" else ANSWERS

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each original item alone and after other items."""
        pairs = self._probe_pairs(benchmark, prompt_settings)
        return [probe for alone, in_context in pairs for probe in (alone, *in_context)]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules half and relative."""
        missing = no_likelihood_warning(
            self.about, answers, self.probes(benchmark, prompt_settings)
        )
        if not missing and len(benchmark.pairs) < 2:
            missing = "a benchmark of one item has no other items to show"
        scores = share_scores(
            self,
            benchmark,
            answers,
            reference,
            partial(self._values, benchmark, prompt_settings),
            rule="half",
            settings=self.settings,
            missing=missing,
            details={"n_context": self.n_context, "n_draws": self.n_draws},
        )
        return list(scores)

    @cached_per_benchmark
    def _probe_pairs(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[tuple[Probe, list[Probe]]]:
        items = sorted(benchmark.originals, key=lambda item: item.id)
        index = {item.id: i for i, item in enumerate(items)}
        return [
            (
                self._probe(item, prompt_settings, ""),
                [
                    self._probe(item, prompt_settings, self._context(items, index[item.id], draw))
                    for draw in range(self.n_draws)
                ],
            )
            for item in benchmark.originals
        ]

    def _context(self, items: list[Item], own: int, draw: int) -> str:
        """Return other items drawn from (seed, item id), independent of the benchmark's order."""
        rng = generator(self.settings.seed, items[own].id, f"codec-{draw}")
        n = min(self.n_context, len(items) - 1)
        chosen = rng.permutation(len(items) - 1)[:n]
        return "\n\n".join(item_text(items[i + (i >= own)]) for i in chosen.tolist())

    def _probe(self, item: Item, prompt_settings: PromptSettings, context: str) -> Probe:
        variant = "in context" if context else "alone"
        if self.scored == "answer":
            return answer_probe(item, prompt_settings, variant, context)
        return text_probe(item.id, variant, item_text(item), context)

    def _values(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
    ) -> dict[str, float]:
        """Return the share of draws in which each item became less likely."""
        shares = {}
        for alone, in_context in self._probe_pairs(benchmark, prompt_settings):
            before = mean_log_prob(answers, alone)
            after = [mean_log_prob(answers, probe) for probe in in_context]
            known = [value for value in after if value is not None]
            if before is not None and known:
                shares[alone.item_id] = share_below([before] * len(known), known)
        return shares


@dataclass
class CoDeCAnswers(CoDeC):
    """`CoDeC` of the right answers only."""

    scored: Literal["item", "answer"] = "answer"


def share_below(alone: list[float], in_context: list[float]) -> float:
    """Return the share of values that are strictly lower in context.

    >>> round(share_below([-2.0, -1.5, -3.0], [-1.8, -1.9, -2.5]), 4)
    0.3333
    """
    fell = [after < before for before, after in zip(alone, in_context, strict=True)]
    return sum(fell) / len(fell)
