"""Why a model's answers fell: what they show about each fallen item, and where that points.

Nothing is inferred from a missing answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from flipbench.core.image_similarity import is_pair_near_unchanged
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.rates import Rate
from flipbench.core.records import Count, Item, JsonDict, Probe, Response, Value
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, right_option, yes_no

from ..scoring.scores import cluster_of
from .questions import Inquiry, Questions, closed_pairs, first_questions, questions_about

Category = Literal[
    "bad edit",
    "text prior",
    "usual answer",
    "memorised text",
    "text alone",
    "weak perception",
    "fragile",
    "image-keyed memory",
    "unexplained",
    "not asked",
]

PRESUMES: Mapping[Category, str] = {
    "bad edit": "a rater objects to the edited picture, or it is almost the original: nothing"
    " follows about the model",
    "text prior": "the original’s answer comes without a picture, on most pictures with other"
    " answers, and without a picture in most orders of the options: an expectation that no picture"
    " changes",
    "usual answer": "the original’s answer, which most other originals with the same question have"
    " too (at least five of them): the model may expect it or remember it, which the benchmark"
    " cannot tell apart",
    "memorised text": "without a picture and on most other pictures too, but not in other orders of"
    " the options: it belongs to this very text",
    "text alone": "without a picture and on most other pictures too, but there are no other orders"
    " of the options, so prior and memory are not told apart",
    "weak perception": "the new answer is found in less than half of the other orders of the"
    " options, or the answer changes when the picture is darker, paler or softer: nothing shows"
    " that the model can see the change; a memory of the answer’s text that outlasts other orders"
    " looks the same",
    "fragile": "at least half of the other wordings change the answer, or it is neither the old nor"
    " the new one although the new one is found in other orders",
    "image-keyed memory": "the original’s answer comes on the edited picture, not on most pictures"
    " with other answers, and not in other orders of the options, in which the new answer is found:"
    " the model can see the change, and answers as before",
    "unexplained": "everything was asked, and nothing above fits",
    "not asked": "evidence is missing that is needed to tell memory from the rest",
}
"""What each category presumes, in order of precedence: an earlier one needs less memory."""

CATEGORIES: tuple[Category, ...] = tuple(PRESUMES)
NO_MEMORY: tuple[Category, ...] = ("bad edit", "text prior", "usual answer", "text alone")
"""Categories in which a gap is no evidence of contamination; weak perception and fragility are
errors that a fair benchmark has in both directions, so the test of the gap allows for them."""
MOST = 0.8
"""Share of the other pictures, of the orders, and of the other originals, with the same answer."""
MIN_OTHERS = 5
"""Fewest other originals with the same question that show what its usual answer is."""


class Evidence(Value):
    """The answers about one fallen item; None: not asked, or no readable set of answers.

    Attributes
    ----------
    item_id, name, cluster : str
        Of the original.
    n_options : int
    old : bool
        Whether the perturbed version gets the original's answer.
    readable : bool
        Whether the reply to the perturbed version names an option.
    doubted : bool or None
        Whether a rater objects to the edit, or the edit hardly changed the picture.
    usual : bool or None
        Whether the same question has the same answer on most other originals; None with fewer than
        `MIN_OTHERS`.
    text_only : bool or None
        Whether the question without a picture gets the original's answer.
    reordered, swapped : Count or None
        Replies that name the original's answer without a picture, with the options in other
        orders; and on other items' pictures.
    retouched, reworded : Count or None
        Replies that differ from that to the perturbed version, on its picture retouched, and in
        other words.
    moved : Count or None
        Replies that name the new answer, on the perturbed version with the options in other orders.
    """

    item_id: str
    name: str
    cluster: str
    n_options: int
    old: bool
    readable: bool = True
    doubted: bool | None = None
    usual: bool | None = None
    text_only: bool | None = None
    reordered: Count | None = None
    swapped: Count | None = None
    retouched: Count | None = None
    reworded: Count | None = None
    moved: Count | None = None

    @property
    def swap_keeps(self) -> bool | None:
        """Whether the original's answer stays on most other pictures."""
        return _is_most(self.swapped)

    @property
    def order_keeps(self) -> bool | None:
        """Whether it stays without a picture in most orders of the options."""
        return _is_most(self.reordered)

    @property
    def needs_no_picture(self) -> bool | None:
        """Whether the original's answer comes on most other pictures, and without a picture.

        The first is enough for a model that cannot be asked without a picture; the second is not,
        since a reply that is as good as drawn names that answer once in ``n_options``.
        """
        if self.swap_keeps is None or self.text_only is None:
            return self.swap_keeps
        return self.swap_keeps and self.text_only

    @property
    def sees(self) -> bool | None:
        """Whether the new answer is named in at least half of the other orders of the options."""
        return _is_half(self.moved)

    @property
    def unsteady(self) -> bool | None:
        """Whether any retouched picture changes the reply."""
        return None if self.retouched is None else self.retouched.k > 0

    @property
    def misread(self) -> bool | None:
        """Whether the new answer is not seen, or the reply unsteady.

        Without other orders, also whether the reply is neither answer.
        """
        if not self.readable:
            return None
        if self.unsteady or self.sees is False or (self.sees is None and not self.old):
            return True
        return None if self.sees is None or self.unsteady is None else False

    @property
    def fragile(self) -> bool | None:
        """Whether at least half of the other wordings change the reply.

        Also whether it is neither answer, although the new one is seen in other orders.
        """
        if self.readable and not self.old and self.sees:
            return True
        return _is_half(self.reworded)

    @property
    def is_keyed(self) -> bool | None:
        """Whether the old answer belongs to this picture, and the new one can be seen on it."""
        if not self.old:
            return False
        if self.swap_keeps is None or self.sees is None:
            return None
        return not self.swap_keeps and self.sees

    @property
    def category(self) -> Category:
        """The first category whose evidence is there, in the order of `PRESUMES`.

        >>> asked = {"old": True, "text_only": True, "swapped": Count(k=5, n=5)}
        >>> item = {"item_id": "i", "name": "1", "cluster": "i", "n_options": 3}
        >>> Evidence(**item, **asked).category
        'text alone'
        >>> Evidence(**item, **asked, reordered=Count(k=2, n=2)).category
        'text prior'
        >>> Evidence(**item, old=True).category
        'not asked'
        """
        if self.doubted:
            return "bad edit"
        if self.old and self.needs_no_picture and self.order_keeps:
            return "text prior"
        if self.old and self.usual:
            return "usual answer"
        if self.old and self.needs_no_picture:
            return "text alone" if self.order_keeps is None else "memorised text"
        if self.misread:
            return "weak perception"
        if self.fragile:
            return "fragile"
        if self.is_keyed:
            return "image-keyed memory"
        return "not asked" if self.readable and self.is_keyed is None else "unexplained"


SYMPTOMS: Mapping[str, Callable[[Evidence], bool | None]] = {
    "bad edit": lambda e: e.doubted,
    "no picture needed": lambda e: e.needs_no_picture,
    "usual answer": lambda e: None if e.usual is None else e.old and e.usual,
    "weak perception": lambda e: e.misread,
    "fragile": lambda e: e.fragile,
    "old answer, keyed to the picture": lambda e: e.is_keyed,
}
"""What is true of an item whatever else is; an item may have several."""


@dataclass(frozen=True)
class Diagnosis:
    """Where a model's fallen items belong.

    Attributes
    ----------
    n, n_both_wrong, n_rose : int
        Pairs with both answers; wrong on both versions; wrong, then right on the perturbed one.
    fallen : tuple of Evidence
        Of the items that are right on the original and wrong on the perturbed version.
    """

    model: str
    fingerprint: str
    n: int
    n_both_wrong: int
    n_rose: int
    fallen: tuple[Evidence, ...]

    @property
    def n_fell(self) -> int:
        """Number of fallen items."""
        return len(self.fallen)

    @property
    def counts(self) -> dict[Category, int]:
        """Number of fallen items in each category."""
        counts = Counter(item.category for item in self.fallen)
        return {category: counts[category] for category in CATEGORIES}

    def share(self, category: Category) -> Rate:
        """Return the share of the fallen items, with Wilson's interval for independent images."""
        return _rate([item.category == category for item in self.fallen], self.fallen)

    def symptom(self, name: str) -> tuple[Rate, int]:
        """Return in how many of the items asked a symptom shows, and how many were not asked."""
        shows = [(SYMPTOMS[name](item), item) for item in self.fallen]
        values = [value for value, _ in shows if value is not None]
        items = [item for value, item in shows if value is not None]
        return _rate(values, items), len(shows) - len(items)

    def overlap(self, symptom: str, other_symptom: str) -> int:
        """Return how many fallen items show both symptoms."""
        tests = SYMPTOMS[symptom], SYMPTOMS[other_symptom]
        return sum(all(test(item) for test in tests) for item in self.fallen)

    @property
    def attributed(self) -> list[str]:
        """Ids of the fallen items in a category without evidence of memory (`NO_MEMORY`)."""
        return [item.item_id for item in self.fallen if item.category in NO_MEMORY]

    @property
    def was_asked(self) -> bool:
        """Whether the fallen items were asked about on other items' pictures."""
        return any(item.swapped is not None for item in self.fallen)

    def to_json(self) -> JsonDict:
        """Return every number, and every item's category and evidence."""
        names, keys = list(SYMPTOMS), {"k", "n", "interval"}
        symptoms = {name: self.symptom(name) for name in names}
        return {
            "model": self.model,
            "model_fingerprint": self.fingerprint,
            "n": self.n,
            "n_fell": self.n_fell,
            "n_rose": self.n_rose,
            "n_both_wrong": self.n_both_wrong,
            "shares": {name: self.share(name).model_dump(include=keys) for name in CATEGORIES},
            "symptoms": {
                name: {**rate.model_dump(include=keys), "n_not_asked": n_not_asked}
                for name, (rate, n_not_asked) in symptoms.items()
            },
            "overlaps": [
                {"both": [a, b], "k": self.overlap(a, b), "n": self.n_fell}
                for a, b in combinations(names, 2)
            ],
            "items": [{"category": item.category, **item.model_dump()} for item in self.fallen],
        }


def _rate(values: Sequence[bool], items: Sequence[Evidence]) -> Rate:
    return Rate.wilson(sum(values), len(items), len({item.cluster for item in items}))


class Outcomes(NamedTuple):
    """A model's answers to both versions of n pairs, and the pairs that fell; see `Diagnosis`."""

    n: int
    n_both_wrong: int
    n_rose: int
    fell: tuple[Pair, ...]


def outcomes(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> Outcomes:
    """Return which pairs fell, and how many did otherwise; unanswered pairs are left out."""
    results = []
    for pair in closed_pairs(benchmark):
        replies = [answers.to(probe) for probe in first_questions(pair, prompt_settings)]
        original, perturbed = (
            None if reply is None else reply.choice == right_option(item)
            for reply, item in zip(replies, (pair.original, pair.perturbed), strict=True)
        )
        if original is not None and perturbed is not None:
            results.append((original, perturbed, pair))
    counts = Counter((original, perturbed) for original, perturbed, _ in results)
    fell = tuple(pair for original, perturbed, pair in results if original and not perturbed)
    return Outcomes(len(results), counts[False, False], counts[False, True], fell)


def diagnose(
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    answers: Answers,
    inquiry: Inquiry,
    doubted: Mapping[str, bool],
) -> Diagnosis:
    """Put each item on which a model fell where its stored answers point; no model is asked.

    Parameters
    ----------
    inquiry : Inquiry
        How the questions were made.
    doubted : mapping of str to bool
        Whether a rater objects to the perturbed picture, by the id of the original; pairs that
        nobody rated are missing.
    """
    n, n_both_wrong, n_rose, fell = outcomes(benchmark, prompt_settings, answers)
    usual_answers: dict[str, Counter[str]] = {}
    for item in benchmark.originals:
        usual_answers.setdefault(item.question, Counter())[item.answer_text] += 1
    evidence = tuple(
        _evidence(
            questions,
            answers,
            benchmark.images,
            doubted,
            _is_usual(questions.pair.original, usual_answers),
        )
        for questions in questions_about(fell, benchmark, prompt_settings, inquiry)
    )
    return Diagnosis(answers.model, answers.fingerprint, n, n_both_wrong, n_rose, evidence)


def _is_usual(item: Item, answers: Mapping[str, Counter[str]]) -> bool | None:
    counts = answers[item.question]
    rest = Count(k=counts[item.answer_text] - 1, n=counts.total() - 1)
    return None if rest.n < MIN_OTHERS else _is_most(rest)


def _evidence(
    questions: Questions,
    answers: Answers,
    images: ImageStore,
    doubted: Mapping[str, bool],
    usual: bool | None,
) -> Evidence:
    item = questions.pair.original
    old_option = right_option(item)
    assert old_option is not None  # of closed pairs
    reply = answers.to(questions.perturbed)
    assert reply is not None  # of fallen pairs
    blind = answers.to(questions.text_only)
    texts = item.options or yes_no(item) or ()

    def names(option: int | None) -> Callable[[Probe, Response], bool]:
        text = texts[option] if option is not None else ""
        return lambda probe, r: r.choice >= 0 and probe.options[r.choice] == text

    def count(probes: Sequence[Probe], holds: Callable[[Probe, Response], bool]) -> Count | None:
        """Return in how many replies something holds; None unless all probes have a reply."""
        replies = [(probe, r) for probe in probes if (r := answers.to(probe)) is not None]
        if not probes or len(replies) < len(probes):
            return None
        return Count(k=sum(holds(probe, r) for probe, r in replies), n=len(replies))

    def differs(_: Probe, r: Response) -> bool:
        return r.choice != reply.choice

    return Evidence(
        item_id=item.id,
        name=item.name,
        cluster=cluster_of(item),
        n_options=len(texts),
        old=reply.choice == old_option,
        readable=reply.choice >= 0,
        doubted=is_pair_near_unchanged(questions.pair, images) or doubted.get(item.id),
        usual=usual,
        text_only=None if blind is None else blind.choice == old_option,
        reordered=count(questions.reordered, names(old_option)),
        swapped=count(questions.swapped, lambda _, r: r.choice == old_option),
        retouched=count(questions.retouched, differs),
        reworded=count(questions.reworded, differs),
        moved=count(questions.moved, names(right_option(questions.pair.perturbed))),
    )


def _is_most(count: Count | None) -> bool | None:
    return None if count is None else count.k >= MOST * count.n


def _is_half(count: Count | None) -> bool | None:
    return None if count is None else 2 * count.k >= count.n
