"""Why a model's answers fell: each fallen item is put where its evidence points, if it points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from flipbench.core.paired import PairedBenchmark
from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

from .evidence import Evidence, Outcomes, evidence_on, outcomes
from .questions import Inquiry

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

SYMPTOMS: Mapping[str, Callable[[Evidence], bool | None]] = {
    "bad edit": lambda e: e.doubted,
    "no picture needed": lambda e: e.needs_no_picture,
    "usual answer": lambda e: None if e.usual is None else e.old and e.usual,
    "weak perception": lambda e: e.misread,
    "fragile": lambda e: e.fragile,
    "old answer, keyed to the picture": lambda e: _is_keyed(e),
}
"""What is true of an item whatever else is; an item may have several."""


@dataclass(frozen=True)
class Placed:
    """A fallen item, its category, and the evidence."""

    category: Category
    evidence: Evidence


@dataclass(frozen=True)
class Diagnosis:
    """Where a model's fallen items belong.

    Attributes
    ----------
    n, n_both_wrong, n_rose : int
        Pairs with both answers; wrong on both versions; wrong, then right on the perturbed one.
    placed : tuple of Placed
        The fallen items: right on the original, wrong on the perturbed version.
    """

    model: str
    fingerprint: str
    n: int
    n_both_wrong: int
    n_rose: int
    placed: tuple[Placed, ...]

    @property
    def n_fell(self) -> int:
        """Number of fallen items."""
        return len(self.placed)

    @property
    def counts(self) -> dict[Category, int]:
        """Number of fallen items in each category."""
        counts = Counter(one.category for one in self.placed)
        return {category: counts[category] for category in CATEGORIES}

    def share(self, category: Category) -> Rate:
        """Return the share of the fallen items, with Wilson's interval for independent images."""
        return self._rate(sum(one.category == category for one in self.placed), self.placed)

    def symptom(self, name: str) -> tuple[Rate, int]:
        """Return in how many of the items asked a symptom shows, and how many were not asked."""
        known = [(SYMPTOMS[name](one.evidence), one) for one in self.placed]
        asked = [(value, one) for value, one in known if value is not None]
        rate = self._rate(sum(value for value, _ in asked), [one for _, one in asked])
        return rate, len(self.placed) - len(asked)

    def overlap(self, first: str, second: str) -> int:
        """Return how many fallen items show both symptoms."""
        return sum(
            bool(SYMPTOMS[first](one.evidence) and SYMPTOMS[second](one.evidence))
            for one in self.placed
        )

    @property
    def attributed(self) -> list[str]:
        """Ids of the fallen items in a category without evidence of memory (`NO_MEMORY`)."""
        return [one.evidence.item_id for one in self.placed if one.category in NO_MEMORY]

    @property
    def was_asked(self) -> bool:
        """Whether the fallen items were asked about on other items' pictures."""
        return any(one.evidence.swapped is not None for one in self.placed)

    def to_json(self) -> JsonDict:
        """Return every number, and every item's category and evidence."""
        names = list(SYMPTOMS)
        return {
            "model": self.model,
            "model_fingerprint": self.fingerprint,
            "n": self.n,
            "n_fell": self.n_fell,
            "n_rose": self.n_rose,
            "n_both_wrong": self.n_both_wrong,
            "shares": {name: _rate_json(self.share(name)) for name in CATEGORIES},
            "symptoms": {
                name: {**_rate_json(rate), "n_not_asked": missing}
                for name in names
                for rate, missing in [self.symptom(name)]
            },
            "overlaps": [
                {"both": [a, b], "k": self.overlap(a, b), "n": self.n_fell}
                for i, a in enumerate(names)
                for b in names[i + 1 :]
            ],
            "items": [{"category": one.category, **_item_json(one)} for one in self.placed],
        }

    @staticmethod
    def _rate(k: int, of: Sequence[Placed]) -> Rate:
        return Rate.wilson(k, len(of), len({one.evidence.cluster for one in of}))


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
    found = outcomes(benchmark, prompt_settings, answers)
    evidence = evidence_on(found.fell, benchmark, prompt_settings, answers, inquiry, doubted)
    return _diagnosis(answers, found, evidence)


def _diagnosis(answers: Answers, found: Outcomes, evidence: Sequence[Evidence]) -> Diagnosis:
    return Diagnosis(
        answers.model,
        answers.fingerprint,
        found.n,
        found.n_both_wrong,
        found.n_rose,
        tuple(Placed(category_of(one), one) for one in evidence),
    )


def category_of(evidence: Evidence) -> Category:
    """Return the first category whose evidence is there, in the order of `PRESUMES`.

    Examples
    --------
    >>> from flipbench.core.records import Count
    >>> asked = {"old": True, "text_only": True, "swapped": Count(k=5, n=5)}
    >>> category_of(Evidence("i", "1", "i", 3, **asked))
    'text alone'
    >>> category_of(Evidence("i", "1", "i", 3, **asked, reordered=Count(k=2, n=2)))
    'text prior'
    >>> category_of(Evidence("i", "1", "i", 3, old=True))
    'not asked'
    """
    if evidence.doubted:
        return "bad edit"
    if evidence.old and evidence.needs_no_picture and evidence.order_keeps:
        return "text prior"
    if evidence.old and evidence.usual:
        return "usual answer"
    if evidence.old and evidence.needs_no_picture:
        return "text alone" if evidence.order_keeps is None else "memorised text"
    if evidence.misread:
        return "weak perception"
    if evidence.fragile:
        return "fragile"
    keyed = _is_keyed(evidence)
    if keyed:
        return "image-keyed memory"
    return "not asked" if evidence.readable and keyed is None else "unexplained"


def _is_keyed(evidence: Evidence) -> bool | None:
    """Return whether the old answer belongs to this picture, and the new one can be seen on it."""
    if not evidence.old:
        return False
    if evidence.swap_keeps is None or evidence.sees is None:
        return None
    return not evidence.swap_keeps and evidence.sees


def _rate_json(rate: Rate) -> JsonDict:
    return {
        "k": rate.k,
        "n": rate.n,
        "interval": rate.interval.model_dump() if rate.interval else None,
    }


def _item_json(one: Placed) -> JsonDict:
    fields = asdict(one.evidence)
    counts = ("reordered", "swapped", "retouched", "reworded", "moved")
    return fields | {
        name: count.model_dump() if (count := getattr(one.evidence, name)) else None
        for name in counts
    }
