"""Pairs that exist already, as candidates: rules, judges and people see them like edits of ours."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.backends import api_cost, batch_size_for, missing_key
from flipbench.benchmarks import PairsSpec, load_pairs
from flipbench.config.kinds import JudgeSpec, is_plug_in
from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate, Pair, PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip, Item, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.filters.judges.shapes import ShapesJudgeSpec
from flipbench.filters.kept_list import select_kept
from flipbench.filters.pipeline import keep_valid, unjudged

log = logging.getLogger(__name__)
EXISTING = "existing pair"
_RULES = ("equal-options", "duplicate")  # the others compare a picture with what it was drawn from


def load_existing(
    assembly: Assembly, kept: Path | None = None
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Read existing pairs, have them judged if judges are configured, and save those that stay.

    Without judges, all stay, marked as unjudged except where people have judged them. A kept list
    names the pairs that stay, and nobody judges.

    Raises
    ------
    DataError
        If no pair is found, or a kept list names others.
    PrerequisiteError
        If a judge's key is missing.
    """
    spec = assembly.config.benchmark
    assert isinstance(spec, PairsSpec)
    source = load_pairs(spec, assembly.run.images)
    log.info("%s", source.summary())
    benchmark = replace(source.benchmark, pairs=source.benchmark.pairs[: assembly.limit])
    is_judged = bool(_judge_specs(assembly)) or any(
        verdict.rater_kind == "person" for verdict in assembly.run.read(Verdict)
    )
    reports: list[StageReport] = []
    if kept is None and not is_judged and _is_saved(benchmark, assembly.benchmark_folder):
        return benchmark, reports
    candidates = store_candidates(benchmark, assembly.run)
    if kept is not None:
        listed_candidates = select_kept(kept, candidates, assembly.run.images)
        item_ids = {candidate.item.id for candidate in listed_candidates}
        pairs = tuple(pair for pair in benchmark.pairs if pair.original.id in item_ids)
        benchmark = replace(benchmark, pairs=pairs)
    elif is_judged:
        benchmark, reports = _judged(assembly, benchmark, candidates)
    else:
        log.warning(
            "nobody has judged these %d pairs: name filter.judges, or have people do it with"
            " 'flipbench review'",
            len(benchmark.pairs),
        )
    benchmark.save(assembly.benchmark_folder)
    return benchmark, reports


def plan_existing(assembly: Assembly) -> list[str]:
    """Return how many pairs there are, and what it costs to judge those not judged yet."""
    spec = assembly.config.benchmark
    assert isinstance(spec, PairsSpec)
    pairs = load_pairs(spec, assembly.run.images).benchmark.pairs[: assembly.limit]
    candidates = [_candidate(pair) for pair in pairs if len(pair.changed) == 1]
    lines = [f"{len(pairs):,} pairs exist already"]
    policy = assembly.config.filter.policy.model_copy(update={"rules": ()})
    for judge_spec in _judge_specs(assembly):
        if is_plug_in(judge_spec):
            continue
        judge = assembly.judge(judge_spec)
        todo = unjudged(candidates, judge, assembly.run, policy)
        lines.append(f"would ask {judge.name} for {len(todo):,} verdicts")
        if todo and (cost := api_cost(judge_spec, todo)):
            lines.append(f"verdicts: {cost}")
    return lines


def store_candidates(benchmark: PairedBenchmark, run: Run) -> list[Candidate]:
    """Store existing pairs as flips, captions and edits, and return them as candidates.

    A pair that differs in several images is left out: an edit is of one.
    """
    candidates = [_candidate(pair) for pair in benchmark.pairs if len(pair.changed) == 1]
    if n_left_out := len(benchmark.pairs) - len(candidates):
        log.warning("%d pairs differ in several images, so they cannot be judged", n_left_out)
    for kind, records in (
        (Item, [candidate.item for candidate in candidates]),
        (Flip, [candidate.flip for candidate in candidates]),
        (Caption, [candidate.caption for candidate in candidates]),
        (Edit, [candidate.edit for candidate in candidates]),
    ):
        stored_ids = run.ids(kind)
        run.append([record for record in records if record and record.id not in stored_ids])
    return candidates


def _candidate(pair: Pair) -> Candidate:
    item, twin, (position,) = pair.original, pair.perturbed, pair.changed
    if position >= min(len(item.images), len(twin.images)):
        raise DataError(f"{item.subject}: its two versions have different numbers of images")
    flip = Flip(
        item_id=item.id,
        method=EXISTING,
        seed=0,
        new_answer=twin.answer,
        new_text=twin.answer_text,
    )
    caption = Caption(
        flip_id=flip.id,
        captioner=EXISTING,
        prompt="",
        picture=position,
        text=pair.caption or "(no caption: the pair existed already)",
    )
    edit = Edit(
        caption_id=caption.id,
        caption_text=caption.text,
        source_sha256=item.images[position].sha256,
        editor=EXISTING,
        seed=0,
        image=twin.images[position],
    )
    return Candidate(item, flip, caption, edit)


def _is_saved(benchmark: PairedBenchmark, folder: Path) -> bool:
    """Return whether a folder holds these pairs, none of them judged."""
    if not (folder / "benchmark.json").exists():
        return False
    saved = PairedBenchmark.load(folder)
    return saved.id == benchmark.id and not saved.judged_by


def _judge_specs(assembly: Assembly) -> list[JudgeSpec]:
    """Return the judges of existing pairs: without the default, which is for pairs made here."""
    return [s for s in assembly.config.filter.judges if not isinstance(s, ShapesJudgeSpec)]


def _judged(
    assembly: Assembly, benchmark: PairedBenchmark, candidates: Sequence[Candidate]
) -> tuple[PairedBenchmark, list[StageReport]]:
    config = assembly.config.filter
    specs = _judge_specs(assembly)
    for spec in specs:
        if error := missing_key(spec):
            raise error
    policy = config.policy.model_copy(
        update={
            "rules": tuple(rule for rule in config.policy.rules if rule in _RULES),
            "unjudged": config.policy.unjudged if specs else "keep",
        }
    )
    sizes = [batch_size_for(spec, config.batch_size, len(candidates)) for spec in specs]
    filtered, reports = keep_valid(
        benchmark.name,
        candidates,
        [assembly.judge(spec) for spec in specs],
        assembly.run,
        assembly.options(max(sizes, default=config.batch_size)),
        policy=policy,
    )
    verdicts = {pair.original.id: pair.verdict for pair in filtered.pairs}
    pairs = tuple(
        replace(pair, verdict=verdicts[pair.original.id])
        for pair in benchmark.pairs
        if pair.original.id in verdicts
    )
    made_by = benchmark.made_by | filtered.made_by
    judged = replace(benchmark, pairs=pairs, funnel=filtered.funnel, made_by=made_by)
    return replace(judged, bad_edits=filtered.bad_edits), reports
