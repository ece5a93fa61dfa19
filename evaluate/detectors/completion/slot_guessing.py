"""Slot guessing: guessing a masked word in the release's wording but not in another."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Response
from flipbench.models.chat.rewording import Reword, has_caption
from flipbench.prompting.prompts import PromptSettings
from flipbench.prompting.wrappers import answer_text

from ...protocol.detector import About, Helpers
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
from ...scoring.conditions import NO_REWORDING, Query, QueryPair, open_question
from ...scoring.text_match import stem, words

BANDS = Bands(minor=-0.011, partial=-0.024, severe=-0.05)
"""The paper's degrees for captions."""
MASK = "[MASK]"
PROMPT = (
    "{text}\nOne word of this text is hidden behind {mask}. Look at the picture and answer with"
    " the hidden word only."
)

ABOUT = About(
    name="slot_guessing",
    title="Slot guessing",
    paper="Song et al., Both Text and Images Leaked! (MM-Detect), arXiv 2411.03823, slot guessing"
    " for perturbed captions",
    variant="rules bands (the paper's degrees; minor is enough), mcnemar (default), relative",
    deviates_from_paper="the same word (by its stem) is hidden in both wordings, where the authors"
    " hide two words drawn independently; whole words only; any content word, without a tagger; a"
    " reply must contain the word's stem; questions with their answers serve as text if there is no"
    " caption; the rewording model is configurable, and the shapes world has templates",
    rules={"bands": False, "mcnemar": False, "relative": True},
    default_rule="mcnemar",
    needs=frozenset({"generate"}),
    direction="hidden words are guessed less often when the text is reworded",
    helpers=frozenset({"rewording"}),
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"bands": None},
    evidence="published",
    caveat="rewording alone can make a word harder to guess; the bands are within the noise of a"
    " thousand items",
)

FUNCTION_WORDS = frozenset(
    "a an the this that these those there here it its he she they them his her their we you your i"
    " me my and or but nor so yet if then than as of in on at to from by with without for into onto"
    " over under about between among through during before after above below up down off out is"
    " are was were be been being am do does did done has have had having can could will would"
    " shall should may might must not no yes what which who whom whose when where why how many"
    " much some any each every all both either neither other another such only own same too very"
    " just also more most less least".split()
)


@dataclass(frozen=True)
class Slot:
    """A text in two wordings with the same word, which occurs once in each, hidden."""

    item: Item
    stem: str
    original: str
    reworded: str


def text_of(item: Item) -> str:
    """Return the text to hide a word in: a caption, or the question with its answer.

    A free-form answer of five words or more counts as a caption.
    """
    return item.answer_text if has_caption(item) else f"{item.question} {item.answer_text}"


def make_slot(item: Item, reworded: str, seed: int) -> Slot | None:
    """Hide one content word that occurs once in each wording; None if there is no such word."""
    original = text_of(item)
    shared = sorted(_once(original) & _once(reworded))
    if not shared:
        return None
    hidden = shared[int(generator(seed, item.id, "slot-guessing").integers(len(shared)))]
    return Slot(item, hidden, _hide(original, hidden), _hide(reworded, hidden))


def _once(text: str) -> set[str]:
    """Return the stems of content words that occur in a text exactly once."""
    counts = Counter(stem(word) for word in words(text))
    return {
        stem(word)
        for word in words(text)
        if word.isalpha() and len(word) >= 3 and word not in FUNCTION_WORDS
        if counts[stem(word)] == 1
    }


def _hide(text: str, hidden: str) -> str:
    def masked(match: re.Match[str]) -> str:
        return MASK if stem(match[0].casefold()) == hidden else match[0]

    return re.sub(r"\w+(?:['’-]\w+)*", masked, text)


@dataclass
class SlotGuessing(ComparingDetector):
    """Gap = share of hidden words guessed in a reworded text - in the release's own wording.

    Parameters
    ----------
    reword : callable, optional
        Maps an item and its text to other wordings, the first of which is used. Items without
        another wording, or whose wordings share no content word, are left out.
    """

    reword: Reword | None = None
    max_new_tokens: int = 8
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> SlotGuessing:
        """Return the detector with other wordings."""
        return replace(self, reword=helpers.reword)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's text in both wordings, one word hidden; no settings apply."""
        query_pairs = []
        for item in benchmark.originals:
            wordings = self.reword(item, text_of(item)) if self.reword and item.images else []
            slot = make_slot(item, wordings[0], self.settings.seed) if wordings else None
            if slot is not None:
                original = self._query(slot, "slot", slot.original)
                reworded = self._query(slot, "slot-reworded", slot.reworded)
                query_pairs.append(QueryPair(item, original, reworded))
        return [
            two_conditions(
                query_pairs,
                ("slot", "slot reworded"),
                (partial(bands_score, bands=BANDS), mcnemar_score, relative_score),
                "they have no picture, no other wording (evaluate.rewording), or no content word"
                " that both wordings share",
                reason="" if self.reword else NO_REWORDING,
                finish=lambda score, _: with_leakage(score),
            )
        ]

    def _query(self, slot: Slot, variant: str, text: str) -> Query:
        def is_guessed(reply: Response) -> bool | None:
            stems = {stem(word) for word in words(answer_text(reply.text))}
            return slot.stem in stems if stems else None

        prompt = PROMPT.format(text=text, mask=MASK)
        return open_question(
            slot.item, variant, prompt, is_guessed, max_new_tokens=self.max_new_tokens
        )
