"""A paired benchmark: each kept item in its original and its perturbed version."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, overload

from pydantic import Field, ValidationError

from flipbench.core.confined import read_confined
from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.randomness import generator
from flipbench.core.records import (
    Caption,
    Edit,
    Flip,
    ImageRef,
    Item,
    JsonDict,
    Record,
    content_id,
    plain,
)

if TYPE_CHECKING:
    import pandas as pd

UNJUDGED = "unjudged"
"""The verdict on a pair that nobody judged."""


@dataclass(frozen=True)
class Pair:
    """An item and its perturbed version: same question and options, other image and answer.

    ``verdict`` is "keep" if raters, where the benchmark has any, judged that the perturbed image
    shows the new answer, and "unjudged" if it was kept without.
    """

    original: Item
    perturbed: Item
    caption: str = ""
    verdict: str = "keep"

    def __post_init__(self) -> None:
        """Reject items that do not form a pair."""
        a, b = self.original, self.perturbed
        if (a.question, a.options) != (b.question, b.options):
            raise DataError(f"{a.subject}: question or options differ between the two versions")
        if a.answer == b.answer and a.answer_text == b.answer_text:
            raise DataError(f"{a.subject}: both versions have the same answer")
        if a.images == b.images:
            raise DataError(f"{a.subject}: both versions have the same image")

    @property
    def changed(self) -> tuple[int, ...]:
        """The positions, from 0, at which the two versions have different images."""
        sides = zip_longest(self.original.images, self.perturbed.images)
        return tuple(i for i, (a, b) in enumerate(sides) if a != b)

    @property
    def control(self) -> ImageRef | None:
        """The original's ControlNet input; None if the editor did not store one."""
        with contextlib.suppress(ValidationError):
            return ImageRef.model_validate(self.perturbed.extra.get("control"))
        return None


@dataclass(frozen=True, repr=False)
class PairedBenchmark:
    """Pairs in release order, and the store of their images.

    Attributes
    ----------
    funnel : dict
        How many items were left after each step.
    made_by : dict
        Captioner, editor, raters and seed, as text; see `judged_by`. Cards show it, so people are
        counted, not named.
    exchangeable : bool or None
        True if neither version is harder by construction. None if that is assumed, as the paper
        assumes it of edits. False for existing pairs (NaturalBench), for which only rules
        relative to a reference model are sound.
    bad_edits : (int, int) or None
        Of the pairs that the judges kept and people, or an oracle, looked at as well: how many
        these rejected, and how many they are. None if there are none.
    """

    name: str
    pairs: tuple[Pair, ...]
    images: ImageStore
    funnel: dict[str, int] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)
    exchangeable: bool | None = None
    bad_edits: tuple[int, int] | None = None

    @cached_property
    def id(self) -> str:
        """Hash of the name and the ids of all items, in order."""
        return content_id(self.name, [[p.original.id, p.perturbed.id] for p in self.pairs])

    def __hash__(self) -> int:
        """Return a hash consistent with ``==``, so that results can be cached by benchmark."""
        return hash(self.id)

    def __bool__(self) -> bool:
        """Return True, also without pairs."""
        return True

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> PairedBenchmark: ...
    def __getitem__(self, index: int | slice) -> Pair | PairedBenchmark:
        """Return a pair; of a slice, the benchmark with these pairs only."""
        if isinstance(index, slice):
            return replace(self, pairs=self.pairs[index])
        return self.pairs[index]

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each pair: item, question, answer, new answer, caption, verdict."""
        import pandas as pd

        columns = ["item", "question", "answer", "new answer", "caption", "verdict"]
        rows = [
            (
                pair.original.name,
                pair.original.question,
                pair.original.answer_text,
                pair.perturbed.answer_text,
                pair.caption,
                pair.verdict,
            )
            for pair in self.pairs
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        raters = f"judged by {self.judged_by}" if self.judged_by else "not judged"
        return f"<PairedBenchmark {self.name}: {len(self):,} pairs, {raters}>"

    @property
    def judged_by(self) -> str:
        """Who judged that the perturbed images show their new answers; empty if not known."""
        return self.made_by.get("raters", "")

    @property
    def judged(self) -> list[Pair]:
        """The pairs that are known to have been judged valid."""
        return [p for p in self.pairs if p.verdict != UNJUDGED] if self.judged_by else []

    def as_judged_by(self, raters: str) -> PairedBenchmark:
        """Return the benchmark with all pairs judged valid by ``raters``; as it is, if empty."""
        if not raters:
            return self
        pairs = tuple(replace(pair, verdict="keep") for pair in self.pairs)
        return replace(self, pairs=pairs, made_by=self.made_by | {"raters": raters})

    @property
    def originals(self) -> list[Item]:
        """The original items."""
        return [pair.original for pair in self.pairs]

    @property
    def perturbed(self) -> list[Item]:
        """The perturbed items, in the order of the originals."""
        return [pair.perturbed for pair in self.pairs]

    def sample(self, n: int, seed: int) -> PairedBenchmark:
        """Return ``n`` of the pairs, drawn by (seed, item id), in the order and with the id of all.

        What is computed from them is about this benchmark.
        """
        ranked = sorted(self.pairs, key=lambda p: generator(seed, p.original.id, "sample").random())
        sampled_ids = {pair.original.id for pair in ranked[:n]}
        part = replace(self, pairs=tuple(p for p in self.pairs if p.original.id in sampled_ids))
        vars(part)["id"] = self.id
        return part

    def with_images_in(self, store: ImageStore) -> PairedBenchmark:
        """Return the benchmark with its images hard-linked, or else copied, into another store.

        Raises
        ------
        DataError
            If an image is missing or damaged.
        """
        store.folder.mkdir(parents=True, exist_ok=True)
        for item in (*self.originals, *self.perturbed):
            for ref in item.images:
                source, target = self.images.path(ref), store.path(ref)
                if store.has(ref):
                    continue
                if not self.images.has(ref):
                    lost = "damaged" if source.exists() else "missing"
                    raise DataError(
                        f"{self.name} {item.name}: its image {source} is {lost}; rebuild the"
                        " benchmark"
                    )
                try:
                    target.unlink(missing_ok=True)
                    os.link(source, target)
                except OSError:
                    store.put(self.images.read(ref), f"{self.name} {item.name}")
        return replace(self, images=store)

    def save(self, folder: Path) -> None:
        """Write ``pairs.jsonl``, ``benchmark.json`` and the images into ``folder``.

        Images in the parent folder's store (a run directory) are not copied. A missing or damaged
        control image is tolerated; any other is an error.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.images.folder.resolve() != (folder.parent / "images").resolve():
            store = ImageStore(folder / "images")
            for pair in self.pairs:
                control = pair.control
                controls = [control] if control and self.images.has(control) else []
                for ref in (*pair.original.images, *pair.perturbed.images, *controls):
                    store.put(self.images.read(ref), pair.original.subject)
        lines = (json.dumps(vars(pair), default=plain) + "\n" for pair in self.pairs)
        write_atomically(folder / "pairs.jsonl", "".join(lines))
        about = {
            "name": self.name,
            "id": self.id,
            "n_pairs": len(self.pairs),
            "funnel": self.funnel,
            "made_by": self.made_by,
            "exchangeable": self.exchangeable,
            **({"bad_edits": self.bad_edits} if self.bad_edits else {}),
        }
        write_atomically(folder / "benchmark.json", json.dumps(about, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> PairedBenchmark:
        """Read a benchmark written by `save`.

        Raises
        ------
        DataError
            If a file is missing, a line is not a pair, or the two files do not belong together.
        """
        about, rows = folder / "benchmark.json", folder / "pairs.jsonl"
        if not about.exists() or not rows.exists():
            raise DataError(
                f"{folder}: not a paired benchmark (benchmark.json and pairs.jsonl); create one"
                " with 'flipbench generate' and 'flipbench filter'"
            )
        try:
            head = json.loads(read_confined(about, None))
            name, funnel = str(head["name"]), dict(head.get("funnel", {}))
            made_by = dict(head.get("made_by", {}))
            counts = head.get("bad_edits")
            bad_edits = (int(counts[0]), int(counts[1])) if counts else None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(
                f"{about}: damaged ({type(error).__name__}: {error}); recreate it with 'flipbench"
                " filter'"
            ) from error
        pairs = []
        for number, line in enumerate(read_confined(rows, None).splitlines(), 1):
            try:
                row = json.loads(line)
                pairs.append(
                    Pair(
                        Item.model_validate(row["original"]),
                        Item.model_validate(row["perturbed"]),
                        row.get("caption", ""),
                        row.get("verdict", "keep"),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{rows}:{number}: not a pair ({error}); recreate the file"
                ) from error
        own_images = folder / "images"
        store = ImageStore(own_images if own_images.exists() else folder.parent / "images")
        benchmark = cls(
            name,
            tuple(pairs),
            store,
            funnel,
            made_by,
            head.get("exchangeable"),
            bad_edits,
        )
        if head.get("id", benchmark.id) != benchmark.id:
            raise DataError(
                f"{rows}: does not match the id in {about.name}; recreate both with 'flipbench"
                " filter'"
            )
        return benchmark


class PictureChoice(Record):
    """Which image of an item with several is redrawn.

    Attributes
    ----------
    index : int
        The position of the image among the item's, from 0.
    shares : tuple of float, shape (n_images,)
        With each image alone, the share of the options' probability that a model gave to the
        right one; empty if no model was asked that way.
    """

    kind: ClassVar[str] = "picture_choices"
    made_of: ClassVar[tuple[str, ...]] = ("flip_id", "chooser", "settings")

    flip_id: str
    chooser: str = Field(description="the rule, or the model and its prompt")
    settings: JsonDict = Field(default_factory=dict)
    index: int = Field(ge=0)
    shares: tuple[float, ...] = ()
    reply: str = ""
    usage: JsonDict = Field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """An item on its way to becoming a pair, with its records so far.

    ``choice`` is the choice of the image to redraw; None if it is the first, or the only one.
    """

    item: Item
    flip: Flip | None = None
    caption: Caption | None = None
    edit: Edit | None = None
    choice: PictureChoice | None = None

    @property
    def subject(self) -> str:
        """The item's benchmark and name, for messages."""
        return self.item.subject

    @property
    def picture(self) -> int:
        """The position, from 0, of the image to redraw."""
        if self.caption is not None:
            return self.caption.picture
        return self.choice.index if self.choice else 0

    @property
    def caption_text(self) -> str:
        """The text to redraw the image from.

        Raises
        ------
        DataError
            If there is no caption.
        """
        if self.caption is None:
            raise DataError(f"{self.subject}: there is no caption; run 'flipbench generate' again")
        return self.caption.text

    @property
    def source(self) -> ImageRef:
        """The image to redraw.

        Raises
        ------
        DataError
            If the item has no such image.
        """
        images = self.item.images
        if not images:
            raise DataError(f"{self.subject}: there is no image")
        if self.picture >= len(images):
            raise DataError(
                f"{self.subject}: image {self.picture + 1} was chosen to be redrawn, but it has"
                f" only {len(images)}; was the run made with another benchmark?"
            )
        return images[self.picture]

    @property
    def perturbed_images(self) -> tuple[ImageRef, ...]:
        """The item's images in order, with the edited one in place of its source.

        Raises
        ------
        DataError
            If there is no edit, or the item has no such image.
        """
        if self.edit is None:
            raise DataError(f"{self.subject}: there is no edited image")
        _ = self.source  # refuses a position beyond the last image
        images, at = self.item.images, self.picture
        return (*images[:at], self.edit.image, *images[at + 1 :])

    @property
    def is_redrawn(self) -> bool:
        """Whether there is an edited image, and it is not the original byte for byte."""
        return self.edit is not None and self.perturbed_images != self.item.images

    def pair(self, verdict: str = "keep") -> Pair:
        """Return the pair.

        Raises
        ------
        DataError
            If flip, caption or edit is missing.
        """
        if self.flip is None or self.caption is None or self.edit is None:
            raise DataError(f"{self.subject}: not edited yet; run 'flipbench generate' again")
        perturbed = self.item.revised(
            images=self.perturbed_images,
            answer=self.flip.new_answer,
            answer_text=self.flip.new_text,
            extra=self.item.extra | self.edit.extra,
        )
        return Pair(self.item, perturbed, self.caption.text, verdict)
