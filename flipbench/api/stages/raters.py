"""How well the raters of a run decided: the agreement command, and tables for the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Item, Probe, Verdict
from flipbench.core.run import Run
from flipbench.filters.agreement.ratings import (
    PEOPLE,
    Ratings,
    agreement_tables,
    compare_raters,
    rater_table,
    ratings_of,
)
from flipbench.filters.decide import Raters, decide, index_verdicts
from flipbench.filters.judges.rules import build_rules
from flipbench.filters.pipeline import FOLDER, filtered_in
from flipbench.filters.representativeness import (
    Outcomes,
    compare_kept,
    representativeness_tables,
)
from flipbench.models.engine import answers_of
from flipbench.models.protocols import Decision
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Table
from flipbench.reporting.writers import write_tables


def compare_raters_of(assembly: Assembly, reference: str) -> tuple[str, Path]:
    """Compare every rater of a run with ``reference``; return the tables and their page.

    ``reference`` is a rater's name, ``people``, or ``policy`` for the policy's decisions.
    """
    run, benchmark = assembly.run, assembly.pairs
    candidates = filtered_in(run)
    if not candidates:
        raise DataError(f"{run.path / FOLDER}: nothing was filtered yet; run 'flipbench filter'")
    kept_ids = {pair.original.id for pair in benchmark.pairs}
    decisions: dict[str, Decision] = {
        c.edit.id: "keep" if c.item.id in kept_ids else "reject" for c in candidates if c.edit
    }
    ratings = _ratings(assembly, candidates)
    ratings = ratings.add("policy", decisions, _policy_without(assembly, candidates, ratings))
    tables = agreement_tables(compare_raters(ratings, reference, seed=assembly.config.seed))
    page = write_tables(tables, run.path / FOLDER, "agreement.md", f"Agreement with {reference}")
    return page.read_text(), page


def _policy_without(
    assembly: Assembly, candidates: list[Candidate], ratings: Ratings
) -> dict[str, dict[str, Decision]]:
    """Return the policy's decisions without each rater, where others remain to decide."""
    policy = assembly.config.filter.policy
    verdicts = [v for v in assembly.run.read(Verdict) if v.rater in ratings.decisions]
    judges = [rater for rater, kind in ratings.kinds.items() if kind in ("judge", "oracle")]
    rules = {rule.name: rule.slug for rule in build_rules(policy.rules, candidates)}
    decisions_without = {}
    for left_out in ratings.decisions:
        absent = (
            {left_out}
            if left_out != PEOPLE
            else {rater for rater, kind in ratings.kinds.items() if kind == "person"}
        )
        index = index_verdicts(v for v in verdicts if v.rater not in absent)
        raters = Raters(
            tuple(judge for judge in judges if judge not in absent),
            {name: slug for name, slug in rules.items() if name not in absent},
        )
        rulings = [decide(c, index, policy, raters) for c in candidates if c.edit]
        decisions_without[left_out] = {
            ruling.candidate.edit.id: ruling.decision
            for ruling in rulings
            if ruling.candidate.edit and ruling.decision and ruling.decided_by
        }
    return decisions_without


def report_tables(
    assembly: Assembly, benchmark: PairedBenchmark, models: Mapping[str, str]
) -> tuple[list[Table], list[Table]]:
    """Return the report's tables on the raters, and on how representative the kept items are.

    Both are empty if there is nothing to compare: no truth or people as a reference, no rejected
    items, or pairs that were not filtered in this run.

    Parameters
    ----------
    models : mapping of str to str
        Names by fingerprint of models that have not seen the benchmark. Their accuracy on all items
        is compared with that on the kept ones, or reported as missing if they were not asked about
        any others.
    """
    run, seed = assembly.run, assembly.config.seed
    candidates = filtered_in(run)
    items, kept_ids = [c.item for c in candidates], {pair.original.id for pair in benchmark.pairs}
    if not kept_ids <= {item.id for item in items}:
        return [], []
    raters = rater_table(_ratings(assembly, candidates), seed=seed)
    rater_tables = [raters] if raters else []
    if len(kept_ids) == len(items):
        return rater_tables, []
    outcomes = _outcomes(run, items, models, assembly.config.evaluate.prompt)
    comparison = compare_kept(items, kept_ids, outcomes, seed=seed)
    return rater_tables, representativeness_tables(comparison)


def dropped_probes(assembly: Assembly, benchmark: PairedBenchmark) -> list[Probe]:
    """Return the questions about original items without a kept pair, if they are to be asked.

    Free-form items are left out, and so are pairs that were not filtered in this run.
    """
    settings = assembly.config.evaluate
    if settings.originals == "kept" or assembly.has_pairs:
        return []
    items = [candidate.item for candidate in filtered_in(assembly.run)]
    kept_ids = {pair.original.id for pair in benchmark.pairs}
    if not kept_ids <= {item.id for item in items}:
        return []
    dropped_items = (item for item in items if item.id not in kept_ids and item.options is not None)
    return [settings.prompt.probe(item, "original") for item in dropped_items]


def _ratings(assembly: Assembly, candidates: list[Candidate]) -> Ratings:
    verdicts = index_verdicts(assembly.run.read(Verdict))
    return ratings_of(candidates, verdicts, assembly.config.filter.policy)


def _outcomes(
    run: Run,
    items: list[Item],
    models: Mapping[str, str],
    prompt_settings: PromptSettings,
) -> dict[str, Outcomes]:
    """Return right or wrong by model and item, for models that were asked."""
    closed_items = [item for item in items if item.options is not None and item.answer is not None]
    probes = [prompt_settings.probe(item, "original") for item in closed_items]
    gold = [int(item.answer) for item in closed_items if item.answer is not None]
    by_model: dict[str, Outcomes] = {}
    for fingerprint, name in models.items():
        outcomes_in_order = answers_of(name, fingerprint, run).outcomes(probes, gold)
        outcomes = {item.id: r for item, r in zip(closed_items, outcomes_in_order, strict=True)}
        if any(r is not None for r in outcomes_in_order):
            by_model[name] = outcomes
    return by_model
