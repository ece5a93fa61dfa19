"""The detectors of an experiment, and who helps them: a writer of other wordings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flipbench.config import EvaluateConfig
from flipbench.contaminate.wordings import WordingStage
from flipbench.contamination import chat_of, writer_of
from flipbench.errors import ConfigError, nearest
from flipbench.evaluate.detector import AnyDetector
from flipbench.evaluate.detectors import DETECTORS, REWORDING, make_detectors
from flipbench.paired import PairedBenchmark
from flipbench.records import Item, Wording
from flipbench.rewording import BackTranslation, RecordedWordings, as_question
from flipbench.run import Run
from flipbench.shapes.rewording import reword
from flipbench.stage import Stage, StageReport, run_stage

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


def is_reworded_by_model(config: EvaluateConfig, names: Collection[str]) -> bool:
    """Return whether a detector compares wordings that somebody has to write first."""
    rewording = config.rewording
    return rewording is not None and rewording.by != "shapes" and bool(REWORDING & set(names))


@dataclass(frozen=True)
class Helpers:
    """Who helps the detectors of a configuration.

    Attributes
    ----------
    rewording : Stage or None
        Writes other wordings; None where nobody has to: the embedded world has its templates, and
        another benchmark is then not reworded.
    n_wordings : int
        How many it writes of each text, at least.
    """

    run: Run
    rewording: Stage[Item] | None = None
    n_wordings: int = 2
    by_batch: bool = False

    @classmethod
    def of(cls, config: EvaluateConfig, names: Collection[str], run: Run, seed: int) -> Helpers:
        """Return the helpers that detectors ``names`` ask for; no other model is reached for."""
        spec = config.rewording
        if spec is None or not is_reworded_by_model(config, names):
            return cls(run)
        if spec.how == "translate":
            stage = BackTranslation(chat_of(spec, run, seed), run.images, spec.language)
            return cls(run, stage, 1, spec.batch)
        return cls(run, WordingStage(writer_of(spec, run, seed)), 2, spec.batch)

    def reword(self, benchmark: PairedBenchmark, progress: bool = True) -> list[StageReport]:
        """Have all texts put in other words; detectors leave out one that has none."""
        if self.rewording is None:
            return []
        items = [as_question(item) for item in benchmark.originals]
        size = len(items) if self.by_batch and items else _AT_ONCE
        return [run_stage(self.rewording, items, self.run, batch_size=size, progress=progress)]

    def detectors(self, benchmark: PairedBenchmark) -> dict[str, AnyDetector]:
        """Return every detector by name, with the wordings that the run holds already."""
        if self.rewording is None:
            has_templates = all("family" in item.extra for item in benchmark.originals)
            return make_detectors(reword if has_templates else None)
        wanted = {self.rewording.id_of(as_question(item)) for item in benchmark.originals}
        wordings = [wording for wording in self.run.read(Wording) if wording.id in wanted]
        return make_detectors(RecordedWordings(wordings), self.n_wordings)
