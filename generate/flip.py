"""Draw the new answer, or take the one that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.records import Flip, Item, Record
from flipbench.prompting.prompts import LETTERS

UNIFORM = "uniform over the other options"


class FlipStage:
    """Draw the new answer uniformly from the other options, seeded for each item.

    Options whose text equals the old answer's are never drawn.

    Parameters
    ----------
    seed : int
    given : mapping, optional
        New answers by an item's name: an option's letter or its text, or any text for a free-form
        item. They stand where they are given; the other items are drawn for.

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4. Differs from the paper in the per-item seed, which
    makes a draw independent of the order and the number of items.
    """

    name = "flip"
    record: type[Record] = Flip

    def __init__(self, seed: int = 0, given: Mapping[str, str] | None = None) -> None:
        self.seed, self.given = seed, dict(given or {})

    def id_of(self, item: Item) -> str:
        """Return the id of the item's flip (or of the flip that cannot be)."""
        return Flip.id_for(item_id=item.id, method=self._method(item), seed=self.seed)

    def subject(self, item: Item) -> str:
        """Return the item in words."""
        return Candidate(item).subject

    def __call__(self, items: Sequence[Item]) -> list[Flip | Exception]:
        """Flip a batch."""
        out: list[Flip | Exception] = []
        for item in items:
            try:
                new, text = self._take(item) if item.name in self.given else self._draw(item)
            except DataError as error:
                out.append(error)
                continue
            out.append(
                Flip(
                    item_id=item.id,
                    method=self._method(item),
                    seed=self.seed,
                    new_answer=new,
                    new_text=text,
                )
            )
        return out

    def _method(self, item: Item) -> str:
        return f"given: {self.given[item.name]}" if item.name in self.given else UNIFORM

    def _draw(self, item: Item) -> tuple[int, str]:
        if item.options is None:
            raise DataError(
                "free-form: it has no other option to flip to; give its new answer"
                " (generate.new_answers), or a captioner that can propose one"
            )
        others = [i for i, text in enumerate(item.options) if not same_text(text, item.answer_text)]
        if not others:
            raise DataError("no option differs from the answer")
        new = others[int(generator(self.seed, item.id, "flip").integers(len(others)))]
        return new, item.options[new]

    def _take(self, item: Item) -> tuple[int | None, str]:
        """Return what the user gives; an option's text goes before its letter."""
        said = self.given[item.name].strip()
        new = None
        if item.options is not None:
            new = next((i for i, text in enumerate(item.options) if same_text(text, said)), None)
            if new is None and said.upper() in LETTERS[: len(item.options)]:
                new = LETTERS.index(said.upper())
            if new is None:
                raise DataError(f"the new answer given, {said!r}, is none of {item.options}")
            said = item.options[new]
        if not said or same_text(said, item.answer_text):
            raise DataError(f"the new answer given, {said!r}, is empty or the old one")
        return new, said


def same_text(one: str, other: str) -> bool:
    """Return whether two answers read alike.

    >>> same_text(" Red", "red"), same_text("2", "two")
    (True, False)
    """
    return one.casefold().strip() == other.casefold().strip()
