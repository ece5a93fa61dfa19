"""From a benchmark to its answer-flipped twin: the stages generate and filter, as configured.

Pairs that exist already enter here too, without either stage.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flipbench.benchmarks import Benchmark, PairsSpec, load_benchmark, load_pairs
from flipbench.config.experiment import ShapesSpec
from flipbench.config.kinds import JudgeSpec
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Edit, Item, Verdict
from flipbench.core.stage import StageReport
from flipbench.filters.kept_list import listed_items, select_kept
from flipbench.filters.pipeline import keep_valid, unjudged
from flipbench.generate.captioners.api import APICaptioner
from flipbench.generate.flip import FlipStage
from flipbench.generate.given_answers import read_new_answers
from flipbench.generate.pipeline import Generation, progress_of
from flipbench.generate.propose import ProposeStage
from flipbench.models.chat.cost import Spent
from flipbench.models.protocols import Captioner, Editor, Judge
from flipbench.pipelines.backends import (
    build_captioner,
    build_editor,
    build_judge,
    estimate_captions,
    estimate_verdicts,
    missing_key,
    records_at_once,
)
from flipbench.pipelines.experiment import Experiment, have_workers_do
from flipbench.shapes.benchmark import NAME as SHAPES_NAME
from flipbench.shapes.benchmark import shapes_vqa

log = logging.getLogger(__name__)


def make_pairs(experiment: Experiment) -> tuple[PairedBenchmark, list[StageReport]]:
    """Return the paired benchmark of a configuration, made or found, and keep it on disk."""
    spec = experiment.config.benchmark
    if isinstance(spec, PairsSpec):
        return find_pairs(experiment, spec), []
    _need_judges_keys(experiment)
    candidates, made = make_candidates(experiment)
    benchmark, judged = make_paired_benchmark(experiment, candidates)
    return benchmark, [*made, *judged]


def rebuild_kept(experiment: Experiment, kept: Path) -> tuple[PairedBenchmark, list[StageReport]]:
    """Make exactly the pairs of a kept list, whatever rules and judges would say of them.

    Only these items are captioned and drawn, where the run does not hold them yet.

    Raises
    ------
    DataError
        Where the list names what the benchmark has not, or another picture than the run's.
    """
    making = _Making.of(experiment)
    n_items = len(making.items)
    making = replace(making, items=listed_items(kept, making.items))
    candidates, reports = _carry_out(experiment, making)
    chosen = select_kept(kept, candidates, experiment.run.images)
    listed_as = f"{kept.name}, sha256 {hashlib.sha256(kept.read_bytes()).hexdigest()[:12]}"
    benchmark = PairedBenchmark(
        chosen[0].item.benchmark,
        tuple(candidate.pair() for candidate in chosen),
        experiment.run.images,
        {"items": n_items, "kept": len(chosen)},
        _made_by(experiment, candidates) | {"kept list": listed_as},
    )
    benchmark.save(experiment.benchmark_folder)
    return benchmark, reports


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
    PrerequisiteError
        Where the captioner is to be asked and its key is missing.
    """
    return _carry_out(experiment, _Making.of(experiment))


@dataclass(frozen=True)
class _Making:
    """The items of an experiment, and who makes their twins."""

    items: list[Item]
    flipping: FlipStage
    captioner: Captioner
    editor: Editor
    proposing: ProposeStage | None

    @classmethod
    def of(cls, experiment: Experiment) -> _Making:
        items, config = usable_items(experiment), experiment.config
        spec, states = config.generate, experiment.run.path / "batches"
        flipping = FlipStage(config.seed, given_answers(experiment, items))
        editor = build_editor(spec.editor, states, config.seed)
        captioner = build_captioner(spec.captioner, states, config.seed)
        proposing = None
        if isinstance(captioner, APICaptioner):
            prompt = captioner.counterfactual_prompt
            proposing = ProposeStage(captioner.chat, experiment.run.images, prompt)
        return cls(items, flipping, captioner, editor, proposing)

    def progress(self, experiment: Experiment) -> list[Candidate]:
        """Return how far the run has got with those items that can have a twin."""
        return progress_of(
            self.items,
            experiment.run,
            self.flipping,
            self.captioner,
            self.editor,
            proposing=self.proposing,
            seed=experiment.config.seed,
        )


def _carry_out(
    experiment: Experiment, making: _Making
) -> tuple[list[Candidate], list[StageReport]]:
    spec, seed = experiment.config.generate, experiment.config.seed
    asks = experiment.share is None
    no_key = missing_key(spec.captioner) if asks else None
    if no_key and any(c.caption is None for c in making.progress(experiment)):
        raise no_key
    generation = Generation.of(
        making.items,
        experiment.run,
        batch_size=spec.batch_size,
        progress=experiment.progress,
        asks=asks,
    )
    generation.flip(making.flipping, making.proposing)
    at_once = records_at_once(spec.captioner, spec.batch_size, len(making.items))
    generation.caption(making.captioner, at_once)
    if experiment.n_workers > 1:
        n_edits = sum(c.caption is not None for c in generation.candidates)
        have_workers_do(experiment, "generate", Edit, n_edits, "edit")
    generation.edit(making.editor, seed, experiment.share)
    return generation.candidates, generation.reports


def plan_generation(experiment: Experiment) -> list[str]:
    """Return what generation and filtering would do and cost, for ``--dry-run``."""
    items, config = usable_items(experiment), experiment.config
    given = given_answers(experiment, items)
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


def plan_filtering(experiment: Experiment) -> list[str]:
    """Return what is left to make and to judge, and what that would cost, for ``--dry-run``."""
    config, making = experiment.config, _Making.of(experiment)
    candidates = making.progress(experiment)
    to_caption = [c for c in candidates if c.caption is None]
    n_edited = sum(c.edit is not None for c in candidates)
    lines = [f"{n_edited:,} of {len(making.items):,} items are edited"]
    if n_edited < len(candidates):
        lines.append(f"would caption {len(to_caption):,} and edit {len(candidates) - n_edited:,}")
    if to_caption and (cost := estimate_captions(config.generate.captioner, to_caption)):
        lines.append(f"captions: {cost}")
    for spec in config.filter.judges:
        judge, asked = _to_judge(experiment, spec, candidates)
        lines.append(f"would ask {judge.name} for {len(asked):,} verdicts")
        if asked and (cost := estimate_verdicts(spec, asked)):
            lines.append(f"verdicts: {cost}")
    return lines


def _need_judges_keys(experiment: Experiment) -> None:
    """Refuse, before any work, a judge that is to be asked and whose key is missing."""
    for spec in experiment.config.filter.judges:
        if no_key := missing_key(spec):
            candidates = _Making.of(experiment).progress(experiment)
            if _to_judge(experiment, spec, candidates)[1]:
                raise no_key


def _to_judge(
    experiment: Experiment, spec: JudgeSpec, candidates: Sequence[Candidate]
) -> tuple[Judge, list[Candidate]]:
    """Return a judge, and whom it is still to be asked about, once for each run."""
    config, run = experiment.config, experiment.run
    judge = build_judge(spec, run.path / "batches", config.seed)
    return judge, unjudged(candidates, judge, run, config.filter.policy)


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


def spent_on_verdicts(experiment: Experiment) -> dict[str, Spent]:
    """Return what the verdicts that the run holds have cost, by rater; people's cost nothing."""
    spent: dict[str, Spent] = defaultdict(Spent)
    for verdict in experiment.run.read(Verdict):
        if verdict.usage:
            spent[verdict.rater].add(verdict.usage)
    return dict(sorted(spent.items()))


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
