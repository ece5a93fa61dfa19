"""From a benchmark to its answer-flipped twin: the stages generate and filter, as configured.

Pairs that exist already enter here too, without either stage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.backends import (
    build_captioner,
    build_editor,
    build_judge,
    estimate_captions,
    estimate_verdicts,
    records_at_once,
)
from flipbench.benchmarks import Benchmark, PairsSpec, load_benchmark, load_pairs
from flipbench.config import ShapesSpec
from flipbench.errors import ConfigError, DataError
from flipbench.experiment import Experiment, have_workers_do
from flipbench.filters.decide import book_of
from flipbench.filters.pipeline import keep_valid
from flipbench.filters.ratings import agreement_tables, compare_raters, ratings_of
from flipbench.filters.tables import write_tables
from flipbench.generate.api_captioner import APICaptioner
from flipbench.generate.flip import FlipStage
from flipbench.generate.given_answers import read_new_answers
from flipbench.generate.pipeline import Generation
from flipbench.generate.propose import ProposeStage
from flipbench.models.protocols import Decision
from flipbench.models.rater_specs import ShapesCaptionerSpec
from flipbench.paired import Candidate, PairedBenchmark
from flipbench.records import Edit, Item, Verdict
from flipbench.shapes.benchmark import NAME as SHAPES_NAME
from flipbench.shapes.benchmark import shapes_vqa
from flipbench.stage import StageReport

log = logging.getLogger(__name__)


def make_pairs(experiment: Experiment) -> tuple[PairedBenchmark, list[StageReport]]:
    """Return the paired benchmark of a configuration, made or found, and keep it on disk."""
    spec = experiment.config.benchmark
    if isinstance(spec, PairsSpec):
        return find_pairs(experiment, spec), []
    candidates, made = make_candidates(experiment)
    benchmark, judged = make_paired_benchmark(experiment, candidates)
    return benchmark, [*made, *judged]


def has_twins(experiment: Experiment) -> bool:
    """Return whether the configured benchmark consists of pairs that exist already."""
    return isinstance(experiment.config.benchmark, PairsSpec)


def find_pairs(experiment: Experiment, spec: PairsSpec) -> PairedBenchmark:
    """Read pairs that exist already, say what is odd about them, and keep them with the run."""
    found = load_pairs(spec, experiment.run.images)
    benchmark = found.benchmark
    if experiment.limit is not None:
        benchmark = replace(benchmark, pairs=benchmark.pairs[: experiment.limit])
    log.info("%s", found.summary())
    benchmark.save(experiment.benchmark_folder)
    return benchmark


def read_benchmark(experiment: Experiment) -> Benchmark:
    """Read the configured benchmark; ``limit`` keeps its first items."""
    spec = experiment.config.benchmark
    if isinstance(spec, ShapesSpec):
        items = shapes_vqa(experiment.run.images, min(spec.n_items, experiment.limit or 10**9))
        return Benchmark(name=SHAPES_NAME, items=items, problems=[], n_rows=len(items))
    if isinstance(spec, PairsSpec):
        raise ConfigError("benchmark.format: pairs: these items have their twins; nothing to make")
    benchmark = load_benchmark(spec, experiment.run.images)
    if experiment.limit is not None:
        del benchmark.items[experiment.limit :]
    return benchmark


def make_candidates(experiment: Experiment) -> tuple[list[Candidate], list[StageReport]]:
    """Flip, caption and edit; a worker edits its share of what is captioned.

    Raises
    ------
    DataError
        Where the benchmark has no item, or the new answers are not of it.
    """
    items, config = usable_items(experiment), experiment.config
    spec, states = config.generate, experiment.run.path / "batches"
    flipping = FlipStage(config.seed, given_answers(experiment, items))
    generation = Generation.of(
        items,
        experiment.run,
        batch_size=spec.batch_size,
        progress=experiment.progress,
        asks=experiment.share is None or experiment.share.n_workers == 1,
    )
    editor = build_editor(spec.editor)
    captioner = build_captioner(spec.captioner, states, config.seed)
    proposing = None
    if isinstance(captioner, APICaptioner) and not isinstance(spec.captioner, ShapesCaptionerSpec):
        prompt = spec.captioner.counterfactual_prompt
        proposing = ProposeStage(captioner.chat, experiment.run.images, prompt)
    generation.flip(flipping, proposing)
    at_once = records_at_once(spec.captioner, spec.batch_size, len(items))
    generation.caption(captioner, at_once)
    if experiment.n_workers > 1:
        n_edits = sum(c.caption is not None for c in generation.candidates)
        have_workers_do(experiment, "generate", Edit, n_edits, "edit")
    generation.edit(editor, config.seed, experiment.share)
    return generation.candidates, generation.reports


def plan_generation(experiment: Experiment) -> list[str]:
    """Return what generation and filtering would do and cost, for ``--dry-run``."""
    items, config = usable_items(experiment), experiment.config
    given = given_answers(experiment, items)
    free = sum(item.options is None and item.name not in given for item in items)
    lines = [f"would flip, caption and edit {len(items):,} items"]
    if free:
        lines.append(f"  {free:,} of them are free-form: their new answers are proposed first")
    if cost := estimate_captions(config.generate.captioner, items):
        lines.append(f"captions: {cost}")
    for spec in config.filter.judges:
        if cost := estimate_verdicts(spec, items):
            lines.append(f"verdicts: {cost}")
    return lines


def usable_items(experiment: Experiment) -> list[Item]:
    """Return the benchmark's items, and say in the log what is odd about others.

    Raises
    ------
    DataError
        Where there is none.
    """
    benchmark = read_benchmark(experiment)
    if benchmark.problems:
        log.warning("%s", benchmark.summary())
    if not benchmark.items:
        raise DataError(
            "the benchmark has no item that can be used; 'flipbench import' names what is wrong"
        )
    _needs_shapes(experiment, benchmark.items)
    return benchmark.items


def given_answers(experiment: Experiment, items: Sequence[Item]) -> dict[str, str]:
    """Return the new answers that the configuration's file gives, by item name."""
    path = experiment.config.generate.new_answers
    return read_new_answers(path, {item.name for item in items}) if path else {}


def make_paired_benchmark(
    experiment: Experiment, candidates: Sequence[Candidate]
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Judge the candidates and keep the valid pairs, also on disk."""
    config = experiment.config.filter
    states = experiment.run.path / "batches"
    at_once = [records_at_once(spec, config.batch_size, len(candidates)) for spec in config.judges]
    benchmark, reports = keep_valid(
        candidates[0].item.benchmark,
        candidates,
        [build_judge(spec, states, experiment.config.seed) for spec in config.judges],
        experiment.run,
        policy=config.policy,
        batch_size=max(at_once, default=config.batch_size),
        progress=experiment.progress,
    )
    benchmark = replace(benchmark, made_by=_made_by(experiment, candidates))
    benchmark.save(experiment.benchmark_folder)
    return benchmark, reports


def compare_raters_of(experiment: Experiment, reference: str) -> tuple[str, Path]:
    """Hold every rater of a run against one of them; return the tables and their page.

    ``reference`` is a rater's name, ``people``, or ``policy`` for what the policy decides.
    """
    candidates, _ = make_candidates(experiment)
    policy, run = experiment.config.filter.policy, experiment.run
    book = book_of(run.read(Verdict))
    kept = {pair.original.id for pair in PairedBenchmark.load(experiment.benchmark_folder).pairs}
    decided: dict[str, Decision] = {
        c.edit.id: "keep" if c.item.id in kept else "reject" for c in candidates if c.edit
    }
    ratings = ratings_of(candidates, book, policy).add("policy", decided)
    tables = agreement_tables(compare_raters(ratings, reference, seed=experiment.config.seed))
    page = write_tables(tables, run.path / "filter", "agreement.md", f"Agreement with {reference}")
    return page.read_text(), page


def _made_by(experiment: Experiment, candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return who made and judged the pairs, in words, for cards."""
    said: dict[str, str] = {"seed": str(experiment.config.seed)}
    done = next((c for c in candidates if c.caption and c.edit), None)
    if done and done.caption and done.edit:
        said |= {"captioner": done.caption.captioner, "prompt": done.caption.prompt}
        said["editor"] = done.edit.editor
    return said


def _needs_shapes(experiment: Experiment, items: Sequence[Item]) -> None:
    """Refuse real benchmarks where the embedded world's captioner, editor or judge is set."""
    foreign = [item for item in items if "family" not in item.extra]
    config = experiment.config
    kinds = {
        "generate.captioner": config.generate.captioner.kind,
        "generate.editor": config.generate.editor.kind,
        **{f"filter.judges.{i}": judge.kind for i, judge in enumerate(config.filter.judges)},
    }
    ours = [name for name, kind in kinds.items() if kind == "shapes"]
    if foreign and ours:
        raise ConfigError(
            f"{' and '.join(ours)}: 'shapes' draws and judges only shapes-vqa, and"
            f" {foreign[0].benchmark} {foreign[0].name} is a real picture; configs/generate/ has"
            " captioners and editors for those, and judges may be left empty ([])"
        )
