"""A judge model puts one of a few labels on texts, as a rubric instructs it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Record
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each, read_json
from flipbench.prompting.quoting import NOTE, quoted

UNREAD = "unread"
QUOTED = ", quoted"
"""What the name of a rubric ends in where texts are quoted; labels of earlier versions lack it."""


@dataclass(frozen=True)
class Rubric:
    """What a judge is asked about some texts: ``template`` has a ``{}`` for each.

    A new wording is a new version, which is part of the name.
    """

    name: str
    instruction: str
    template: str
    labels: tuple[str, ...]

    @property
    def system(self) -> str:
        """The instruction, with the format of the reply."""
        replies = " or ".join(f'{{"label": "{label}"}}' for label in self.labels)
        return f"{self.instruction}\n\nReply with a JSON object: {replies}"


@dataclass(frozen=True)
class LabelTask:
    """Texts to be labelled by a rubric."""

    rubric: Rubric
    texts: tuple[str, ...]


class Label(Record):
    """A judge's label of some texts; equal texts of several models are labelled once.

    ``label`` is "unread" if the judge's reply cannot be parsed.
    """

    kind: ClassVar[str] = "labels"
    made_of: ClassVar[tuple[str, ...]] = ("rubric", "texts", "judge", "settings")

    rubric: str
    texts: tuple[str, ...]
    judge: str
    settings: JsonDict = Field(default_factory=dict)
    label: str
    text: str = ""
    usage: JsonDict = Field(default_factory=dict)


class LabelReply(BaseModel):
    """What a server that takes schemas holds the judge to."""

    # this docstring is part of the JSON schema, and so of the ids of Batch API requests

    model_config = ConfigDict(extra="forbid")

    label: str


class LabelJudge:
    """A stage: a chat model labels texts; each task is asked once."""

    record: type[Record] = Label
    name = "label texts"

    def __init__(self, chat: Chat, images: ImageStore, *, earlier: Container[str] = ()) -> None:
        """Label by a chat model; rubrics among ``earlier`` as they were, without quotation."""
        self.chat, self.images, self.judge = chat, images, chat.name
        self._earlier = earlier
        self._settings: JsonDict = dict(chat.settings)

    def id_of(self, task: LabelTask) -> str:
        """Return the id of the label."""
        return Label.id_for(**self._made_of(task))

    def _made_of(self, task: LabelTask) -> JsonDict:
        return {
            "rubric": self._rubric(task),
            "texts": task.texts,
            "judge": self.judge,
            "settings": self._settings,
        }

    def subject(self, task: LabelTask) -> str:
        """Return the rubric and the last text, shortened."""
        return f"{task.rubric.name} of {task.texts[-1][:60]!r}"

    def __call__(self, tasks: Sequence[LabelTask]) -> list[Record | Exception]:
        """Label a batch."""
        return ask_each(self.chat, tasks, self.images, self._request, self._label)

    def _quotes(self, task: LabelTask) -> bool:
        return task.rubric.name not in self._earlier

    def _rubric(self, task: LabelTask) -> str:
        return f"{task.rubric.name}{QUOTED}" if self._quotes(task) else task.rubric.name

    def _request(self, task: LabelTask) -> ChatRequest:
        instruction, texts = task.rubric.system, task.texts
        if self._quotes(task):
            instruction = f"{instruction}\n\n{NOTE}"
            texts = tuple(f"\n{quoted(text)}" for text in texts)
        text, item_id = task.rubric.template.format(*texts), self.id_of(task)
        return ChatRequest(instruction, text, schema=LabelReply, item_id=item_id)

    def _label(self, task: LabelTask, reply: ChatReply) -> Record:
        label, text = read_label(reply.text, task.rubric), reply.text
        return Label(**self._made_of(task), label=label, text=text, usage=reply.usage)


def read_label(text: str, rubric: Rubric) -> str:
    """Return the label in a judge's reply; "unread" if it is not one of the rubric's."""
    reply = read_json(text, LabelReply)
    return reply.label if reply and reply.label in rubric.labels else UNREAD


Labeller = Callable[[LabelTask], str | None]
"""Maps a task to its label; None if it has not been labelled, or unread."""


def recorded_labels(judge: LabelJudge, labels: Iterable[Label]) -> Labeller:
    """Return a function that looks up existing labels and asks nothing.

    ``labels`` may be an iterator over a run: it is consumed at the first call.
    """

    @cache
    def by_id() -> Mapping[str, str]:
        return {label.id: label.label for label in labels}

    def look_up(task: LabelTask) -> str | None:
        label = by_id().get(judge.id_of(task))
        return None if label == UNREAD else label

    return look_up
