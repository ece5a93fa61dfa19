"""What a model answered on both versions of a pair, for people to read beside the pictures."""

from __future__ import annotations

from dataclasses import dataclass

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Response
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings


@dataclass(frozen=True)
class Reply:
    """A model's replies to a multiple-choice pair; None where asking failed."""

    pair: Pair
    original: Response | None
    perturbed: Response | None

    @property
    def words(self) -> tuple[str, str]:
        """The options it chose on the original and on the twin."""
        return _said(self.pair.original, self.original), _said(self.pair.perturbed, self.perturbed)


def replies_of(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> list[Reply]:
    """Return a model's replies to the pairs that have options, in the benchmark's order."""
    return [
        Reply(
            pair,
            answers.to(prompt_settings.probe(pair.original, "original")),
            answers.to(prompt_settings.probe(pair.perturbed, "perturbed")),
        )
        for pair in benchmark.pairs
        if pair.original.options is not None
    ]


def _said(item: Item, response: Response | None) -> str:
    if response is None:
        return "nothing (asking failed)"
    if response.choice < 0 or item.options is None:
        return f"no option: {response.text.strip()[:60]!r}"
    return item.options[response.choice]
