"""The whole loop: every stage in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.contamination import contaminate, plan_contamination
from flipbench.pipelines.evaluation import Evaluated, count_work, evaluate
from flipbench.pipelines.filtering import make_pairs, plan_filtering


def run_all(assembly: Assembly, notes: Sequence[str] = ()) -> Evaluated:
    """Run every stage in order; return the evaluation with the reports of all stages."""
    benchmark, reports = make_pairs(assembly)
    trained = contaminate(assembly, benchmark)
    evaluated = evaluate(assembly, benchmark, trained, notes)
    return replace(evaluated, reports=[*reports, *evaluated.reports])


def plan_all(assembly: Assembly) -> list[str]:
    """Return the remaining work of every stage and its cost, for ``--dry-run``.

    Training and questions depend on which pairs are kept, so they are counted after filtering.
    """
    lines = plan_filtering(assembly)
    if not assembly.benchmark_folder.exists():
        return [*lines, "training and questions: counted once 'flipbench filter' has kept pairs"]
    benchmark = assembly.pairs
    return [*lines, *plan_contamination(assembly, benchmark), *count_work(assembly, benchmark)]
