"""The detectors of an experiment as configured, and the models that help them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flipbench.config.experiment import EvaluateConfig
from flipbench.config.training import RewriteConfig
from flipbench.contaminate.data.wordings import WordingStage
from flipbench.core.errors import ConfigError
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
from flipbench.evaluate.protocol.detector import AnyDetector, Helpers, JudgedDetector
from flipbench.models.chat.answer_judge import AnswerJudge, Judgement, recorded_judge
from flipbench.models.chat.cost import Spent
from flipbench.models.chat.rewording import BackTranslation, RecordedWordings, as_question
from flipbench.models.engine import Answers
from flipbench.pipelines.training_data import chat_of, writer_of
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.rewording import reword

_AT_ONCE = 16


@dataclass(frozen=True)
class ConfiguredDetectors:
    """The detectors of a configuration. Nothing is reworded or judged twice.

    Attributes
    ----------
    names : tuple of str
        Names of the detectors, plug-ins included.
    parameters : dict of str to dict
        What is configured of each of them.
    rewording : Stage or None
        Writes other wordings; None where nobody has to: the embedded world has its templates, and
        another benchmark is then not reworded.
    judge : AnswerJudge or None
        Reads replies to free-form questions.
    """

    config: EvaluateConfig
    run: Run
    names: tuple[str, ...]
    parameters: dict[str, JsonDict]
    rewording: Stage[Item] | None = None
    judge: AnswerJudge | None = None

    @classmethod
    def of(
        cls, config: EvaluateConfig, detectors: Iterable[str], run: Run, seed: int
    ) -> ConfiguredDetectors:
        """Return ``detectors``, given by name or import path; no model is loaded or called yet.

        Raises
        ------
        ConfigError
            Where there is no such detector, or ``evaluate.parameters`` sets what a detector does
            not have, or sets it to a wrong value.
        """
        names = names_of(detectors, "evaluate.detectors")
        parameters = _checked_parameters(config)
        helpers = {helper for name in names for helper in DETECTORS[name].about.helpers}
        rewording, judge = None, None
        spec = config.rewording
        if spec is not None and spec.by != "shapes" and "rewording" in helpers:
            rewording = _rewording_stage(spec, run, seed)
        if config.judge is not None and "answer_judge" in helpers:
            judge = AnswerJudge(chat_of(config.judge, run, seed), run.images)
        return cls(config, run, tuple(names), parameters, rewording, judge)

    def reword(self, benchmark: PairedBenchmark, progress: bool = True) -> list[StageReport]:
        """Have all texts reworded; detectors leave out a text that has no other wording."""
        if self.rewording is None or self.config.rewording is None:
            return []
        items = [as_question(item) for item in benchmark.originals]
        size = max(1, len(items)) if self.config.rewording.batch else _AT_ONCE
        options = StageOptions(batch_size=size, progress=progress)
        return [run_stage(self.rewording, items, self.run, options)]

    def judge_replies(
        self,
        detectors: Iterable[AnyDetector],
        benchmark: PairedBenchmark,
        answers: Iterable[Answers],
        progress: bool = True,
    ) -> list[StageReport]:
        """Have the replies of all models judged; detectors leave out a reply that is not."""
        if self.judge is None or self.config.judge is None:
            return []
        judged = [d for d in detectors if isinstance(d, JudgedDetector)]
        tasks = [task for model in answers for d in judged for task in d.to_judge(benchmark, model)]
        size = max(1, len(tasks)) if self.config.judge.batch else _AT_ONCE
        options = StageOptions(batch_size=size, progress=progress)
        return [run_stage(self.judge, tasks, self.run, options)]

    def detectors(self, benchmark: PairedBenchmark) -> list[AnyDetector]:
        """Return the detectors, with the wordings that the run holds.

        Judgements are read when the first reply is scored, so one that was made meanwhile counts.
        """
        helpers = self._helpers(benchmark)
        return [
            with_parameters(make_detector(name, helpers), self.parameters.get(name, {}))
            for name in self.names
        ]

    def identified(self, scores: Sequence[Score]) -> list[Score]:
        """Return the scores; a plug-in's carry its import path and parameters, and so do their ids.

        Two versions of a user's own detector can thereby stand in one file.
        """
        found = []
        for score in scores:
            if is_plug_in(score.detector):
                made_by = {
                    "target": import_path(DETECTORS[score.detector]),
                    "arguments": self.parameters.get(score.detector, {}),
                }
                score = Score.model_validate(score.model_dump() | made_by | {"id": ""})
            found.append(score)
        return found

    def _helpers(self, benchmark: PairedBenchmark) -> Helpers:
        judge = recorded_judge(self.judge, self.run.read(Judgement)) if self.judge else None
        if self.rewording is None:
            has_templates = all(map(is_shapes_item, benchmark.originals))
            return Helpers(reword if has_templates else None, judge=judge)
        ids = {self.rewording.id_of(as_question(item)) for item in benchmark.originals}
        wordings = [wording for wording in self.run.read(Wording) if wording.id in ids]
        n_wordings = 1 if isinstance(self.rewording, BackTranslation) else 2
        return Helpers(RecordedWordings(wordings), n_wordings, judge)

    def notes(self) -> list[str]:
        """Return what a report should say: other parameters, who judged replies at what cost."""
        return [*self._parameters(), *self._judgements()]

    def _parameters(self) -> list[str]:
        """Return what is configured otherwise than by default."""
        words = [
            f"{name}.{key} = {value} ({parameters_of(DETECTORS[name])[key]})"
            for name, given in self.parameters.items()
            for key, value in given.items()
        ]
        if not words:
            return []
        return [f"Parameters of detectors (in brackets the default): {', '.join(words)}."]

    def _judgements(self) -> list[str]:
        if self.judge is None:
            return []
        mine = [j for j in self.run.read(Judgement) if j.judge == self.judge.judge]
        n_unread = sum(j.choice == "unread" for j in mine)
        spent = Spent()
        for judgement in mine:
            spent.add(judgement.usage)
        return [
            f"Free-form replies were judged by {self.judge.judge}, each beside both answers in both"
            f" orders: {len(mine):,} judgements, {n_unread:,} of which cannot be read ({spent})."
        ]


def _checked_parameters(config: EvaluateConfig) -> dict[str, JsonDict]:
    """Return ``evaluate.parameters`` by detector name; its keys are names or import paths."""
    where = "evaluate.parameters"
    names = names_of(config.parameters, where)
    found = dict(zip(names, config.parameters.values(), strict=True))
    if len(found) < len(names):
        raise ConfigError(f"{where}: a detector is given twice, by its name and its import path")
    for name, given in found.items():
        with_parameters(DETECTORS[name], given, f"{where}.{name}")
    return found


def _rewording_stage(spec: RewriteConfig, run: Run, seed: int) -> Stage[Item]:
    if spec.how == "translate":
        return BackTranslation(chat_of(spec, run, seed), run.images, spec.language)
    return WordingStage(writer_of(spec, run, seed))
