"""What the stages of an experiment come to: a line of text, a data frame, tables in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flipbench.api import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.api.stages.evaluation import Evaluated
    from flipbench.api.stages.grid import TrainedPlan
    from flipbench.core.paired import Candidate, PairedBenchmark
    from flipbench.core.records import Failure, Score
    from flipbench.core.run import Run
    from flipbench.core.stage import StageReport
    from flipbench.models.chat.cost import Spent


@dataclass(frozen=True, repr=False)
class GenerationResult(display.Result):
    """Items on their way to become pairs.

    Attributes
    ----------
    candidates : sequence of Candidate
        Each item with its new answer, caption and edited image, as far as they were made.
    found : PairedBenchmark or None
        The configured benchmark where it consists of pairs that exist already: nothing is made.
    """

    candidates: Sequence[Candidate]
    reports: Sequence[StageReport]
    run: Path
    found: PairedBenchmark | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each item: name, question, answer, new answer, caption, edited."""
        import pandas as pd

        rows = [
            {
                "item": c.item.name,
                "question": c.item.question,
                "answer": c.item.answer_text,
                "new answer": c.flip.new_text if c.flip else None,
                "caption": c.caption.text if c.caption else None,
                "edited": c.edit is not None,
            }
            for c in self.candidates
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        if self.found is not None:
            return f"{len(self.found.pairs)} pairs that exist already; nothing to generate"
        n_edited = sum(c.edit is not None for c in self.candidates)
        return f"{n_edited:,} of {len(self.candidates):,} items edited, in {self.run}"


@dataclass(frozen=True, repr=False)
class FilterResult(display.Result):
    """The paired benchmark, and how many items were left after each step; a notebook shows these.

    Attributes
    ----------
    n_doubtful : int
        Edited pairs that the policy left undecided, for people to review.
    spent : mapping of str to Spent
        What each rater's verdicts have cost.
    """

    pairs: PairedBenchmark
    reports: Sequence[StageReport]
    run: Path
    n_doubtful: int = 0
    spent: Mapping[str, Spent] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return the funnel: one row for each step, with the number of items left after it."""
        import pandas as pd

        return pd.DataFrame(
            {"step": list(self.pairs.funnel), "n": list(self.pairs.funnel.values())}
        )

    def __str__(self) -> str:
        return f"{len(self.pairs.pairs):,} pairs of {self.pairs.name} kept, in {self.run}/benchmark"

    def _repr_html_(self) -> str:
        caption = "Items that were left after each step."
        return display.html(str(self), [display.frame_table("funnel", caption, self.to_frame())])


@dataclass(frozen=True, repr=False)
class ContaminationResult(display.Result):
    """Checkpoints of known contamination, with the plans they were trained by."""

    trained: Sequence[TrainedPlan]
    run: Run

    @cached_property
    def failures(self) -> Sequence[Failure]:
        """The plans whose training diverged and that still lack epochs."""
        from flipbench.api.stages.contamination import training_failures

        return training_failures(self.run, self.trained)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each checkpoint: model, strategy, data, epoch, dose, path."""
        import pandas as pd

        rows = [
            {
                "model": checkpoint.model,
                "strategy": checkpoint.strategy,
                "data": plan.data,
                "epoch": checkpoint.epoch,
                "dose": checkpoint.dose,
                "path": str(self.run.path / checkpoint.path),
            }
            for plan, checkpoints in self.trained
            for checkpoint in checkpoints
        ]
        return pd.DataFrame(rows, columns=["model", "strategy", "data", "epoch", "dose", "path"])

    def __str__(self) -> str:
        n_checkpoints = sum(len(checkpoints) for _, checkpoints in self.trained)
        return f"{n_checkpoints:,} checkpoints of {len(self.trained):,} plans, in {self.run.path}"

    def _repr_html_(self) -> str:
        caption = "Dose: copies x epochs of the benchmark's items; 0 for a control."
        table = display.frame_table("checkpoints", caption, self.to_frame())
        return display.html(str(self), [table])


@dataclass(frozen=True, repr=False)
class EvaluationResult(display.Result):
    """All scores of a grid of models, and the report; a notebook shows the table of gaps."""

    evaluated: Evaluated
    run: Path

    @property
    def scores(self) -> Sequence[Score]:
        """The scores of all models by all detectors and rules."""
        return self.evaluated.scores

    @property
    def reports(self) -> Sequence[StageReport]:
        """How many answers were given, were there before, and failed."""
        return self.evaluated.reports

    @property
    def page(self) -> Path | None:
        """The report; None in a worker process, which only asks its share."""
        return self.evaluated.page

    def to_frame(self, *, sign: bool = False) -> pd.DataFrame:
        """Return one row for each model, detector and rule; see `display.scores_frame`."""
        return display.scores_frame(
            self.scores,
            [verdict.decision for verdict in self.evaluated.verdicts.values()],
            sign=sign,
        )

    def __str__(self) -> str:
        detectors = {score.detector for score in self.scores}
        counts = {"model": self.evaluated.models, "detector": detectors, "score": self.scores}
        words = [f"{len(n):,} {what}{'' if len(n) == 1 else 's'}" for what, n in counts.items()]
        return f"{', '.join(words)}; report: {self.page}"

    def _repr_html_(self) -> str:
        from flipbench.evaluate.page.report_page import headline
        from flipbench.evaluate.report.score_frame import score_frame
        from flipbench.evaluate.report.score_tables import gap_table
        from flipbench.evaluate.report.titles import GAP

        grid = [one.model for one in self.evaluated.models]
        if not any(score.detector == GAP for score in self.scores):
            return display.html(str(self), [], self.page)
        frame = score_frame(self.scores, grid)
        return display.html(" ".join(headline(frame)), [gap_table(grid, frame)], self.page)
