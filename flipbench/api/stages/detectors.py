"""The configured detectors, with the models that reword questions and judge replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flipbench.api.stages.backends import backend_context, build_chat, build_writer
from flipbench.config.experiment import EvaluateConfig
from flipbench.config.kinds import Context
from flipbench.config.training import RewriteConfig
from flipbench.contaminate.data.wordings import WordingStage
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Score, Wording
from flipbench.core.run import Run
from flipbench.core.stage import Stage, StageOptions, StageReport, run_stage
from flipbench.evaluate.detectors.parameters import parameters_of, with_parameters
from flipbench.evaluate.detectors.registry import (
    DETECTORS,
    import_path,
    is_plug_in,
    make_detector,
    names_of,
)
from flipbench.evaluate.diagnosis.questions import Inquiry
from flipbench.evaluate.protocol.detector import (
    AnyDetector,
    Helpers,
    JudgedDetector,
    sampled_benchmark,
)
from flipbench.models.chat.answer_judge import AnswerJudge, Judgement, recorded_judge
from flipbench.models.chat.cost import Spent
from flipbench.models.chat.labels import UNREAD, Label, LabelJudge, LabelTask, recorded_labels
from flipbench.models.chat.rewording import BackTranslation, RecordedWordings, as_question
from flipbench.models.engine import Answers
from flipbench.shapes.benchmark import is_shapes_item, reword

_BATCH_SIZE = 16
T = TypeVar("T")


@dataclass(frozen=True)
class ConfiguredDetectors:
    """The detectors of a configuration. Nothing is reworded or judged twice.

    Attributes
    ----------
    names : tuple of str
        Names of the detectors, plug-ins included.
    parameters : dict of str to dict
        Configured parameters by detector.
    rewording : Stage, optional
        Rewords the questions. Without it, items of the embedded world are reworded by templates,
        other benchmarks not at all.
    judge : AnswerJudge, optional
        Judges free-form replies.
    labels : LabelJudge, optional
        The same model, labelling texts by the detectors' rubrics.
    """

    config: EvaluateConfig
    run: Run
    names: tuple[str, ...]
    parameters: dict[str, JsonDict]
    rewording: Stage[Item] | None = None
    judge: AnswerJudge | None = None
    labels: LabelJudge | None = None

    @classmethod
    def build(
        cls, config: EvaluateConfig, detectors: Iterable[str], run: Run, seed: int
    ) -> ConfiguredDetectors:
        """Return ``detectors``, given by name or import path; no model is loaded or called yet."""
        names = names_of(detectors, "evaluate.detectors")
        parameters = _checked_parameters(config)
        helpers = {helper for name in names for helper in DETECTORS[name].about.helpers}
        helpers |= {"rewording"} if config.diagnose else set()
        rewording, judge, labels = None, None, None
        spec, context = config.rewording, backend_context(run, seed)
        if spec is not None and spec.by != "shapes" and "rewording" in helpers:
            rewording = _rewording_stage(spec, context, run.images)
        if config.judge is not None and "answer_judge" in helpers:
            chat = build_chat(config.judge, context)
            judges = {judgement.judge for judgement in run.read(Judgement)}
            rubrics = {label.rubric for label in run.read(Label) if label.judge == chat.name}
            judge = AnswerJudge(chat, run.images, earlier=judges)
            labels = LabelJudge(chat, run.images, earlier=rubrics)
        return cls(config, run, tuple(names), parameters, rewording, judge, labels)

    def reword(self, benchmark: PairedBenchmark, progress: bool = True) -> list[StageReport]:
        """Reword all questions; detectors leave out items without another wording."""
        if self.rewording is None or self.config.rewording is None:
            return []
        items = [as_question(item) for item in benchmark.originals]
        return self._run_stage(self.rewording, items, self.config.rewording.batch, progress)

    def judge_replies(
        self,
        detectors: Iterable[AnyDetector],
        benchmark: PairedBenchmark,
        answers: Iterable[Answers],
        progress: bool = True,
    ) -> list[StageReport]:
        """Judge the replies of all models; detectors leave out replies without a judgement."""
        if self.judge is None or self.labels is None or self.config.judge is None:
            return []
        batch = self.config.judge.batch
        judging = [d for d in detectors if isinstance(d, JudgedDetector)]
        benchmarks = [(d, sampled_benchmark(d, benchmark)) for d in judging]
        tasks = [
            task
            for model in answers
            for d, items in benchmarks
            for task in d.to_judge(items, model)
        ]
        labels = [task for task in tasks if isinstance(task, LabelTask)]
        replies = [task for task in tasks if not isinstance(task, LabelTask)]
        reports = self._run_stage(self.judge, replies, batch, progress) if replies else []
        return reports + (self._run_stage(self.labels, labels, batch, progress) if labels else [])

    def _run_stage(
        self, stage: Stage[T], tasks: Sequence[T], batch: bool, progress: bool
    ) -> list[StageReport]:
        size = max(1, len(tasks)) if batch else _BATCH_SIZE
        options = StageOptions(batch_size=size, progress=progress)
        return [run_stage(stage, tasks, self.run, options)]

    def detectors(self, benchmark: PairedBenchmark) -> list[AnyDetector]:
        """Return the detectors, with the wordings stored in the run.

        Judgements are read when the first reply is scored, so they may still be made after this.
        """
        helpers = self._helpers(benchmark)
        return [
            with_parameters(make_detector(name, helpers), self.parameters.get(name, {}))
            for name in self.names
        ]

    def mark_plug_ins(self, scores: Sequence[Score]) -> list[Score]:
        """Return the scores, those of plug-ins with import path and parameters in score and id.

        Scores by two versions of one plug-in can then be stored in one file.
        """
        return [self._marked(score) if is_plug_in(score.detector) else score for score in scores]

    def _marked(self, score: Score) -> Score:
        target = import_path(DETECTORS[score.detector])
        return score.revised(target=target, arguments=self.parameters.get(score.detector, {}))

    def _helpers(self, benchmark: PairedBenchmark) -> Helpers:
        judge = recorded_judge(self.judge, self.run.read(Judgement)) if self.judge else None
        label = recorded_labels(self.labels, self.run.read(Label)) if self.labels else None
        if self.rewording is None:
            has_templates = all(map(is_shapes_item, benchmark.originals))
            return Helpers(reword if has_templates else None, judge=judge, label=label)
        ids = {self.rewording.id_of(as_question(item)) for item in benchmark.originals}
        wordings = [wording for wording in self.run.read(Wording) if wording.id in ids]
        n_wordings = 1 if isinstance(self.rewording, BackTranslation) else 2
        recorded = RecordedWordings(wordings)
        return Helpers(recorded, n_wordings, judge, label, recorded.level_of)

    def inquiry(self, benchmark: PairedBenchmark) -> Inquiry:
        """Return how fallen items are asked about, with the wordings stored in the run."""
        return Inquiry(self._helpers(benchmark).reword)

    def notes(self) -> list[str]:
        """Return notes for a report: non-default parameters, the judge and its cost."""
        non_defaults = [
            f"{name}.{key} = {value} ({'all' if default is None else default})"
            for name, values in self.parameters.items()
            for key, value in values.items()
            for default in [parameters_of(DETECTORS[name])[key]]
        ]
        notes = []
        if non_defaults:
            notes.append(
                f"Parameters of detectors (default in brackets): {', '.join(non_defaults)}."
            )
        if self.judge is not None and self.labels is not None:
            notes += [self._judge_note(self.judge.judge), self._label_note(self.labels.judge)]
        return [note for note in notes if note]

    def _label_note(self, judge: str) -> str:
        labels = [label for label in self.run.read(Label) if label.judge == judge]
        if not labels:
            return ""
        rubrics = Counter(label.rubric for label in labels)
        counts = ", ".join(f"{n:,} by {rubric}" for rubric, n in sorted(rubrics.items()))
        n_unread = sum(label.label == UNREAD for label in labels)
        cost = _spent(labels)
        return f"Texts were labelled by {judge}: {counts}; {n_unread:,} unreadable ({cost})."

    def _judge_note(self, judge: str) -> str:
        judgements = [j for j in self.run.read(Judgement) if j.judge == judge]
        if not judgements:
            return ""
        n_unread = sum(j.choice == "unread" for j in judgements)
        cost = _spent(judgements)
        return (
            f"Free-form replies were judged by {judge}, each against both answers in both orders:"
            f" {len(judgements):,} judgements, {n_unread:,} of them unreadable ({cost})."
        )


def without_plug_ins(config: EvaluateConfig) -> EvaluateConfig:
    """Return a configuration without detectors given by import path, for a dry run.

    If there are any, parameters under an unknown name may be theirs, and are left out, too.
    """
    names = [name for name in config.detectors if ":" not in name]
    parameters = {key: values for key, values in config.parameters.items() if ":" not in key}
    if len(names) < len(config.detectors):
        parameters = {key: values for key, values in parameters.items() if key in DETECTORS}
    return config.model_copy(update={"detectors": tuple(names), "parameters": parameters})


def _spent(records: Iterable[Judgement | Label]) -> Spent:
    total = Spent()
    for record in records:
        total.add(record.usage)
    return total


def _checked_parameters(config: EvaluateConfig) -> dict[str, JsonDict]:
    """Return ``evaluate.parameters`` by detector name; its keys are names or import paths."""
    key = "evaluate.parameters"
    names = names_of(config.parameters, key)
    parameters = dict(zip(names, config.parameters.values(), strict=True))
    if len(parameters) < len(names):
        raise ConfigError(f"{key}: a detector is given twice, by its name and its import path")
    for name, values in parameters.items():
        with_parameters(DETECTORS[name], values, f"{key}.{name}")
    return parameters


def _rewording_stage(spec: RewriteConfig, context: Context, images: ImageStore) -> Stage[Item]:
    if spec.how == "translate":
        if spec.prompt is not None:
            raise ConfigError(
                "evaluate.rewording.prompt: translating back has its own; leave it out"
            )
        return BackTranslation(build_chat(spec, context), images, spec.language)
    return WordingStage(build_writer(spec, context, images))
