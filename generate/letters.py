"""Which options become the new answers: drawn evenly, or with the letters of the old answers."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import right_option, yes_no
from flipbench.prompting.undrawable import why_undrawable


def same_text(one: str, other: str) -> bool:
    """Return whether two answers are equal, ignoring case and surrounding blanks.

    >>> same_text(" Red", "red"), same_text("2", "two")
    (True, False)
    """
    return one.casefold().strip() == other.casefold().strip()


def drawable_options(item: Item) -> list[int]:
    """Return the options that can be the new answer.

    They differ from the old answer, and a picture can show them
    (`flipbench.prompting.undrawable`). Of yes and no without options, that is the other one.
    """
    if item.options is None:
        return [int(not right_option(item))] if yes_no(item) else []
    return [
        index
        for index, text in enumerate(item.options)
        if not same_text(text, item.answer_text) and not why_undrawable(text)
    ]


def matched_letters(items: Sequence[Item], seed: int) -> dict[str, int | None]:
    """Return new answers whose letters are as frequent as those of the old answers.

    Drawn evenly from the other options, new answers fall on frequent letters less often than old
    ones, and a model that prefers these letters loses accuracy without having seen anything. Among
    the items with as many options, the new letters are therefore a permutation of the old ones:
    these are shuffled, and swapped where an item got its old answer or an option that no picture
    can show.

    Parameters
    ----------
    items : sequence of Item, shape (N,)
        The whole benchmark, in any order: a result depends on all of them, and on the seed.

    Returns
    -------
    dict of str to int or None
        By item id, the new answer's position; None for an item that is left out, because no letter
        is left for it: where a letter is right in more than half of the items, as many have to go.
        Items without a drawable option are not in it.
    """
    strata: dict[int, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.id):
        if drawable_options(item):
            strata.setdefault(len(item.options or ("yes", "no")), []).append(item)
    letters: dict[str, int | None] = {}
    for n_options, members in strata.items():
        letters |= _matched(members, seed, n_options)
    return letters


def _matched(items: Sequence[Item], seed: int, n_options: int) -> dict[str, int | None]:
    rng = generator(seed, str(n_options), "matched letters")
    allowed = [frozenset(drawable_options(item)) for item in items]
    old = [right_option(item) for item in items]
    deck: list[int | None] = [old[i] for i in rng.permutation(len(items))]
    starts = rng.integers(len(items), size=len(items))
    hopeless = set()
    for i, start in enumerate(starts.tolist()):
        mine = deck[i]
        case = (mine, allowed[i])
        if mine in allowed[i] or case in hopeless:
            continue
        for j in (*range(start, len(items)), *range(start)):
            if deck[j] in allowed[i] and mine in allowed[j]:
                deck[i], deck[j] = deck[j], mine
                break
        else:
            hopeless.add(case)
    return {
        item.id: letter if letter in options else None
        for item, letter, options in zip(items, deck, allowed, strict=True)
    }
