"""Option-order sensitivity: the accuracy drop when the right answer's letter changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...protocol.rules import Bands
from ...scoring.comparison import (
    Comparison,
    Settings,
    bands_score,
    compare,
    mcnemar_score,
    relative_score,
    with_leakage,
)
from ...scoring.conditions import Query, QueryPair, choice, mean, probes_of

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
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops when the options are shuffled",
    needs_clean_model=False,
    practical=True,
    rule_titles={"shuffles": "mean of shuffles"},
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
class OptionOrder:
    """Gap = accuracy with shuffled options (PCR) - accuracy with the release's order (CR).

    ``details["leakage"]`` counts the items right before and wrong after: ``rate`` = b/n (the
    paper's instance leakage, which is a(1-a) for a model that answers independently each time with
    accuracy a), and ``normalised`` = gap / CR.

    References
    ----------
    Song et al., arXiv 2411.03823, option order sensitivity test.
    Differs from the paper in its default rule, in `flipbench.prompting.parsing` for both orders,
    and in rules 'shuffles' and 'relative'; position bias affects the first order too, so prefer
    'relative' if there is a clean model.
    """

    settings: Settings = field(default_factory=Settings)
    n_shuffles: int = 3
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each item's question in the release's order and in each shuffle."""
        return probes_of(self._query_pairs(benchmark, prompt_settings))

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules bands, mcnemar, shuffles and relative."""
        all_shuffles = self._query_pairs(benchmark, prompt_settings)
        one_shuffle = [replace(p, second=Query(p.second.parts[:1])) for p in all_shuffles]

        def comparison(name: str, query_pairs: list[QueryPair], n_trials: int) -> Comparison:
            return compare(
                self,
                benchmark,
                query_pairs,
                ("original", name),
                answers,
                reference,
                "they have no image, fewer than three options, or two equal options",
                (1, n_trials),
            )

        first = comparison("shuffled", one_shuffle, 1)
        several = comparison("all shuffles", all_shuffles, self.n_shuffles)
        scores = [
            bands_score(first, BANDS),
            mcnemar_score(first),
            mcnemar_score(several, "shuffles"),
            relative_score(first),
        ]
        return [with_leakage(score) for score in scores]

    @cached_per_benchmark
    def _query_pairs(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[QueryPair]:
        return [
            QueryPair(
                item,
                choice(prompt_settings, item, "original"),
                self._shuffled(item, orders, prompt_settings),
            )
            for item in benchmark.originals
            if (orders := shuffles(item, self.n_shuffles, self.settings.seed))
        ]

    def _shuffled(
        self,
        item: Item,
        orders: Sequence[tuple[tuple[str, ...], int]],
        prompt_settings: PromptSettings,
    ) -> Query:
        queries = [
            choice(prompt_settings, item, f"shuffled-{i}", options=options, gold=gold)
            for i, (options, gold) in enumerate(orders, 1)
        ]
        return Query(tuple(query.parts[0] for query in queries), mean)
