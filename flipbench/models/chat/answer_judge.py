"""A judge model decides which of two answers a free-form reply agrees with.

Each reply is shown with the two answers in both orders. If the judge's choice depends on the order,
it is a tie, and a tie scores half.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Record
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each, read_json
from flipbench.prompting.quoting import NOTE, quoted

Choice = Literal["A", "B", "tie"]
PROMPT, EARLIER = "agreement-v2", "agreement-v1"
_INSTRUCTION = (
    "You are given a question about a picture, somebody's reply, and two answers, A and B. You do"
    " not see the picture. Say which of the two answers the reply agrees with more. Go by what is"
    " meant, not by wording, length or style; what the reply says beyond the answers does not"
    " matter. Where it agrees with both alike, or with neither, it is a tie.\n\n"
    'Reply with a JSON object: {"choice": "A"}, {"choice": "B"} or {"choice": "tie"}'
)
_ITEM = "Question: {}\nReply: {}\nA: {}\nB: {}"
_QUOTED = "Question:\n{}\nReply:\n{}\nA:\n{}\nB:\n{}"


class Judgement(Record):
    """A judge's choice between two answers, shown in this order.

    It is made of texts only, so that equal replies of two models are judged once. ``choice`` is
    "unread" if the judge's reply cannot be parsed.
    """

    kind: ClassVar[str] = "judgements"
    made_of: ClassVar[tuple[str, ...]] = ("question", "reply", "answers", "judge", "settings")

    question: str
    reply: str
    answers: tuple[str, str]
    judge: str = Field(description="the model's name, and the prompt's name and version")
    settings: JsonDict = Field(default_factory=dict)
    choice: Literal["A", "B", "tie", "unread"]
    text: str = ""
    usage: JsonDict = Field(default_factory=dict)


class JudgeReply(BaseModel):
    """What a server that takes schemas holds the judge to."""

    # this docstring is part of the JSON schema, and so of the ids of Batch API requests

    model_config = ConfigDict(extra="forbid")

    choice: Choice


@dataclass(frozen=True)
class JudgeTask:
    """A reply to a question, and two answers in the order in which the judge reads them."""

    question: str
    reply: str
    answers: tuple[str, str]

    @classmethod
    def both_orders(
        cls, question: str, reply: str, own_answer: str, other_answer: str
    ) -> tuple[JudgeTask, JudgeTask]:
        """Return the two tasks for one reply: its version's own answer first, and last."""
        return cls(question, reply, (own_answer, other_answer)), cls(
            question, reply, (other_answer, own_answer)
        )


class AnswerJudge:
    """A stage: a chat model compares replies with answers; each comparison is asked once.

    References
    ----------
    Zhang et al., CounterCurate, arXiv 2402.13254, as used by Park et al., arXiv 2511.03774: the
    judge decides which of two captions a description is closer to. Differs from the paper in the
    wording of the prompt, in asking in both orders, and in allowing a tie.
    """

    record: type[Record] = Judgement
    name = "judge replies"

    def __init__(self, chat: Chat, images: ImageStore, *, earlier: Container[str] = ()) -> None:
        """Judge by a chat model; by the earlier prompt if its judge is among ``earlier``."""
        self.chat, self.images = chat, images
        self._quotes = f"{chat.name} {EARLIER}" not in earlier
        self.judge = f"{chat.name} {PROMPT if self._quotes else EARLIER}"
        self._settings: JsonDict = dict(chat.settings)

    def id_of(self, task: JudgeTask) -> str:
        """Return the id of the judgement."""
        return Judgement.id_for(**self._made_of(task))

    def _made_of(self, task: JudgeTask) -> JsonDict:
        return {**vars(task), "judge": self.judge, "settings": self._settings}

    def subject(self, task: JudgeTask) -> str:
        """Return the reply and its question, shortened."""
        return f"the reply {task.reply[:60]!r} to {task.question[:60]!r}"

    def __call__(self, tasks: Sequence[JudgeTask]) -> list[Record | Exception]:
        """Judge a batch."""
        return ask_each(self.chat, tasks, self.images, self._request, self._judgement)

    def _request(self, task: JudgeTask) -> ChatRequest:
        instruction, item = _INSTRUCTION, _ITEM
        texts: tuple[str, ...] = (task.question, task.reply, *task.answers)
        if self._quotes:
            instruction, item = f"{_INSTRUCTION}\n\n{NOTE}", _QUOTED
            texts = tuple(map(quoted, texts))
        text, item_id = item.format(*texts), self.id_of(task)
        return ChatRequest(instruction, text, schema=JudgeReply, item_id=item_id)

    def _judgement(self, task: JudgeTask, reply: ChatReply) -> Record:
        choice, text = read_choice(reply.text), reply.text
        return Judgement(**self._made_of(task), choice=choice, text=text, usage=reply.usage)


def read_choice(text: str) -> Literal["A", "B", "tie", "unread"]:
    """Return the choice in a judge's reply; "unread" if it is not the requested JSON.

    >>> read_choice('Sure: {"choice": "B"}'), read_choice("I would say B")
    ('B', 'unread')
    """
    reply = read_json(text, JudgeReply)
    return reply.choice if reply else "unread"


@dataclass(frozen=True)
class JudgedReply:
    """A judge's score of one reply.

    ``worth`` is 1 if the judge chooses the version's own answer in both orders, 0 if it chooses the
    other in both, 0.5 otherwise; None if it was not asked or its replies cannot be parsed
    (``unread``).
    """

    worth: float | None
    unread: bool = False


ReplyJudge = Callable[[str, str, str, str], JudgedReply]
"""Maps a question, a reply, the version's own answer and the other version's to a score."""


def recorded_judge(judge: AnswerJudge, judgements: Iterable[Judgement]) -> ReplyJudge:
    """Return a function that looks up existing judgements and asks nothing.

    ``judgements`` may be an iterator over a run: it is consumed at the first call.
    """

    @cache
    def choices() -> Mapping[str, str]:
        return {judgement.id: judgement.choice for judgement in judgements}

    def read(question: str, reply: str, own_answer: str, other_answer: str) -> JudgedReply:
        own_first, own_last = JudgeTask.both_orders(question, reply, own_answer, other_answer)
        pair = choices().get(judge.id_of(own_first)), choices().get(judge.id_of(own_last))
        if None in pair:
            return JudgedReply(None)
        if "unread" in pair:
            return JudgedReply(None, unread=True)
        return JudgedReply(1.0 if pair == ("A", "B") else 0.0 if pair == ("B", "A") else 0.5)

    return read
