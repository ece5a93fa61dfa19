"""Other wordings of a benchmark's texts, by back-translation, stored as records.

A `Reword` returns other wordings of an item's text, the best first, or none. It must be
deterministic: detectors call it both when they ask questions and when they score the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flipbench.core.images import ImageStore
from flipbench.core.records import Item, JsonDict, Record, Wording
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest

Reword = Callable[[Item, str], Sequence[str]]
CAPTION_WORDS = 5
_HOME = "English"
_PROMPT = "back-translation-v1"
_INSTRUCTION = (
    "Translate the user's text into {language}. Keep names, numbers and the order of the sentences."
    " Reply with the translation alone."
)


def has_caption(item: Item) -> bool:
    """Return whether the answer is a caption: free-form, with at least five words."""
    return item.options is None and len(item.answer_text.split()) >= CAPTION_WORDS


def as_question(item: Item) -> Item:
    """Return the item whose question is to be reworded: a caption replaces the question."""
    if not has_caption(item):
        return item
    return item.revised(question=item.answer_text)


class RecordedWordings:
    """A `Reword` from records of items `as_question`: replaces question or caption in a text."""

    def __init__(self, wordings: Iterable[Wording]) -> None:
        self._others: dict[str, tuple[str, ...]] = {}
        self._levels: dict[str, dict[str, str]] = {}
        for wording in wordings:
            wordings_of_item = wording.candidates or (wording.question,)
            self._others[wording.item_id] = wordings_of_item
            self._levels[wording.item_id] = dict(
                zip(wordings_of_item, wording.levels, strict=False)
            )

    def __call__(self, item: Item, text: str) -> list[str]:
        """Return ``text`` in other words; empty if no other wording is known."""
        source = as_question(item)
        alternatives = self._others.get(source.id, ()) if source.question in text else ()
        return [text.replace(source.question, o, 1) for o in alternatives if o != source.question]

    def level_of(self, item: Item, text: str) -> str:
        """Return what a wording of the item's question changes; empty if its writer did not say."""
        return self._levels.get(as_question(item).id, {}).get(text, "")


class BackTranslation:
    """A stage: a chat model translates English questions into a language and back.

    A text that comes back unchanged is stored too, so that it is not translated again;
    `RecordedWordings` ignores it.
    """

    record: type[Record] = Wording

    def __init__(self, chat: Chat, images: ImageStore, via: str = "Chinese") -> None:
        self.chat, self.images, self.via = chat, images, via
        self.name = f"translate into {via} and back"
        self._made_by: JsonDict = {
            "how": self.name,
            "writer": f"{chat.name} {_PROMPT}",
            "settings": {**chat.settings, "home": _HOME},
        }

    def id_of(self, item: Item) -> str:
        """Return the id of the wording."""
        return Wording.id_for(item_id=item.id, **self._made_by)

    def subject(self, item: Item) -> str:
        """Return the item's benchmark and name."""
        return item.subject

    def __call__(self, items: Sequence[Item]) -> list[Record | Exception]:
        """Translate a batch, there and then back."""
        translations = self._translate([item.question for item in items], self.via)
        texts = [reply.text for reply in translations if not isinstance(reply, Exception)]
        back = iter(self._translate(texts, _HOME))
        return [
            reply if isinstance(reply, Exception) else self._wording(item, reply, next(back))
            for item, reply in zip(items, translations, strict=True)
        ]

    def _translate(self, texts: Sequence[str], language: str) -> Sequence[ChatReply | Exception]:
        instruction = _INSTRUCTION.format(language=language)
        return self.chat.ask([ChatRequest(instruction, text) for text in texts], self.images)

    def _wording(
        self, item: Item, translation: ChatReply, back: ChatReply | Exception
    ) -> Wording | Exception:
        if isinstance(back, Exception):
            return back
        usage = {"there": translation.usage, "back": back.usage}
        return Wording(item_id=item.id, **self._made_by, question=back.text.strip(), usage=usage)
