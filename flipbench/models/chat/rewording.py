"""Other wordings of a benchmark's texts, kept as records: there and back through a language.

A `Reword` gives other wordings of a text of an item, the best first, or none. It must say the same
each time: detectors ask it both when they pose questions and when they read the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flipbench.core.images import ImageStore
from flipbench.core.records import Item, JsonDict, Record, Wording
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest

Reword = Callable[[Item, str], Sequence[str]]
CAPTION_WORDS = 5
_PROMPT = "back-translation-v1"
_INSTRUCTION = (
    "Translate the user's text into {language}. Keep names, numbers and the order of the sentences."
    " Reply with the translation alone."
)


def has_caption(item: Item) -> bool:
    """Return whether the answer is free-form and of five words or more: a caption."""
    return item.options is None and len(item.answer_text.split()) >= CAPTION_WORDS


def as_question(item: Item) -> Item:
    """Return the item as whoever rewords it sees it: a caption stands in the question's place."""
    if not has_caption(item):
        return item
    return Item.model_validate(item.model_dump() | {"id": "", "question": item.answer_text})


class RecordedWordings:
    """A `Reword` from records: puts the other wordings of question or caption into a text.

    Parameters
    ----------
    wordings : iterable of Wording
        Of items `as_question`; those of other items do no harm.
    """

    def __init__(self, wordings: Iterable[Wording]) -> None:
        self._others = {w.item_id: w.candidates or (w.question,) for w in wordings}

    def __call__(self, item: Item, text: str) -> list[str]:
        """Return ``text`` in other words; none where nothing else is known of it."""
        told = as_question(item)
        others = self._others.get(told.id, ()) if told.question in text else ()
        return [text.replace(told.question, o, 1) for o in others if o != told.question]


class BackTranslation:
    """A stage: have a chat model translate questions into another language and back.

    A text that comes back as it went is a record like any other, which `RecordedWordings` passes
    over: it is not translated again.

    Parameters
    ----------
    via, home : str
        English names of the languages.
    """

    record: type[Record] = Wording

    def __init__(
        self, chat: Chat, images: ImageStore, via: str = "Chinese", home: str = "English"
    ) -> None:
        self.chat, self.images, self.via, self.home = chat, images, via, home
        self.name = f"translate into {via} and back"
        self._writer = f"{chat.name} {_PROMPT}"
        self._settings: JsonDict = {**chat.settings, "home": home}

    def id_of(self, item: Item) -> str:
        """Return the id of the wording."""
        return Wording.id_for(
            item_id=item.id, how=self.name, writer=self._writer, settings=self._settings
        )

    def subject(self, item: Item) -> str:
        """Return the item in words."""
        return f"{item.benchmark} {item.name}"

    def __call__(self, items: Sequence[Item]) -> list[Record | Exception]:
        """Translate a batch, there and then back."""
        there = self._translate([item.question for item in items], self.via)
        texts = [reply.text for reply in there if not isinstance(reply, Exception)]
        back = iter(self._translate(texts, self.home))
        return [
            reply if isinstance(reply, Exception) else self._wording(item, reply, next(back))
            for item, reply in zip(items, there, strict=True)
        ]

    def _translate(self, texts: Sequence[str], language: str) -> Sequence[ChatReply | Exception]:
        instruction = _INSTRUCTION.format(language=language)
        return self.chat.ask([ChatRequest(instruction, text) for text in texts], self.images)

    def _wording(
        self, item: Item, there: ChatReply, back: ChatReply | Exception
    ) -> Wording | Exception:
        if isinstance(back, Exception):
            return back
        return Wording(
            item_id=item.id,
            how=self.name,
            writer=self._writer,
            settings=self._settings,
            question=back.text.strip(),
            usage={"there": there.usage, "back": back.usage},
        )
