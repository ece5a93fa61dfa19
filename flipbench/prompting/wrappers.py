"""Where a reply's answer stands: one table of the marks around reasoning, answers and turns.

Every reader of replies (letters, captions, judges, labels) uses `split_wrapped` or `answer_text`.
Add a model's marks to the tables below, never to a reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal[
    "plain", "reasoning", "context", "answer", "unknown", "ignored",
    "turn start", "turn end", "assistant", "other speaker", "message", "channel",
]  # fmt: skip


def _by_name(names: Mapping[Kind, str]) -> dict[str, Kind]:
    return {name: kind for kind, text in names.items() for name in text.split()}


TAGS = _by_name(
    {
        "reasoning": (
            "think thinking thought thoughts reasoning reason rationale analysis reflection"
            " scratchpad inner_monologue chain_of_thought cot seed:think"
        ),
        "context": "summary caption",  # LLaVA-CoT's first two, before reasoning and conclusion
        "answer": (
            "answer final_answer finalanswer final conclusion response final_response solution"
            " output result box"
        ),
        "turn start": "start_of_turn",
        "turn end": "s bos eos pad unk end_of_turn end_of_utterance endoftext",
        "other speaker": "inst",
        "ignored": (
            "b i u p a em strong br hr span div code pre sub sup small mark font center ul ol li"
            " h1 h2 h3 h4 h5 h6 table tr td th tbody thead img image video audio"
        ),
    }
)
"""What ``<name>``, ``[NAME]`` and ``◁name▷`` mark."""
TOKENS = _by_name(
    {
        "turn start": "im_start start start_of_turn_token start_header_id",
        "turn end": (
            "im_end eot_id eom_id end return call eos endoftext end_of_text end_of_sentence"
            " end_of_turn end_of_turn_token end_of_utterance eot begin_of_text begin_of_sentence"
            " startoftext bos_token pad"
        ),
        "assistant": "assistant bot chatbot_token",
        "other speaker": "user system human developer user_token system_token",
        "message": "message end_header_id",
        "channel": "channel",
        "ignored": "image image_pad video_pad vision_start vision_end vision_pad",
    }
)
"""What ``<|name|>`` marks, besides the names in `TAGS` after ``begin_of_`` or ``end_of_``."""
_ASSISTANTS = ("", "assistant", "model", "bot")
_CHANNELS = _by_name(
    {"answer": "final", "reasoning": "analysis commentary thought thinking reasoning"}
)
_MARK = re.compile(
    r"<(?P<left>[|｜])?(?P<slash>/)?(?P<name>[A-Za-z][\w:▁-]{0,39})(?:\s[^<>\n]{0,80})?"
    r"(?P<right>[|｜])?>"
    r"|[\[◁](?P<slash2>/)?(?P<name2>[A-Z]{3,9}(?:[ _][A-Z]{2,9}){0,2}|think)[\]▷]"
)
_BOUNDS = re.compile(r"(begin|start|end)_(?:of_)?(\w+)")
_UNUSED = {"unused94": "<think>", "unused95": "</think>"}  # MedGemma
_GLUED = re.compile(r"\s*(?:analysis|commentary)(?=[A-Z\"'(])")  # tokens lost in decoding
_GLUED_FINAL = "assistantfinal"
_RESPONSE = "Here is my response:"  # Granite
_MAX_NAME = 40  # of a speaker or channel


class WrappedReply(NamedTuple):
    """A reply, split where its marks say.

    ``answer``, empty if there is none, begins at ``start`` of the reply; ``reasoning`` is marked as
    such; ``finished`` is False if the reply ends within it.
    """

    answer: str
    reasoning: str = ""
    start: int = 0
    finished: bool = True


class _Mark(NamedTuple):
    kind: Kind
    closes: bool
    begin: int
    end: int


class _Segment(NamedTuple):
    kind: Kind
    begin: int
    end: int


def answer_text(reply: str) -> str:
    """Return a reply without reasoning, the marks around its answer, and leaked turn tokens.

    >>> answer_text("<think>A? No.</think>B"), answer_text("A? No.</think>B")
    ('B', 'B')
    >>> answer_text("<think>It may be (A) or")
    ''
    """
    return split_wrapped(reply).answer


def split_wrapped(reply: str, *, split_unknown: bool = False) -> WrappedReply:
    """Split a reply by its marks, in linear time.

    The last marked answer counts; without one, the last text outside any reasoning. Some chat
    templates write the first mark into the prompt, so all that precedes a closing mark without an
    opening one is reasoning. A turn that another speaker follows ends the reply. With
    ``split_unknown``, a mark that is in no table separates texts as well, since it may mark
    reasoning; a text that follows an unknown tag without a closing one is not read.

    >>> split_wrapped("<CAPTION> A or B. </CAPTION> <CONCLUSION> C </CONCLUSION>").answer
    ' C '
    >>> split_wrapped("<hm>Option A?</hm> B<|im_end|>", split_unknown=True).answer
    ' B'
    """
    ignored = ("ignored",) if split_unknown else ("ignored", "unknown")
    marks = [m for m in map(_classify, _MARK.finditer(reply)) if m.kind not in ignored]
    segments = _segments(reply, marks) if marks else _without_marks(reply)
    return _select_answer(reply, segments)


def _classify(match: re.Match[str]) -> _Mark:
    name = (match["name"] or match["name2"]).replace("▁", "_").replace(" ", "_").casefold()
    closes = bool(match["slash"] or match["slash2"])
    if name in _UNUSED:
        name, closes = "think", name == "unused95"
    is_token = match["left"] or match["right"]
    kind = (TOKENS if is_token else TAGS).get(name)
    if name == "channel" and not match["left"]:  # Gemma closes a channel by <channel|>
        closes = True
    if kind is None and (bounds := _BOUNDS.fullmatch(name)):
        closes, name = bounds[1] == "end", bounds[2].removeprefix("final_")
    kind = kind or TAGS.get(name)
    if kind is None:  # "<D>" and "[FIRE]" are no marks
        kind = "ignored" if len(name) == 1 or match["name2"] else "unknown"
        closes = closes or bool(is_token)  # a token only separates
    if name == "inst" and closes:
        kind = "assistant"
    return _Mark(kind, closes, match.start(), match.end())


def _without_marks(reply: str) -> list[_Segment]:
    """Return the parts of a reply without marks, or whose marks were lost in decoding."""
    n = len(reply)
    at = reply.rfind(_RESPONSE)
    if at >= 0:
        return [_Segment("reasoning", 0, at), _Segment("answer", at + len(_RESPONSE), n)]
    if _GLUED.match(reply):
        at = reply.rfind(_GLUED_FINAL)
        if at < 0:
            return [_Segment("reasoning", 0, n)]
        return [_Segment("reasoning", 0, at), _Segment("answer", at + len(_GLUED_FINAL), n)]
    return [_Segment("plain", 0, n)]


def _segments(reply: str, marks: Sequence[_Mark]) -> list[_Segment]:
    """Cut a reply at its marks."""
    segments: list[_Segment] = []
    kind: Kind = "plain"
    begin, spoken = 0, False
    in_tag = False  # within reasoning that only a closing tag ends

    def cut(at: int, following: Kind, resume: int) -> None:
        nonlocal kind, begin, spoken
        segments.append(_Segment(kind, begin, at))
        spoken = spoken or bool(reply[begin:at].strip())
        kind, begin = following, resume

    for number, mark in enumerate(marks):
        until = marks[number + 1].begin if number + 1 < len(marks) else len(reply)
        if mark.kind == "reasoning" and mark.closes:
            cut(mark.begin, "plain", mark.end)
            if not in_tag:  # its opening mark stood in the prompt
                segments[:] = [_Segment("reasoning", 0, mark.begin)]
            in_tag = False
        elif in_tag:
            if number == len(marks) - 2 and _ends_with_answer(reply, marks):
                cut(mark.begin, "answer", mark.end)
                in_tag = False
        elif mark.kind == "reasoning":
            cut(mark.begin, "reasoning", mark.end)
            in_tag = True
        elif mark.kind in ("answer", "context", "unknown"):
            if mark.closes:
                kind = "plain" if mark.kind == "unknown" else mark.kind
            cut(mark.begin, "plain" if mark.closes else mark.kind, mark.end)
        elif mark.kind == "channel":
            name = reply[mark.end : min(until, mark.end + _MAX_NAME)].split("\n", 1)[0]
            channel = name.split()[0].casefold() if name.strip() else ""
            if mark.closes:
                cut(mark.begin, "plain", mark.end)
            else:
                cut(mark.begin, _CHANNELS.get(channel, "unknown"), mark.end + len(name))
        elif mark.kind == "message":
            begin = mark.end
        elif mark.kind == "turn end":
            speaks_on = not reply[mark.end : until].strip() and (
                number + 1 < len(marks) and marks[number + 1].kind in ("turn start", "assistant")
            )
            cut(mark.begin, "plain", mark.end)
            if spoken and not speaks_on:
                return segments
        else:
            role = ""
            if mark.kind == "turn start":
                role = reply[mark.end : min(until, mark.end + _MAX_NAME)].split("\n", 1)[0]
            is_other = mark.kind == "other speaker" or role.strip().casefold() not in _ASSISTANTS
            cut(mark.begin, "other speaker" if is_other else "plain", mark.end + len(role))
            if spoken and is_other:
                return segments
            spoken = False  # what precedes an assistant's turn may be the prompt
    segments.append(_Segment(kind, begin, len(reply)))
    return segments


def _ends_with_answer(reply: str, marks: Sequence[_Mark]) -> bool:
    """Return whether a marked answer ends a reply, e.g. after reasoning that is never closed."""
    opening, closing = marks[-2:]
    return (opening.kind, closing.kind, opening.closes, closing.closes) == (
        "answer",
        "answer",
        False,
        True,
    ) and not reply[closing.end :].strip()


def _select_answer(reply: str, segments: Sequence[_Segment]) -> WrappedReply:
    """Return the segment to read: the last answer, else the last text outside any reasoning."""
    by_kind: dict[Kind, _Segment] = {}
    for segment in segments:
        if reply[segment.begin : segment.end].strip():
            by_kind[segment.kind] = segment
    reasoning = "\n".join(reply[s.begin : s.end] for s in segments if s.kind == "reasoning")
    finished = segments[-1].kind not in ("reasoning", "context", "unknown")
    answer = by_kind.get("answer")
    if answer is None and finished:
        answer = by_kind.get("plain") or (None if reasoning else by_kind.get("context"))
    if answer is None:
        return WrappedReply("", reasoning, len(reply), finished)
    return WrappedReply(reply[answer.begin : answer.end], reasoning, answer.begin, True)
