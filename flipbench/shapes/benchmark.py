"""``shapes-vqa``: the fixed benchmark of the embedded world, and other draws of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Item, Source
from flipbench.shapes.questions import (
    KINDS_OF,
    PHRASINGS,
    Level,
    QuestionFamily,
    draw_family,
    draw_sharing,
)
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene

NAME = "shapes-vqa"
VERSION = "1"
N_ITEMS = 480
_SEED = 20_251
_SEED_OF_DRAWS = 20_263


@dataclass(frozen=True)
class Edition:
    """Which questions ``shapes-vqa`` has.

    Attributes
    ----------
    seed : int, optional
        None: the fixed questions. Each seed draws others, independent of those of other seeds.
    level : {"standard", "hard"}
        The level of the questions (`flipbench.shapes.questions`).
    per_picture : int
        Questions about each picture. If more than one, all ask for colours.
    """

    seed: int | None = None
    level: Level = "standard"
    per_picture: int = 1

    @property
    def name(self) -> str:
        """The benchmark's name.

        >>> Edition().name, Edition(seed=3, level="hard").name
        ('shapes-vqa', 'shapes-vqa-hard-seed-3')
        """
        level = "" if self.level == "standard" else f"-{self.level}"
        shared = "" if self.per_picture == 1 else f"-{self.per_picture}-per-picture"
        return f"{NAME}{level}{shared}" + ("" if self.seed is None else f"-seed-{self.seed}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of question, in turn."""
        return KINDS_OF[self.level] if self.per_picture == 1 else ("color",)

    def rng(self, *key: int) -> np.random.Generator:
        """Return a generator for one purpose."""
        if self == FIXED:
            return np.random.default_rng([_SEED, *key])
        seed = 0 if self.seed is None else self.seed + 1
        root = [_SEED_OF_DRAWS, list(KINDS_OF).index(self.level), seed]
        if self.per_picture > 1:
            root.append(self.per_picture)
        return np.random.default_rng([*root, len(key), *key])


FIXED = Edition()


def shapes_vqa_families(n_items: int = N_ITEMS, edition: Edition = FIXED) -> list[QuestionFamily]:
    """Return the families of the benchmark; the first n are the same for every ``n_items``."""
    if edition.per_picture > 1:
        n_pictures = -(-n_items // edition.per_picture)
        pictures = [
            draw_sharing(edition.rng(number), edition.per_picture) for number in range(n_pictures)
        ]
        return [family for families in pictures for family in families][:n_items]
    kinds = edition.kinds
    return [
        draw_family(edition.rng(row), kinds[row % len(kinds)], edition.level)
        for row in range(n_items)
    ]


def shapes_vqa_scenes(edition: Edition = FIXED) -> list[Scene]:
    """Return every scene of the benchmark: all members of all families."""
    return [scene for family in shapes_vqa_families(N_ITEMS, edition) for scene in family.scenes]


def shapes_vqa(images: ImageStore, n_items: int = N_ITEMS, edition: Edition = FIXED) -> list[Item]:
    """Return the benchmark's items, and add their images to ``images``.

    Which member of a family is the original is random, independent of the question; where questions
    share a picture, it is that picture. Gold letters
    are balanced: for each number of options, letter counts differ by at most one. The first n items
    are the same for every ``n_items``.
    """
    families = shapes_vqa_families(n_items, edition)
    ranks: dict[int, int] = {}
    items = []
    for row, family in enumerate(families):
        rng = edition.rng(2, row)
        n_options = len(family.options)
        member = int(rng.integers(n_options)) if edition.per_picture == 1 else 0
        rank = ranks.get(n_options, 0)
        ranks[n_options] = rank + 1
        options = _arrange(family.options, member, _gold_letter(edition, n_options, rank), rng)
        name = f"{row:04d}"
        items.append(
            Item(
                benchmark=edition.name,
                name=name,
                images=(images.put_image(render(family.scenes[member]), f"{edition.name} {name}"),),
                question=family.question.text(),
                options=tuple(options),
                answer=options.index(family.options[member]),
                answer_text=family.options[member],
                raw_question=family.question.text(),
                category=family.question.kind,
                source=Source(dataset=edition.name, revision=VERSION, row=row),
                licence="Apache-2.0",
                extra={"family": family.to_json()},
            )
        )
    return items


def is_shapes_item(item: Item) -> bool:
    """Return whether an item belongs to the embedded world."""
    return "family" in item.extra


def family_of(candidate: Candidate) -> QuestionFamily:
    """Return the question family of a candidate.

    Raises
    ------
    DataError
        If its item belongs to another benchmark.
    """
    if not is_shapes_item(candidate.item):
        raise DataError(f"{candidate.subject}: not an item of the shapes world")
    return QuestionFamily.from_json(candidate.item.extra["family"])


def scene_of(candidate: Candidate) -> Scene:
    """Return the scene of a candidate's original image."""
    family_of(candidate)
    return scene_of_item(candidate.item)


def scene_of_item(item: Item) -> Scene:
    """Return the scene of one of the world's items, as it is in the benchmark."""
    family = QuestionFamily.from_json(item.extra["family"])
    return family.scenes[family.options.index(item.answer_text)]


def reword(item: Item, text: str) -> list[str]:
    """Return ``text`` with the item's question in its other phrasings; none for other items."""
    if not is_shapes_item(item) or item.question not in text:
        return []
    question = QuestionFamily.from_json(item.extra["family"]).question
    phrasings = [question.text(i) for i in range(1, len(PHRASINGS[question.kind]))]
    return [text.replace(item.question, phrasing, 1) for phrasing in phrasings]


def _gold_letter(edition: Edition, n_options: int, rank: int) -> int:
    """Return the gold letter of the ``rank``-th item with ``n_options``, from shuffled blocks."""
    block, i = divmod(rank, n_options)
    return int(edition.rng(1, n_options, block).permutation(n_options)[i])


def _arrange(
    options: tuple[str, ...], member: int, slot: int, rng: np.random.Generator
) -> list[str]:
    """Return the options shuffled, with option ``member`` at ``slot``."""
    distractors = [text for i, text in enumerate(options) if i != member]
    arranged = [distractors[i] for i in rng.permutation(len(distractors))]
    arranged.insert(slot, options[member])
    return arranged
