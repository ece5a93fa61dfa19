"""Choice confusion: the accuracy drop when false options are other questions' answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    Settings,
    mcnemar_score,
    relative_score,
    threshold_score,
    two_conditions,
)
from ...scoring.conditions import QueryPair, choice

ABOUT = About(
    name="choice_confusion",
    title="Choice confusion",
    paper="Yao et al., Data Contamination Can Cross Language Barriers, arXiv 2406.13236, choice"
    " confusion; as a detector for VLMs: Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules sign (as in 2511.03774), mcnemar (default), relative",
    deviates_from_paper="the authors ship the data and compare log-likelihoods; here the options"
    " are drawn from a seed and the model chooses a letter; a rule, not a person, excludes options"
    " that may be true of the item; tests in addition to the sign rule",
    rules={"sign": False, "mcnemar": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops when every false option is the right answer to another question",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    levels={"sign": 0.5},
)

GENERIC = frozenset(
    {"yes", "no", "true", "false", "none", "all", "both", "neither", "either", "other", "others"}
    | {"unknown", "unclear", "maybe", "n/a", "not applicable", "not sure", "not visible"}
    | {"all of the above", "none of the above", "both of the above", "all of these"}
    | {"none of these", "cannot be determined", "can't be determined", "cannot tell"}
    | {"can't tell", "other answers"}
)
"""Answers that make sense only with their own question."""

_NUMBER = re.compile(
    r"[-+−]?\d[\d.,]*\s*%?|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
)
_LETTER = re.compile("[a-z]")


@dataclass(frozen=True)
class Generalised:
    """An item with generalised options.

    Attributes
    ----------
    options : tuple of str, shape (K,)
        The gold option and K - 1 donors, shuffled.
    answer : int
        The gold option's slot.
    permutation : tuple of int, shape (K,)
        Slot j contains the text that replaces original option ``permutation[j]``.
    """

    item: Item
    options: tuple[str, ...]
    answer: int
    permutation: tuple[int, ...]


@dataclass
class ChoiceConfusion(ComparingDetector):
    """Gap = accuracy with generalised options - accuracy with the item's own.

    A model that understands the question finds the generalised options easier; one that memorised
    which strings are right finds only right answers. Clean models gain 14 to 34 points, so a
    contaminated one may gain too: prefer rule 'relative' if there is a clean model.

    References
    ----------
    Yao et al., arXiv 2406.13236, choice confusion; Park et al., arXiv 2511.03774, tables 2 and 13.
    Differs from the paper in how options are drawn (`generalise`) and in its default rule.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item that can be generalised with its own and with generalised options."""
        query_pairs = [
            QueryPair(
                new.item,
                choice(prompt_settings, new.item, "original"),
                choice(
                    prompt_settings, new.item, "generalised", options=new.options, gold=new.answer
                ),
            )
            for new in generalise(benchmark.originals, self.settings.seed)
        ]
        return [
            two_conditions(
                query_pairs,
                ("original", "generalised"),
                (partial(threshold_score, rule="sign"), mcnemar_score, relative_score),
                "they are free-form, have a generic answer such as yes or no, or too few other"
                " questions have answers that fit",
            )
        ]


def generalise(items: Sequence[Item], seed: int) -> list[Generalised]:
    """Replace every false option with the right answer to another question.

    Parameters
    ----------
    items : sequence of Item
        Of one benchmark, which also provides the donors. Their order does not matter.
    seed : int
        Donors and order are drawn from (seed, item id).

    Returns
    -------
    list of Generalised
        In order, without items that are free-form, have a generic answer or too few donors.

    Notes
    -----
    A donor is the right answer to an item of another category or with another image. It differs
    from the item's own options and from all other donors (case-folded), is not generic, and is a
    bare number (a single letter) only if the right answer is one.

    References
    ----------
    Yao et al., arXiv 2406.13236, choice confusion.
    Differs from the paper in specifying what it leaves open: the choice of donors, and that options
    are reshuffled.
    """
    donors = _donors(items)
    return [new for item in items if (new := _generalise(item, donors, seed)) is not None]


_Place = tuple[str, str]
_Donors = list[tuple[str, str, frozenset[_Place]]]


def _donors(items: Sequence[Item]) -> _Donors:
    """Return (folded text, text, places it is the right answer of), sorted by folded text."""
    texts: dict[str, set[str]] = {}
    places: dict[str, set[_Place]] = {}
    for item in items:
        folded = _fold(item.answer_text)
        if item.options is None or not folded or folded in GENERIC:
            continue
        texts.setdefault(folded, set()).add(item.answer_text)
        places.setdefault(folded, set()).add(_place(item))
    return [(folded, min(texts[folded]), frozenset(places[folded])) for folded in sorted(texts)]


def _generalise(item: Item, donors: _Donors, seed: int) -> Generalised | None:
    if item.options is None or item.answer is None:
        return None
    gold, own = _fold(item.answer_text), {_fold(option) for option in item.options}
    if not gold or gold in GENERIC or len(item.options) < 2:
        return None
    rng = generator(seed, item.id, "choice-confusion")
    chosen: list[str] = []
    for index in rng.permutation(len(donors)):
        if len(chosen) == len(item.options) - 1:
            break
        folded, text, places = donors[index]
        if folded not in own and _same_kind(folded, gold) and places - {_place(item)}:
            chosen.append(text)
    if len(chosen) < len(item.options) - 1:
        return None
    before = [*chosen[: item.answer], item.answer_text, *chosen[item.answer :]]
    permutation = tuple(int(slot) for slot in rng.permutation(len(before)))
    return Generalised(
        item,
        tuple(before[source] for source in permutation),
        permutation.index(item.answer),
        permutation,
    )


def _place(item: Item) -> _Place:
    return item.category, " ".join(image.sha256 for image in item.images)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")


def _same_kind(donor: str, gold: str) -> bool:
    """Return False for a number (a letter) if the right answer is not one."""
    return all(
        kind.fullmatch(gold) is not None for kind in (_NUMBER, _LETTER) if kind.fullmatch(donor)
    )
