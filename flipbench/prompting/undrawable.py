"""Options that no picture can show, so that no new answer is drawn from them."""

from __future__ import annotations

import re

_REFERS = (
    r"(?i:\b(?:all|none|both|neither|either|any)(?: of)?(?: the)?(?: (?:other|given|two))*"
    r" (?:above|these|them|others|options|answers|choices|following)(?! (?:on|in|at|from|of)\b)\b)",
    r"(?i:\b(?:all|none|both|neither)(?: of [\w ]+)? (?:is|are) (?:correct|right|true|wrong)\b)",
    r"(?i:\bno (?:correct|right) (?:answer|option)\b)",
    r"(?i:^\(?[a-h]\)?(?:, ?\(?[a-h]\)?)*,? (?:and|or|&) \(?[a-h]\)?$)",
    r"(?i:\b(?:both|neither|either)\s+\(?[a-h]\)?\s+(?:and|or|nor|&)\s+\(?[a-h]\)?(?!\w))",
    r"(?i:\b(?:options?|answers?|choices?)\s+)\(?[A-H]\)?(?![\w'])",
    r"(?i:^\(?[a-h]\)?\s*(?:,|and|or|&)\s*\(?[a-h]\)?$)",
    r"(?i:^other answers?$)",
    "以上(?:都|皆|全)",
)
_UNDECIDED = (
    r"^(?:(?:it|this|that|the (?:answer|question)) (?:is )?|it's )?"
    r"(?:can(?:not|['’]?t| not)|could(?: not|n['’]?t)|unable to|(?:impossible|not possible) to)"
    r" (?:be )?(?:tell|say|determined?|decide[d]?|know|known|answer(?:ed)?|see|seen|inferred?)\b",
    r"\bnot enough (?:information|info|data|detail|context)\b",
    r"\b(?:insufficient|no|not sufficient) information\b",
    r"^not (?:visible|determinable|answerable|shown|given|specified|known)$",
    r"^(?:unknown|unclear|undetermined|unanswerable|uncertain|not sure|unsure)$",
    r"^(?:not applicable|n/?a)$",
    r"\bi (?:do not|don['’]?t) know\b",
    "无法(?:确定|判断|得知)|不确定|不知道",
)
_PICTURE = re.compile(
    r"<\s*image[\s_-]*\d*\s*>|\[\s*image[\s_-]*\d*\s*\]|!\[[^\]]*\]\("
    r"|^\S+\.(?:png|jpe?g|gif|bmp|webp|tiff?)$",
    re.I,
)
_REFERS_RE = re.compile("|".join(_REFERS))
_UNDECIDED_RE = re.compile("|".join(_UNDECIDED), re.I)


def refers_to_options(option: str) -> bool:
    """Return whether an option refers to the others, so that their order matters.

    >>> refers_to_options("None of the above"), refers_to_options("Both a cat and a dog")
    (True, False)
    """
    return _REFERS_RE.search(option) is not None


def why_undrawable(option: str) -> str:
    """Return why no picture can be made to show an option; empty if one may.

    >>> why_undrawable("Cannot be determined."), why_undrawable("two")
    ('it says that the answer is not known', '')
    """
    text = option.strip().rstrip(".")
    if _PICTURE.search(text):
        return "it is a picture"
    if refers_to_options(text):
        return "it refers to other options"
    if _UNDECIDED_RE.search(text):
        return "it says that the answer is not known"
    return ""
