"""The stage filter of a configured experiment: edited candidates in, a paired benchmark out.

Pairs that exist already enter here too, without being made or judged.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.benchmarks import PairsSpec, load_pairs
from flipbench.config.kinds import JudgeSpec
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Verdict
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.filters.kept_list import listed_items, select_kept
from flipbench.filters.pipeline import keep_valid, unjudged
from flipbench.models.chat.cost import Spent
from flipbench.models.protocols import Judge
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.backends import (
    estimate_captions,
    estimate_verdicts,
    missing_key,
    records_at_once,
)
from flipbench.pipelines.generation import generate

log = logging.getLogger(__name__)


def make_pairs(assembly: Assembly) -> tuple[PairedBenchmark, list[StageReport]]:
    """Return the paired benchmark of a configuration, made or found, and keep it on disk.

    Raises
    ------
    PrerequisiteError
        Before any work, where a judge or the captioner is to be asked and its key is missing.
    """
    if isinstance(assembly.config.benchmark, PairsSpec):
        return find_pairs(assembly, assembly.config.benchmark), []
    if any(missing_key(spec) for spec in assembly.config.filter.judges):
        for spec, _, asked in _to_judge(assembly, assembly.generator.progress(assembly.items)):
            if asked and (no_key := missing_key(spec)):
                raise no_key
    candidates, made = generate(assembly)
    benchmark, judged = judge(assembly, candidates)
    return benchmark, [*made, *judged]


def find_pairs(assembly: Assembly, spec: PairsSpec) -> PairedBenchmark:
    """Read pairs that exist already, say what is odd about them, and keep them with the run."""
    found = load_pairs(spec, assembly.run.images)
    benchmark = found.benchmark
    if assembly.limit is not None:
        benchmark = replace(benchmark, pairs=benchmark.pairs[: assembly.limit])
    log.info("%s", found.summary())
    benchmark.save(assembly.benchmark_folder)
    return benchmark


def judge(
    assembly: Assembly, candidates: Sequence[Candidate]
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Judge the candidates and keep the valid pairs, also on disk."""
    config = assembly.config.filter
    at_once = [records_at_once(spec, config.batch_size, len(candidates)) for spec in config.judges]
    benchmark, reports = keep_valid(
        candidates[0].item.benchmark,
        candidates,
        assembly.judges,
        assembly.run,
        assembly.options(max(at_once, default=config.batch_size)),
        policy=config.policy,
    )
    benchmark = replace(benchmark, made_by=_made_by(assembly.config.seed, candidates))
    benchmark.save(assembly.benchmark_folder)
    return benchmark, reports


def rebuild_kept(assembly: Assembly, kept: Path) -> tuple[PairedBenchmark, list[StageReport]]:
    """Make exactly the pairs of a kept list, whatever rules and judges would say of them.

    Only these items are captioned and drawn, where the run does not hold them yet.

    Raises
    ------
    DataError
        Where the list names what the benchmark has not, or another picture than the run's.
    """
    candidates, reports = generate(assembly, listed_items(kept, assembly.items))
    chosen = select_kept(kept, candidates, assembly.run.images)
    listed_as = f"{kept.name}, sha256 {hashlib.sha256(kept.read_bytes()).hexdigest()[:12]}"
    benchmark = PairedBenchmark(
        chosen[0].item.benchmark,
        tuple(candidate.pair() for candidate in chosen),
        assembly.run.images,
        {"items": len(assembly.items), "kept": len(chosen)},
        _made_by(assembly.config.seed, candidates) | {"kept list": listed_as},
    )
    benchmark.save(assembly.benchmark_folder)
    return benchmark, reports


def plan_filtering(assembly: Assembly) -> list[str]:
    """Return what is left to make and to judge, and what that would cost, for ``--dry-run``."""
    if assembly.has_pairs:
        return ["the pairs exist already"]
    candidates = assembly.generator.progress(assembly.items)
    to_caption = [c for c in candidates if c.caption is None]
    n_edited = sum(c.edit is not None for c in candidates)
    lines = [f"{n_edited:,} of {len(assembly.items):,} items are edited"]
    if n_edited < len(candidates):
        lines.append(f"would caption {len(to_caption):,} and edit {len(candidates) - n_edited:,}")
    captioner = assembly.config.generate.captioner
    if to_caption and (cost := estimate_captions(captioner, to_caption)):
        lines.append(f"captions: {cost}")
    for spec, one, asked in _to_judge(assembly, candidates):
        lines.append(f"would ask {one.name} for {len(asked):,} verdicts")
        if asked and (cost := estimate_verdicts(spec, asked)):
            lines.append(f"verdicts: {cost}")
    return lines


def spent_on_verdicts(run: Run) -> dict[str, Spent]:
    """Return what the verdicts that the run holds have cost, by rater; people's cost nothing."""
    spent: dict[str, Spent] = defaultdict(Spent)
    for verdict in run.read(Verdict):
        if verdict.usage:
            spent[verdict.rater].add(verdict.usage)
    return dict(sorted(spent.items()))


def _to_judge(
    assembly: Assembly, candidates: Sequence[Candidate]
) -> Iterator[tuple[JudgeSpec, Judge, list[Candidate]]]:
    """Yield each judge, and whom it is still to be asked about, once for each run."""
    config = assembly.config.filter
    for spec, one in zip(config.judges, assembly.judges, strict=True):
        yield spec, one, unjudged(candidates, one, assembly.run, config.policy)


def _made_by(seed: int, candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return who made and judged the pairs, in words, for cards."""
    words = {"seed": str(seed)}
    done = next((c for c in candidates if c.caption and c.edit), None)
    if done and done.caption and done.edit:
        words |= {"captioner": done.caption.captioner, "prompt": done.caption.prompt}
        words["editor"] = done.edit.editor
    return words
