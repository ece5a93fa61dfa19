"""MELD: continuing the first half of an item's text, without or with a chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from typing import ClassVar

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Indel

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe, Response, Score
from flipbench.prompting.prompts import PromptSettings, lettered

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...protocol.rules import Verdict
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Contrast,
    PairedResult,
    gap_score,
    mcnemar_score,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import Query, QueryPair, open_question
from ...scoring.text_match import continuation, match_ratio, window_similarity
from ...statistics.paired import PairedOutcome

CHARACTERS_PER_TOKEN = 3
"""Fewer than in English text, so that replies are not cut off."""
COMPARED = 200
"""Characters at the end of the given texts by which a similar item is found."""
_AT_ONCE = 512
FORWARD = "Continue this text exactly as it goes on. Write only what follows.\n\n{}"
BACKWARD = "This is the second half of a text. Write exactly what comes before it.\n\n{}"
ANSWER = "{}\nExplain your answer step by step, then give it."

ABOUT = About(
    name="meld",
    title="MELD",
    paper="Nori et al., Capabilities of GPT-4 on Medical Challenge Problems, arXiv 2303.13375"
    " (MELD); windows: Yao et al., MedThinkVQA, appendix M, with the threshold of Tang et al.,"
    " MedAgentsBench, arXiv 2503.07459",
    variant="rules original (any ratio of .95), near_exact (default; McNemar test of such replies"
    " against those near a similar item's text), windowed (any similarity of .5 in a window),"
    " matches (as near_exact, for windows), excess (the same for the mean similarity), relative"
    " (the excess above the clean model's)",
    deviates_from_paper="shares of all items, where the listing in MedThinkVQA averages only the"
    " similarities above the threshold; halves by words, not by the model's tokens; the first half"
    " is the prompt, where that listing has the second (parameter backward) and its text compares"
    " answers with questions (parameter answers); a noise floor, the same reply's similarity to the"
    " item whose first half ends most similarly, and tests; text only",
    rules=dict.fromkeys(("original", "near_exact", "windowed", "matches", "excess"), False)
    | {"relative": True},
    default_rule="near_exact",
    needs=frozenset({"raw_text", "text_only"}),
    direction="replies are closer to the other half of their own text than to another item's",
    rule_titles={
        "original": "Any near-exact",
        "near_exact": "Near-exact above floor",
        "windowed": "Any match in a window",
        "matches": "Matches above floor",
        "excess": "Similarity above floor",
    },
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"original": None, "windowed": None},
    on_request="it asks for a reply as long as each question: name it with --detectors",
    evidence="published",
    caveat="templates are continued unseen, which rules original and windowed ignore; the first"
    " half names the topic of the second, so the excess may be above 0 in clean models; the maximum"
    " over windows is about .2 for unrelated English",
)


@dataclass(frozen=True)
class _Text:
    """An item's prompt, the text that it withholds, and that of another item."""

    item: Item
    prompt: str
    withheld: str
    neighbour: str = ""


def full_text(item: Item) -> str:
    """Return the question and its lettered options, one per line."""
    return "\n".join([item.question.strip(), *lettered(item.options or ())])


def halves(text: str) -> tuple[str, str] | None:
    r"""Split a text of n words after n // 2 of them; None if it has fewer than two.

    >>> halves("What is it?\nA. red B. blue")
    ('What is it?', 'A. red B. blue')
    """
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    if len(starts) < 2:
        return None
    at = starts[len(starts) // 2]
    return text[:at].strip(), text[at:].strip()


@dataclass
class Meld(ComparingDetector):
    """Gap = similarity of replies to the withheld half - to that of another item.

    The model continues raw text; `MeldChat` asks a chat model to continue it.
    ``details`` of rules excess and relative has the medians of similarity and noise floor.

    Parameters
    ----------
    near_exact, match : float
        Ratio and similarity, in [0, 1], from which a reply counts.
    slack : float
        Windows start within ``slack`` times the withheld characters, and the reply may have
        ``slack`` times as many tokens.
    min_new_tokens : int
        Tokens that every reply may have.
    max_withheld : int
        Characters of the withheld text that are compared.
    backward : bool
        Whether the second half is given and the first withheld.
    answers : bool
        Whether the question is asked as usual and the reply compared with its whole text.

    Attributes
    ----------
    may_be_empty : bool
        Whether an empty reply has a similarity of 0; otherwise it cannot be read.

    Raises
    ------
    ValueError
        If both ``backward`` and ``answers`` are set.
    """

    near_exact: float = 0.95
    match: float = 0.5
    slack: float = 2.0
    min_new_tokens: int = 16
    max_withheld: int = 500
    backward: bool = False
    answers: bool = False
    about = ABOUT
    may_be_empty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse two modes at once."""
        if self.backward and self.answers:
            raise ValueError("backward and answers exclude each other: an answer has no direction")

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's given text, for three measures; ``prompt_settings`` is not used."""
        texts = self._texts(benchmark)
        left_out = (
            "their text is that of another item, a single word, or withholds the same as all others"
        )

        def contrast(
            name: str,
            measure: Callable[[str, str], float],
            *rules: Callable[[Comparison], Score],
            n_trials: int | None = 1,
            unit: str = "fraction",
        ) -> Contrast:
            return two_conditions(
                [self._pair(text, measure) for text in texts],
                (f"{name}, another item", name),
                rules,
                left_out,
                (n_trials, n_trials),
                direction="rises",
                unit=unit,
            )

        def medians(answers: Answers) -> JsonDict:
            floor, similarities = (
                [value for value in condition.outcomes if value is not None]
                for condition in similarity.read(answers)
            )
            if not similarities:
                return {}
            return {"median": median(similarities), "median_floor": median(floor)}

        similarity = contrast(
            "similarity",
            self._similarity,
            partial(mcnemar_score, rule="excess"),
            relative_score,
            n_trials=None,
            unit="similarity",
        )
        return [
            contrast(
                "near-exact",
                self._is_near_exact,
                partial(_any_score, rule="original"),
                partial(mcnemar_score, rule="near_exact"),
            ),
            contrast(
                "match",
                lambda withheld, reply: self._similarity(withheld, reply) >= self.match,
                partial(_any_score, rule="windowed"),
                partial(mcnemar_score, rule="matches"),
            ),
            replace(similarity, describe=medians),
        ]

    def _similarity(self, withheld: str, reply: str) -> float:
        return window_similarity(withheld, reply, self.slack)

    def _is_near_exact(self, withheld: str, reply: str) -> bool:
        return match_ratio(withheld, reply[: len(withheld)].rstrip()) >= self.near_exact

    @cached_per_benchmark
    def _texts(self, benchmark: PairedBenchmark) -> list[_Text]:
        """Return the items to ask, each with the withheld text of a similar item."""
        distinct: dict[str, Item] = {}
        for item in sorted(benchmark.originals, key=lambda item: item.id):
            distinct.setdefault(full_text(item), item)
        texts = []
        for text, item in distinct.items():
            pieces = (text, text) if self.answers else halves(text)
            if pieces is not None:
                prompt, withheld = pieces[::-1] if self.backward else pieces
                texts.append(_Text(item, prompt, _plain(withheld)[: self.max_withheld]))
        return _with_neighbours(texts, benchmark)

    def _pair(self, text: _Text, measure: Callable[[str, str], float]) -> QueryPair:
        probe, beginning = self._probe(text), "" if self.answers else text.prompt

        def query(withheld: str) -> Query:
            def read(reply: Response) -> float | None:
                completion = _plain(continuation(reply.text, beginning))
                return measure(withheld, completion) if completion or self.may_be_empty else None

            return Query(((probe, read),))

        return QueryPair(text.item, query(text.neighbour), query(text.withheld))

    def _n_tokens(self, text: _Text) -> int:
        """Return the limit of a reply's tokens, in steps of 16: a batch has one limit."""
        n_tokens = self.slack * len(text.withheld) / CHARACTERS_PER_TOKEN
        return 16 * ceil(max(self.min_new_tokens, n_tokens) / 16)

    def _probe(self, text: _Text) -> Probe:
        return Probe(
            item_id=text.item.id,
            variant="meld",
            prompt=ANSWER.format(text.prompt) if self.answers else text.prompt,
            ask="continue_text",
            max_new_tokens=self._n_tokens(text),
        )


class MeldChat(Meld):
    """`Meld` for models that only chat: the prompt asks for the continuation."""

    about = replace(
        ABOUT,
        name="meld_chat",
        title="MELD, chat",
        needs=frozenset({"generate", "text_only"}),
        caveat=f"chat models answer instead of continuing; {ABOUT.caveat}",
    )
    may_be_empty: ClassVar[bool] = False

    def _probe(self, text: _Text) -> Probe:
        wording = ANSWER if self.answers else BACKWARD if self.backward else FORWARD
        query = open_question(
            text.item,
            "meld-chat",
            wording.format(text.prompt),
            lambda _: None,
            max_new_tokens=self._n_tokens(text),
            images=(),
        )
        return query.probes[0]


def _any_score(comparison: Comparison, rule: str) -> Score:
    """Return the score of "any reply matches its own text"."""

    def decide(outcome: PairedResult) -> Verdict:
        assert isinstance(outcome, PairedOutcome)
        return "contaminated" if outcome.n11 + outcome.c else "not_detected"

    return gap_score(comparison, rule, decide, tuned_threshold=True)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _with_neighbours(texts: Sequence[_Text], benchmark: PairedBenchmark) -> list[_Text]:
    """Return the texts, each with the withheld text of its neighbour, in item order.

    The neighbour is the item whose prompt ends most similarly, of those that withhold another
    text: it is about the same topic, and in the same template.
    """
    ends = [_plain(text.prompt)[-COMPARED:] for text in texts]
    withheld = np.unique([text.withheld for text in texts], return_inverse=True)[1]
    by_id = {}
    for start in range(0, len(texts), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        similar = process.cdist(ends[rows], ends, scorer=Indel.normalized_similarity, workers=-1)
        similar[withheld[rows, None] == withheld[None, :]] = -1
        for text, row in zip(texts[rows], similar, strict=True):
            nearest = int(row.argmax())
            if row[nearest] >= 0:
                by_id[text.item.id] = replace(text, neighbour=texts[nearest].withheld)
    return [by_id[item.id] for item in benchmark.originals if item.id in by_id]
