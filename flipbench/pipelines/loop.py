"""The whole loop: every stage in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.contamination import contaminate, plan_contamination
from flipbench.pipelines.evaluation import Evaluated, count_work, evaluate
from flipbench.pipelines.filtering import make_pairs, plan_filtering


def run_all(assembly: Assembly, notes: Sequence[str] = ()) -> Evaluated:
    """Do every stage in order; return what came of it, with what each stage did."""
    benchmark, reports = make_pairs(assembly)
    trained = contaminate(assembly, benchmark)
    found = evaluate(assembly, benchmark, trained, notes)
    return replace(found, reports=[*reports, *found.reports])


def plan_all(assembly: Assembly) -> list[str]:
    """Return what is left to do in every stage and what it would take, for ``--dry-run``.

    Training and questions depend on which pairs are kept, so they are counted where pairs are.
    """
    lines = plan_filtering(assembly)
    if not assembly.benchmark_folder.exists():
        return [*lines, "training and questions: counted once 'flipbench filter' has kept pairs"]
    benchmark = assembly.pairs
    return [*lines, *plan_contamination(assembly, benchmark), *count_work(assembly, benchmark)]
