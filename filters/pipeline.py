"""Candidates in, a paired benchmark out: ask the judges, keep what all of them keep."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.errors import DataError
from flipbench.filters.judge import JudgeStage
from flipbench.models.protocols import Judge
from flipbench.paired import Candidate, PairedBenchmark
from flipbench.records import Verdict
from flipbench.run import Run
from flipbench.stage import StageReport, run_stage


def keep_valid(
    name: str,
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    run: Run,
    *,
    batch_size: int = 16,
    progress: bool = True,
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Judge every edited candidate and keep those that every judge keeps.

    Whatever is not a clear "keep" (a rejection, "unsure", a judge that failed) is not kept.

    Raises
    ------
    DataError
        Where there is nothing to judge.
    """
    edited = [c for c in candidates if c.edit]
    if not edited:
        raise DataError("there are no edited images to judge; run 'flipbench generate' first")
    stages = [JudgeStage(judge, run.images) for judge in judges]
    reports = [
        run_stage(stage, edited, run, batch_size=batch_size, progress=progress) for stage in stages
    ]
    verdicts = run.index(Verdict)
    kept = []
    for candidate in edited:
        given = [verdicts.get(stage.id_of(candidate)) for stage in stages]
        if all(verdict is not None and verdict.decision == "keep" for verdict in given):
            kept.append(candidate.pair())
    funnel = {
        "items": len(candidates),
        "flipped": sum(c.flip is not None for c in candidates),
        "captioned": sum(c.caption is not None for c in candidates),
        "edited": len(edited),
        "kept": len(kept),
    }
    return PairedBenchmark(name, tuple(kept), run.images, funnel), reports
