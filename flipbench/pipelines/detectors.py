"""The detectors of an experiment, and who helps them: a writer of other wordings, and a judge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from flipbench.config.experiment import EvaluateConfig
from flipbench.config.training import RewriteConfig
from flipbench.contaminate.data.wordings import WordingStage
from flipbench.core.errors import ConfigError, nearest
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Wording
from flipbench.core.run import Run
from flipbench.core.stage import Stage, StageOptions, StageReport, run_stage
from flipbench.evaluate.detectors.parameters import parameters_of, with_parameters
from flipbench.evaluate.detectors.perturbation.free_form import FreeFormGap
from flipbench.evaluate.detectors.registry import DETECTORS, JUDGED, REWORDING, make_detectors
from flipbench.evaluate.protocol.detector import AnyDetector
from flipbench.models.chat.answer_judge import AnswerJudge, Judgement, recorded_judge
from flipbench.models.chat.cost import Spent
from flipbench.models.chat.rewording import BackTranslation, RecordedWordings, as_question
from flipbench.models.engine import Answers
from flipbench.pipelines.training_data import chat_of, writer_of
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.rewording import reword

_AT_ONCE = 16


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse the name of a detector that there is not.

    Raises
    ------
    ConfigError
        The message says ``where`` the name stands.
    """
    for name in names:
        if name not in DETECTORS:
            raise ConfigError(f"{where}: no detector {name!r}{nearest(name, list(DETECTORS))}")


@dataclass(frozen=True)
class Helpers:
    """Who helps the detectors of a configuration. What they said once is not asked again.

    Attributes
    ----------
    rewording : Stage or None
        Writes other wordings; None where nobody has to: the embedded world has its templates, and
        another benchmark is then not reworded.
    judge : AnswerJudge or None
        Reads replies to free-form questions.
    """

    config: EvaluateConfig
    run: Run
    rewording: Stage[Item] | None = None
    judge: AnswerJudge | None = None

    @classmethod
    def of(cls, config: EvaluateConfig, names: Collection[str], run: Run, seed: int) -> Helpers:
        """Return the helpers that detectors ``names`` ask for; no model is reached for yet.

        Raises
        ------
        ConfigError
            Where ``evaluate.parameters`` names what a detector has not, or with a wrong value.
        """
        _with_parameters(dict(DETECTORS), config)
        rewording, judge = None, None
        spec = config.rewording
        if spec is not None and spec.by != "shapes" and REWORDING & set(names):
            rewording = _rewording_stage(spec, run, seed)
        if config.judge is not None and JUDGED & set(names):
            judge = AnswerJudge(chat_of(config.judge, run, seed), run.images)
        return cls(config, run, rewording, judge)

    def reword(self, benchmark: PairedBenchmark, progress: bool = True) -> list[StageReport]:
        """Have all texts put in other words; detectors leave out one that has none."""
        if self.rewording is None or self.config.rewording is None:
            return []
        items = [as_question(item) for item in benchmark.originals]
        size = max(1, len(items)) if self.config.rewording.batch else _AT_ONCE
        options = StageOptions(batch_size=size, progress=progress)
        return [run_stage(self.rewording, items, self.run, options)]

    def judge_replies(
        self, benchmark: PairedBenchmark, answers: Iterable[Answers], progress: bool = True
    ) -> list[StageReport]:
        """Have the replies of all models judged; detectors leave out one that is not."""
        if self.judge is None or self.config.judge is None:
            return []
        gap = FreeFormGap()
        tasks = [task for model in answers for task in gap.to_judge(benchmark, model)]
        size = max(1, len(tasks)) if self.config.judge.batch else _AT_ONCE
        options = StageOptions(batch_size=size, progress=progress)
        return [run_stage(self.judge, tasks, self.run, options)]

    def detectors(self, benchmark: PairedBenchmark) -> dict[str, AnyDetector]:
        """Return every detector by name, as configured, with what the run holds of its helpers."""
        return _with_parameters(self._helped(benchmark), self.config)

    def _helped(self, benchmark: PairedBenchmark) -> dict[str, AnyDetector]:
        judge = recorded_judge(self.judge, self.run.read(Judgement)) if self.judge else None
        if self.rewording is None:
            has_templates = all(map(is_shapes_item, benchmark.originals))
            return make_detectors(reword if has_templates else None, judge=judge)
        wanted = {self.rewording.id_of(as_question(item)) for item in benchmark.originals}
        wordings = [wording for wording in self.run.read(Wording) if wording.id in wanted]
        n_wordings = 1 if isinstance(self.rewording, BackTranslation) else 2
        return make_detectors(RecordedWordings(wordings), n_wordings, judge)

    def notes(self) -> list[str]:
        """Return what a report should say: other parameters, who judged replies at what cost."""
        return [*self._parameters(), *self._judgements()]

    def _parameters(self) -> list[str]:
        """Return what is configured otherwise than by default."""
        words = [
            f"{name}.{key} = {value} ({parameters_of(DETECTORS[name])[key]})"
            for name, given in self.config.parameters.items()
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


def _with_parameters(
    detectors: dict[str, AnyDetector], config: EvaluateConfig
) -> dict[str, AnyDetector]:
    check_names(list(config.parameters), "evaluate.parameters")
    for name, given in config.parameters.items():
        where = f"evaluate.parameters.{name}"
        detectors[name] = with_parameters(detectors[name], given, where)
    return detectors


def _rewording_stage(spec: RewriteConfig, run: Run, seed: int) -> Stage[Item]:
    if spec.how == "translate":
        return BackTranslation(chat_of(spec, run, seed), run.images, spec.language)
    return WordingStage(writer_of(spec, run, seed))
