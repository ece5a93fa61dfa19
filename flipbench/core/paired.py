"""A paired benchmark: every kept item in its original and its answer-flipped version."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import Caption, Edit, Flip, ImageRef, Item, content_id


@dataclass(frozen=True)
class Pair:
    """An item and its perturbed twin: same question and options, another image and answer."""

    original: Item
    perturbed: Item
    caption: str = ""
    verdict: str = "keep"

    def __post_init__(self) -> None:
        """Refuse what is no pair."""
        a, b = self.original, self.perturbed
        if (a.question, a.options) != (b.question, b.options):
            raise DataError(f"{a.benchmark} {a.name}: question or options differ between the two")
        if a.answer == b.answer and a.answer_text == b.answer_text:
            raise DataError(f"{a.benchmark} {a.name}: the answer is the same in both")
        if a.images == b.images:
            raise DataError(f"{a.benchmark} {a.name}: the image is the same in both")

    @property
    def control(self) -> ImageRef | None:
        """What a ControlNet was shown of the original; None where no editor kept it."""
        with contextlib.suppress(ValidationError):
            return ImageRef.model_validate(self.perturbed.extra.get("control"))
        return None


@dataclass(frozen=True)
class PairedBenchmark:
    """Pairs, in release order, and where their images lie.

    Attributes
    ----------
    funnel : dict
        How many items were left after each step.
    made_by : dict
        Captioner, editor, raters and seed, in words.
    exchangeable : bool or None
        True where neither version is harder by construction. None where that is assumed, as the
        paper assumes it of edits. False where the pairs were found, not made (NaturalBench): then
        only rules relative to a reference model are sound.
    """

    name: str
    pairs: tuple[Pair, ...]
    images: ImageStore
    funnel: dict[str, int] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)
    exchangeable: bool | None = None

    @cached_property
    def id(self) -> str:
        """Hash of what is asked: the ids of all items, in order."""
        return content_id(self.name, [[p.original.id, p.perturbed.id] for p in self.pairs])

    def __hash__(self) -> int:
        """Return a hash that goes with ``==``, so that what is made of a benchmark can be kept."""
        return hash(self.id)

    @property
    def originals(self) -> list[Item]:
        """The original items."""
        return [pair.original for pair in self.pairs]

    @property
    def perturbed(self) -> list[Item]:
        """The perturbed items, in the same order."""
        return [pair.perturbed for pair in self.pairs]

    def with_images_in(self, store: ImageStore) -> PairedBenchmark:
        """Return the benchmark with its images in another store, linked or else copied.

        Raises
        ------
        DataError
            Where an image is gone.
        """
        store.folder.mkdir(parents=True, exist_ok=True)
        for item in (*self.originals, *self.perturbed):
            for ref in item.images:
                source, target = self.images.path(ref), store.path(ref)
                if target.exists():
                    continue
                try:
                    os.link(source, target)
                except FileNotFoundError as error:
                    raise DataError(
                        f"{self.name} {item.name}: its image {source} is gone; make the benchmark"
                        " anew"
                    ) from error
                except OSError:
                    store.put(source.read_bytes(), f"{self.name} {item.name}")
        return replace(self, images=store)

    def save(self, folder: Path) -> None:
        """Write ``pairs.jsonl`` and ``benchmark.json`` into ``folder``, and images beside them.

        Images that lie in the folder above (a run directory's store) are not copied. A control
        image that is gone is no loss; any other is.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.images.folder.resolve() != (folder.parent / "images").resolve():
            store = ImageStore(folder / "images")
            for pair in self.pairs:
                control = pair.control
                kept = [control] if control and self.images.path(control).exists() else []
                for ref in (*pair.original.images, *pair.perturbed.images, *kept):
                    what = f"{pair.original.benchmark} {pair.original.name}"
                    store.put(self.images.path(ref).read_bytes(), what)
        rows = [
            {
                "original": pair.original.model_dump(mode="json"),
                "perturbed": pair.perturbed.model_dump(mode="json"),
                "caption": pair.caption,
                "verdict": pair.verdict,
            }
            for pair in self.pairs
        ]
        write_atomically(folder / "pairs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        about = {
            "name": self.name,
            "id": self.id,
            "n_pairs": len(self.pairs),
            "funnel": self.funnel,
            "made_by": self.made_by,
            "exchangeable": self.exchangeable,
        }
        write_atomically(folder / "benchmark.json", json.dumps(about, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> PairedBenchmark:
        """Read what ``save`` wrote.

        Raises
        ------
        DataError
            Where a file is missing, a line is no pair, or the two files do not belong together.
        """
        about, rows = folder / "benchmark.json", folder / "pairs.jsonl"
        if not about.exists() or not rows.exists():
            raise DataError(
                f"{folder}: no paired benchmark there (benchmark.json and pairs.jsonl);"
                " 'flipbench generate' and 'flipbench filter' make one"
            )
        head = json.loads(about.read_text())
        pairs = []
        for number, line in enumerate(rows.read_text().splitlines(), 1):
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
                    f"{rows}:{number}: not a pair ({error}); make the file anew"
                ) from error
        inside = folder / "images"
        store = ImageStore(inside if inside.exists() else folder.parent / "images")
        benchmark = cls(
            head["name"],
            tuple(pairs),
            store,
            head.get("funnel", {}),
            head.get("made_by", {}),
            head.get("exchangeable"),
        )
        if head.get("id", benchmark.id) != benchmark.id:
            raise DataError(
                f"{rows}: not the pairs that {about.name} tells of; 'flipbench filter' makes both"
            )
        return benchmark


@dataclass(frozen=True)
class Candidate:
    """An item on its way to become a pair: what generation has made of it so far."""

    item: Item
    flip: Flip | None = None
    caption: Caption | None = None
    edit: Edit | None = None

    @property
    def subject(self) -> str:
        """The item in words a person can look up."""
        return f"{self.item.benchmark} {self.item.name}"

    def pair(self, verdict: str = "keep") -> Pair:
        """Return the pair; the candidate must have flip, caption and edit."""
        if self.flip is None or self.caption is None or self.edit is None:
            raise DataError(f"{self.subject}: not edited yet; run 'flipbench generate' again")
        perturbed = self.item.model_copy(
            update={
                "id": "",
                "images": (self.edit.image, *self.item.images[1:]),
                "answer": self.flip.new_answer,
                "answer_text": self.flip.new_text,
                "extra": self.item.extra | self.edit.extra,
            }
        )
        return Pair(
            self.item, Item.model_validate(perturbed.model_dump()), self.caption.text, verdict
        )
