"""Pairs that exist already: NaturalBench, CounterCurate, or any two versions of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from flipbench.benchmarks.load import load_benchmark
from flipbench.benchmarks.report import Benchmark
from flipbench.benchmarks.specs import BenchmarkSpec, ColumnMapping, HuggingFaceSpec
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Value


class FoundPairSpec(Value):
    """Two versions of the same questions, read as any benchmark is and joined by item name.

    They may be two files, or two mappings of the columns of one file.
    """

    original: BenchmarkSpec
    counterfactual: BenchmarkSpec


class PairsSpec(Value):
    """A benchmark whose items have a twin already; nothing is generated.

    Attributes
    ----------
    parts : tuple of FoundPairSpec
        Read one after another.
    naturalbench : str
        Instead of parts: a folder or hub id of NaturalBench. Each row becomes two pairs, one for
        each question; the first image counts as the original.
    """

    format: Literal["pairs"] = "pairs"
    name: str = ""
    parts: tuple[FoundPairSpec, ...] = ()
    naturalbench: str = ""
    revision: str = ""
    licence: str = Field(default="", description="of NaturalBench; other parts say their own")

    def resolved(self) -> Iterator[tuple[str, FoundPairSpec]]:
        """Yield a mark for the names of each part, and the part."""
        if self.naturalbench:
            for number in (0, 1):
                yield f"q{number}", _naturalbench(self, number)
        for number, part in enumerate(self.parts):
            yield f"p{number}" if len(self.parts) > 1 else "", part


@dataclass
class FoundPairs:
    """What came of reading: the pairs, both sides' own problems, and what could not be joined."""

    benchmark: PairedBenchmark
    sides: list[Benchmark]
    unpaired: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return what was read and what was not, for people."""
        lines = [f"{self.benchmark.name}: {len(self.benchmark.pairs)} pairs"]
        lines += [side.summary() for side in self.sides if side.problems]
        lines += [f"  unpaired: {line}" for line in self.unpaired[:10]]
        if len(self.unpaired) > 10:
            lines.append(f"  ... and {len(self.unpaired) - 10} more")
        return "\n".join(lines)


def load_pairs(spec: PairsSpec, images: ImageStore) -> FoundPairs:
    """Read pairs that exist already.

    They are marked as not exchangeable: nobody drew by coin which version is the original, so one
    may be harder by construction, and only rules relative to a reference model are sound.

    Raises
    ------
    DataError
        Where there is nothing to read, or no pair in it.
    """
    pairs: list[Pair] = []
    sides: list[Benchmark] = []
    unpaired: list[str] = []
    name = spec.name
    for mark, part in spec.resolved():
        original, twin = (load_benchmark(s, images) for s in (part.original, part.counterfactual))
        name = name or original.name
        sides += [original, twin]
        for item, outcome in _join(original, twin):
            if isinstance(outcome, str):
                unpaired.append(f"{item.name}: {outcome}")
                continue
            try:
                pairs.append(Pair(_named(item, name, mark), _named(outcome, name, mark)))
            except DataError as error:
                unpaired.append(str(error))
    if not pairs:
        raise DataError(
            "no pairs: give 'parts' with an original and a counterfactual each, or 'naturalbench'"
            if not sides
            else f"no pair in {len(sides[0].items)} items; first: {next(iter(unpaired), '')}"
        )
    funnel = {"items": sum(side.n_rows for side in sides[::2]), "kept": len(pairs)}
    made_by = {"pairs": "found, not made"}
    paired = PairedBenchmark(name, tuple(pairs), images, funnel, made_by, exchangeable=False)
    return FoundPairs(paired, sides, unpaired)


def _join(original: Benchmark, twin: Benchmark) -> Iterator[tuple[Item, Item | str]]:
    """Yield every item of the original with its twin, or with why it has none."""
    twins = {item.name: item for item in twin.items}
    for item in original.items:
        yield item, twins.pop(item.name, f"no counterfactual of this name in {twin.name}")
    for item in twins.values():
        yield item, f"no original of this name in {original.name}"


def _named(item: Item, benchmark: str, mark: str) -> Item:
    name = f"{item.name}-{mark}" if mark else item.name
    changed = {"id": "", "benchmark": benchmark, "name": name, "group": item.group or item.name}
    return Item.model_validate(item.model_dump() | changed)


def _naturalbench(spec: PairsSpec, number: int) -> FoundPairSpec:
    def side(image: int) -> HuggingFaceSpec:
        return HuggingFaceSpec(
            path=spec.naturalbench,
            revision=spec.revision,
            licence=spec.licence,
            name=spec.name or "NaturalBench",
            split="train",
            columns=ColumnMapping(
                index="Index",
                question=f"Question_{number}",
                answer=f"Image_{image}_Question_{number}",
                images=(f"Image_{image}",),
                category="Question_Type",
            ),
            options_in="question",
            question_style="naturalbench",
        )

    return FoundPairSpec(original=side(0), counterfactual=side(1))
