"""CoDeC: whether other items of the same benchmark, shown before an item, make it less likely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import answer_probe, item_text, lacking, mean_log_prob
from ...scoring.shares import share_scores

PAPER = "CoDeC, arXiv 2510.27055"
DEVIATES = (
    "the paper gives no test; 'half' asks whether the share lies above 1/2, 'relative' (default)"
    " whether it lies above the clean model's; other items stand in the user's turn, without images"
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
    needs_clean_model=False,
    practical=True,
)
ANSWERS = replace(
    WHOLE_ITEMS,
    name="codec_answer",
    title="CoDeC, answers",
    needs=frozenset({"token_logprobs"}),
    variant="right answers, given question and image; rules half, relative (default)",
)


@dataclass
class CoDeC:
    """Share of items whose mean log-probability falls when other items stand before them.

    In a set that a model does not know, examples of its style help; in one that it has memorised
    they disturb. They also disturb a model that never reads more than one question at a time,
    whatever it has seen, so that rule ``half`` flags such a model: go by ``relative``.

    Parameters
    ----------
    scored : {"item", "answer"}
        The whole text of an item without its image, as in the paper, or the right answer alone, as
        a reply to question and image: what fine-tuning of a vision-language model trains.
    n_context, n_draws : int
        Other items shown before an item, and how often they are drawn anew; an item's value is the
        share of its draws in which it became less likely (a tie is not less).

    References
    ----------
    CoDeC, arXiv 2510.27055, known to us from its description only. Differs from it as ``about``
    says.
    """

    scored: Literal["item", "answer"] = "item"
    n_context: int = 3
    n_draws: int = 2
    settings: Settings = field(default_factory=Settings)
    about: About = field(init=False)

    def __post_init__(self) -> None:
        """Take the name that goes with what is scored."""
        self.about = WHOLE_ITEMS if self.scored == "item" else ANSWERS

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each original item alone and behind other items."""
        return [
            probe
            for alone, behind in self._asked(benchmark, prompt_settings)
            for probe in (alone, *behind)
        ]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules half and relative."""
        why = lacking(self.about, answers, self.probes(benchmark, prompt_settings))
        return list(
            share_scores(
                self.about,
                benchmark,
                answers,
                self._values(benchmark, prompt_settings, answers),
                reference,
                {} if reference is None else self._values(benchmark, prompt_settings, reference),
                rule="half",
                settings=self.settings,
                why=why or _too_small(benchmark),
                details={"n_context": self.n_context, "n_draws": self.n_draws},
            )
        )

    @cached_per_benchmark
    def _asked(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[tuple[Probe, list[Probe]]]:
        items = sorted(benchmark.originals, key=lambda item: item.id)
        place = {item.id: i for i, item in enumerate(items)}
        return [
            (
                self._probe(item, prompt_settings, ""),
                [
                    self._probe(item, prompt_settings, self._context(items, place[item.id], draw))
                    for draw in range(self.n_draws)
                ],
            )
            for item in benchmark.originals
        ]

    def _context(self, items: list[Item], own: int, draw: int) -> str:
        """Return other items drawn from (seed, item id), whatever the benchmark's order."""
        rng = generator(self.settings.seed, items[own].id, f"codec-{draw}")
        n = min(self.n_context, len(items) - 1)
        chosen = rng.permutation(len(items) - 1)[:n]
        return "\n\n".join(item_text(items[i + (i >= own)]) for i in chosen.tolist())

    def _probe(self, item: Item, prompt_settings: PromptSettings, context: str) -> Probe:
        variant = "in context" if context else "alone"
        if self.scored == "answer":
            return answer_probe(item, prompt_settings, variant, context)
        return Probe(
            item_id=item.id,
            variant=variant,
            prompt=context,
            ask="score",
            continuation=item_text(item),
            max_new_tokens=0,
        )

    def _values(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
    ) -> dict[str, float]:
        """Return the share of draws in which each item became less likely."""
        found = {}
        for alone, behind in self._asked(benchmark, prompt_settings):
            before = mean_log_prob(answers, alone)
            after = [mean_log_prob(answers, probe) for probe in behind]
            known = [value for value in after if value is not None]
            if before is not None and known:
                found[alone.item_id] = share_below([before] * len(known), known)
        return found


@dataclass
class CoDeCAnswers(CoDeC):
    """`CoDeC` of the right answers alone."""

    scored: Literal["item", "answer"] = "answer"


def share_below(alone: list[float], in_context: list[float]) -> float:
    """Return the share of values that are strictly lower in context.

    >>> round(share_below([-2.0, -1.5, -3.0], [-1.8, -1.9, -2.5]), 4)
    0.3333
    """
    fell = [after < before for before, after in zip(alone, in_context, strict=True)]
    return sum(fell) / len(fell)


def _too_small(benchmark: PairedBenchmark) -> str:
    return "" if len(benchmark.pairs) > 1 else "a benchmark of one item has no other items to show"
