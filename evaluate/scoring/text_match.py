"""Comparing free-text replies with a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import snowballstemmer
from rapidfuzz import process
from rapidfuzz.distance import Indel, LCSseq, Levenshtein

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_ARTICLES = frozenset({"a", "an", "the"})
_LABEL = re.compile(r"\s*[(\[]?[A-Za-z][.):\]]\s+")


def words(text: str) -> list[str]:
    """Return the words of a text, case-folded, without punctuation.

    >>> words("The red star's left-hand side, 2 of 3!")
    ['the', 'red', "star's", 'left-hand', 'side', '2', 'of', '3']
    """
    return _WORD.findall(text.casefold())


def fold(text: str) -> str:
    """Return a text's words without articles, joined by single spaces.

    >>> fold("  The Red  star. ")
    'red star'
    """
    return " ".join(word for word in words(text) if word not in _ARTICLES)


def rouge_l(reference: str, hypothesis: str) -> float:
    """Return ROUGE-L: F1 of the longest common subsequence of words, case-folded; no stemming.

    References
    ----------
    Lin, ROUGE: A Package for Automatic Evaluation of Summaries (2004), section 3, with beta = 1.

    Examples
    --------
    >>> round(rouge_l("the cat sat on the mat", "the cat lay on a mat"), 4)
    0.6667
    """
    reference_words, reply_words = words(reference), words(hypothesis)
    if not reference_words or not reply_words:
        return 0.0
    return (
        2
        * LCSseq.similarity(reference_words, reply_words)
        / (len(reference_words) + len(reply_words))
    )


def match_ratio(target: str, text: str) -> float:
    """Return 2 M / (len(target) + len(text)) with M matching characters, to two decimals.

    M is the length of the longest common subsequence; 0 if both are empty.

    References
    ----------
    Nori et al., arXiv 2303.13375, MELD. Python's difflib counts blocks instead, so M is never
    smaller here.

    Examples
    --------
    >>> match_ratio("efgh", "efgx"), match_ratio("efgh", "zzefgh")
    (0.75, 0.8)
    """
    return round(Indel.normalized_similarity(target, text), 2) if target or text else 0.0


@lru_cache(maxsize=100_000)
def window_similarity(target: str, text: str, slack: float = 2.0) -> float:
    """Return the largest 1 - Levenshtein / L over windows of ``text`` as long as ``target``.

    L is the length of ``target``, and windows start at every character of the first ``slack * L``
    characters of ``text``. A shorter text is one window. 0 if the target is empty.

    The maximum over windows raises the similarity of unrelated texts, to about .2 in English.

    References
    ----------
    Yao et al., MedThinkVQA, appendix M, where a text shorter than the target has no window.

    Examples
    --------
    >>> window_similarity("efgh", "efgx"), window_similarity("efgh", "zzefgh")
    (0.75, 1.0)
    """
    length = len(target)
    if not length:
        return 0.0
    region = text[: int(slack * length)]
    windows = [region[i : i + length] for i in range(max(1, len(region) - length + 1))]
    distances = process.cdist([target], windows, scorer=Levenshtein.distance)
    return 1 - int(distances.min()) / length


def without_label(reply: str) -> str:
    """Return a reply without a leading option label.

    >>> without_label("D. blue"), without_label("a cat")
    ('blue', 'a cat')
    """
    return _LABEL.sub("", reply, count=1) if _LABEL.match(reply) else reply


def continuation(reply: str, beginning: str) -> str:
    """Return a reply without ``beginning``, if it starts by repeating that.

    >>> continuation("What color is the star?", "What color")
    ' is the star?'
    """
    repeated = _pattern(beginning).match(reply) if beginning.strip() else None
    return reply[repeated.end() :] if repeated else reply


@lru_cache(maxsize=100_000)
def _pattern(beginning: str) -> re.Pattern[str]:
    """Return a pattern for a text's words in sequence, ignoring case and whitespace."""
    parts = [re.escape(part) for part in beginning.split()]
    return re.compile(r"\s*" + r"\s+".join(parts), re.IGNORECASE)


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return the Snowball stem of an English word."""
    return str(_stemmer().stemWord(word.casefold()))


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    return snowballstemmer.stemmer("english")


def mentions(reply: str, text: str, distractors: Sequence[str] = ()) -> bool:
    """Return whether a reply has the words of ``text`` in sequence, and none of ``distractors``.

    >>> mentions("D. Blue.", "blue", ["red"]), mentions("red or blue", "blue", ["red"])
    (True, False)
    """
    reply_words, target = fold(without_label(reply)), fold(text)
    if not target or not reply_words:
        return reply_words == target and reply.strip() == text.strip() != ""
    if reply_words == target:
        return True

    def contains(phrase: str) -> bool:
        return bool(phrase) and f" {phrase} " in f" {reply_words} "

    return contains(target) and not any(
        contains(fold(distractor)) and fold(distractor) not in target for distractor in distractors
    )
