"""How well the raters of a run decided: agreement on demand, and the tables of its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Item, Verdict
from flipbench.filters.agreement.ratings import (
    Ratings,
    agreement_tables,
    compare_raters,
    ratings_of,
)
from flipbench.filters.agreement.who_decided import who_decided
from flipbench.filters.decide import book_of
from flipbench.filters.pipeline import FOLDER, filtered_in
from flipbench.filters.representativeness import (
    Outcomes,
    compare_kept,
    representativeness_tables,
)
from flipbench.models.engine import answers_of
from flipbench.models.protocols import Decision
from flipbench.pipelines.experiment import Experiment
from flipbench.reporting.tables import Table
from flipbench.reporting.writers import write_tables


def compare_raters_of(experiment: Experiment, reference: str) -> tuple[str, Path]:
    """Hold every rater of a run against one of them; return the tables and their page.

    ``reference`` is a rater's name, ``people``, or ``policy`` for what the policy decides.

    Raises
    ------
    DataError
        Where the run was never filtered, or the reference has rated nothing.
    """
    run = experiment.run
    benchmark = PairedBenchmark.load(experiment.benchmark_folder)
    candidates = filtered_in(run)
    if not candidates:
        raise DataError(f"{run.path / FOLDER}: nothing was filtered yet; run 'flipbench filter'")
    kept = {pair.original.id for pair in benchmark.pairs}
    decided: dict[str, Decision] = {
        c.edit.id: "keep" if c.item.id in kept else "reject" for c in candidates if c.edit
    }
    ratings = _ratings(experiment, candidates).add("policy", decided)
    tables = agreement_tables(compare_raters(ratings, reference, seed=experiment.config.seed))
    page = write_tables(tables, run.path / FOLDER, "agreement.md", f"Agreement with {reference}")
    return page.read_text(), page


def report_tables(
    experiment: Experiment, benchmark: PairedBenchmark, models: Mapping[str, str]
) -> tuple[list[Table], list[Table]]:
    """Return, for the report, who decided how well, and whether the kept set is like the whole.

    Both are empty where there is nothing to compare: no truth or people to hold a rater against,
    nothing that was not kept, or pairs that no filter of this run decided on.

    Parameters
    ----------
    models : mapping of str to str
        Names by fingerprint of models that have not seen the benchmark. Those that were asked
        about items which were not kept are compared on all and on the kept ones.
    """
    candidates = filtered_in(experiment.run)
    items, kept = [c.item for c in candidates], {pair.original.id for pair in benchmark.pairs}
    if not kept <= {item.id for item in items}:
        return [], []
    raters = who_decided(_ratings(experiment, candidates), seed=experiment.config.seed)
    first = [raters] if raters else []
    if len(kept) == len(items):
        return first, []
    outcomes = _answers(experiment, items, kept, models)
    found = compare_kept(items, kept, outcomes, seed=experiment.config.seed)
    return first, representativeness_tables(found)


def _ratings(experiment: Experiment, candidates: list[Candidate]) -> Ratings:
    book = book_of(experiment.run.read(Verdict))
    return ratings_of(candidates, book, experiment.config.filter.policy)


def _answers(
    experiment: Experiment, items: list[Item], kept: set[str], models: Mapping[str, str]
) -> dict[str, Outcomes]:
    """Return right or wrong by model and item, of models that were asked about more than kept."""
    asked = [item for item in items if item.options is not None and item.answer is not None]
    probes = [experiment.config.evaluate.asking.probe(item, "original") for item in asked]
    gold = [int(item.answer) for item in asked if item.answer is not None]
    found: dict[str, Outcomes] = {}
    for fingerprint, name in models.items():
        right = answers_of(name, fingerprint, experiment.run).outcomes(probes, gold)
        outcomes = {item.id: r for item, r in zip(asked, right, strict=True)}
        if any(r is not None for item_id, r in outcomes.items() if item_id not in kept):
            found[name] = outcomes
    return found
