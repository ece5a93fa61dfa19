"""Load a benchmark of any format, or existing pairs: NaturalBench, CounterCurate, two versions."""

from __future__ import annotations

from dataclasses import dataclass, field

from flipbench.benchmarks.huggingface import load_huggingface
from flipbench.benchmarks.jsonl import load_jsonl
from flipbench.benchmarks.report import Benchmark
from flipbench.benchmarks.specs import HuggingFaceSpec, JsonlSpec, PairsSpec, TsvSpec
from flipbench.benchmarks.tsv import load_tsv
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item


def load_benchmark(
    spec: TsvSpec | HuggingFaceSpec | JsonlSpec, images: ImageStore, *, strict: bool = False
) -> Benchmark:
    """Return a benchmark's items in release order, and every problem with its rows.

    Parameters
    ----------
    spec : TsvSpec, HuggingFaceSpec or JsonlSpec
        The benchmark's location and format.
    images : ImageStore
        Stores the image bytes, unchanged.
    strict : bool
        Whether to raise the first problem that rejects a row.

    Returns
    -------
    Benchmark
        Its ``items`` and ``refused`` rows always add up to the file's rows.

    Raises
    ------
    DataError
        If the file as a whole cannot be used (missing, empty, not UTF-8, without an answer
        column, the same index twice), or with ``strict`` at the first refused row.
    ServiceError
        If a dataset cannot be loaded from the Hugging Face Hub.
    """
    if isinstance(spec, TsvSpec):
        return load_tsv(spec, images, strict)
    if isinstance(spec, HuggingFaceSpec):
        return load_huggingface(spec, images, strict)
    return load_jsonl(spec, images, strict)


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
    return item.revised(benchmark=benchmark, name=name, group=item.group or item.name)
