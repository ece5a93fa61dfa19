"""Which option a model's reply names, by rules in a fixed order; never a guess."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from flipbench.prompting.prompts import LETTERS
from flipbench.prompting.wrappers import split_wrapped

N_LAST_TOKENS = 5
MAX_CHARACTERS = 20_000
"""Only the end of a longer answer is read."""
_OPEN, _CLOSE = r"[\s(\[{<\"'*_`]{0,9}", r"[\s)\]}>\"'*_`.,:;!。]{0,9}"
_AROUND = ".,:;!?()[]{}<>\"'*_`。、"
_ALSO_WORDS = "AI"  # letters that are also an article and a pronoun
_DENIED = "\0"
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # written without spaces around letters

# normalisation
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff\0]"
)
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»「」『』″", '"'),
        **dict.fromkeys("‘’‚‛′´", "'"),
        **dict(zip("【】〔〕〈〉《》", "[][]<><>", strict=True)),
        "▁": " ",
    }
)
_FORMATTING = re.compile(
    r"</?(?:b|i|u|p|a|em|strong|br|hr|span|div|code|pre|sub|sup|small|mark|font|center|img|image"
    r"|h[1-6])(?:\s[^<>\n]{0,80})?/?>",
    re.IGNORECASE,
)
_LATEX_FONT = re.compile(
    r"\\(?:text|mathrm|mathbf|mathsf|mathit|mathtt|mathbb|mathcal|textbf|textit|textrm|textsf|texttt"
    r"|boldsymbol|bm|emph|underline|mbox|operatorname)\s?\{([^{}\n]{0,200})\}"
)
_LATEX_SWITCH = re.compile(r"\\(?:[()\[\],;!]|(?:bf|rm|it|displaystyle|quad|bfseries)\b)")
_LATEX_INLINE = re.compile(r"\$\$?([^$\n]{1,80})\$\$?")
_BOXED = re.compile(r"\\f?boxed\s?\{((?:[^{}]{0,200}\{[^{}]{0,200}\}){0,3}[^{}]{0,200})\}")
_FENCE = re.compile(r"\A```\w{0,9}\n(.*)\n```\Z", re.DOTALL)
_ANSWER_KEYS = (
    "answer", "final_answer", "final answer", "choice", "option", "letter", "label", "prediction",
    "response", "result",
)  # fmt: skip

# what denies
_NEGATION = re.compile(
    r"\bnot\b|n't\b|\bcannot\b|\bn(?:either|or|ever|one)\b|\bwrong|incorrect|\bfalse\b|\bruled?\b"
    r"|\bruling\b|\beliminat|\bexclud|\breject|\bexcept|\bimpossible|\bunlikely|\binvalid"
    r"|\brather than|\binstead of|\banything but|[不非错錯误誤除违違]|ない|ありません|じゃ"
    r"|아니|아닙|틀[렸린립]|\bno es|\bnicht\b|\bfalsch|\bkein|\bpas\b|\bincorrect|\bfau[xs]|\bnão\b"
    r"|\bnon è|\bне\b",
    re.IGNORECASE,
)
_BEFORE_DENIED = (
    r"(?:(?:\b(?:not|cannot|neither|nor|never|none of|no es|nicht|pas|não é|non è|не|rather than"
    r"|instead of|anything but|except(?: for)?|excluding|excludes?|excluded|eliminat(?:es?|ed|ing)"
    r"|reject(?:s|ed|ing)?|rul(?:es?|ed|ing) out)|n't)"
    r"(?:\s(?:be|the|la|le|die|a|an|any|option|choice|answer|opción|letter|red|of|as)){0,3}"
    r"|不(?:是|选|選|应选|應選|可能是|该选|能选)?(?:选项|選項)?|并非|並非|非|排除(?:选项|選項)?|除了)"
)
_AFTER_DENIED = (
    r"(?:\s?(?:(?:is|are|was|were|can|could|would|does|do|did|has|must|will|should|seems?|looks?"
    r"|appears?)(?:\s?n't|\snot|not)\b"
    r"|(?:(?:is|are|was|were|can be|could be|must be|seems?|looks?|appears?)\s)"
    r"(?:(?:clearly|also|both|definitely|obviously|therefore|thus|simply|just|an?|the)\s){0,2}"
    r"(?:wrong|incorrect|false|ruled out|eliminated|excluded|rejected|impossible|unlikely|invalid"
    r"|out of)\b"
    r"|(?:ist|est|es|é|è)\s(?:falsch|nicht|incorrect[ao]?|faux|fausse|falsa|errada|sbagliata)\b"
    r"|no es\b|n'est pas\b|ist es nicht\b)"
    r"|\s?(?:选项|選項|项|項)?(?:是)?(?:错|錯|不对|不對|不正确|不正確|不是|不符|有误|错误|可以排除|被排除)"
    r"|\s?(?:では|じゃ)(?:ない|ありません)|\s?は(?:違|誤|間違|不正解|正しくない)"
    r"|\s?(?:이|가|은|는)?\s?(?:아니|아닙|틀))"
)
_TEXT_DENIED = re.compile(
    r"(?:\b(?:not|cannot be|never|neither|nor|without|no|nicht|kein\w{0,2}|pas|no es)|n't)"
    r"(?:\s(?:be|a|an|any|the|really|un|une|el|la|ein|eine)){0,2}\s[\"'(*]{0,3}\Z"
)
_TEXT_DENIED_AFTER = re.compile(
    r"[\"')*]{0,3}\s(?:(?:is|are|was|were|does|do|can|could|would)(?:n't|\snot|not)\b"
    r"|(?:is|are|was|were|can be|seems?|looks?)\s(?:(?:clearly|also|both|definitely)\s)?"
    r"(?:wrong|incorrect|false|ruled out|eliminated|excluded|impossible|unlikely)\b)"
)
_N_AROUND_TEXT = 40
_MAX_LETTER_LINE = 20
_WORD_ANSWER = re.compile(r"\banswer\b[\s\"'*_`]{0,4}(?:is|[:=])\s?([\"'*_`(]{0,4}\w{1,20})", re.I)


def parse_choice(
    text: str, options: Sequence[str], labels: str = LETTERS, *, cut_off: bool = False
) -> int:
    r"""Return the index of the option that ``text`` names, or -1 if it names none or several.

    Reasoning and the marks around the answer are removed first (`flipbench.prompting.wrappers`);
    a mark that is unknown leaves only the last text to read. Widths, quotes, invisible characters
    and LaTeX are normalised. A letter that is denied ("not B", "B is wrong") names nothing. Then
    the first of these rules that finds exactly one option decides:

    1. the whole reply is an option's letter, perhaps in brackets, quotes or with a dot;
    2. the answer field of a reply that is a JSON object;
    3. "answer is X" (or "answer: X", "答案是X", "答えはX", "정답은 X", "Respuesta: X", …), then a
       line that is only a letter, then "X is correct" (or "X is the answer"), then "option X",
       then "(X)";
    4. one standalone capital letter among the last five tokens; a bare ``A`` before a word in
       lower case is an article (and a bare ``I`` a pronoun) and does not count;
    5. one option's text occurs in the reply as whole words, ignoring case; an occurrence within
       that of a longer option's text, or one that is denied, does not count.

    Only letters of existing options count: "E" names nothing among four. The last ``\boxed{…}`` is
    read in place of the reply if it names an option. Time is linear in the reply.

    Parameters
    ----------
    options : sequence of str, shape (K,)
        The options' texts, in prompt order.
    labels : str
        The options' labels. Rule 4 is for letters only: a number in a sentence may count something.
        Labels that are words ("yes no") replace rules 1 to 4: the reply begins with one of them.
    cut_off : bool
        Whether the reply ends at its limit of tokens. Then an option counts only if the reply says
        that it is the answer (rules 1 to 3 up to "X is correct"): the rest may be reasoning.

    References
    ----------
    Liu et al., *MMBench* (arXiv 2307.06281), and its implementation VLMEvalKit.
    Differs from the paper: a reply that names no option is neither passed to another model nor
    assigned a random option, since that noise would differ between the conditions that a detector
    compares.

    Examples
    --------
    >>> options = ["red", "blue", "a cat"]
    >>> parse_choice("(B)", options), parse_choice("The answer is not B.", options)
    (1, -1)
    >>> parse_choice("2.", options, "123"), parse_choice("There are 2 here", options, "123")
    (1, -1)
    >>> parse_choice("No, there is none.", ["yes", "no"], "yes no")
    1
    """
    reply = text.strip()
    if not reply or not options:
        return -1
    is_letter = " " not in labels
    letters = labels[: len(options)] if is_letter else ""
    if len(reply) == 1 and (index := letters.find(reply.upper())) >= 0:
        return index
    verbatim = [i for i, option in enumerate(options) if option.strip() == reply]
    reply = split_wrapped(normalise(reply), split_unknown=True).answer
    reply = _FORMATTING.sub("", reply[-MAX_CHARACTERS:]).strip()
    if not reply and len(verbatim) == 1:  # an option such as "<table>"
        return verbatim[0]
    if "\\" in reply and (boxes := _BOXED.findall(reply)):
        choice = _choice_by_rules(boxes[-1].strip(), options, labels, letters)
        if choice >= 0:
            return choice
    return _choice_by_rules(reply, options, labels, letters, cut_off=cut_off)


def normalise(text: str) -> str:
    r"""Return a text in NFKC, with plain quotes and brackets, and without invisible characters.

    >>> normalise("“Ｂ”\u200b")
    '"B"'
    """
    if text.isascii():
        return text.replace("\0", "") if "\0" in text else text
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).translate(_PLAIN)


def _choice_by_rules(
    reply: str, options: Sequence[str], labels: str, letters: str, *, cut_off: bool = False
) -> int:
    if not reply:
        return -1
    rules = (
        _candidates(reply, options, letters)
        if letters
        else _word_candidates(reply, options, labels)
    )
    for candidates, is_cue in rules:
        if len(candidates) == 1 and (is_cue or not cut_off):
            return candidates.pop()
    return -1


def _word_candidates(
    reply: str, options: Sequence[str], labels: str
) -> Iterator[tuple[set[int], bool]]:
    """Yield the options that a reply in words names, and whether it says that they are right."""
    words = [label.casefold() for label in labels.split()]
    value = _json_answer(reply)
    reply = value or reply
    first_word, *remainder = reply.split(maxsplit=1) or [""]
    word = first_word.strip(_AROUND).casefold()
    if word in words:
        yield {words.index(word)}, not remainder or value is not None
    answers = (match[1].strip(_AROUND).casefold() for match in _WORD_ANSWER.finditer(reply))
    yield {words.index(answer) for answer in answers if answer in words}, True
    yield _options_in_text(reply, options), False


def _candidates(
    reply: str, options: Sequence[str], letters: str
) -> Iterator[tuple[set[int], bool]]:
    """Yield the options that each rule finds, and whether the reply says that they are right."""
    rules = _rules(letters)
    plain = _without_latex(reply)
    yield rules.whole(plain), True
    if (value := _json_answer(reply)) is not None:
        yield rules.whole(_without_latex(value)), True
        yield _options_in_text(value, options), True
        return
    lines = [" ".join(line.split()) for line in plain.splitlines()]
    plain = rules.without_denied("\n".join(filter(None, lines)))
    yield rules.indices(rules.answer, plain), True
    short = [line for line in plain.split("\n") if len(line) <= _MAX_LETTER_LINE]
    yield set().union(*map(rules.whole, short)), True
    yield rules.indices(rules.correct, plain), True
    yield rules.indices(rules.option, plain), False
    yield rules.indices(rules.in_brackets, plain), False
    if letters.isalpha():
        yield _last_tokens(plain, letters), False
    yield _options_in_text(reply, options), False


class _Rules:
    """The patterns for some letters, compiled once."""

    def __init__(self, letters: str) -> None:
        self.letters = letters
        either = f"[{letters}{letters.lower()}]"
        ends = rf"(?![^\W{_CJK}]|['+#-]\w|[+#])"
        also = rf"{_CLOSE}\s?(?:,|/|&|、|或|和|or\b|and\b|oder\b|ou\b|o\b)\s?{_OPEN}"
        among = rf"(?!{also}[{letters}]{ends})"  # "A or B"
        # "the answer is a dog": a lower-case letter that is also a word must end the phrase
        lone = r"(?:(?![ai])|(?=[ai]\s?(?:[.,;:!)\]*\"}]|$)))"
        is_ = (
            r"(?:is|would be|should be|must be|has to be|est|ist|lautet|es|é|è|là|[:=-]|\*|\"|'|\))"
        )
        answer = (
            rf"(?:\b(?:answer|conclusion|choice|(?:correct|right|best) (?:option|letter)|respuesta"
            rf"|resposta|risposta|réponse|antwort|lösung|ответ|đáp án)"
            rf"(?:\s?(?:correcta|correta|corretta|correcte|choice|option|letter))?"
            rf"\s?(?:{is_}\s?){{1,4}}(?:(?:option|choice|la|le|die|opción|opção|letra|lettre|letter)"
            rf"\s){{0,2}}"
            rf"|(?<!不)(?:答案|答|结论|結論|选择|選擇|选项?|選項?|认为|認為)(?:应该|應該)?\s?[是为為选選]?\s?:?\s?"
            rf"|(?:答え|正解|解答|回答|選択肢)\s?(?:は|が|として|:|、){{0,2}}\s?"
            rf"|(?:정답|답|선택)\s?(?:은|는|이|:){{0,2}}\s?){_OPEN}"
        )
        correct = (
            r"\s?(?:(?:is|would be) (?:(?:the )?correct|the (?:right |best )?(?:answer|choice))\b"
            r"|(?:is|would be) right(?=[.!]|$)"
            r"|(?:选项|選項|项)?(?:是|为)?(?:正确|正確|对的)|です|が正解|이 정답|입니다)"
        )
        not_listed = rf"(?<!or )(?<![{letters}] and )(?<![{letters}], )"
        self._whole = re.compile(rf"{_OPEN}([A-Za-z1-9]){_CLOSE}")
        self.answer = re.compile(rf"(?i:{answer}){lone}({either}){ends}{among}")
        self.correct = re.compile(
            rf"(?<![^\W{_CJK}/])(?<!/){not_listed}([{letters}]){_CLOSE}(?i:{correct})"
        )
        self.option = re.compile(
            rf"(?i:\b(?:option|opción|opção|alternativa))\s{_OPEN}({either}){ends}{among}"
        )
        self.in_brackets = re.compile(rf"(?<!\w)\(\s?({either})\s?\)")
        letter = rf"{lone}{either}{ends}"
        self._denied = re.compile(
            rf"(?i:{_BEFORE_DENIED})\s?{_OPEN}{letter}(?:{also}{letter}){{0,9}}"
            rf"|(?:(?<=\W)|(?<=[{_CJK}])|^){letter}(?:{also}{letter}){{0,9}}"
            rf"[)\]\"'*_`}}]{{0,4}}(?i:{_AFTER_DENIED})"
        )
        self._letter = re.compile(rf"(?<![^\W{_CJK}]){either}{ends}")

    def whole(self, reply: str) -> set[int]:
        """Return the option whose letter is the whole reply."""
        match = self._whole.fullmatch(reply)
        index = self.letters.find(match[1].upper()) if match else -1
        return {index} if index >= 0 else set()

    def indices(self, pattern: re.Pattern[str], reply: str) -> set[int]:
        """Return the options that a pattern finds."""
        return {self.letters.index(letter.upper()) for letter in pattern.findall(reply)}

    def without_denied(self, reply: str) -> str:
        """Return a reply without the letters that it says are wrong."""
        if not _NEGATION.search(reply):
            return reply
        return self._denied.sub(lambda match: self._letter.sub(_DENIED, match[0]), reply)


_rules = lru_cache(maxsize=64)(_Rules)


def _without_latex(reply: str) -> str:
    if "\\" in reply:
        for _ in range(3):  # \boxed{\textbf{\text{B}}}
            reply = _LATEX_FONT.sub(r"\1", _BOXED.sub(r" \1 ", reply))
        reply = _LATEX_SWITCH.sub(" ", reply)
    return _LATEX_INLINE.sub(r"\1", reply).strip() if "$" in reply else reply.strip()


def _json_answer(reply: str) -> str | None:
    """Return the answer field of a reply that is a JSON object, or None."""
    if match := _FENCE.match(reply):
        reply = match[1].strip()
    if not (reply.startswith("{") and reply.endswith("}")):
        return None
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        return None
    fields = {name.casefold(): field for name, field in value.items()}
    answers = [fields[key] for key in _ANSWER_KEYS if key in fields]
    if not answers or isinstance(answers[0], bool) or not isinstance(answers[0], str | int):
        return None
    return str(answers[0]).strip()


def _last_tokens(reply: str, letters: str) -> set[int]:
    tokens = reply.rsplit(maxsplit=N_LAST_TOKENS)[-N_LAST_TOKENS:]
    indices = set()
    for i, token in enumerate(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if token in _ALSO_WORDS and following[:1].islower() and following not in ("or", "and"):
            continue
        bare = token.strip(_AROUND)
        if len(bare) == 1 and bare in letters:
            indices.add(letters.index(bare))
    return indices


def _options_in_text(reply: str, options: Sequence[str]) -> set[int]:
    """Return the options whose text occurs in the reply outside any longer option's text."""
    folded = _folded(reply)
    spans = sorted(
        ((start, -end, index) for index, option in enumerate(options)
         for start, end in _occurrences(_folded_option(option), folded)),
    )  # fmt: skip
    indices, reach, last_span = set[int](), -1, (-1, -1)
    for start, negative_end, index in spans:
        end = -negative_end
        if end > reach or (start, end) == last_span:
            if not _is_denied(folded, start, end):
                indices.add(index)
            reach, last_span = max(reach, end), (start, end)
    return indices


def _is_denied(text: str, start: int, end: int) -> bool:
    prefix = text[max(0, start - _N_AROUND_TEXT) : start]
    return bool(
        _TEXT_DENIED.search(prefix) or _TEXT_DENIED_AFTER.match(text[end : end + _N_AROUND_TEXT])
    )


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


@lru_cache(maxsize=4096)
def _folded_option(option: str) -> str:
    return _folded(normalise(option))


def _occurrences(phrase: str, text: str) -> Iterator[tuple[int, int]]:
    """Return where a phrase occurs as whole words; "5" does not occur in "0.5" or "-5"."""
    n = len(phrase)
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        end = start + n
        if _begins_word(phrase, text, start) and _ends_word(phrase, text, end):
            yield start, end
            start = text.find(phrase, end)
        else:
            start = text.find(phrase, start + 1)


def _begins_word(phrase: str, text: str, start: int) -> bool:
    prefix = text[max(0, start - 2) : start]
    if not prefix:
        return True
    if prefix[-1].isalnum() or prefix[-1] == "_":
        return False
    if not phrase[0].isdigit():
        return True
    return prefix[-1] not in "-−" and not (prefix[-1] in ".," and prefix[0].isdigit())


def _ends_word(phrase: str, text: str, end: int) -> bool:
    suffix = text[end : end + 2]
    if suffix and (suffix[0].isalnum() or suffix[0] == "_"):
        return False
    return not (
        phrase[-1].isdigit() and len(suffix) > 1 and suffix[0] in ".," and suffix[1].isdigit()
    )
