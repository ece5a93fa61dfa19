"""Draw new answers, or use those the user supplies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flipbench.core.errors import DataError, attempt
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Flip, Item, Record
from flipbench.prompting.prompts import LETTERS, right_option, yes_no

UNIFORM = "uniform over the other options"


class FlipStage:
    """Draw the new answer uniformly from the other options, with a seed per item.

    Options with the same text as the old answer are never drawn.

    Parameters
    ----------
    seed : int
    given : mapping, optional
        New answers by item name: an option's letter or text, or any text for a free-form item.
        Answers of all other items are drawn.

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4. Differs from the paper in the per-item seed, which
    makes a draw independent of the order and number of items.
    """

    name = "flip"
    record: type[Record] = Flip

    def __init__(self, seed: int = 0, given: Mapping[str, str] | None = None) -> None:
        self.seed, self.given = seed, dict(given or {})

    def id_of(self, item: Item) -> str:
        """Return the id of the item's flip, whether or not it can be made."""
        return Flip.id_for(item_id=item.id, method=self._method(item), seed=self.seed)

    def subject(self, item: Item) -> str:
        """Return the item's benchmark and name."""
        return Candidate(item).subject

    def __call__(self, items: Sequence[Item]) -> list[Flip | Exception]:
        """Flip a batch."""
        return [attempt(self._flip, item) for item in items]

    def _flip(self, item: Item) -> Flip:
        index, text = self._given(item) if item.name in self.given else self._draw(item)
        return Flip(
            item_id=item.id,
            method=self._method(item),
            seed=self.seed,
            new_answer=index,
            new_text=text,
        )

    def _method(self, item: Item) -> str:
        return f"given: {self.given[item.name]}" if item.name in self.given else UNIFORM

    def _draw(self, item: Item) -> tuple[int | None, str]:
        if item.options is None and (words := yes_no(item)):
            return None, words[not right_option(item)]
        if item.options is None:
            raise DataError(
                "a free-form item has no options to draw from; give its new answer in"
                " generate.new_answers, or use a captioner that can propose one"
            )
        others = [i for i, text in enumerate(item.options) if not same_text(text, item.answer_text)]
        if not others:
            raise DataError("no option differs from the answer")
        index = others[int(generator(self.seed, item.id, "flip").integers(len(others)))]
        return index, item.options[index]

    def _given(self, item: Item) -> tuple[int | None, str]:
        """Return the user's answer; an option's text takes precedence over its letter."""
        answer = self.given[item.name].strip()
        index = None
        if item.options is not None:
            matches = (i for i, text in enumerate(item.options) if same_text(text, answer))
            index = next(matches, None)
            if index is None and answer.upper() in LETTERS[: len(item.options)]:
                index = LETTERS.index(answer.upper())
            if index is None:
                raise DataError(f"the new answer {answer!r} is none of {item.options}")
            answer = item.options[index]
        if not answer or same_text(answer, item.answer_text):
            raise DataError(f"the new answer {answer!r} is empty or equals the old one")
        return index, answer


def same_text(one: str, other: str) -> bool:
    """Return whether two answers are equal, ignoring case and surrounding blanks.

    >>> same_text(" Red", "red"), same_text("2", "two")
    (True, False)
    """
    return one.casefold().strip() == other.casefold().strip()
