"""A judge model reads free-form replies and says which of two answers each agrees with.

Each reply is shown with both answers in both orders. A judge that changes its mind with the order
cannot decide: that is a tie, and a tie scores half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flipbench.core.images import ImageStore
from flipbench.core.record_base import JsonDict, Record
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest

Choice = Literal["A", "B", "tie"]
PROMPT = "agreement-v1"
_INSTRUCTION = (
    "You are given a question about a picture, somebody's reply, and two answers, A and B. You do"
    " not see the picture. Say which of the two answers the reply agrees with more. Go by what is"
    " meant, not by wording, length or style; what the reply says beyond the answers does not"
    " matter. Where it agrees with both alike, or with neither, it is a tie.\n\n"
    'Reply with a JSON object: {"choice": "A"}, {"choice": "B"} or {"choice": "tie"}'
)
_ITEM = "Question: {}\nReply: {}\nA: {}\nB: {}"


class Judgement(Record):
    """Which of two answers a reply agrees with, as a judge says who is shown them in this order.

    It is made of texts alone, so that the same reply of two models is judged once. ``choice`` is
    "unread" where the judge said nothing that can be read.
    """

    kind: ClassVar[str] = "judgements"
    made_of: ClassVar[tuple[str, ...]] = ("question", "reply", "answers", "judge", "settings")

    question: str
    reply: str
    answers: tuple[str, str]
    judge: str = Field(description="the model's name, and name and version of the prompt")
    settings: JsonDict = Field(default_factory=dict)
    choice: Literal["A", "B", "tie", "unread"]
    text: str = ""
    usage: JsonDict = Field(default_factory=dict)


class JudgeReply(BaseModel):
    """What a server that takes schemas holds the judge to."""

    model_config = ConfigDict(extra="forbid")

    choice: Choice


@dataclass(frozen=True)
class JudgeTask:
    """A reply to a question, and two answers in the order in which they are shown."""

    question: str
    reply: str
    answers: tuple[str, str]

    @classmethod
    def both_orders(
        cls, question: str, reply: str, own: str, other: str
    ) -> tuple[JudgeTask, JudgeTask]:
        """Return what a judge is asked about one reply: its own answer first, and last."""
        return cls(question, reply, (own, other)), cls(question, reply, (other, own))


class AnswerJudge:
    """A stage: have a chat model compare replies with answers; each comparison once.

    References
    ----------
    Zhang et al., CounterCurate, arXiv 2402.13254, as Park et al., arXiv 2511.03774, use it: the
    judge says which of two captions a description is closer to. Differs from it in the words of
    the prompt, in asking in both orders, and in the tie.
    """

    record: type[Record] = Judgement
    name = "judge replies"

    def __init__(self, chat: Chat, images: ImageStore) -> None:
        self.chat, self.images = chat, images
        self.judge = f"{chat.name} {PROMPT}"
        self._settings: JsonDict = dict(chat.settings)

    def id_of(self, task: JudgeTask) -> str:
        """Return the id of the judgement."""
        return Judgement.id_for(
            question=task.question,
            reply=task.reply,
            answers=task.answers,
            judge=self.judge,
            settings=self._settings,
        )

    def subject(self, task: JudgeTask) -> str:
        """Return the reply in words."""
        return f"the reply {task.reply[:60]!r} to {task.question[:60]!r}"

    def __call__(self, tasks: Sequence[JudgeTask]) -> list[Record | Exception]:
        """Judge a batch."""
        requests = [
            ChatRequest(
                _INSTRUCTION,
                _ITEM.format(task.question, task.reply, *task.answers),
                schema=JudgeReply,
                item_id=self.id_of(task),
            )
            for task in tasks
        ]
        replies = self.chat.ask(requests, self.images)
        return [self._read(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def _read(self, task: JudgeTask, reply: ChatReply | Exception) -> Judgement | Exception:
        if isinstance(reply, Exception):
            return reply
        return Judgement(
            question=task.question,
            reply=task.reply,
            answers=task.answers,
            judge=self.judge,
            settings=self._settings,
            choice=read_choice(reply.text),
            text=reply.text,
            usage=reply.usage,
        )


def read_choice(text: str) -> Literal["A", "B", "tie", "unread"]:
    """Return what a judge's reply chooses; "unread" where it is not the JSON asked for.

    >>> read_choice('Sure: {"choice": "B"}'), read_choice("I would say B")
    ('B', 'unread')
    """
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        return JudgeReply.model_validate_json(found[0] if found else "").choice
    except ValidationError:
        return "unread"


@dataclass(frozen=True)
class JudgedReply:
    """What a judge makes of one reply.

    Attributes
    ----------
    worth : float or None
        1 where both orders choose the version's own answer, 0 where both choose the other, 0.5
        for anything between; None where the judge was not asked or could not be read.
    unread : bool
        Whether the judge was asked, and at least one of its two replies cannot be read.
    """

    worth: float | None
    unread: bool = False


ReplyJudge = Callable[[str, str, str, str], JudgedReply]
"""From a question, a reply, the version's own answer and the other version's to a reading."""


def recorded_judge(judge: AnswerJudge, judgements: Iterable[Judgement]) -> ReplyJudge:
    """Return the judge as far as it has judged already; it asks nothing.

    ``judgements`` may be an iterator over a run: it is read when the first reply is looked up.
    """

    @cache
    def choices() -> Mapping[str, str]:
        return {judgement.id: judgement.choice for judgement in judgements}

    def read(question: str, reply: str, own: str, other: str) -> JudgedReply:
        first, last = JudgeTask.both_orders(question, reply, own, other)
        said = choices().get(judge.id_of(first)), choices().get(judge.id_of(last))
        if None in said:
            return JudgedReply(None)
        if "unread" in said:
            return JudgedReply(None, unread=True)
        if said == ("A", "B"):
            return JudgedReply(1.0)
        return JudgedReply(0.0 if said == ("B", "A") else 0.5)

    return read
