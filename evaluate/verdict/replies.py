"""A model's answers on both versions of a pair, for people to read beside the images."""

from __future__ import annotations

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings


def replies_of(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> dict[str, tuple[str, str]]:
    """Return the options chosen on original and perturbed version, by item name.

    Pairs without options are left out.
    """

    def choice(item: Item, variant: str) -> str:
        response = answers.to(prompt_settings.probe(item, variant))
        if response is None:
            return "nothing (asking failed)"
        if response.choice < 0 or item.options is None:
            return f"no option: {response.text.strip()[:60]!r}"
        return item.options[response.choice]

    return {
        p.original.name: (choice(p.original, "original"), choice(p.perturbed, "perturbed"))
        for p in benchmark.pairs
        if p.original.options is not None
    }
