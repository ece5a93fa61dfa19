"""The contamination stage of a configured experiment: lessons, plans, the table, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from flipbench.benchmarks import load_benchmark
from flipbench.config.chat import APISpec
from flipbench.config.experiment import AnswerJudgeConfig
from flipbench.config.raters import LocalSpec
from flipbench.config.training import DataConfig, OtherBenchmark, RewriteConfig
from flipbench.contaminate.backends.llamafactory import (
    LlamaFactory,
    find_llamafactory,
    lacks_merged,
)
from flipbench.contaminate.backends.llamafactory_data import check_plan
from flipbench.contaminate.checks.changes import Diverged
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.examples import Example, training_examples
from flipbench.contaminate.data.regimes import Lesson, mixture, part_of
from flipbench.contaminate.data.wordings import (
    N_PARAPHRASES,
    ChatWriter,
    FileWriter,
    ShapesWriter,
    WordingStage,
    Writer,
    write_wordings,
    written_already,
)
from flipbench.contaminate.plan import expand, shared_out
from flipbench.contaminate.training import estimate as estimating
from flipbench.contaminate.training.train import carry_out
from flipbench.core.errors import ConfigError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.processes import is_main, main_first, n_processes
from flipbench.core.records import Checkpoint, Failure, Item, TrainingPlan, Wording
from flipbench.core.run import Run
from flipbench.models.chat.cost import estimate_requests
from flipbench.models.chat.messages import Chat
from flipbench.pipelines.backends import BATCH_PRICE, build_chat
from flipbench.pipelines.experiment import Experiment, have_workers_do

log = logging.getLogger(__name__)
_STAGE = "train"
_N_SAMPLED = 512  # examples that an estimate looks at


def lessons_for(experiment: Experiment, benchmark: PairedBenchmark, *, write: bool) -> list[Lesson]:
    """Return what each data regime trains on.

    ``write`` lets chat models write paraphrases and translations; without it, the items' own words
    stand in for those that a run lacks, as a plan for ``--dry-run`` may have it.
    """
    return [
        _lesson(experiment, benchmark, name, data, write)
        for name, data in experiment.config.contaminate.data.items()
    ]


def _lesson(
    experiment: Experiment, benchmark: PairedBenchmark, name: str, data: DataConfig, write: bool
) -> Lesson:
    seed = experiment.config.seed
    own = benchmark.originals if data.benchmark is None else _other(experiment, data.benchmark)
    members, held_out = part_of(own, data.fraction, seed)
    if data.mixture:
        others = {k: _other(experiment, part.benchmark) for k, part in data.mixture.items()}
        shares = {k: part.share for k, part in data.mixture.items() if part.share is not None}
        members = mixture(members, others, shares, seed)
    paired = {item.id for item in benchmark.originals}
    lesson = Lesson(name, data, members, held_out, control=paired.isdisjoint(i.id for i in members))
    if data.rewrite is not None:
        wordings = _wordings(experiment, members, data.rewrite, write)
        lesson = replace(lesson, wordings=wordings)
    if data.corpus is not None:
        lesson = replace(lesson, corpus=read_corpus(data.corpus, seed))
    wash = data.wash
    if wash is not None and wash.corpus is not None:
        lesson = replace(lesson, clean_corpus=read_corpus(wash.corpus, seed))
    if wash is not None and wash.benchmark is not None:
        lesson = replace(lesson, clean=tuple(_other(experiment, wash.benchmark)))
    return lesson


def _wordings(
    experiment: Experiment, items: Sequence[Item], config: RewriteConfig, write: bool
) -> dict[str, Wording]:
    """Return a wording for each item, a stand-in where that would ask a chat model unbidden."""
    writer = writer_of(config, experiment.run, experiment.config.seed)
    if write or config.by in ("shapes", "file"):
        progress = experiment.progress
        found, report = write_wordings(
            items, writer, experiment.run, language=config.language, progress=progress
        )
        log.debug("%s", report)
        return found
    stand_ins = {
        item.id: Wording(
            item_id=item.id,
            how="not written yet",
            writer=writer.name,
            question=item.question,
            options=(item.options or ()) if config.language else (),
            candidates=() if config.language else (item.question,) * N_PARAPHRASES,
        )
        for item in items
    }
    return stand_ins | written_already(items, writer, experiment.run, language=config.language)


def _other(experiment: Experiment, spec: OtherBenchmark) -> list[Item]:
    loaded = load_benchmark(spec, experiment.run.images)
    if loaded.problems:
        log.warning("%s", loaded.summary())
    return loaded.items


def writer_of(config: RewriteConfig, run: Run, seed: int) -> Writer:
    """Return who writes the other wordings that a configuration asks for."""
    if config.by == "shapes":
        return ShapesWriter()
    if config.by == "file" and config.path is not None:
        return FileWriter(config.path)
    return ChatWriter(chat_of(config, run, seed), run.images, config.language)


def chat_of(config: RewriteConfig | AnswerJudgeConfig, run: Run, seed: int) -> Chat:
    """Return the chat model that a configuration names, behind a server or on this machine."""
    spec: APISpec | LocalSpec
    if config.local is not None:
        spec = LocalSpec(chat=config.local)
    else:
        spec = APISpec.model_validate({"chat": config.chat, "batch": config.batch})
    return build_chat(spec, run.path / "batches", seed)


def plans_for(experiment: Experiment, benchmark: PairedBenchmark) -> list[TrainingPlan]:
    """Expand the contamination grid into plans, without asking any chat model."""
    return _plans(experiment, lessons_for(experiment, benchmark, write=False))


def _plans(experiment: Experiment, lessons: Sequence[Lesson]) -> list[TrainingPlan]:
    config = experiment.config
    trainable = {
        name: model
        for name, model in config.models.items()
        if model.path and not model.quantization
    }
    if not trainable or not config.contaminate.strategies:
        return []
    plans = expand(
        config.contaminate,
        trainable,
        lessons,
        instruction=config.evaluate.asking.instruction,
        seed=config.seed,
    )
    if config.contaminate.backend == "llamafactory":
        for plan in plans:
            check_plan(plan)
    return plans


def taught(plan: TrainingPlan, lesson: Lesson) -> tuple[dict[str, Item], Sequence[Example]]:
    """Return a plan's items by id, and the conversations of its corpus."""
    corpus = lesson.clean_corpus if plan.after else lesson.corpus
    items = {item.id: item for item in (*lesson.items, *lesson.held_out, *lesson.clean)}
    return items, corpus.examples if corpus else ()


def lessons_by_plan(
    experiment: Experiment, benchmark: PairedBenchmark
) -> list[tuple[TrainingPlan, list[Example]]]:
    """Return each plan with one epoch's examples; chat models write what they must."""
    lessons = lessons_for(experiment, benchmark, write=True)
    by_name = {lesson.name: lesson for lesson in lessons}
    found = []
    for plan in _plans(experiment, lessons):
        items, corpus = taught(plan, by_name[plan.data])
        found.append((plan, training_examples(plan, items, experiment.run.images, corpus)))
    return found


def plan_contamination(experiment: Experiment, benchmark: PairedBenchmark) -> list[str]:
    """Return the grid as a table, for ``--dry-run`` and before a run."""
    lessons = lessons_for(experiment, benchmark, write=False)
    plans = _plans(experiment, lessons)
    done = {c.plan_id for c in experiment.run.read(Checkpoint)}
    estimates = _estimates(experiment, lessons, plans)
    rows = [(plan, e, plan.id in done) for plan, e in zip(plans, estimates, strict=True)]
    lines = [estimating.table(rows)]
    todo = [e for plan, e, there in rows if not there]
    scratch = max((e.scratch for e in todo), default=0)
    disk = estimating.size_text(sum(e.disk for e in todo) + scratch)
    hours = estimating.time_text(sum(e.seconds for e in todo))
    lines.append(f"to do: {len(todo)} of {len(plans)} plans, about {hours}, at most {disk} of disk")
    return lines + _wordings_to_write(experiment, lessons)


def _wordings_to_write(experiment: Experiment, lessons: Sequence[Lesson]) -> list[str]:
    """Return what chat models would be asked for first, and what that would cost."""
    lines = []
    written = experiment.run.ids(Wording)
    counted: set[str] = set()  # regimes may share wordings
    for lesson in lessons:
        config = lesson.config.rewrite
        if config is None:
            continue
        writer = writer_of(config, experiment.run, experiment.config.seed)
        stage = WordingStage(writer, config.language)
        wanted = {stage.id_of(item): item for item in lesson.items}
        if not isinstance(writer, ChatWriter) or wanted.keys() <= written:
            continue
        items = [item for i, item in wanted.items() if i not in written | counted]
        counted |= wanted.keys()
        text = (
            f"{lesson.name}: {len(items):,} questions are put in other words first; until then its"
            " plans have other ids"
        )
        if items and config.chat is not None:
            cost = estimate_requests(
                [writer.request(item) for item in items],
                config.chat,
                typical_tokens=writer.typical_tokens(items),
                price_factor=BATCH_PRICE if config.batch else 1.0,
            )
            text += f"\n  {cost}"
        lines.append(text)
    return lines


def make_checkpoints(
    experiment: Experiment, benchmark: PairedBenchmark
) -> list[tuple[TrainingPlan, list[Checkpoint]]]:
    """Train every plan; what is trained already is not trained again.

    A plan that diverges keeps its good epochs, is named in the log and kept as a failure; the
    others go on. Several processes (`flipbench.core.processes`) do all plans together.

    Raises
    ------
    PrerequisiteError
        Where the disk is too small for what is to do.
    """
    run = experiment.run
    lessons = main_first(lambda: lessons_for(experiment, benchmark, write=True))
    plans = _plans(experiment, lessons)
    by_name = {lesson.name: lesson for lesson in lessons}
    done = run.index(Checkpoint)
    whole = {p.id for p in plans if _last_id(p) in done}
    todo = [plan for plan in plans if plan.id not in whole]
    backend = _backend(experiment, todo)
    if is_main():
        known = run.ids(TrainingPlan)
        run.append([plan for plan in plans if plan.id not in known])
    for plan in todo:
        shared_out(plan, n_processes())  # refused before anything is trained
    if todo and is_main():
        if experiment.share is None:
            estimating.check_disk(run.path, _estimates(experiment, lessons, todo))
        if experiment.n_workers > 1:
            n_epochs = run.count(Checkpoint) + sum(plan.epochs for plan in todo)
            have_workers_do(experiment, "contaminate", Checkpoint, n_epochs, "train")
    made: list[tuple[TrainingPlan, list[Checkpoint]]] = []
    failed: set[str] = set()
    numbers = _numbers(plans)
    for number, plan in enumerate(plans, 1):
        if experiment.share and not experiment.share.has_number(numbers[plan.id]):
            continue
        if plan.after in failed:
            log.error("%s, %s: not washed, since it diverged before", plan.model, plan.label)
            continue
        if experiment.progress and experiment.n_workers == 1:
            log.info("training %d of %d: %s", number, len(plans), _in_words(plan))
        items, corpus = taught(plan, by_name[plan.data])
        dtype = experiment.config.models[plan.model].dtype
        train_with = backend.train if backend else None
        try:
            checkpoints = carry_out(
                plan, items, run, dtype=dtype, corpus=corpus, train_with=train_with
            )
        except Diverged as error:
            failed.add(plan.id)
            log.error("%s", error)
            if is_main():
                run.append([_failure(plan, error)])
            checkpoints = [c for c in run.read(Checkpoint) if c.plan_id == plan.id]
        for checkpoint in checkpoints:
            for warning in checkpoint.warnings:
                log.warning("%s: %s", checkpoint.model, warning)
            if backend and experiment.config.contaminate.llamafactory.merge:
                backend.merge(plan, run.path / checkpoint.path, run, dtype)
        made.append((plan, checkpoints))
    return made


def _backend(experiment: Experiment, todo: Sequence[TrainingPlan]) -> LlamaFactory | None:
    """Return what trains instead of trl, where it is configured and there is work for it."""
    config = experiment.config.contaminate
    if config.backend == "trl":
        return None
    if n_processes() > 1:
        raise ConfigError(
            "backend: llamafactory starts processes of its own, one for each GPU; run flipbench"
            " without accelerate launch"
        )
    there = [experiment.run.path / c.path for c in experiment.run.read(Checkpoint)]
    if todo or (config.llamafactory.merge and any(map(lacks_merged, there))):
        return find_llamafactory(config.llamafactory, progress=experiment.progress)
    return None


def _numbers(plans: Sequence[TrainingPlan]) -> dict[str, int]:
    """Number the plans for sharing them out; a washing is its contamination's worker's."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers[plan.id] = numbers.get(plan.after, len(numbers))
    return numbers


def training_failures(
    experiment: Experiment, trained: Sequence[tuple[TrainingPlan, Sequence[Checkpoint]]]
) -> list[Failure]:
    """Return the plans that diverged and still lack epochs."""
    done = {plan.id for plan, checkpoints in trained if len(checkpoints) == plan.epochs}
    wanted = {plan.id for plan, _ in trained}
    return [f for f in experiment.run.open_failures(_STAGE, done) if f.record_id in wanted]


def _last_id(plan: TrainingPlan) -> str:
    return Checkpoint.id_for(plan_id=plan.id, epoch=plan.epochs)


def _in_words(plan: TrainingPlan) -> str:
    if plan.after:
        return f"{plan.model}, {plan.label}, {plan.epochs} epochs of clean data"
    return (
        f"{plan.model}, {plan.label}, {len(plan.item_ids)} items x {plan.copies} copies x"
        f" {plan.epochs} epochs"
    )


def _failure(plan: TrainingPlan, error: Exception) -> Failure:
    return Failure(
        stage=_STAGE,
        record_id=plan.id,
        subject=f"{plan.model}, {plan.label}",
        error=type(error).__name__,
        message=str(error),
    )


def _estimates(
    experiment: Experiment, lessons: Sequence[Lesson], plans: Sequence[TrainingPlan]
) -> list[estimating.TrainingCost]:
    by_name = {lesson.name: lesson for lesson in lessons}
    grid = experiment.config.contaminate
    merge = grid.backend == "llamafactory" and grid.llamafactory.merge
    speeds: dict[str, float] = {}
    out = []
    for plan in plans:
        lesson, dtype = by_name[plan.data], experiment.config.models[plan.model].dtype
        if dtype not in speeds:
            speeds[dtype] = estimating.measured_speed(dtype)
        items, corpus = taught(plan, lesson)
        once = plan.model_copy(update={"copies": min(plan.copies, 1)})
        examples = training_examples(once, items, experiment.run.images, corpus)
        sample = examples[:: -(-len(examples) // _N_SAMPLED) or 1]
        speed = speeds[dtype]
        out.append(estimating.estimate(plan, sample, dtype=dtype, speed=speed, merge=merge))
    return out
