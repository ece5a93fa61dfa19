"""What is put to a model in two conditions of the same items, and how its replies are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item, JsonDict, Probe, Response
from flipbench.prompting.prompts import PromptSettings

from ..protocol import rules
from ..protocol.detector import Answers
from ..protocol.rules import Direction
from ..statistics.paired import Value

Reading = Callable[[Response], float | None]
"""What a reply is worth, in [0, 1] (True and False for right and wrong); None: it says nothing."""


NO_REWORDING = "set evaluate.rewording"
"""Why a comparison of wordings does not apply where the benchmark has one only."""


def _first(values: Sequence[float]) -> float:
    return values[0]


def mean(values: Sequence[float]) -> float:
    """Return the mean of several replies' worth."""
    return sum(values) / len(values)


@dataclass(frozen=True)
class Query:
    """One item in one condition: the probes, how each reply is read, what they make together."""

    asked: tuple[tuple[Probe, Reading], ...]
    combine: Callable[[Sequence[float]], float] = _first

    @property
    def probes(self) -> list[Probe]:
        """The probes alone."""
        return [probe for probe, _ in self.asked]


@dataclass(frozen=True)
class Condition:
    """One model's outcomes in one condition, shape (N,), and how many replies say nothing.

    Attributes
    ----------
    n_trials : int or None
        Right-or-wrong answers behind each outcome, for k/n; None where outcomes are no shares.
    """

    name: str
    outcomes: Sequence[Value]
    n_unparsed: int
    n_replies: int
    n_trials: int | None = 1

    @classmethod
    def read(
        cls, name: str, answers: Answers, queries: Sequence[Query], n_trials: int | None = 1
    ) -> Condition:
        """Read the replies to each item's probes; an item with a missing reply has no outcome.

        A reply that says nothing is worth 0, and counted.
        """
        outcomes: list[Value] = []
        n_unparsed = n_replies = 0
        for query in queries:
            replies = [(answers.to(probe), reading) for probe, reading in query.asked]
            values = [reading(reply) for reply, reading in replies if reply is not None]
            n_replies += len(values)
            n_unparsed += values.count(None)
            whole = len(values) == len(query.asked)
            outcomes.append(
                query.combine([False if v is None else v for v in values]) if whole else None
            )
        return cls(name, outcomes, n_unparsed, n_replies, n_trials)


@dataclass(frozen=True)
class Settings:
    """What the rules are run with: test level, bootstrap and permutation sizes, seed."""

    alpha: float = rules.ALPHA
    n_bootstrap: int = 2_000
    n_permutations: int = 9_999
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a level that is none."""
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: a test level lies in (0, 1)")


@dataclass(frozen=True)
class Comparison:
    """A model in two conditions (N items each), and perhaps a reference model in the same two.

    Attributes
    ----------
    items : sequence of Item, shape (N,)
        The original items compared.
    first, second : Condition or None
        The statistic is accuracy in ``second`` - accuracy in ``first``; ``first`` is None where it
        would be the missing reference's.
    against : Answers or None
        The reference model.
    reference : (Condition, Condition) or None
        Its two conditions, for rules that compare gaps.
    direction : {"falls", "rises"}
        How a contaminated model's statistic moves.
    unit : str
        Of the outcomes and the statistic; "fraction" for accuracies.
    n_left_out : int
        Items of the benchmark that could not be put to a model at all.
    notes : tuple of str
        Warnings for every score.
    reason : str
        In a few words, why no item can be compared, where none can.
    details : dict
        Added to every score's details.
    """

    detector: str
    benchmark: PairedBenchmark
    answers: Answers
    items: Sequence[Item]
    first: Condition | None
    second: Condition
    direction: Direction = "falls"
    unit: str = "fraction"
    against: Answers | None = None
    reference: tuple[Condition, Condition] | None = None
    n_left_out: int = 0
    notes: tuple[str, ...] = ()
    reason: str = ""
    details: JsonDict = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class QueryPair:
    """An item put to a model in two conditions."""

    item: Item
    first: Query
    second: Query

    @property
    def probes(self) -> list[Probe]:
        """All probes, the first condition's before the second's."""
        return [*self.first.probes, *self.second.probes]


def conditions(
    asked: Sequence[QueryPair],
    names: tuple[str, str],
    answers: Answers,
    n_trials: tuple[int | None, int | None] = (1, 1),
) -> tuple[Condition, Condition]:
    """Read one model's replies in both conditions."""
    one, two = [a.first for a in asked], [a.second for a in asked]
    return (
        Condition.read(names[0], answers, one, n_trials[0]),
        Condition.read(names[1], answers, two, n_trials[1]),
    )


def askable(benchmark: PairedBenchmark) -> list[Item]:
    """Return the original items that have options."""
    return [item for item in benchmark.originals if item.options is not None]


def picks(gold: int | None) -> Reading:
    """Return the reading "the reply names option ``gold``"; None where it names no option."""
    return lambda reply: None if reply.choice < 0 else reply.choice == gold


def choice(
    prompt_settings: PromptSettings,
    item: Item,
    variant: str,
    *,
    options: Sequence[str] | None = None,
    gold: int | None = None,
    images: Sequence[ImageRef] | None = None,
) -> Query:
    """Return the multiple-choice question of ``item``, with what is given in place of its own."""
    probe = prompt_settings.probe(item, variant, options=options, images=images)
    return Query(((probe, picks(item.answer if gold is None else gold)),))


def open_question(
    item: Item,
    variant: str,
    prompt: str,
    reading: Reading,
    *,
    max_new_tokens: int,
    images: Sequence[ImageRef] | None = None,
) -> Query:
    """Return a question that is answered in text, whatever way choices are asked."""
    probe = Probe(
        item_id=item.id,
        variant=variant,
        images=tuple(item.images if images is None else images),
        prompt=prompt,
        ask="generate",
        max_new_tokens=max_new_tokens,
    )
    return Query(((probe, reading),))


def left_out_note(n_left_out: int, why: str) -> tuple[str, ...]:
    """Return a comparison's notes: how many items are left out, and why, if any are."""
    items = "1 item is" if n_left_out == 1 else f"{n_left_out} items are"
    return (f"{items} left out: {why}",) if n_left_out else ()
