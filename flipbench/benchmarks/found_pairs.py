"""Existing pairs: NaturalBench, CounterCurate, or any two versions of a benchmark."""

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
    """Two versions of the same questions, read as two benchmarks and joined by item name.

    They may be two files, or two column mappings of one file.
    """

    original: BenchmarkSpec
    counterfactual: BenchmarkSpec


class PairsSpec(Value):
    """A benchmark of existing pairs; nothing is generated.

    Attributes
    ----------
    parts : tuple of FoundPairSpec
        Read one after another.
    naturalbench : str
        Instead of parts: a folder or hub id of NaturalBench. Each row becomes two pairs, one for
        each question; the first image is the original.
    """

    format: Literal["pairs"] = "pairs"
    name: str = ""
    parts: tuple[FoundPairSpec, ...] = ()
    naturalbench: str = ""
    revision: str = ""
    licence: str = Field(default="", description="of NaturalBench; parts state their own")

    def resolved(self) -> Iterator[tuple[str, FoundPairSpec]]:
        """Yield a suffix for the item names of each part, and the part."""
        if self.naturalbench:
            for number in (0, 1):
                yield f"q{number}", _naturalbench(self, number)
        for number, part in enumerate(self.parts):
            yield f"p{number}" if len(self.parts) > 1 else "", part


@dataclass
class FoundPairs:
    """The pairs, the two versions that were read, and why items could not be joined."""

    benchmark: PairedBenchmark
    sides: list[Benchmark]
    unpaired: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return what was read and what was rejected, for people."""
        lines = [f"{self.benchmark.name}: {len(self.benchmark.pairs)} pairs"]
        lines += [side.summary() for side in self.sides if side.problems]
        lines += [f"  unpaired: {line}" for line in self.unpaired[:10]]
        if len(self.unpaired) > 10:
            lines.append(f"  ... and {len(self.unpaired) - 10} more")
        return "\n".join(lines)


def load_pairs(spec: PairsSpec, images: ImageStore) -> FoundPairs:
    """Read existing pairs.

    They are marked as not exchangeable: which version is the original was not drawn at random, so
    one may be harder by construction, and only rules relative to a reference model are sound.

    Raises
    ------
    DataError
        If nothing is configured, or no pair is found.
    """
    pairs: list[Pair] = []
    sides: list[Benchmark] = []
    unpaired: list[str] = []
    name = spec.name
    for suffix, part in spec.resolved():
        original, counterfactual = (
            load_benchmark(version, images) for version in (part.original, part.counterfactual)
        )
        name = name or original.name
        sides += [original, counterfactual]
        by_name = {item.name: item for item in counterfactual.items}
        for item in original.items:
            other = by_name.pop(item.name, None)
            if other is None:
                unpaired.append(f"{item.name}: not in the counterfactual {counterfactual.name}")
                continue
            try:
                pairs.append(Pair(_renamed(item, name, suffix), _renamed(other, name, suffix)))
            except DataError as error:
                unpaired.append(str(error))
        unpaired += [f"{other}: not in the original {original.name}" for other in by_name]
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


def _renamed(item: Item, benchmark: str, suffix: str) -> Item:
    name = f"{item.name}-{suffix}" if suffix else item.name
    changes = {"id": "", "benchmark": benchmark, "name": name, "group": item.group or item.name}
    return Item.model_validate(item.model_dump() | changes)


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
