"""Which option a model's reply names, by rules in a fixed order; never a guess."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flipbench.prompting.prompts import LETTERS

N_LAST_TOKENS = 5
_OPEN, _CLOSE = r"[\s(\[{<\"'*_`（【]*", r"[\s)\]}>\"'*_`.,:;!）】。，：；！]*"
_AROUND = ".,:;!?()[]{}<>\"'*_`（）【】。，：；！？"
_ALSO_WORDS = "AI"  # letters that are also an article and a pronoun
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_ONLY_END = re.compile(r".*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)  # begun in the prompt
_NO_END = re.compile(r"<think(?:ing)?>.*", re.DOTALL | re.IGNORECASE)  # cut off
_MARKED = re.compile(
    r"<answer>(.*?)</answer>|<\|begin_of_box\|>(.*?)<\|end_of_box\|>"
    r"|\\boxed\{(?:\\(?:text|textbf|mathrm|mathbf)\{)?([^{}]*)\}",
    re.DOTALL | re.IGNORECASE,
)


def without_thoughts(reply: str) -> str:
    """Return a reply without the reasoning that a model writes in ``<think>`` tags.

    Some chat templates write the first tag into the prompt, so that a reply has only the second. A
    reply that was cut off within its reasoning has no answer.

    >>> without_thoughts("<think>A? No.</think>B"), without_thoughts("A? No.</think>B")
    ('B', 'B')
    >>> without_thoughts("<think>It may be (A) or")
    ''
    """
    text = _ONLY_END.sub("", _THOUGHTS.sub("", reply))
    return _NO_END.sub("", text).strip()


def parse_choice(text: str, options: Sequence[str], labels: str = LETTERS) -> int:
    r"""Return the index of the option that ``text`` names, or -1 if it names none or several.

    The first of these rules that finds exactly one option decides:

    1. the whole reply is an option's letter, perhaps in brackets, quotes or with a dot;
    2. "answer is X" (or "answer: X", "答案是X"), then a line that is only a letter, then "X is
       correct" (or "X is the answer"), then "option X", then "(X)";
    3. one standalone capital letter among the last five tokens; a bare ``A`` before a word in
       lower case is an article (and a bare ``I`` a pronoun) and does not count;
    4. one option's text occurs in the reply as whole words, ignoring case; an occurrence within
       that of a longer option's text does not count.

    Only letters of existing options count: "E" names nothing among four. The last text that the
    reply marks as its answer (``<answer>…</answer>``, ``\boxed{…}``, the box of GLM) is read in
    place of the reply if it names an option.

    Parameters
    ----------
    text : str
        The reply.
    options : sequence of str, shape (K,)
        The options' texts, in prompt order.
    labels : str
        The options' labels. Rule 3 is for letters only: a number in a sentence may count something.
        Labels that are words ("yes no") replace rules 1 to 3: the reply begins with one of them.

    References
    ----------
    Liu et al., *MMBench* (arXiv 2307.06281), and its implementation VLMEvalKit.
    Differs from the paper: a reply that names no option is neither passed to another model nor
    assigned a random option, since that noise would differ between the conditions that a detector
    compares.

    Examples
    --------
    >>> options = ["red", "blue", "a cat"]
    >>> parse_choice("(B)", options), parse_choice("The answer is C.", options)
    (1, 2)
    >>> parse_choice("It looks blue to me", options), parse_choice("A dog", options)
    (1, -1)
    >>> parse_choice("2.", options, "123"), parse_choice("There are 2 here", options, "123")
    (1, -1)
    >>> parse_choice("No, there is none.", ["yes", "no"], "yes no")
    1
    """
    reply = text.strip()
    if not reply or not options:
        return -1
    if " " in labels:
        first = reply.split()[0].strip(_AROUND).casefold()
        words = [label.casefold() for label in labels.split()]
        found = {words.index(first)} if first in words else _texts(reply, options)
        return found.pop() if len(found) == 1 else -1
    if marked := [match[match.lastindex or 0] for match in _MARKED.finditer(reply)]:
        choice = parse_choice(marked[-1], options, labels)
        if choice >= 0:
            return choice
    letters = labels[: len(options)]
    answer, *others = _phrases(reply, letters)
    for candidates in (
        _whole_reply(reply, letters),
        answer,
        set().union(*(_whole_reply(line.strip(), letters) for line in reply.splitlines())),
        *others,
        _last_tokens(reply, letters) if letters.isalpha() else set(),
        _texts(reply, options),
    ):
        if len(candidates) == 1:
            return candidates.pop()
    return -1


def _whole_reply(reply: str, letters: str) -> set[int]:
    match = re.fullmatch(f"{_OPEN}([A-Za-z1-9]){_CLOSE}", reply)
    return _indices([match[1].upper()] if match else [], letters)


def _phrases(reply: str, letters: str) -> list[set[int]]:
    """Return the options named by "answer is X", "X is correct", "option X" and "(X)", each."""
    either = f"[{letters}{letters.lower()}]"
    ends = r"(?![^\W\u4e00-\u9fff]|['’+#-])"  # Chinese is written without spaces
    among = rf"(?!{_CLOSE}\s*(?:,|/|&|or\b|and\b)\s*{_OPEN}[{letters}]{ends})"  # "A or B"
    # "the answer is a dog": a lower-case letter that is also a word must end the phrase
    lone = r"(?:(?![ai])|(?=[ai]\s*(?:[.,;:!)\]*\"]|$)))"
    answer = (
        rf"(?:\b(?:answer|correct option|correct choice)\s*"
        rf"(?:is|would be|should be|[:=-]|\*)+\s*:?\s*(?:option\s+)?"
        rf"|(?<!不)(?:答案|选项?|選項?)\s*(?:应该|應該)?\s*[是为為]?\s*[:：]?\s*){_OPEN}"
    )
    correct = r"(?:is|would be) (?:(?:the )?correct|the (?:right |best )?(?:answer|choice))"
    alone = rf"(?<!or )(?<![{letters}] and )(?<![{letters}], )"
    patterns = (
        rf"(?i:{answer}){lone}({either}){ends}{among}",
        rf"(?<![\w/]){alone}([{letters}]){_CLOSE}\s*(?i:{correct})\b",
        rf"(?i:\boption)\s+{_OPEN}({either}){ends}{among}",
        rf"(?<!\w)[(（]\s*({either})\s*[)）]",
    )
    return [
        _indices([m[1].upper() for m in re.finditer(pattern, reply)], letters)
        for pattern in patterns
    ]


def _last_tokens(reply: str, letters: str) -> set[int]:
    tokens = reply.split()
    last = []
    for i in range(max(0, len(tokens) - N_LAST_TOKENS), len(tokens)):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if tokens[i] in _ALSO_WORDS and following[:1].islower() and following not in ("or", "and"):
            continue
        last.append(tokens[i].strip(_AROUND))
    return _indices([token for token in last if len(token) == 1], letters)


def _texts(reply: str, options: Sequence[str]) -> set[int]:
    """Return the options whose text occurs in the reply outside any longer option's text."""
    folded = " ".join(reply.casefold().split())
    spans = [
        (index, match.span())
        for index, option in enumerate(options)
        if (phrase := " ".join(option.casefold().split()))
        for match in re.finditer(_whole_word(phrase), folded)
    ]
    return {
        index
        for index, (start, end) in spans
        if not any(a <= start and end <= b and b - a > end - start for _, (a, b) in spans)
    }


def _whole_word(phrase: str) -> str:
    before, after = r"(?<!\w)", r"(?!\w)"
    if phrase[0].isdigit():  # "5" does not occur in "0.5" or "-5"
        before += r"(?<!\d[.,])(?<![-−])"
    if phrase[-1].isdigit():
        after += r"(?![.,]\d)"
    return before + re.escape(phrase) + after


def _indices(candidates: Sequence[str], letters: str) -> set[int]:
    return {letters.index(letter) for letter in candidates if letter in letters}
