"""The filter stage of a configured experiment: edited candidates in, a paired benchmark out.

Existing pairs are loaded here too; they are neither made nor judged.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.attempts import write_attempts
from flipbench.api.stages.backends import api_cost, batch_size_for, missing_key
from flipbench.api.stages.existing_pairs import load_existing, plan_existing
from flipbench.api.stages.generation import generate, n_made, plan_generation
from flipbench.api.stages.phases import memory_plan
from flipbench.config.kinds import JudgeSpec, is_plug_in
from flipbench.core.paired import UNJUDGED, Candidate, PairedBenchmark
from flipbench.core.records import Verdict
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.filters.kept_list import listed_items, read_kept, select_kept
from flipbench.filters.pipeline import (
    FOLDER,
    candidates_of,
    keep_valid,
    raters_text,
    unjudged,
)
from flipbench.models.chat.cost import Spent

log = logging.getLogger(__name__)


def make_pairs(assembly: Assembly) -> tuple[PairedBenchmark, list[StageReport]]:
    """Make or load the paired benchmark of a configuration, and save it in the run directory."""
    if assembly.has_pairs:
        return load_existing(assembly)
    if any(missing_key(spec) for spec in assembly.config.filter.judges):
        for judge_spec, _, todo in _to_judge(assembly, assembly.generator.progress(assembly.items)):
            if todo and (error := missing_key(judge_spec)):
                raise error
    candidates, generated = generate(assembly)
    benchmark, judge_reports = judge(assembly, candidates)
    return benchmark, [*generated, *judge_reports]


def judge(
    assembly: Assembly, candidates: Sequence[Candidate]
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Judge the candidates, keep the valid pairs, and save them in the run directory."""
    config = assembly.config.filter
    sizes = [batch_size_for(spec, config.batch_size, len(candidates)) for spec in config.judges]
    benchmark, reports = keep_valid(
        candidates[0].item.benchmark,
        candidates,
        assembly.judges,
        assembly.run,
        assembly.options(max(sizes, default=config.batch_size)),
        policy=config.policy,
    )
    made_by = _made_by(assembly.config.seed, candidates) | benchmark.made_by
    benchmark = replace(benchmark, made_by=made_by)
    benchmark.save(assembly.benchmark_folder)
    if (assembly.run.path / FOLDER / "attempts.csv").exists():
        write_attempts(assembly, benchmark)
    return benchmark, reports


def rebuild_kept(assembly: Assembly, kept: Path) -> tuple[PairedBenchmark, list[StageReport]]:
    """Make exactly the pairs of a kept list, without consulting rules or judges.

    Only listed edits that the run lacks are captioned and drawn, whichever attempts they are.
    """
    if assembly.has_pairs:
        return load_existing(assembly, kept)
    rows = read_kept(kept)
    edit_ids = {row.item_id: row.edit_id for row in rows if row.edit_id}
    in_run = [c for c in candidates_of(assembly.run, edit_ids) if c.edit]
    present_ids = {candidate.item.id for candidate in in_run}
    missing_items = [
        item for item in listed_items(kept, assembly.items) if item.id not in present_ids
    ]
    ids = set(edit_ids.values())
    new_candidates, reports = generate(assembly, missing_items, ids) if missing_items else ([], [])
    candidates = [*in_run, *new_candidates]
    candidates_kept = select_kept(kept, candidates, assembly.run.images)
    raters = {row.item_id: row.decided_by for row in rows}
    names = {name for text in raters.values() for name in text.split("; ") if name}
    judged_by = {"raters": raters_text(names, assembly.run)} if names else {}
    listed_as = f"{kept.name}, sha256 {hashlib.sha256(kept.read_bytes()).hexdigest()[:12]}"
    benchmark = PairedBenchmark(
        candidates_kept[0].item.benchmark,
        tuple(c.pair("keep" if raters[c.item.id] else UNJUDGED) for c in candidates_kept),
        assembly.run.images,
        {"items": len(assembly.items), "kept": len(candidates_kept)},
        _made_by(assembly.config.seed, candidates) | {"kept list": listed_as} | judged_by,
    )
    benchmark.save(assembly.benchmark_folder)
    return benchmark, reports


def plan_pairs(assembly: Assembly) -> list[str]:
    """Return what is left to generate and judge, with its cost, for ``--dry-run``.

    It asks for no editor's files before anything is made, since they may be on another machine.
    """
    if assembly.has_pairs:
        return plan_existing(assembly)
    generated = assembly.config.generate
    plug_ins = [spec.kind for spec in (generated.captioner, generated.editor) if is_plug_in(spec)]
    if plug_ins or not n_made(assembly.run):
        note = "a dry run builds no plug-in, so what it has made already is not subtracted"
        return [*plan_generation(assembly), *[note][: len(plug_ins)]]
    candidates = assembly.generator.progress(assembly.items)
    to_caption = [c for c in candidates if c.caption is None]
    n_edited = sum(c.edit is not None for c in candidates)
    lines = [f"{n_edited:,} of {len(assembly.items):,} items are edited"]
    if n_edited < len(candidates):
        lines.append(f"would caption {len(to_caption):,} and edit {len(candidates) - n_edited:,}")
    captioner = assembly.config.generate.captioner
    if to_caption and (cost := api_cost(captioner, to_caption)):
        lines.append(f"captions: {cost}")
    for spec, name, todo in _to_judge(assembly, candidates, dry_run=True):
        lines.append(f"would ask {name} for {len(todo):,} verdicts")
        if todo and (cost := api_cost(spec, todo)):
            lines.append(f"verdicts: {cost}")
    return [*lines, *memory_plan(assembly.config, assembly.items)]


def spent_on_verdicts(run: Run) -> dict[str, Spent]:
    """Return the API cost of the run's verdicts, by rater."""
    costs: dict[str, Spent] = defaultdict(Spent)
    for verdict in run.read(Verdict):
        if verdict.usage:
            costs[verdict.rater].add(verdict.usage)
    return dict(sorted(costs.items()))


def _to_judge(
    assembly: Assembly, candidates: Sequence[Candidate], *, dry_run: bool = False
) -> Iterator[tuple[JudgeSpec, str, list[Candidate]]]:
    """Yield each judge and its name with the candidates it has yet to judge, once per run."""
    config = assembly.config.filter
    for spec in config.judges:
        if dry_run and is_plug_in(spec):
            yield spec, f"{spec.kind}, a plug-in,", list(candidates) * config.policy.n_runs
        else:
            judge = assembly.judge(spec)
            yield spec, judge.name, unjudged(candidates, judge, assembly.run, config.policy)


def _made_by(seed: int, candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return seed, captioner, prompt and editor of the pairs, for cards."""
    settings = {"seed": str(seed)}
    for candidate in candidates:
        if candidate.caption and candidate.edit:
            caption = candidate.caption
            settings |= {"captioner": caption.captioner, "prompt": caption.prompt}
            return settings | {"editor": candidate.edit.editor}
    return settings
