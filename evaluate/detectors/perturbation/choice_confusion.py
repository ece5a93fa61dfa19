"""Choice confusion: the accuracy drop when false options are other questions' answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.models.chat.labels import Labeller, LabelTask, Rubric
from flipbench.prompting.prompts import PromptSettings
from flipbench.prompting.undrawable import why_undrawable

from ...protocol.detector import About, Answers, Helpers, cached_per_benchmark
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    mcnemar_score,
    relative_score,
    threshold_score,
    two_conditions,
)
from ...scoring.conditions import choice_pair
from ...scoring.text_match import fold

ABOUT = About(
    name="choice_confusion",
    title="Choice confusion",
    paper="Yao et al., Data Contamination Can Cross Language Barriers, arXiv 2406.13236, choice"
    " confusion; as a detector for VLMs: Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules sign (as in 2511.03774), mcnemar (default), relative",
    deviates_from_paper="the authors ship the data and compare log-likelihoods; here the options"
    " are drawn from a seed, from other categories where there are any, and the model chooses a"
    " letter; options that may be right as well are excluded by rules (generic answers, and words"
    " that contain the right answer's or are contained in them) and by the model in evaluate.judge,"
    " which sees no picture; tests in addition to the sign rule",
    rules={"sign": False, "mcnemar": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops when every false option is the right answer to another question",
    helpers=frozenset({"answer_judge"}),
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    levels={"sign": 0.5},
    evidence="published, contested",
    caveat="the new options are easier: clean models gained 14 to 34 points, and the sign caught 9"
    " of 24 contaminated VLMs (arXiv 2511.03774)",
)

DONORS = Rubric(
    "donors-v1",
    "You are given a question about a picture, the right answer, and other options, which are"
    " meant to be wrong. You do not see the picture. Say whether any of the other options may be"
    " right as well, given that the right answer is: because it means the same, is a more general"
    " or a more precise name for it, or is a second correct answer to the question. An option that"
    " does not answer the question is not right.",
    "Question: {}\nRight answer: {}\nOther options: {}",
    ("none", "some"),
)

GENERIC = frozenset(
    {"yes", "no", "true", "false", "none", "all", "both", "neither", "either", "other", "others"}
    | {"maybe", "not visible"}
)
"""Answers that make sense only with their own question, besides those that no picture shows."""


def is_generic(answer: str) -> bool:
    """Return whether an answer, without case and blanks, makes sense only with its question."""
    return answer in GENERIC or bool(why_undrawable(answer))


_NUMBER = re.compile(
    r"[-+−]?\d[\d.,]*\s*%?|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
)
_LETTER = re.compile("[a-z]")


@dataclass(frozen=True)
class Generalised:
    """An item, its gold option and K - 1 donors in random order, and the gold option's slot."""

    item: Item
    options: tuple[str, ...]
    answer: int


@dataclass
class ChoiceConfusion(ComparingDetector):
    """Gap = accuracy with generalised options - accuracy with the item's own.

    A model that understands the question finds the generalised options easier; one that memorised
    which strings are right finds only right answers.
    ``details["donors"]`` counts the items whose new options a judge has read, and those left out
    because one of the options may be right.

    Parameters
    ----------
    label : callable, optional
        A `flipbench.models.chat.labels.recorded_labels`. Without one, only rules exclude options.
    """

    label: Labeller | None = None
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> ChoiceConfusion:
        """Return the detector with a judge."""
        return replace(self, label=helpers.label)

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[LabelTask]:
        """Yield each item's new options; they are the same for all models."""
        yield from map(_task, self._generalised(benchmark))

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item that can be generalised with its own and with generalised options."""
        query_pairs = [
            choice_pair(
                prompt_settings,
                question.item,
                "generalised",
                options=question.options,
                gold=question.answer,
            )
            for question in self._generalised(benchmark)
        ]
        return [
            two_conditions(
                query_pairs,
                ("original", "generalised"),
                (partial(threshold_score, rule="sign"), mcnemar_score, relative_score),
                "they are free-form, have a generic answer such as yes or no, too few other"
                " questions have answers that fit, or a judge finds that one of them may be right",
                leave_out=lambda _: self._ids_by_label(benchmark)["some"],
                describe=lambda _: {
                    "donors": {
                        "judged": sum(map(len, self._ids_by_label(benchmark).values())),
                        "may_be_right": len(self._ids_by_label(benchmark)["some"]),
                    }
                },
            )
        ]

    @cached_per_benchmark
    def _generalised(self, benchmark: PairedBenchmark) -> list[Generalised]:
        return generalise(benchmark.originals, self.settings.seed)

    def _ids_by_label(self, benchmark: PairedBenchmark) -> dict[str, set[str]]:
        """Return the ids of the items with each label."""
        ids = {label: set[str]() for label in DONORS.labels}
        for question in self._generalised(benchmark) if self.label else ():
            if self.label and (label := self.label(_task(question))):
                ids[label].add(question.item.id)
        return ids


def _task(question: Generalised) -> LabelTask:
    item = question.item
    donors = [text for slot, text in enumerate(question.options) if slot != question.answer]
    return LabelTask(DONORS, (item.question, item.answer_text, "; ".join(donors)))


def generalise(items: Sequence[Item], seed: int) -> list[Generalised]:
    """Replace every false option with the right answer to another question.

    Donors and order are drawn from (seed, item id), whatever the items' order. Items that are
    free-form, or have a generic answer or too few donors, are left out.

    Notes
    -----
    A donor is the right answer to an item of another category or with another image. Answers to no
    item of this category and about none of these images come first, then answers to no item of this
    category; others serve only if these are too few. A donor differs from the item's own options
    and from all other donors (case-folded), is not generic, is a bare number (a single letter) only
    if the right answer is one, and neither contains all words of the right answer nor consists of
    words of it.

    References
    ----------
    Yao et al., arXiv 2406.13236, choice confusion.
    Differs from the paper in specifying what it leaves open: the choice of donors, and that options
    are reshuffled.
    """
    donors = _donors(items)
    questions = (_generalise(item, donors, seed) for item in items)
    return [question for question in questions if question is not None]


_Place = tuple[str, str]
_Donors = list[tuple[str, str, frozenset[_Place]]]


def _donors(items: Sequence[Item]) -> _Donors:
    """Return (folded text, text, places it is the right answer of), sorted by folded text."""
    texts: dict[str, set[str]] = {}
    places: dict[str, set[_Place]] = {}
    for item in items:
        folded = _fold(item.answer_text)
        if item.options is not None and folded and not is_generic(folded):
            texts.setdefault(folded, set()).add(item.answer_text)
            places.setdefault(folded, set()).add(_place(item))
    return [(folded, min(texts[folded]), frozenset(places[folded])) for folded in sorted(texts)]


def _generalise(item: Item, donors: _Donors, seed: int) -> Generalised | None:
    if item.options is None or item.answer is None:
        return None
    gold, item_options = _fold(item.answer_text), {_fold(option) for option in item.options}
    n_donors = len(item.options) - 1
    if not gold or is_generic(gold) or not n_donors:
        return None
    rng = generator(seed, item.id, "choice-confusion")
    shuffled = [donors[index] for index in rng.permutation(len(donors))]
    texts = [
        text
        for folded, text, places in sorted(shuffled, key=lambda donor: _nearness(donor[2], item))
        if folded not in item_options and _same_kind(folded, gold) and places - {_place(item)}
        if not _overlap(folded, gold)
    ][:n_donors]
    if len(texts) < n_donors:
        return None
    options = [*texts[: item.answer], item.answer_text, *texts[item.answer :]]
    order = rng.permutation(len(options)).tolist()
    return Generalised(item, tuple(options[i] for i in order), order.index(item.answer))


def _place(item: Item) -> _Place:
    return item.category, " ".join(image.sha256 for image in item.images)


def _nearness(places: frozenset[_Place], item: Item) -> int:
    """Return 0 for another category and other images, 1 for another category only, else 2."""
    category, images = _place(item)
    if category in {place[0] for place in places}:
        return 2
    return int(bool(images) and images in {place[1] for place in places})


def _overlap(donor: str, gold: str) -> bool:
    """Return whether all words of one are in the other, as in "car" and "a red car"."""
    words, gold_words = (set(fold(text).split()) for text in (donor, gold))
    return bool(words and gold_words) and (words <= gold_words or gold_words <= words)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")


def _same_kind(donor: str, gold: str) -> bool:
    """Return False for a number (a letter) if the right answer is not one."""
    return all(
        kind.fullmatch(gold) is not None for kind in (_NUMBER, _LETTER) if kind.fullmatch(donor)
    )
