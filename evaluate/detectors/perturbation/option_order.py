"""Option-order sensitivity: the accuracy drop when the right answer's letter changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...protocol.rules import Bands
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    bands_score,
    mcnemar_score,
    relative_score,
    two_conditions,
    with_leakage,
)
from ...scoring.conditions import Query, QueryPair, choice, mean

BANDS = Bands(minor=-0.002, partial=-0.016, severe=-0.029)
"""The paper's degrees for multiple choice."""

ABOUT = About(
    name="option_order",
    title="Option-order sensitivity",
    paper="Song et al., Both Text and Images Leaked! (MM-Detect), arXiv 2411.03823, option order"
    " sensitivity test",
    variant="rules bands (the paper's degrees; minor is enough), mcnemar (default), shuffles (mean"
    " of several shuffles), relative",
    deviates_from_paper="one prompt and one parser for both orders (the authors' differ, and match"
    " texts inside longer ones); items with two equal options are left out; several shuffles, of"
    " which rules bands and mcnemar use the first; tests in addition to the bands, which are well"
    " within the noise of a thousand items",
    rules={"bands": False, "mcnemar": False, "shuffles": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops when the options are shuffled",
    rule_titles={"shuffles": "mean of shuffles"},
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    levels={"bands": None},
    evidence="published",
    caveat="bias towards positions moves it without contamination; the bands are within the noise"
    " of a thousand items",
)


def shuffles(item: Item, n_shuffles: int, seed: int) -> list[tuple[tuple[str, ...], int]]:
    """Draw different orders of an item's options in which the right answer's letter changes.

    Returns
    -------
    list of (tuple of str, int)
        Options in order, and the right answer's slot; empty if the item has no image, fewer than
        three options, or two equal options (case-folded).

    Raises
    ------
    ValueError
        If ``n_shuffles`` is not 1 to 4: three options have only four such orders.
    """
    if not 1 <= n_shuffles <= 4:
        raise ValueError(f"option order: n_shuffles must be 1 to 4, not {n_shuffles}")
    options = item.options
    if options is None or item.answer is None or not item.images or len(options) < 3:
        return []
    if len({" ".join(text.casefold().split()) for text in options}) < len(options):
        return []
    rng = generator(seed, item.id, "option-order")
    orders: dict[tuple[int, ...], None] = {}
    while len(orders) < n_shuffles:
        order = tuple(int(source) for source in rng.permutation(len(options)))
        if order[item.answer] != item.answer:
            orders[order] = None
    return [(tuple(options[i] for i in order), order.index(item.answer)) for order in orders]


@dataclass
class OptionOrder(ComparingDetector):
    """Gap = accuracy with shuffled options (PCR) - accuracy with the release's order (CR).

    ``details["leakage"]`` counts the items right before and wrong after: ``rate`` = b/n (the
    paper's instance leakage, which is a(1-a) for a model that answers independently each time with
    accuracy a), and ``normalised`` = gap / CR.
    """

    n_shuffles: int = 3
    about = ABOUT

    def shuffled(self, item: Item, prompt_settings: PromptSettings) -> Query | None:
        """Return the question with its options in the first other order; None if it has none."""
        orders = shuffles(item, self.n_shuffles, self.settings.seed)
        return _shuffled(item, orders[:1], prompt_settings) if orders else None

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item in the release's order and in the first shuffle, or in each shuffle."""
        all_shuffles = [
            QueryPair(
                item,
                choice(prompt_settings, item, "original"),
                _shuffled(item, orders, prompt_settings),
            )
            for item in benchmark.originals
            if (orders := shuffles(item, self.n_shuffles, self.settings.seed))
        ]
        one_shuffle = [replace(p, second=Query(p.second.parts[:1])) for p in all_shuffles]
        several = two_conditions(
            all_shuffles,
            ("original", "all shuffles"),
            (partial(mcnemar_score, rule="shuffles"),),
            "they have no image, fewer than three options, or two equal options",
            (1, self.n_shuffles),
            finish=lambda score, _: with_leakage(score),
        )
        paired = two_conditions(
            one_shuffle,
            ("original", "shuffled"),
            (partial(bands_score, bands=BANDS), mcnemar_score),
            several.left_out,
            finish=several.finish,
        )
        paired = replace(paired, probes=several.probes)  # which include its own
        return [paired, several, replace(paired, rules=(relative_score,))]


def _shuffled(
    item: Item, orders: Sequence[tuple[tuple[str, ...], int]], prompt_settings: PromptSettings
) -> Query:
    queries = [
        choice(prompt_settings, item, f"shuffled-{i}", options=options, gold=gold)
        for i, (options, gold) in enumerate(orders, 1)
    ]
    return Query(tuple(query.parts[0] for query in queries), mean)
