"""What a large experiment costs: items x seconds x GPUs, from constants whose sources are printed.

    python benchmarks/scaling_costs.py [--items 1000000] [--models 100] [--gpus 64] [--billions 7.6]

Measured constants are figures of docs/performance.md and docs/scaling.md, on CPU cores that did
other work too; counted ones follow from the models' shapes; estimated ones were measured by nobody
here, since no GPU was at hand. No total is better than its worst constant.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal, get_args

from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import markdown

HOUR = 3600
TERA = 1e12


Source = Literal["measured", "counted", "estimated"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Constant:
    """A number, its unit, and where it comes from."""

    value: float
    unit: str
    source: Source
    where: str


QUESTIONS = Constant(813 / 16, "questions a pair", "measured", "33 detectors, 813 distinct for 16")
RECORD = Constant(70.1e-6, "s to write a record", "measured", "run_stage")
RAY_RECORD = Constant(0.49e-3, "s to write a record", "measured", "Ray, two actors, one writer")
SCORE_FIRST = Constant(61.5e-6, "s to score an answer", "measured", "first time")
SCORE_AGAIN = Constant(8.7e-6, "s to score an answer", "measured", "from the columnar copies")
ANSWER_BYTES = Constant(0.37 * 2**30 / 1e6, "bytes an answer", "measured", "JSON lines on disk")
CORE_EDIT = Constant(0.2257, "s of a core an edit", "measured", "512 x 512, without the editor")
SHARING = Constant(19.1 / 11.6, "times faster by sharing", "measured", "576 tokens, on a CPU core")
EDIT = Constant(3473, "TFLOP an edit", "counted", "1024 x 1024, the reference's settings")
PICTURE = Constant(576, "tokens a picture", "counted", "LLaVA-1.5")
PICTURE_BYTES = Constant(0.79e6, "bytes a picture", "estimated", "as in the store's benchmark")
TEXT = Constant(150, "tokens of text a question", "estimated", "a question and four options")
CAPTION = Constant(1000, "tokens a caption", "estimated", "picture, prompt and reply")
EPOCHS = Constant(3, "copies x epochs", "estimated", "the paper's three epochs")
WEIGHTS = Constant(7.6, "billion weights a model", "estimated", "--billions")
PEAK = Constant(989, "TFLOP/s of a GPU", "estimated", "--tflops; H100's data sheet, dense bfloat16")
SHARE = Constant(0.35, "of that speed", "estimated", "--share; as contaminate --dry-run assumes")


def constants() -> list[Constant]:
    """Return all constants of this file, in their order."""
    return [value for value in globals().values() if isinstance(value, Constant)]


@dataclass(frozen=True)
class Costs:
    """Work of an experiment, in hours of one GPU, one core or one process."""

    n_items: int
    n_models: int
    billions: float = WEIGHTS.value
    tflops: float = PEAK.value
    share: float = SHARE.value

    @property
    def n_answers(self) -> int:
        """Answers of all models."""
        return round(self.n_items * self.n_models * QUESTIONS.value)

    def gpu_hours(self, operations: float) -> float:
        """Return the hours that one GPU needs for floating-point operations."""
        return operations / (self.tflops * TERA * self.share) / HOUR

    @property
    def on_gpus(self) -> dict[str, float]:
        """Hours of one GPU by stage."""
        weights, question = self.billions * 1e9, PICTURE.value + TEXT.value
        asked, trained = question * self.n_answers / SHARING.value, question * self.n_items
        return {
            "captions": self.gpu_hours(2 * weights * CAPTION.value * self.n_items),
            "edits": self.gpu_hours(EDIT.value * TERA * self.n_items),
            "questions to all models": self.gpu_hours(2 * weights * asked),
            "training of one model": self.gpu_hours(6 * weights * trained * EPOCHS.value),
        }

    @property
    def in_one_process(self) -> dict[str, float]:
        """Hours that no further GPU shortens."""
        return {
            "answers written, executor: ray": self.n_answers * RAY_RECORD.value / HOUR,
            "scores, first time": self.n_answers * SCORE_FIRST.value / HOUR,
            "scores, again": self.n_answers * SCORE_AGAIN.value / HOUR,
        }

    @property
    def shared_out(self) -> dict[str, float]:
        """Hours of one core, divided by the number of workers."""
        return {
            "edits without their model": self.n_items * CORE_EDIT.value / HOUR,
            "answers written, --workers": self.n_answers * RECORD.value / HOUR,
        }

    @property
    def disk(self) -> float:
        """Bytes of answers, and of originals and edits."""
        return self.n_answers * ANSWER_BYTES.value + 2 * self.n_items * PICTURE_BYTES.value


def tables(costs: Costs, n_gpus: int) -> list[Table]:
    """Return what it costs, and the constants."""
    groups = [
        ("GPU", costs.on_gpus, n_gpus),
        ("core of a worker", costs.shared_out, n_gpus),
        ("process of the command", costs.in_one_process, 1),
    ]
    rows = tuple(
        Row(what, (Cell(who), Cell(f"{hours:,.1f}"), Cell(f"{hours / n:,.1f}")))
        for who, work, n in groups
        for what, hours in work.items()
    )
    columns = (
        Column("on", numeric=False),
        Column("hours of one"),
        Column(f"hours with {n_gpus} GPUs and workers"),
    )
    caption = (
        f"{costs.n_items:,} items, {costs.n_models:,} models: {costs.n_answers:,} answers,"
        f" {costs.disk / 1e12:,.1f} TB"
    )
    known = [
        Row(one.unit, (Cell(f"{one.value:.4g}"), Cell(one.source), Cell(one.where)))
        for one in sorted(constants(), key=lambda one: SOURCES.index(one.source))
    ]
    about = (Column("value"), Column("source", numeric=False), Column("of", numeric=False))
    return [
        Table("costs", caption, "work", columns, (("", rows),)),
        Table("constants", "Constants", "constant", about, (("", tuple(known)),)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=64, help="as many workers")
    parser.add_argument("--billions", type=float, default=WEIGHTS.value, help="weights")
    parser.add_argument("--tflops", type=float, default=PEAK.value, help="of a GPU")
    parser.add_argument("--share", type=float, default=SHARE.value, help="of that speed")
    args = parser.parse_args()
    costs = Costs(args.items, args.models, args.billions, args.tflops, args.share)
    print(*map(markdown, tables(costs, args.gpus)), sep="\n")


if __name__ == "__main__":
    main()
