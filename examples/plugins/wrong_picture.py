"""A custom detector: whether a model gives an item's answer even with another item's image."""

from __future__ import annotations

from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe, Score
from flipbench.evaluate.protocol.detector import About, Answers
from flipbench.evaluate.scoring.comparison import Settings, compare_with_model, mcnemar_score
from flipbench.evaluate.scoring.conditions import Query, choice, multiple_choice_items
from flipbench.prompting.prompts import PromptSettings

ABOUT = About(
    name="wrong_picture",
    title="Wrong picture",
    paper="an example, without a paper",
    variant="rule mcnemar (default): the release's answers to wrong pictures, vs a clean model",
    default_rule="mcnemar",
    deviates_from_paper="there is none",
    needs=frozenset({"choose or generate"}),
    direction="answers match the release more often than a clean model's, whatever the image",
    needs_clean_model=True,
    practical=False,
)


@dataclass
class WrongPicture:
    """Gap = share of the release's answers with wrong images - the clean model's share.

    Parameters
    ----------
    step : int
        Offset of the item from which the wrong image is taken.
    """

    settings: Settings = field(default_factory=Settings)
    step: int = 1
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return a probe of every question that has options, with another item's image."""
        queries = self._queries(benchmark, prompt_settings)
        return [probe for _, query in queries for probe in query.probes]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the score of rule mcnemar."""
        comparison = compare_with_model(
            self,
            benchmark,
            self._queries(benchmark, prompt_settings),
            "wrong picture",
            answers,
            reference,
            "they are free-form and have no options",
        )
        return [mcnemar_score(comparison, uses_reference=True)]

    def _queries(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[tuple[Item, Query]]:
        items = multiple_choice_items(benchmark)
        others = items[self.step :] + items[: self.step]
        return [
            (item, choice(prompt_settings, item, "wrong picture", images=other.images))
            for item, other in zip(items, others, strict=True)
        ]
