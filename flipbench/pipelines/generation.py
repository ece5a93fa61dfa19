"""The stage generate of a configured experiment: a benchmark in, edited candidates out."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, Item
from flipbench.core.stage import StageReport
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.backends import (
    estimate_captions,
    estimate_verdicts,
    missing_key,
    records_at_once,
)


def generate(
    assembly: Assembly, items: Sequence[Item] | None = None
) -> tuple[list[Candidate], list[StageReport]]:
    """Flip, caption and edit ``items``, by default all; a worker edits its share of them.

    Raises
    ------
    DataError
        Where the benchmark has no item, or the new answers are not of it.
    PrerequisiteError
        Where the captioner is to be asked and its key is missing.
    """
    items = assembly.items if items is None else items
    spec, generator, workers = assembly.config.generate, assembly.generator, assembly.workers
    no_key = missing_key(spec.captioner) if generator.asks else None
    if no_key and any(c.caption is None for c in generator.progress(items)):
        raise no_key
    options = assembly.options(spec.batch_size)
    at_once = records_at_once(spec.captioner, spec.batch_size, len(items))
    flipped, first = generator.flip(items, options)
    captioned, second = generator.caption(flipped, assembly.options(at_once))
    workers.start("generate", Edit, sum(c.caption is not None for c in captioned), "edit")
    edited, third = generator.edit(captioned, options, workers.share)
    return edited, [*first, *second, *third]


def plan_generation(assembly: Assembly) -> list[str]:
    """Return what generation and filtering would do and cost, for ``--dry-run``."""
    items, given, config = assembly.items, assembly.new_answers, assembly.config
    free = sum(item.options is None and item.name not in given for item in items)
    lines = [f"would flip, caption and edit {len(items):,} items"]
    if free:
        lines.append(f"  {free:,} of them are free-form: their new answers are proposed first")
    candidates = [Candidate(item) for item in items]
    if cost := estimate_captions(config.generate.captioner, candidates):
        lines.append(f"captions: {cost}")
    for spec in config.filter.judges:
        if cost := estimate_verdicts(spec, candidates * config.filter.policy.n_runs):
            lines.append(f"verdicts: {cost}")
    return lines
