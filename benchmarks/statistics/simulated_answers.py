"""A generative model of answers to paired multiple-choice items, written as result files.

A model sees the answer with a probability that falls with the item's difficulty (logistic), and
guesses a letter otherwise. A memorised item is answered by its old letter on the original, and with
probability `STICKS` on the perturbed version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LETTERS = "ABCDE"
YES_NO = ("yes", "no")
OPTION_TEXTS = ("a red cube", "a blue ball", "a green cone", "a grey ring", "a pink star")
STICKS = 0.7
SPREAD = 1.5
"""Standard deviation of the items' difficulty, in logits."""
UNREADABLE, MISSING = -1, -2
UNREADABLE_TEXT = "The picture is too unclear to say."

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Items:
    """N paired items; every array has shape (n_items,).

    Attributes
    ----------
    old, new : ndarray of int
        The right options of the original and of the perturbed version.
    difficulty, harder : ndarray of float
        Of the original, and what the perturbed picture adds, in logits.
    failed : ndarray of bool
        Whether the edit failed, so that the perturbed picture still shows the old answer.
    image : ndarray of int
        Items with the same number share an image.
    says_yes : bool
        Whether the options are "yes" and "no", without letters.
    """

    old: Ints
    new: Ints
    n_options: Ints
    difficulty: NDArray[np.float64]
    harder: NDArray[np.float64]
    failed: Flags
    image: Ints
    says_yes: bool = False


@dataclass(frozen=True)
class Replies:
    """A model's options on both versions, `UNREADABLE` or `MISSING`; shape (n_items,)."""

    original: Ints
    perturbed: Ints


def draw_items(
    rng: np.random.Generator,
    n: int,
    *,
    n_options: int | tuple[int, int] = 4,
    letter_shares: Sequence[float] | None = None,
    matched: bool = False,
    harder: float = 0.0,
    failed: float = 0.0,
    per_image: int = 1,
    says_yes: bool = False,
) -> Items:
    """Draw items.

    Parameters
    ----------
    n_options : int or (int, int)
        The number of options, or its least and greatest.
    letter_shares : sequence of float, optional
        How often each letter is right on the original; alike by default.
    matched : bool
        New letters are a permutation of the old ones, instead of one of the others at random.
    failed : float
        Share of failed edits.
    per_image : int
        Questions about each image; either version of an image is harder for all of them by chance.
    """
    least, most = (n_options, n_options) if isinstance(n_options, int) else n_options
    counts = rng.integers(least, most + 1, size=n)
    if letter_shares is None:
        old = rng.integers(counts)
    else:
        old = rng.choice(len(letter_shares), n, p=letter_shares)
    new = _derangement(rng, old) if matched else (old + rng.integers(1, counts)) % counts
    image = np.arange(n) // per_image
    shifts = np.zeros((2, n))
    if per_image > 1:
        shifts = rng.normal(0, SPREAD, (2, image[-1] + 1))[:, image]
    return Items(
        old=old,
        new=new,
        n_options=counts,
        difficulty=rng.normal(0, SPREAD, n) + shifts[0],
        harder=harder + shifts[1] - shifts[0],
        failed=rng.random(n) < failed,
        image=image,
        says_yes=says_yes,
    )


def _derangement(rng: np.random.Generator, old: Ints) -> Ints:
    """Return a permutation of the letters that gives no item its own.

    If more than half of the items have one letter, some get another at random.
    """
    new = rng.permutation(old)
    for at in range(len(old)):
        if new[at] == old[at]:
            able = np.flatnonzero((new != old[at]) & (old != new[at]))
            if len(able):
                partner = rng.choice(able)
                new[at], new[partner] = new[partner], new[at]
    same = new == old
    new[same] = (old[same] + rng.integers(1, old.max() + 1, same.sum())) % (old.max() + 1)
    return new


def answer(
    rng: np.random.Generator,
    items: Items,
    ability: float,
    *,
    memorised: float | Flags = 0.0,
    guesses: Sequence[float] | None = None,
    parent: Replies | None = None,
    alike: float = 0.0,
) -> Replies:
    """Let a model answer.

    Parameters
    ----------
    ability : float
        In logits: it sees the answer to an item of that difficulty half of the time.
    memorised : float or ndarray of bool
        Which items it has memorised, or their share.
    guesses : sequence of float, optional
        How often it guesses each letter when it does not see the answer; alike by default.
    parent, alike
        It repeats this share of its parent's replies where it has not memorised the item.
    """
    n = len(items.old)
    sides = []
    for harder, truth in (
        (np.zeros(n), items.old),
        (items.harder, np.where(items.failed, items.old, items.new)),
    ):
        sees = rng.random(n) < 1 / (1 + np.exp(items.difficulty + harder - ability))
        guess = rng.integers(items.n_options)
        if guesses is not None:
            guess = rng.choice(len(guesses), n, p=guesses)
        sides.append(np.where(sees, truth, guess))
    if parent is not None:
        repeats = rng.random(n) < alike
        sides = [
            np.where(repeats, before, after)
            for before, after in zip((parent.original, parent.perturbed), sides, strict=True)
        ]
    known = rng.random(n) < memorised if isinstance(memorised, float) else memorised
    sticks = known & (rng.random(n) < STICKS)
    return Replies(np.where(known, items.old, sides[0]), np.where(sticks, items.old, sides[1]))


def lose(
    rng: np.random.Generator,
    replies: Replies,
    *,
    original: float | NDArray[np.float64] = 0.0,
    perturbed: float | NDArray[np.float64] = 0.0,
    becomes: int = UNREADABLE,
) -> Replies:
    """Return replies of which shares, or shares by item, are unreadable or missing."""
    n = len(replies.original)
    return replace(
        replies,
        original=np.where(rng.random(n) < original, becomes, replies.original),
        perturbed=np.where(rng.random(n) < perturbed, becomes, replies.perturbed),
    )


def write_replies(
    folder: Path, names: tuple[str, str], items: Items, replies: Replies
) -> tuple[Path, Path]:
    """Write both versions as VLMEvalKit names and writes them; return the two files.

    Parameters
    ----------
    names : (str, str)
        The models that the file names of the original and of the perturbed version give.
    """
    versions = (
        (f"{names[0]}_Bench", replies.original, items.old),
        (f"{names[1]}_Bench_perturbed", replies.perturbed, items.new),
    )
    letters = [] if items.says_yes else list(LETTERS[: items.n_options.max()])
    answers = YES_NO if items.says_yes else LETTERS
    texts = {MISSING: "", UNREADABLE: UNREADABLE_TEXT} | dict(enumerate(answers))
    header = "\t".join(["index", "image_id", "question", *letters, "answer", "prediction"])
    options = {
        count: [text if at < count else "" for at, text in enumerate(OPTION_TEXTS[: len(letters)])]
        for count in range(2, len(LETTERS) + 1)
    }
    paths = []
    for stem, choices, right in versions:
        columns = (items.image, items.n_options, right, choices)
        rows = [
            [str(at), str(image), f"Question {at}?", *options[count], answers[gold], texts[choice]]
            for at, (image, count, gold, choice) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]
        paths.append(folder / f"{stem}.tsv")
        paths[-1].write_text("\n".join([header, *map("\t".join, rows)]) + "\n", encoding="utf-8")
    return paths[0], paths[1]
