"""Other wordings of a question that keep its answer: what rules and a judge leave out, counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from flipbench.core.records import Item
from flipbench.models.chat.labels import Labeller, LabelTask, Rubric
from flipbench.models.chat.rewording import Reword

from .text_match import fold, words

LEVELS = ("lexical", "syntactic", "negation", "scope", "specificity")
"""What a paraphrase changes, in arXiv 2603.20985."""

Doubt = Literal["", "identical", "numbers", "names an option", "negation"]
"""Why a rule doubts a wording; empty if none does."""

SAME_QUESTION = Rubric(
    "same-question-v1",
    "You are given two questions about the same picture, which you do not see, and the options, if"
    " there are any. Say whether both questions have the same right answer, whatever the picture"
    " shows. They do not if one reverses the other, asks about another object, place, number or"
    " property, or is narrower or wider than the other so that their answers may differ.",
    "Question: {}\nOther wording: {}\nOptions: {}",
    ("same", "different"),
)

_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|without|lacks?|lacking|absent|absence"
    r"|fails? to|rule[sd]? out|free of|except)\b|n['’]t\b",
    re.IGNORECASE,
)
_TAG_QUESTION = re.compile(
    r"^(?:is|are|was|were|does|do|did|can|could|has|have|would|will)n['’]t\b|"
    r",\s*(?:is|are|was|were|does|do|did|can|could|has|have)n['’]t (?:it|there|they|he|she)\s*\?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NUMBER_WORDS = frozenset("two three four five six seven eight nine ten eleven twelve".split())


def n_negations(question: str) -> int:
    """Return how many negative words reverse a question; "Isn't there ...?" reverses nothing.

    >>> n_negations("Is there no star?"), n_negations("Isn't there a star?")
    (1, 0)
    """
    return len(_NEGATION.findall(_TAG_QUESTION.sub(" ", question.strip())))


def doubt(item: Item, wording: str) -> Doubt:
    """Return why a wording may not ask the item's question, by rules on the words alone.

    ``identical``: only case, articles or punctuation differ. ``numbers``: the numbers differ.
    ``names an option``: it contains the text of an option that the question does not contain.
    ``negation``: one of the two has an odd and the other an even number of negative words.

    >>> from flipbench.core.records import Source
    >>> item = Item(benchmark="b", name="1", question="Is there a star?", answer_text="yes",
    ...             source=Source(dataset="d"))
    >>> [doubt(item, text) for text in ("is there the star", "Is there no star?", "Any star?")]
    ['identical', 'negation', '']
    """
    question = item.question
    if fold(wording) == fold(question):
        return "identical"
    if _numbers(wording) != _numbers(question):
        return "numbers"
    folded_question, folded_wording = f" {fold(question)} ", f" {fold(wording)} "
    for option in item.options or ():
        folded_option = f" {fold(option)} "
        if len(folded_option) > 3 and option.casefold() not in ("yes", "no"):
            if folded_option in folded_wording and folded_option not in folded_question:
                return "names an option"
    if n_negations(wording) % 2 != n_negations(question) % 2:
        return "negation"
    return ""


def _numbers(text: str) -> Counter[str]:
    return Counter([*_NUMBER.findall(text), *(w for w in words(text) if w in _NUMBER_WORDS)])


@dataclass(frozen=True)
class Paraphrase:
    """A wording of an item's question, what it changes, and why a rule doubts it."""

    item: Item
    text: str
    level: str = ""
    doubt: Doubt = ""

    @property
    def task(self) -> LabelTask:
        """The question to a judge."""
        options = "; ".join(self.item.options or ()) or "(none)"
        return LabelTask(SAME_QUESTION, (self.item.question, self.text, options))

    def outcome(self, label: Labeller | None) -> str:
        """Return "kept", or why the wording is left out; a judge overrules doubts about negation.

        Judged or not, wordings that are identical, change numbers or name an option are left out.
        """
        judgement = label(self.task) if label and self.doubt in ("", "negation") else None
        if judgement == "different":
            return "judged different"
        return self.doubt if self.doubt and judgement != "same" else "kept"


def paraphrases_of(
    item: Item,
    reword: Reword,
    n_most: int,
    level_of: Callable[[Item, str], str] | None = None,
    *,
    has_judge: bool = False,
) -> tuple[list[Paraphrase], Counter[str]]:
    """Return the first ``n_most`` distinct wordings that may be asked, and counts of the others.

    Parameters
    ----------
    has_judge : bool
        Whether a judge reads the wordings, so that those with doubtful negations may be asked too.
    """
    paraphrases: list[Paraphrase] = []
    left_out: Counter[str] = Counter()
    folded_texts: set[str] = set()
    for text in reword(item, item.question):
        level = level_of(item, text) if level_of else ""
        paraphrase = Paraphrase(item, text, level, doubt(item, text))
        if fold(text) in folded_texts:
            left_out["repeated"] += 1
        elif paraphrase.doubt and not (has_judge and paraphrase.doubt == "negation"):
            left_out[paraphrase.doubt] += 1
        elif len(paraphrases) < n_most:
            paraphrases.append(paraphrase)
        folded_texts.add(fold(text))
    return paraphrases, left_out


def are_kept(paraphrases: Sequence[Paraphrase], label: Labeller | None) -> list[bool]:
    """Return which wordings are kept, by rules and the judge's labels."""
    return [paraphrase.outcome(label) == "kept" for paraphrase in paraphrases]
