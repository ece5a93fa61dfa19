"""Ways in which a clean or a contaminated model's answers come about, as questions to `fb.gap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.statistics.published_cells import DISCORDANCE, cells, changes
from benchmarks.statistics.simulated_answers import (
    MISSING,
    Items,
    Replies,
    answer,
    draw_items,
    lose,
    write_replies,
)
from flipbench.evaluate.published.tables import PublishedResult

Sides = tuple[Path, Path] | tuple[list[bool], list[bool]]
Ability = float | tuple[float, float]
"""In logits; a range is drawn from uniformly, for each model."""


@dataclass(frozen=True)
class Question:
    """What is put to `fb.gap`.

    Attributes
    ----------
    sides : (original, perturbed)
        Two files, or right and wrong.
    references : sequence of (original, perturbed)
    looks : sequence of int
        How many of the first items are compared at each look; all of them, once, if empty.
    exchangeable : bool
        Whether the user says that neither version is harder.
    """

    sides: Sides
    references: Sequence[Sides] = ()
    looks: Sequence[int] = ()
    exchangeable: bool = True


Ask = Callable[[np.random.Generator, int, Path], Question]


@dataclass(frozen=True)
class Scenario:
    """A way in which answers come about.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of items.
    asks : tuple of callable
        Draw answers to n items and write them into a folder; the runs take turns among them.
    """

    name: str
    contaminated: bool
    sizes: tuple[int, ...]
    asks: tuple[Ask, ...]


def scenarios() -> list[Scenario]:
    """Return all scenarios, clean ones first."""
    return [*_clean(), *_contaminated()]


def simulated(
    rng: np.random.Generator,
    n: int,
    folder: Path,
    *,
    ability: Ability = 1.0,
    memorised: float = 0.0,
    guesses: Sequence[float] | None = None,
    unreadable: Mapping[str, float] | None = None,
    references: int = 0,
    reference_ability: Ability | None = None,
    reference_memorised: float = 0.0,
    marks_only: bool = False,
    looks: Sequence[int] = (),
    exchangeable: bool | None = None,
    **items: Any,
) -> Question:
    """Draw items, a model's answers and those of its references.

    Parameters
    ----------
    memorised, reference_memorised : float
        Share of the items that the model, and the first reference, have memorised.
    unreadable : mapping of str to float
        Share of the replies by version, "original" or "perturbed".
    reference_ability : float or (float, float)
        That of the model by default.
    marks_only : bool
        Give right and wrong instead of files, without references.
    exchangeable : bool, optional
        Whether the user says that neither version is harder; by default where it is true.
    items
        Settings of `draw_items`.
    """
    drawn = draw_items(rng, n, **items)
    if exchangeable is None:
        shares = items.get("letter_shares", [0.0])
        uneven = max(shares) > min(shares) and not items.get("matched")
        exchangeable = not (items.get("harder") or items.get("failed") or uneven)

    def logits(setting: Ability) -> float:
        return rng.uniform(*setting) if isinstance(setting, tuple) else setting

    model = answer(rng, drawn, logits(ability), memorised=memorised, guesses=guesses)
    model = lose(rng, model, **(unreadable or {}))
    if marks_only:
        right = (model.original == drawn.old, model.perturbed == drawn.new)
        return Question((right[0].tolist(), right[1].tolist()))
    setting = ability if reference_ability is None else reference_ability
    panel = [
        answer(rng, drawn, logits(setting), memorised=0.0 if at else reference_memorised)
        for at in range(references)
    ]
    return in_files(folder, drawn, model, panel, looks=looks, exchangeable=exchangeable)


def in_files(
    folder: Path,
    items: Items,
    model: Replies,
    references: Sequence[Replies] = (),
    *,
    names: tuple[str, str] = ("model", "model"),
    looks: Sequence[int] = (),
    exchangeable: bool = True,
) -> Question:
    """Write the files of a model and of its references."""
    sides = write_replies(folder, names, items, model)
    panel = [
        write_replies(folder, (f"reference{at}", f"reference{at}"), items, replies)
        for at, replies in enumerate(references, 1)
    ]
    return Question(sides, panel, looks, exchangeable)


def with_parent(
    rng: np.random.Generator, n: int, folder: Path, *, memorised: float = 0.0
) -> Question:
    """Compare a fine-tuned model with the model that it was made from."""
    items = draw_items(rng, n)
    parent = answer(rng, items, 1.0)
    child = answer(rng, items, 1.0, memorised=memorised, parent=parent, alike=0.8)
    return in_files(folder, items, child, [parent])


def with_earlier_epoch(rng: np.random.Generator, n: int, folder: Path) -> Question:
    """Compare a contaminated model with a clean one and with an earlier epoch of its own."""
    items = draw_items(rng, n)
    memorised = rng.random(n) < 0.6
    model = answer(rng, items, 1.0, memorised=memorised)
    mostly = memorised & (rng.random(n) < 0.8)
    earlier = answer(rng, items, 1.0, memorised=mostly, parent=model, alike=0.3)
    return in_files(folder, items, model, [answer(rng, items, 1.0), earlier])


def with_itself(rng: np.random.Generator, n: int, folder: Path) -> Question:
    """Compare a contaminated model with its own files."""
    items = draw_items(rng, n)
    question = in_files(folder, items, answer(rng, items, 1.0, memorised=0.6))
    return Question(question.sides, [question.sides])


def with_missing(
    rng: np.random.Generator,
    n: int,
    folder: Path,
    *,
    right_perturbed: float = 0.0,
    wrong_original: float = 0.0,
    memorised: float = 0.0,
) -> Question:
    """Lose a share of the replies, depending on whether they would have been right."""
    items = draw_items(rng, n)
    model = answer(rng, items, 1.0, memorised=memorised)
    model = lose(
        rng,
        model,
        original=np.where(model.original != items.old, wrong_original, 0.0),
        perturbed=np.where(model.perturbed == items.new, right_perturbed, 0.0),
        becomes=MISSING,
    )
    return in_files(folder, items, model)


def of_two_models(rng: np.random.Generator, n: int, folder: Path) -> Question:
    """Give a strong model's file of the originals and a weak one's of the perturbed pictures."""
    items = draw_items(rng, n)
    strong, weak = answer(rng, items, 2.0), answer(rng, items, 0.5)
    replies = Replies(strong.original, weak.perturbed)
    return in_files(folder, items, replies, names=("StrongVLM-7B", "WeakVLM-2B"))


def with_swapped_files(rng: np.random.Generator, n: int, folder: Path) -> Question:
    """Exchange the two files of a contaminated model."""
    items = draw_items(rng, n)
    model = answer(rng, items, 1.0, memorised=0.4)
    original, perturbed = write_replies(folder, ("model", "model"), items, model)
    return Question((perturbed, original))


def of_publication(
    rng: np.random.Generator,
    _n: int,
    _folder: Path,
    *,
    row: PublishedResult,
    clean: PublishedResult,
    discordance: float,
) -> Question:
    """Give right and wrong answers with the accuracies of a published cell and its clean model."""
    return Question(changes(row, discordance).sides(rng), [changes(clean, discordance).sides(rng)])


def _shares(of_first: float, n_options: int = 4) -> list[float]:
    return [of_first, *[(1 - of_first) / (n_options - 1)] * (n_options - 1)]


HARDER = {"harder": 1.0}
ANY_STRENGTH = {"ability": (-1.0, 3.0), **HARDER}
LOOKS = tuple(range(30, 301, 30))
ODD_LETTERS: dict[str, dict[str, Any]] = {
    "letters balanced, guesses A 90 %": {"guesses": _shares(0.9)},
    "35 % A, guesses A 60 %": {"letter_shares": _shares(0.35), "guesses": _shares(0.6)},
    "45 % A, guesses A 60 %": {"letter_shares": _shares(0.45), "guesses": _shares(0.6)},
    "45 % A, guesses A 90 %": {"letter_shares": _shares(0.45), "guesses": _shares(0.9)},
    "45 % A, new letters matched, guesses A 90 %": {
        "letter_shares": _shares(0.45),
        "matched": True,
        "guesses": _shares(0.9),
    },
    **{
        f"{yes} % yes, says yes 90 % when unsure": {
            "letter_shares": _shares(yes / 100, 2),
            "says_yes": True,
            "n_options": 2,
            "guesses": _shares(0.9, 2),
        }
        for yes in (50, 60, 70)
    },
}
"""Letter preference, by what is uneven; a share of yes is of the originals' right answers."""


def _scenario(name: str, *sizes: int, memorised: float = 0.0, **settings: Any) -> Scenario:
    if memorised:
        name = f"{100 * memorised:.0f} % memorised, {name}"
    ask = partial(simulated, memorised=memorised, **settings)
    return Scenario(name, memorised > 0, sizes, (ask,))


def _references(number: int) -> str:
    return f"{number} reference{'s' if number > 1 else ''}"


def _clean() -> Iterator[Scenario]:
    def special(name: str, ask: Ask) -> Scenario:
        return Scenario(name, False, (400,), (ask,))

    yield _scenario("exchangeable pairs", 30, 120, 400, 1000)
    yield _scenario("right and wrong only", 400, marks_only=True)
    yield _scenario("two to five options", 400, n_options=(2, 5))
    yield _scenario("four questions an image", 120, per_image=4)
    yield _scenario("twenty questions an image", 300, per_image=20)

    yield _scenario("1 reference of like strength", 120, 400, references=1)
    for n_references in (3, 5, 8):
        name = f"{_references(n_references)} of like strength"
        yield _scenario(name, 120, references=n_references)
    yield special("its parent as the reference", with_parent)
    dirty = {"reference_memorised": 0.6}
    yield _scenario("1 reference, contaminated", 400, references=1, **dirty)
    yield _scenario("3 references, 1 contaminated", 400, references=3, **dirty)

    yield _scenario("harder pictures, 1 reference of like strength", 400, references=1, **HARDER)
    for name, ability, reference in (
        ("much weaker", 3.0, -1.0),
        ("weaker", 2.0, 0.0),
        ("stronger", 0.0, 2.0),
    ):
        strengths = {"ability": ability, "reference_ability": reference}
        name = f"1 {name} reference"
        yield _scenario(f"harder pictures, {name}", 400, references=1, **strengths, **HARDER)
        yield _scenario(f"10 % failed edits, {name}", 400, references=1, **strengths, failed=0.1)
    for n_references in (1, 5, 10):
        name = f"harder pictures, {_references(n_references)} of any strength"
        yield _scenario(name, 120, references=n_references, **ANY_STRENGTH)

    for name, settings in ODD_LETTERS.items():
        yield _scenario(name, 120, 400, ability=0.5 if "yes" in name else 0.0, **settings)
    settings = ODD_LETTERS["45 % A, guesses A 90 %"]
    name = "45 % A, guesses A 90 %, 1 reference that does not"
    yield _scenario(name, 400, ability=0.0, references=1, **settings)

    strong = {"ability": 4.0}
    name = "3 % unreadable, perturbed only"
    yield _scenario(name, 120, 400, 1000, unreadable={"perturbed": 0.03}, **strong)
    name = "4.5 % unreadable, perturbed only"
    yield _scenario(name, 400, unreadable={"perturbed": 0.045}, **strong)
    both = {"original": 0.03, "perturbed": 0.03}
    yield _scenario("3 % unreadable, both versions", 400, unreadable=both, **strong)
    for share in (0.1, 0.2, 0.4):
        name = f"{100 * share:.0f} % of right perturbed replies missing"
        yield special(name, partial(with_missing, right_perturbed=share))
    name = "40 % of wrong original replies missing"
    yield special(name, partial(with_missing, wrong_original=0.4))

    drawn = {"exchangeable": False}
    yield _scenario("drawn pairs, no harder", 120, 400, **drawn)
    yield _scenario("drawn pairs, a little harder", 120, 400, harder=0.25, **drawn)
    yield _scenario("drawn pairs, harder", 120, 400, **HARDER, **drawn)
    for share in (0.02, 0.05, 0.1):
        name = f"drawn pairs, {100 * share:.0f} % failed edits"
        yield _scenario(name, 120, 400, ability=2.0, failed=share, **drawn)
    yield _scenario("pictures that show nothing", 120, ability=2.0, harder=30.0, **drawn)
    yield _scenario("ten looks", 300, looks=LOOKS)
    yield special("files of two models", of_two_models)


def _contaminated() -> Iterator[Scenario]:
    def special(name: str, ask: Ask) -> Scenario:
        return Scenario(name, True, (400,), (ask,))

    yield _scenario("exchangeable pairs", 120, 400, 1000, memorised=0.1)
    tenth, third = {"memorised": 0.1}, {"memorised": 0.3}
    yield _scenario("exchangeable pairs", 60, 120, 400, **third)
    yield _scenario("right and wrong only", 400, marks_only=True, **third)
    yield _scenario("two to five options", 400, n_options=(2, 5), **third)
    yield _scenario("yes and no", 400, says_yes=True, n_options=2, **third)
    yield _scenario("four questions an image", 120, per_image=4, **third)

    yield _scenario("1 reference of like strength", 120, 400, references=1, **third)
    for n_references in (1, 3, 5, 8):
        name = f"{_references(n_references)} of like strength"
        yield _scenario(name, 120, memorised=0.2, references=n_references)
    name = "30 % memorised, its parent as the reference"
    yield special(name, partial(with_parent, memorised=0.3))
    name = "3 references, 1 contaminated"
    yield _scenario(name, 400, memorised=0.6, references=3, reference_memorised=0.6)
    name = "60 % memorised, a clean reference and its own earlier epoch"
    yield special(name, with_earlier_epoch)
    yield special("60 % memorised, its own files as the reference", with_itself)
    for n_references in (1, 5, 10):
        name = f"harder pictures, {_references(n_references)} of any strength"
        yield _scenario(name, 120, references=n_references, **third, **ANY_STRENGTH)
    weaker = {"ability": 2.0, "reference_ability": 0.0}
    name = "harder pictures, 1 weaker reference"
    yield _scenario(name, 400, references=1, **third, **weaker, **HARDER)
    name = "easier pictures"
    yield _scenario(name, 120, memorised=0.6, harder=-1.0, exchangeable=False)
    name = "easier pictures, 1 reference of like strength"
    yield _scenario(name, 120, memorised=0.6, harder=-1.0, references=1)

    for name, settings in ODD_LETTERS.items():
        ability = 0.5 if "yes" in name else 0.0
        yield _scenario(name, 400, ability=ability, **third, **settings)
    settings = ODD_LETTERS["45 % A, guesses A 90 %"]
    yield _scenario("45 % A, guesses A 90 %", 400, ability=0.0, **tenth, **settings)

    able = {"ability": 2.0, "unreadable": {"perturbed": 0.03}}
    yield _scenario("3 % unreadable, perturbed only", 120, 400, **tenth, **able)
    yield _scenario("3 % unreadable, perturbed only", 400, **third, **able)
    able = {"ability": 2.0, "unreadable": {"original": 0.03}}
    yield _scenario("3 % unreadable, original only", 400, **third, **able)
    name = "30 % memorised, 20 % of right perturbed replies missing"
    yield special(name, partial(with_missing, right_perturbed=0.2, memorised=0.3))

    drawn = {"exchangeable": False, **third}
    yield _scenario("drawn pairs, no harder", 120, 400, memorised=0.1, exchangeable=False)
    yield _scenario("drawn pairs, no harder", 120, 400, **drawn)
    yield _scenario("drawn pairs, a little harder", 120, 400, harder=0.25, **drawn)
    yield _scenario("drawn pairs, 5 % failed edits", 400, ability=2.0, failed=0.05, **drawn)
    yield _scenario("ten looks", 300, looks=LOOKS, **third)
    yield special("40 % memorised, the two files swapped", with_swapped_files)

    for discordance in DISCORDANCE:
        name = f"264 published cells, {100 * discordance:.0f} % changed, their clean models"
        asks = [
            partial(of_publication, row=row, clean=clean, discordance=discordance)
            for row, clean in cells()
        ]
        yield Scenario(name, True, (0,), tuple(asks))
