"""Which options become the new answers: drawn evenly, or with the letters of the old answers."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS, right_option, yes_no
from flipbench.prompting.undrawable import why_undrawable

MIN_BALANCED = 20
"""Fewest items of a kind of which some are left out, so that letters are as frequent."""
_TRUTH_WORDS = (frozenset({"yes", "no"}), frozenset({"true", "false"}))


def same_text(a: str, b: str) -> bool:
    """Return whether two answers are equal, ignoring case and surrounding blanks.

    >>> same_text(" Red", "red"), same_text("2", "two")
    (True, False)
    """
    return a.casefold().strip() == b.casefold().strip()


def drawable_options(item: Item, reachable: Mapping[str, Sequence[int]] | None = None) -> list[int]:
    """Return the options that can be the new answer.

    They differ from the old answer, and a picture can show them
    (`flipbench.prompting.undrawable`). Of yes and no without options, that is the other one. Where
    ``reachable`` lists options of the item's id, only these.
    """
    options = item.options or ()
    if item.options is None:
        drawable = [int(not right_option(item))] if yes_no(item) else []
    else:
        drawable = [
            index
            for index, text in enumerate(options)
            if not same_text(text, item.answer_text) and not why_undrawable(text)
        ]
    limits = (reachable or {}).get(item.id)
    return drawable if limits is None else [index for index in drawable if index in limits]


def draw_option(allowed: Sequence[int], item_id: str, seed: int) -> int:
    """Return one of the ``allowed`` options, uniformly."""
    return allowed[int(generator(seed, item_id, "flip").integers(len(allowed)))]


def matched_letters(
    items: Sequence[Item], seed: int, reachable: Mapping[str, Sequence[int]] | None = None
) -> dict[str, int | None]:
    """Return new answers whose letters are as frequent as those of the old answers.

    Drawn evenly from the other options, new answers fall on frequent letters less often than old
    ones, and a model that prefers these letters loses accuracy without having seen anything. Among
    the items with as many options, the new letters are therefore a permutation of the old ones; of
    yes/no questions, whatever their letters, the new words.

    Every item starts with the draw it would have alone (`draw_option`), and as few draws as it
    takes are changed: from letters drawn too often to letters drawn too rarely, by way of others if
    need be. So a few more items change a few draws, not all.

    Parameters
    ----------
    items : sequence of Item, shape (N,)
        The whole benchmark, in any order: a result depends on all of them, and on the seed.
    reachable : mapping of str to sequence of int, optional
        By item id, the options that the editor can make true, where it cannot with all.

    Returns
    -------
    dict of str to int or None
        By item id, the new answer's position; None for an item that is left out, because no letter
        is left for it: where a letter is right in more than half of the items, as many have to go.
        Of fewer than `MIN_BALANCED` items, none is left out: their letters are matched as far as
        they can be. Items without a drawable option are not in it.
    """
    kinds: dict[tuple[str, ...], list[_NamedOptions]] = defaultdict(list)
    for item in items:
        if member := _NamedOptions.of(item, drawable_options(item, reachable)):
            kinds[member.kind].append(member)
    letters: dict[str, int | None] = {}
    for members in kinds.values():
        draws = _LetterMatching(members, seed)
        draws.match(leave_out=len(members) >= MIN_BALANCED)
        for member in members:
            name = draws.names.get(member.item_id)
            letters[member.item_id] = None if name is None else member.new[name]
    return letters


@dataclass(frozen=True)
class _NamedOptions:
    """An item's old answer and those that may replace it, as a model names them.

    Attributes
    ----------
    kind : tuple of str
        All names: the letters of that many options, or the two words of a yes/no question.
    new : mapping of str to int
        The position of an option by its name.
    """

    item_id: str
    kind: tuple[str, ...]
    old: str
    new: Mapping[str, int]

    @classmethod
    def of(cls, item: Item, allowed: Sequence[int]) -> _NamedOptions | None:
        """Return an item's; None without an ``allowed`` option."""
        options, answer = item.options or yes_no(item), right_option(item)
        if options is None or answer is None or not allowed:
            return None
        words = tuple(option.casefold().strip().rstrip(".") for option in options)
        is_truth = len(words) == 2 and frozenset(words) in _TRUTH_WORDS
        names = words if is_truth else tuple(LETTERS[: len(options)])
        return cls(item.id, tuple(sorted(names)), names[answer], {names[i]: i for i in allowed})


class _LetterMatching:
    """The new answers of one kind of question while their shares are matched.

    ``names`` has the new answer by item id, without items that are left out.
    """

    def __init__(self, members: Sequence[_NamedOptions], seed: int) -> None:
        keys = {m.item_id: generator(seed, m.item_id, "letters").random() for m in members}
        self._members = sorted(members, key=lambda m: (keys[m.item_id], m.item_id))
        self._rank = {member.item_id: rank for rank, member in enumerate(self._members)}
        self.names: dict[str, str] = {}
        self._excess = Counter[str]()
        # the ranks of the members that have the first name and may have the second; some outdated
        self._movable: dict[tuple[str, str], list[int]] = defaultdict(list)
        for member in members:
            self._excess[member.old] -= 1
            by_option = {index: name for name, index in member.new.items()}
            option = draw_option(sorted(by_option), member.item_id, seed)
            self._set(member, by_option[option])

    def match(self, *, leave_out: bool) -> None:
        """Change as few draws as it takes; if asked to, leave out what cannot be matched."""
        while (shift := self._shift()) or (leave_out and self._leave_one_out()):
            for from_name, to_name in itertools.pairwise(shift):
                self._set(self._members[self._movable[from_name, to_name][0]], to_name)

    def _set(self, member: _NamedOptions, name: str) -> None:
        self._excess[self.names.get(member.item_id, "")] -= 1
        self._excess[name] += 1
        self.names[member.item_id] = name
        for other_name in member.new:
            if other_name != name:
                heapq.heappush(self._movable[name, other_name], self._rank[member.item_id])

    def _may_move(self, from_name: str, to_name: str) -> bool:
        """Return whether an item with one answer may have another, which is first in its heap."""
        heap = self._movable[from_name, to_name]
        while heap and self.names.get(self._members[heap[0]].item_id) != from_name:
            heapq.heappop(heap)
        return bool(heap)

    def _reached(self, starts: Iterable[str]) -> dict[str, list[str]]:
        """Return the shortest way from one of ``starts`` to every answer that can be reached."""
        ways = {name: [name] for name in starts}
        queue = deque(ways)
        while queue:
            name = queue.popleft()
            for next_name in sorted({b for a, b in list(self._movable) if a == name}):
                if next_name not in ways and self._may_move(name, next_name):
                    ways[next_name] = [*ways[name], next_name]
                    queue.append(next_name)
        return ways

    def _signs(self) -> tuple[list[str], list[str]]:
        """Return the answers that are drawn too often, and too rarely."""
        excess = {name: n for name, n in sorted(self._excess.items()) if name}
        return [name for name, n in excess.items() if n > 0], [
            name for name, n in excess.items() if n < 0
        ]

    def _shift(self) -> list[str]:
        """Return the answers between which items move, to mend one excess; empty if none can."""
        often, rarely = self._signs()
        ways = self._reached(often)
        return min((ways[name] for name in rarely if name in ways), key=len, default=[])

    def _leave_one_out(self) -> bool:
        """Drop an item whose old answer is too frequent; return whether there was one."""
        often, rarely = self._signs()
        if not rarely:
            return False
        reached = self._reached(often)
        surplus = [m for m in self._members if m.old in rarely and m.item_id in self.names]
        left_out = min(surplus, key=lambda m: self.names[m.item_id] not in reached)
        self._excess[left_out.old] += 1
        self._excess[self.names.pop(left_out.item_id)] -= 1
        return True
