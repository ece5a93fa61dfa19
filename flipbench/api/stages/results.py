"""What the stages of an experiment come to: a line of text, a data frame, tables in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flipbench.api.stages import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.benchmarks import Problem
    from flipbench.core.paired import Candidate, PairedBenchmark
    from flipbench.core.records import Checkpoint, Failure, Item, Score, TrainingPlan
    from flipbench.core.stage import StageReport
    from flipbench.evaluate.pipeline import ModelUnderTest
    from flipbench.evaluate.reasoning.judge import JudgedCase
    from flipbench.evaluate.verdict.verdict import ModelVerdict
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
    preview : Path or None
        The page about what would be made, if only that was asked for.
    """

    candidates: Sequence[Candidate]
    reports: Sequence[StageReport]
    run: Path
    found: PairedBenchmark | None = None
    preview: Path | None = None

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
        if self.preview is not None:
            return f"preview: {self.preview}"
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
        state = "kept" if self.pairs.judged_by or not self.pairs.pairs else "that nobody has judged"
        return (
            f"{len(self.pairs.pairs):,} pairs of {self.pairs.name} {state}, in {self.run}/benchmark"
        )

    def _repr_html_(self) -> str:
        caption = "Items that were left after each step."
        return display.html(str(self), [display.frame_table("funnel", caption, self.to_frame())])


@dataclass(frozen=True, repr=False)
class ContaminationResult(display.Result):
    """Checkpoints of known contamination, with the plans they were trained by.

    Attributes
    ----------
    trained : sequence of (TrainingPlan, list of Checkpoint)
    failures : sequence of Failure
        Of the plans whose training diverged and that still lack epochs.
    """

    trained: Sequence[tuple[TrainingPlan, list[Checkpoint]]]
    run: Path
    failures: Sequence[Failure] = ()

    @property
    def n_failed(self) -> int:
        """How many plans failed."""
        return len(self.failures)

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
                "path": str(self.run / checkpoint.path),
            }
            for plan, checkpoints in self.trained
            for checkpoint in checkpoints
        ]
        return pd.DataFrame(rows, columns=["model", "strategy", "data", "epoch", "dose", "path"])

    def __str__(self) -> str:
        n_checkpoints = sum(len(checkpoints) for _, checkpoints in self.trained)
        return f"{n_checkpoints:,} checkpoints of {len(self.trained):,} plans, in {self.run}"

    def _repr_html_(self) -> str:
        caption = "Dose: copies x epochs of the benchmark's items; 0 for a control."
        table = display.frame_table("checkpoints", caption, self.to_frame())
        return display.html(str(self), [table])


@dataclass(frozen=True, repr=False)
class EvaluationResult(display.Result):
    """All scores of a grid of models, and the report; a notebook shows the table of gaps.

    Attributes
    ----------
    scores : sequence of Score
        Of all models by all detectors and rules.
    page : Path or None
        The report; None in a worker process, which only asks its share.
    verdicts : mapping of str to ModelVerdict
        By the models' fingerprints.
    """

    models: Sequence[ModelUnderTest]
    reports: Sequence[StageReport]
    scores: Sequence[Score] = ()
    page: Path | None = None
    verdicts: Mapping[str, ModelVerdict] = field(default_factory=dict)

    def to_frame(self, *, sign: bool = False) -> pd.DataFrame:
        """Return one row for each model, detector and rule; see `display.scores_frame`."""
        decisions = [verdict.decision for verdict in self.verdicts.values()]
        return display.scores_frame(self.scores, decisions, sign=sign)

    def __str__(self) -> str:
        detectors = {score.detector for score in self.scores}
        counts = {"model": self.models, "detector": detectors, "score": self.scores}
        words = [f"{len(n):,} {noun}{'' if len(n) == 1 else 's'}" for noun, n in counts.items()]
        return f"{', '.join(words)}; report: {self.page}"

    def _repr_html_(self) -> str:
        from flipbench.evaluate.page.report_page import headline
        from flipbench.evaluate.report.score_frame import score_frame
        from flipbench.evaluate.report.score_tables import gap_table
        from flipbench.evaluate.report.titles import GAP

        grid = [entry.model for entry in self.models]
        if not any(score.detector == GAP for score in self.scores):
            return display.html(str(self), [], self.page)
        frame = score_frame(self.scores, grid)
        return display.html(" ".join(headline(frame)), [gap_table(grid, frame)], self.page)


@dataclass(frozen=True, repr=False)
class ImportResult(display.Result):
    """What was read of a benchmark, and every row that is odd or cannot be used.

    Attributes
    ----------
    items : sequence of Item
        The usable items; empty for a benchmark of existing pairs.
    path : Path
        The list of all problems.
    unpaired : sequence of str
        Items of existing pairs without a partner.
    """

    summary: str
    items: Sequence[Item]
    problems: Sequence[Problem]
    path: Path
    unpaired: Sequence[str] = ()

    @property
    def n_failed(self) -> int:
        """How many rows cannot be used."""
        return sum(problem.fatal for problem in self.problems) + len(self.unpaired)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each problem, then one for each item without a partner."""
        import pandas as pd

        columns = ["row", "name", "where", "result", "kind", "problem", "remedy"]
        rows = [
            (
                "" if problem.row is None else problem.row,
                problem.name,
                problem.where,
                "refused" if problem.fatal else "odd",
                problem.kind,
                problem.what,
                problem.remedy,
            )
            for problem in self.problems
        ]
        rows += [("", "", "", "refused", "unpaired", line, "") for line in self.unpaired]
        return pd.DataFrame(rows, columns=columns)

    def write(self) -> None:
        """Write the list of problems."""
        from flipbench.core.files import write_atomically
        from flipbench.reporting.writers import frame_csv

        write_atomically(self.path, frame_csv(self.to_frame()))

    def __str__(self) -> str:
        n = len(self.problems) + len(self.unpaired)
        return f"{self.summary}\nall {n}: {self.path}" if n else self.summary


@dataclass(frozen=True, repr=False)
class AuditResult(display.Result):
    """The audit of a benchmark: its first lines, and the page."""

    headline: str
    page: Path | None
    reports: Sequence[StageReport]
    run: Path

    def __str__(self) -> str:
        return f"{self.headline}\n{self.page}"


@dataclass(frozen=True, repr=False)
class ExportResult(display.Result):
    """The files that were written.

    Attributes
    ----------
    form : str
        Their format; "recipe" also where the licence allows nothing else.
    notes : sequence of str
        What is other than asked for.
    summary : str
        What was exported.
    n_failed : int
        Training plans that the other trainer does not support.
    """

    form: str
    files: Sequence[Path]
    summary: str
    notes: Sequence[str] = ()
    n_failed: int = 0

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {path}" for path in self.files)])


@dataclass(frozen=True, repr=False)
class PictureResult(display.Result):
    """A picture of pairs, and what it leaves out."""

    path: Path
    left_out: str = ""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, repr=False)
class ReasoningResult(display.Result):
    """What a judge says about rationales, or what models do with hints.

    Attributes
    ----------
    page : Path
        The Markdown page with the tables.
    rows : sequence of mappings
        One for each step, ``factual`` empty where the verdict is missing; or one for each model
        and variant, with accuracies and differences as fractions.
    judged : sequence of JudgedCase
        The cases with the verdicts on their steps.
    """

    sentence: str
    page: Path
    reports: Sequence[StageReport]
    rows: Sequence[Mapping[str, object]]
    judged: Sequence[JudgedCase] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the rows."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __str__(self) -> str:
        return self.sentence
