"""Draw new answers, or use those the user supplies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from flipbench.benchmarks.tables import cell_text, read_rows
from flipbench.core.errors import DataError, nearest, result_or_error
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, Item, Record
from flipbench.prompting.prompts import LETTERS, yes_no
from flipbench.prompting.undrawable import why_undrawable

from .letters import draw_option, drawable_options, same_text

UNIFORM = "uniform over the other options"
MATCHED = "letters as frequent as the old answers'"
_REACHABLE = "of those that the editor can make true"


class FlipStage:
    """Draw the new answer from the other options, with a seed.

    Options with the same text as the old answer, and those that no picture can show, are never
    drawn.

    Parameters
    ----------
    seed : int
    new_answers : mapping, optional
        New answers by item name: an option's letter or text, or any text for a free-form item.
        Answers of all other items are drawn.
    letters : mapping, optional
        New answers by item id, from `flipbench.generate.letters.matched_letters`; by default they
        are drawn uniformly, independently of the order and number of items.
    reachable : mapping, optional
        By item id, the options that the editor can make true, where it cannot with all.

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4: uniform. Matched letters are ours.
    """

    name = "flip"
    record: type[Record] = Flip

    def __init__(
        self,
        seed: int = 0,
        new_answers: Mapping[str, str] | None = None,
        letters: Mapping[str, int | None] | None = None,
        reachable: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.seed, self.given, self.letters = seed, dict(new_answers or {}), letters
        self.reachable = reachable or {}

    def id_of(self, item: Item) -> str:
        """Return the id of the item's flip, whether or not it can be made."""
        return Flip.id_for(item_id=item.id, method=self._method(item), seed=self.seed)

    def subject(self, item: Item) -> str:
        """Return the item's benchmark and name."""
        return Candidate(item).subject

    def __call__(self, items: Sequence[Item]) -> list[Flip | Exception]:
        """Flip a batch."""
        return [result_or_error(self._flip, item) for item in items]

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
        if item.name in self.given:
            return f"given: {self.given[item.name]}"
        method = UNIFORM if self.letters is None else MATCHED
        return f"{method}, {_REACHABLE}" if item.id in self.reachable else method

    def leaves_out(self, item: Item) -> bool:
        """Return whether an item gets no new answer, so that letters stay as frequent."""
        if self.letters is None or item.name in self.given:
            return False
        return item.id in self.letters and self.letters[item.id] is None

    def _draw(self, item: Item) -> tuple[int | None, str]:
        words = yes_no(item)
        if item.options is None and words is None:
            raise DataError(
                "a free-form item has no options to draw from; give its new answer in"
                " generate.new_answers, or use a captioner that can propose one"
            )
        allowed = drawable_options(item, self.reachable)
        if not allowed and drawable_options(item):
            raise DataError(
                "no exact edit makes another option true; mark the objects in a file of regions,"
                " or name another editor under generate.editor.otherwise"
            )
        if not allowed:
            reasons = {reason for text in item.options or () if (reason := why_undrawable(text))}
            because = (
                f" that a picture could show ({'; '.join(sorted(reasons))})" if reasons else ""
            )
            raise DataError(f"no option{because} differs from the answer")
        index = None if self.letters is None else self.letters.get(item.id)
        if index is None:
            index = draw_option(allowed, item.id, self.seed)
        if item.options is None:
            assert words is not None
            return None, words[index]
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


def read_new_answers(path: Path, names: Collection[str]) -> dict[str, str]:
    """Return new answers by item name from a table, such as a CSV, TSV or JSONL file.

    Each row has ``name``, the item's name in the benchmark, and ``new_answer``, an option's letter
    or text.

    Raises
    ------
    DataError
        If the file cannot be read, or a row lacks a field, names an item that is not in
        ``names``, or repeats an item. The message gives file and line.
    """
    answers: dict[str, str] = {}
    for row in read_rows(path):
        name, answer = (cell_text(row.cells.get(field)).strip() for field in ("name", "new_answer"))
        if not name or not answer:
            raise DataError(f"{row.where}: needs 'name' and 'new_answer', but has {row.cells!r}")
        if name not in names:
            hint = nearest(name, list(names))
            raise DataError(f"{row.where}: the benchmark has no item {name!r}{hint}")
        if name in answers:
            raise DataError(f"{row.where}: item {name!r} has a second new answer; remove one")
        answers[name] = answer
    return answers
