"""What a cohort shows, as sections of a page, with the external models' rules in the headline."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from flipbench.core.randomness import generator
from flipbench.reporting import formats
from flipbench.reporting.sections import Section
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from .analysis import CohortAnalysis
from .cohort import Array, Cohort
from .falsification import Falsified, count_external
from .ordering import PLAIN, WHOLE_IMAGES, OrderCell, permutations_needed
from .overlap_inflation import Flags, accuracy_inflation, overlap_inflation
from .strata_tables import (
    accuracy_inflation_table,
    inflation_table,
    subpopulation_table,
    within_strata_table,
)
from .subpopulations import models_within_strata, subpopulations
from .tail_enrichment import (
    MIN_MODELS,
    GuardedTail,
    TailSummary,
    upper_tail,
)
from .top_k import PairOverlap

N_NAMED = 10
"""Items without a score that the page names; all of them are in ``audit.json``."""


def cohort_sections(found: CohortAnalysis) -> list[Section]:
    """Return the sections on external models, order, tail, top-K and subpopulations."""
    sections = [_external(found), _orders(found), _tail(found), _top_k(found)]
    return [*sections, _subpopulations(found)] if found.factors else sections


def inflation_section(
    trend: Cohort,
    flagged: Flags,
    correct: Array | None,
    *,
    unit: str = "",
    n_permutations: int,
    level: float = 0.05,
    seed: int = 0,
) -> Section:
    """Return whether models do better on items whose picture has a near neighbour in the corpus.

    Parameters
    ----------
    flagged : bool array, shape (n_items,)
    correct : float array, shape (n_items, n_models), optional
        1 right, 0 wrong, NaN no answer.
    unit : str
        Of the scores; empty if they have none.
    """
    pictures = [str(name) for name in trend.covariates["image"]]
    strata = [str(name) for name in trend.covariates.get("answer_type", [])] or None
    results = {
        model: overlap_inflation(
            trend.scores[:, column],
            flagged,
            pictures,
            generator(seed, model, "overlap inflation"),
            strata=strata,
            n_permutations=n_permutations,
        )
        for column, model in enumerate(trend.models)
    }
    named = {_name(model, model in trend.external): one for model, one in results.items()}
    tables = [inflation_table(named, unit)]
    if correct is not None:
        rng = generator(seed, trend.benchmark, "accuracy inflation")
        rows, churn = accuracy_inflation(correct, flagged, pictures, list(named), rng)
        tables.append(accuracy_inflation_table(rows, churn))
    p, model = min((one[0].p_value, model) for model, one in named.items())
    corrected = min(1.0, p * len(named))
    sentence = f"{int(flagged.sum()):,} of {len(flagged):,} items have a flagged picture"
    if flagged.any() and not flagged.all():
        sentence += (
            f". The smallest of {len(named)} p-values, by pictures, is {formats.p_value(p)}"
            f" ({model}, difference {formats.signed(named[model][0].difference, 3)}); corrected for"
            f" their number, {formats.p_value(corrected)}."
        )
    else:
        sentence += ": nothing to compare."
    notes = ["Flagged items may simply be easier, or harder: compare external models."]
    if alike := [m for m in trend.models if m in trend.external and results[m][0].p_value <= level]:
        notes.append(
            f"{', '.join(alike)} cannot have seen the benchmark and differs as well (at {level:g},"
            " uncorrected): the items differ, so a difference in other models is no evidence."
        )
    return Section(
        "overlap-inflation",
        "Does overlap help?",
        "look" if corrected <= level else "ok",
        sentence,
        tuple(notes),
        tuple(tables),
        data={"inflation": results},
    )


def _external(found: CohortAnalysis) -> Section:
    count = count_external(found.falsified)
    rules = dict.fromkeys(one.result.rule for one in found.falsified)
    models = found.trend.models
    by_place = {(one.result.rule, one.result.model): one for one in found.falsified}
    fired = [
        m
        for m in dict.fromkeys(o.result.model for o in found.falsified)
        if any(o.status == "significant" and o.result.model == m for o in found.falsified)
    ]
    verdict = (
        f"Rules that are quiet on external models fire on {', '.join(fired)}."
        if fired
        else "No model stands out by a rule that is quiet on all external ones."
    )
    missing = found.trend.missing()
    for model, ids in found.tail.missing().items():
        missing[model] = list(dict.fromkeys([*missing.get(model, []), *ids]))
    n_items = len(found.trend.item_ids)
    notes = [
        f"{model} has no score for {len(ids):,} of {n_items:,} items: {', '.join(ids[:N_NAMED])}"
        + (f" and {len(ids) - N_NAMED:,} more." if len(ids) > N_NAMED else ".")
        for model, ids in missing.items()
    ]
    sentence = f"{formats.as_sentence(str(count))} {verdict}"
    headline = str(count)
    if not found.trend.external:
        sentence = "No model is named as external, so none of these rules can be trusted."
        headline = "none is named as external, so no rule can be trusted"
    table = Table(
        "external-baselines",
        f"Rules and models, each at {found.level:g} without correction. A rule that fires on an"
        " external model reads something else than training data, or fired by chance: its verdicts"
        " on all models are suspected artefacts, which withholds a verdict and makes none.",
        "rule",
        tuple(Column(_name(m, m in found.trend.external), numeric=False) for m in models),
        (
            (
                "",
                tuple(
                    Row(rule, tuple(_status_cell(by_place.get((rule, m))) for m in models))
                    for rule in rules
                ),
            ),
        ),
    )
    return Section(
        "external-baselines",
        "Rules that fire on external models",
        "look" if count.fired or fired or not found.trend.external else "ok",
        sentence,
        headline=formats.as_sentence(f"Models beside each other: {headline}"),
        notes=tuple(notes),
        tables=(table,),
        data={
            "rules": [_falsified_data(one) for one in found.falsified],
            "without_score": missing,
        },
    )


def _status_cell(one: Falsified | None) -> Cell:
    if one is None or one.status == "not_tested":
        return Cell(formats.NOTHING)
    p = "" if one.result.p is None else formats.p_equation(one.result.p)
    return Cell(one.status.replace("_", " "), p)


def _falsified_data(one: Falsified) -> dict[str, object]:
    return {**asdict(one.result), "status": one.status, "fires_on": list(one.fires_on)}


def _name(model: str, external: bool) -> str:
    return f"{model} (external)" if external else model


def _orders(found: CohortAnalysis) -> Section:
    family = [cell for cell in found.orders if cell.in_family]
    refused = sorted({cell.refused for cell in found.orders if cell.refused})
    n_holm = sum((cell.holm or 1.0) <= found.level for cell in family)
    release = [c for c in family if c.order == "release" and c.control == PLAIN]
    hits = [c.model for c in release if (c.holm or 1.0) <= found.level]
    columns = ("items", "ρ", "p", "Holm", "q")
    table = Table(
        "order-trend",
        "Spearman’s ρ of position and score; p (one-sided: scores fall along the order) by"
        " permutation; Holm and Benjamini-Hochberg over all tests here. “Floor”: the smallest p"
        " that the permutations can give. Hash order is a check outside the family: its p is"
        " uniform with and without contamination.",
        "order",
        tuple(Column(name) for name in columns),
        tuple(
            (
                _name(model, model in found.trend.external),
                tuple(_order_row(cell) for cell in found.orders if cell.model == model),
            )
            for model in found.trend.models
        ),
    )
    sentence = (
        f"{n_holm} of {len(family)} tests are significant after Holm’s correction; in release"
        f" order: {', '.join(hits) or 'none'}."
    )
    notes = [
        "A trend says that easy or short answers come first, for any model that finds them easy."
        " Memory of the order is one explanation of a trend that the controls do not remove."
    ]
    if any(cell.control == WHOLE_IMAGES for cell in found.orders):
        notes.append(
            f"Several items share an image. Only “{WHOLE_IMAGES}” counts each image once; the other"
            " tests take its items as independent, and their p may be too small."
        )
    notes += [f"Refused: {reason}." for reason in refused]
    n_needed = permutations_needed(len(family), found.level)
    if any(cell.trend and cell.trend.n_permutations < n_needed for cell in family):
        notes.append(
            f"Too few permutations: after correcting {len(family)} tests, none can reach"
            f" {found.level:g} with fewer than {n_needed:,}; set n_permutations to at least that."
        )
    return Section(
        "order-trend",
        "Order trend",
        "look" if hits else "ok",
        sentence,
        tuple(notes),
        (table,),
        data={"cells": [_order_data(cell) for cell in found.orders]},
    )


def _order_row(cell: OrderCell) -> Row:
    header = cell.order if cell.control == PLAIN else f"{cell.order}, {cell.control}"
    if cell.trend is None:
        return Row(header, (Cell(f"{cell.n:,}"), Cell("refused"), *[Cell(formats.NOTHING)] * 3))
    p = Cell(formats.p_value(cell.p), "floor" if cell.at_floor else "")
    corrected = [Cell(formats.p_value(value)) for value in (cell.holm, cell.q)]
    return Row(header, (Cell(f"{cell.n:,}"), Cell(formats.signed(cell.trend.rho)), p, *corrected))


def _order_data(cell: OrderCell) -> dict[str, object]:
    return {**asdict(cell), "p": cell.p, "at_floor": cell.at_floor}


def _tail(found: CohortAnalysis) -> Section:
    enriched = [one.model for one in found.tails if one.verdict in ("enriched", "unchecked")]
    by_ranks = f"By ranks, whichever model is left out: {', '.join(enriched) or 'none'}."
    if len(found.tail.models) < MIN_MODELS:
        by_ranks = f"By ranks, fewer than {MIN_MODELS} models cannot tell."
    flagged = [one.model for one in found.summaries if one.flagged]
    sums = Table(
        "tail",
        "Score minus the median of the other models’, as in the paper: quantiles in the scores’"
        " unit, items above 100. The paper flags a model with more than 5 %. It also fires on"
        " models that differ in gain alone.",
        "model",
        tuple(map(Column, ("95 %", "99 %", "largest", "above 100, %", "flagged"))),
        (("", tuple(_sum_row(one) for one in found.summaries)),),
    )
    ranks = Table(
        "tail-ranks",
        "The same with ranks within each model, which removes gain and offset: items far above and"
        " far below the others, how many chance would give, and the largest p-value over all"
        " cohorts with one other model left out; Holm over models.",
        "model",
        tuple(map(Column, ("above", "below", "expected", "p", "Holm", "verdict"))),
        (("", tuple(_rank_row(one) for one in found.tails)),),
    )
    return Section(
        "tail",
        "Tail enrichment",
        "look" if enriched else "ok",
        f"The paper’s flag: {', '.join(flagged) or 'none'}. {by_ranks}",
        (
            "A model that is really better at some kind of item than all others has such a tail"
            " without having seen any.",
        ),
        (sums, ranks),
        data={
            "summaries": found.summaries,
            "tails": found.tails,
        },
    )


def _sum_row(one: TailSummary) -> Row:
    values = [Cell(formats.number(v)) for v in (one.q95, one.q99, one.largest)]
    cells = (*values, rate_cell(one.above[1]), Cell("yes" if one.flagged else "no"))
    return Row(_name(one.model, one.external), cells)


def _rank_row(one: GuardedTail) -> Row:
    cells = (
        Cell(str(one.upper)),
        Cell(str(one.lower)),
        Cell(formats.decimals(one.expected, 1)),
        Cell(formats.p_value(one.p), f"without {one.left_out}" if one.left_out else ""),
        Cell(formats.p_value(one.p_holm)),
        Cell(one.verdict.replace("_", " ")),
    )
    return Row(_name(one.model, one.external), cells)


def _top_k(found: CohortAnalysis) -> Section:
    hits = [pair for pair in found.overlaps if pair.p_holm <= found.level]
    shared = [pair for pair in hits if pair.n_external]
    k = found.overlaps[0].k
    heads = ["shared", "chance", "lift", "Jaccard", "p", "Holm"]
    if found.factors:
        heads += ["expected within strata", "p within strata"]
    table = Table(
        "top-k",
        f"Items among the {k} highest of both models, each ranked by its own score. Chance: the"
        " number expected; lift: shared over chance; Jaccard: shared over all that are in either."
        " p: hypergeometric, Holm over pairs; within strata: of the factors.",
        "models",
        tuple(map(Column, heads)),
        (("", tuple(_pair_row(pair, len(heads)) for pair in found.overlaps)),),
    )
    return Section(
        "top-k",
        "Shared top items",
        "look" if hits else "ok",
        f"{len(hits)} of {len(found.overlaps)} pairs of models share more of their top {k} than"
        f" chance; {len(shared)} of these with an external model.",
        ("Models share what any model finds easy: compare pairs with an external model.",),
        (table,),
        data={"pairs": found.overlaps},
    )


def _pair_row(pair: PairOverlap, n_columns: int) -> Row:
    cells = [
        Cell(f"{pair.intersection}/{pair.k}"),
        Cell(formats.decimals(pair.chance)),
        Cell(formats.decimals(pair.lift, 1)),
        Cell(formats.decimals(pair.jaccard, 3)),
        Cell(formats.p_value(pair.p)),
        Cell(formats.p_value(pair.p_holm)),
    ]
    if n_columns > len(cells):
        expected = pair.expected_within
        cells.append(Cell(formats.NOTHING if expected is None else formats.decimals(expected)))
        cells.append(Cell(formats.p_value(pair.p_within)))
    external = f" ({pair.n_external} external)" if pair.n_external else ""
    return Row(f"{' and '.join(pair.models)}{external}", tuple(cells))


def _subpopulations(found: CohortAnalysis) -> Section:
    complete = found.tail.complete()
    flags = np.zeros(found.tail.scores.shape, bool)
    flags[complete] = upper_tail(found.tail.scores[complete])
    factors = {
        name: [str(value) for value in found.tail.covariates[name]] for name in found.factors
    }
    images = found.tail.covariates.get("image")
    pictures = None if images is None else [str(image) for image in images]
    strata = subpopulations(flags, found.tail.models, factors, pictures=pictures)
    pairs = models_within_strata(flags, found.tail.models, factors)
    differ = [
        f"{s.factor} {s.name}"
        for s in strata
        if any(
            (share.q_value if share.q_value is not None else 1.0) <= found.level
            for share in s.shares
        )
    ]
    n_tested = sum(not s.small for s in strata)
    if differ:
        sentence = f"The tail is uneven over strata: {', '.join(differ)}."
    elif n_tested:
        sentence = f"No difference found between {n_tested} strata and the rest of their factors."
    else:
        sentence = f"All {len(strata)} strata are too small to be tested."
    return Section(
        "subpopulations",
        "Subpopulations",
        "look" if differ else "ok",
        sentence,
        ("A tail in one kind of item, such as yes-or-no questions, speaks for calibration.",),
        (
            subpopulation_table(strata, "ranks far above the other models’"),
            within_strata_table(pairs),
        ),
        data={"strata": strata, "models": pairs},
    )
