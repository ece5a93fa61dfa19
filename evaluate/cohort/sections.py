"""What a cohort shows, as sections of a page, with the external models' rules in the headline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from flipbench.core.randomness import generator
from flipbench.reporting import formats
from flipbench.reporting.sections import Section
from flipbench.reporting.tables import Cell, Table, build_table, rate_cell, text_column

from .analysis import CohortAnalysis
from .cohort import Array, Cohort
from .falsification import count_external
from .ordering import PLAIN, WHOLE_IMAGES, in_family, permutations_needed
from .overlap_inflation import Churn, Flags, accuracy_inflation, overlap_inflation
from .subpopulations import MIN_ITEMS, Stratum, models_within_strata, subpopulations
from .tail_enrichment import MIN_MODELS, upper_tail

N_NAMED = 10
"""Items without a score that the page names; all of them are in ``audit.json``."""


def cohort_sections(analysis: CohortAnalysis) -> list[Section]:
    """Return the sections on external models, order, tail, top-K and subpopulations."""
    sections = [_external(analysis), _orders(analysis), _tail(analysis), _top_k(analysis)]
    return [*sections, _subpopulations(analysis)] if analysis.factors else sections


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
    by_name = {_name(model, model in trend.external): rows for model, rows in results.items()}
    tables = [inflation_table(by_name, unit)]
    if correct is not None:
        rng = generator(seed, trend.benchmark, "accuracy inflation")
        rows, churn = accuracy_inflation(correct, flagged, pictures, list(by_name), rng)
        tables.append(accuracy_inflation_table(rows, churn))
    p, model = min((rows["p_value"].iloc[0], name) for name, rows in by_name.items())
    difference = by_name[model]["difference"].iloc[0]
    corrected = min(1.0, p * len(by_name))
    sentence = f"{int(flagged.sum()):,} of {len(flagged):,} items have a flagged picture"
    if flagged.any() and not flagged.all():
        sentence += (
            f". The smallest of {len(by_name)} p-values, by pictures, is {formats.p_value(p)}"
            f" ({model}, difference {formats.signed(difference, 3)}); corrected for their number,"
            f" {formats.p_value(corrected)}."
        )
    else:
        sentence += ": nothing to compare."
    notes = ["Flagged items may simply be easier, or harder: compare external models."]
    differing = [
        name
        for name, rows in results.items()
        if name in trend.external and rows["p_value"].iloc[0] <= level
    ]
    if differing:
        notes.append(
            f"{', '.join(differing)} cannot have seen the benchmark and differs as well (at"
            f" {level:g}, uncorrected): the items differ, so a difference in other models is no"
            " evidence."
        )
    return Section(
        "overlap-inflation",
        "Does overlap help?",
        "look" if corrected <= level else "ok",
        sentence,
        tuple(notes),
        tuple(tables),
        data={"inflation": {name: rows.to_dict("records") for name, rows in results.items()}},
    )


def inflation_table(results: Mapping[str, pd.DataFrame], unit: str) -> Table:
    """Return the score form: models by strata; ``unit`` is the scores', if any."""

    def mean(side: str) -> Callable[[Any], Cell]:
        def cell(row: Any) -> Cell:
            n, n_pictures = getattr(row, f"n_{side}"), getattr(row, f"n_pictures_{side}")
            lacking = side == "unflagged" and row.n_missing
            note = f", {row.n_missing} without a score" if lacking else ""
            text = formats.signed(getattr(row, f"mean_{side}"), 3) if n else formats.NOTHING
            return Cell(text, f"{n} items, {n_pictures} pictures{note}")

        return cell

    def tested(text: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda row: text(row) if row.n_flagged and row.n_unflagged else ""

    signed = partial(formats.signed, digits=3)
    difference = tested(lambda row: signed(row.difference))
    return build_table(
        "overlap_inflation",
        "Mean score of items whose picture has a near neighbour in the corpus, minus that of the"
        " others, with a bootstrap interval over pictures. The test permutes flags among pictures;"
        " the p-value by items is the paper’s and too small where items share pictures. Last:"
        " correlation of flag and position in the file.",
        "stratum",
        [
            ("flagged", mean("flagged")),
            ("not flagged", mean("unflagged")),
            (
                ", ".join(filter(None, ("difference", unit))),
                lambda row: Cell(
                    difference(row) or formats.NOTHING, formats.interval(row.interval, signed)
                ),
            ),
            ("p by pictures", tested(lambda row: formats.p_value(row.p_value))),
            ("p by items", tested(lambda row: formats.p_value(row.p_items))),
            ("flag × position", tested(lambda row: formats.signed(row.position_correlation))),
        ],
        {model: [(row.stratum, row) for row in _rows(rows)] for model, rows in results.items()},
    )


def accuracy_inflation_table(results: pd.DataFrame, churn: Churn) -> Table:
    """Return the accuracy form, one row a model, with the leaderboard's churn in the caption."""
    tau = "undefined"
    if churn.tau is not None:
        between = formats.interval(churn.interval, formats.decimals)
        tau = f"{formats.decimals(churn.tau)} {between}".rstrip()
    swaps = [f"{a} falls behind {b}" for a, b in churn.swapped] or ["no pair changes place"]

    def share(k: int, n: int) -> Cell:
        return Cell(formats.percent(k / n) if n else formats.NOTHING, f"{k}/{n}")

    return build_table(
        "accuracy_inflation",
        "Accuracy over all items minus accuracy over those whose picture has no near neighbour in"
        " the corpus, in points, with a bootstrap interval over pictures. Kendall’s τ between both"
        f" rankings: {tau}; {'; '.join(swaps)}.",
        "model",
        [
            ("all items", lambda row: share(row.k, row.n)),
            ("without flagged", lambda row: share(row.k_clean, row.n_clean)),
            (
                "inflation",
                lambda row: (
                    Cell(formats.points(row.inflation), formats.interval(row.interval))
                    if row.n and row.n_clean
                    else None
                ),
            ),
        ],
        {"": [(row.model, row) for row in _rows(results)]},
    )


def _name(model: str, external: bool) -> str:
    return f"{model} (external)" if external else model


def _rows(frame: pd.DataFrame) -> list[Any]:
    """Return the rows, whose attributes are the columns."""
    return list(frame.itertuples(index=False))


def _external(analysis: CohortAnalysis) -> Section:
    rules, external = analysis.rules, analysis.trend.external
    n_fired, headline = count_external(rules)
    firing = list(dict.fromkeys(rules.loc[rules["status"] == "significant", "model"]))
    verdict = (
        f"Rules that are quiet on external models fire on {', '.join(firing)}."
        if firing
        else "No model stands out by a rule that is quiet on all external ones."
    )
    ids_without_score = analysis.trend.missing()
    for model, ids in analysis.tail.missing().items():
        ids_without_score[model] = list(dict.fromkeys([*ids_without_score.get(model, []), *ids]))
    n_items = len(analysis.trend.item_ids)
    notes = [
        f"{model} has no score for {len(ids):,} of {n_items:,} items: {', '.join(ids[:N_NAMED])}"
        + (f" and {len(ids) - N_NAMED:,} more." if len(ids) > N_NAMED else ".")
        for model, ids in ids_without_score.items()
    ]
    sentence = f"{formats.as_sentence(headline)} {verdict}"
    if not external:
        sentence = "No model is named as external, so none of these rules can be trusted."
        headline = "none is named as external, so no rule can be trusted"

    status = {(row["rule"], row["model"]): row for row in rules.to_dict("records")}

    def cell(model: str, rule: str) -> Cell | None:
        row = status.get((rule, model))
        if row is None or row["status"] == "not_tested":
            return None
        p = "" if pd.isna(row["p"]) else formats.p_equation(row["p"])
        return Cell(row["status"].replace("_", " "), p)

    table = build_table(
        "external-baselines",
        f"Rules and models, each at {analysis.level:g} without correction. A rule that fires on an"
        " external model reads something else than training data, or fired by chance: its verdicts"
        " on all models are suspected artefacts, which withholds a verdict and makes none.",
        "rule",
        [(text_column(_name(m, m in external)), partial(cell, m)) for m in analysis.trend.models],
        {"": [(rule, rule) for rule in dict.fromkeys(rules["rule"])]},
    )
    return Section(
        "external-baselines",
        "Rules that fire on external models",
        "look" if n_fired or firing or not external else "ok",
        sentence,
        headline=formats.as_sentence(f"Models beside each other: {headline}"),
        notes=tuple(notes),
        tables=(table,),
        data={
            "rules": rules.drop(columns="external").to_dict("records"),
            "without_score": ids_without_score,
        },
    )


def _orders(analysis: CohortAnalysis) -> Section:
    orders, level = analysis.orders, analysis.level
    family = orders[in_family(orders)]
    n_holm = int((family["holm"] <= level).sum())
    release = family[(family["order"] == "release") & (family["control"] == PLAIN)]
    hits = release.loc[release["holm"] <= level, "model"].tolist()

    def header(cell: Any) -> str:
        return cell.order if cell.control == PLAIN else f"{cell.order}, {cell.control}"

    table = build_table(
        "order-trend",
        "Spearman’s ρ of position and score; p (one-sided: scores fall along the order) by"
        " permutation; Holm and Benjamini-Hochberg over all tests here. “Floor”: the smallest p"
        " that the permutations can give. Hash order is a check outside the family: its p is"
        " uniform with and without contamination.",
        "order",
        [
            ("items", lambda cell: f"{cell.n:,}"),
            ("ρ", lambda cell: formats.signed(cell.trend.rho) if cell.trend else "refused"),
            ("p", lambda cell: Cell(_p_value(cell.p), "floor" if cell.at_floor else "")),
            ("Holm", lambda cell: _p_value(cell.holm)),
            ("q", lambda cell: _p_value(cell.q)),
        ],
        {
            _name(str(model), bool(cells["external"].any())): [
                (header(cell), cell) for cell in _rows(cells)
            ]
            for model, cells in orders.groupby("model", sort=False)
        },
    )
    notes = [
        "A trend says that easy or short answers come first, for any model that finds them easy."
        " Memory of the order is one explanation of a trend that the controls do not remove."
    ]
    if (orders["control"] == WHOLE_IMAGES).any():
        notes.append(
            f"Several items share an image. Only “{WHOLE_IMAGES}” counts each image once; the other"
            " tests take its items as independent, and their p may be too small."
        )
    notes += [f"Refused: {reason}." for reason in sorted(set(orders["refused"]) - {""})]
    n_needed = permutations_needed(len(family), level)
    if any(trend.n_permutations < n_needed for trend in family["trend"]):
        notes.append(
            f"Too few permutations: after correcting {len(family)} tests, none can reach {level:g}"
            f" with fewer than {n_needed:,}; set n_permutations to at least that."
        )
    return Section(
        "order-trend",
        "Order trend",
        "look" if hits else "ok",
        f"{n_holm} of {len(family)} tests are significant after Holm’s correction; in release"
        f" order: {', '.join(hits) or 'none'}.",
        tuple(notes),
        (table,),
        data={"cells": orders.to_dict("records")},
    )


def _p_value(p: float) -> str:
    return formats.p_value(None if pd.isna(p) else p)


def _tail(analysis: CohortAnalysis) -> Section:
    summaries, tails = analysis.summaries, analysis.tails
    enriched = tails.loc[tails["verdict"].isin(["enriched", "unchecked"]), "model"].tolist()
    by_ranks = f"By ranks, whichever model is left out: {', '.join(enriched) or 'none'}."
    if len(tails) < MIN_MODELS:
        by_ranks = f"By ranks, fewer than {MIN_MODELS} models cannot tell."
    flagged = summaries.loc[summaries["flagged"], "model"].tolist()
    sums = build_table(
        "tail",
        "Score minus the median of the other models’, as in the paper: quantiles in the scores’"
        " unit, items above 100. The paper flags a model with more than 5 %. It also fires on"
        " models that differ in gain alone.",
        "model",
        [
            ("95 %", lambda row: formats.number(row.q95)),
            ("99 %", lambda row: formats.number(row.q99)),
            ("largest", lambda row: formats.number(row.largest)),
            ("above 100, %", lambda row: row.above[1]),
            ("flagged", lambda row: "yes" if row.flagged else "no"),
        ],
        {"": [(_name(row.model, row.external), row) for row in _rows(summaries)]},
    )
    ranks = build_table(
        "tail-ranks",
        "The same with ranks within each model, which removes gain and offset: items far above and"
        " far below the others, how many chance would give, and the largest p-value over all"
        " cohorts with one other model left out; Holm over models.",
        "model",
        [
            ("above", lambda row: row.upper),
            ("below", lambda row: row.lower),
            ("expected", lambda row: formats.decimals(row.expected, 1)),
            (
                "p",
                lambda row: Cell(
                    formats.p_value(row.p), f"without {row.left_out}" if row.left_out else ""
                ),
            ),
            ("Holm", lambda row: formats.p_value(row.p_holm)),
            ("verdict", lambda row: row.verdict.replace("_", " ")),
        ],
        {"": [(_name(row.model, row.external), row) for row in _rows(tails)]},
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
            "summaries": summaries.drop(columns="flagged").to_dict("records"),
            "tails": tails.to_dict("records"),
        },
    )


def _top_k(analysis: CohortAnalysis) -> Section:
    overlaps = analysis.overlaps
    hits = overlaps[overlaps["p_holm"] <= analysis.level]
    k = overlaps["k"].iloc[0]
    columns: list[tuple[str, Callable[[Any], str]]] = [
        ("shared", lambda pair: f"{pair.intersection}/{pair.k}"),
        ("chance", lambda pair: formats.decimals(pair.chance)),
        ("lift", lambda pair: formats.decimals(pair.lift, 1)),
        ("Jaccard", lambda pair: formats.decimals(pair.jaccard, 3)),
        ("p", lambda pair: formats.p_value(pair.p)),
        ("Holm", lambda pair: formats.p_value(pair.p_holm)),
    ]
    if analysis.factors:
        columns += [
            ("expected within strata", lambda pair: formats.decimals(pair.expected_within)),
            ("p within strata", lambda pair: formats.p_value(pair.p_within)),
        ]

    def header(pair: Any) -> str:
        external = f" ({pair.n_external} external)" if pair.n_external else ""
        return f"{' and '.join(pair.models)}{external}"

    table = build_table(
        "top-k",
        f"Items among the {k} highest of both models, each ranked by its own score. Chance: the"
        " number expected; lift: shared over chance; Jaccard: shared over all that are in either."
        " p: hypergeometric, Holm over pairs; within strata: of the factors.",
        "models",
        columns,
        {"": [(header(pair), pair) for pair in _rows(overlaps)]},
    )
    derived = ["union", "jaccard", "chance", "lift"]
    return Section(
        "top-k",
        "Shared top items",
        "look" if len(hits) else "ok",
        f"{len(hits)} of {len(overlaps)} pairs of models share more of their top {k} than"
        f" chance; {(hits['n_external'] > 0).sum()} of these with an external model.",
        ("Models share what any model finds easy: compare pairs with an external model.",),
        (table,),
        data={"pairs": overlaps.drop(columns=derived).to_dict("records")},
    )


def _subpopulations(analysis: CohortAnalysis) -> Section:
    tail = analysis.tail
    complete = tail.complete()
    flags = np.zeros(tail.scores.shape, bool)
    flags[complete] = upper_tail(tail.scores[complete])
    factors = {name: [str(value) for value in tail.covariates[name]] for name in analysis.factors}
    images = tail.covariates.get("image")
    pictures = None if images is None else [str(image) for image in images]
    strata = subpopulations(flags, tail.models, factors, pictures=pictures)
    pairs = models_within_strata(flags, tail.models, factors)
    uneven = [
        f"{s.factor} {s.name}"
        for s in strata
        if any(share.q_value is not None and share.q_value <= analysis.level for share in s.shares)
    ]
    n_tested = sum(not s.small for s in strata)
    if uneven:
        sentence = f"The tail is uneven over strata: {', '.join(uneven)}."
    elif n_tested:
        sentence = f"No difference found between {n_tested} strata and the rest of their factors."
    else:
        sentence = f"All {len(strata)} strata are too small to be tested."
    return Section(
        "subpopulations",
        "Subpopulations",
        "look" if uneven else "ok",
        sentence,
        ("A tail in one kind of item, such as yes-or-no questions, speaks for calibration.",),
        (
            subpopulation_table(strata, "ranks far above the other models’"),
            within_strata_table(pairs),
        ),
        data={"strata": strata, "models": pairs.to_dict("records")},
    )


def subpopulation_table(strata: Sequence[Stratum], flag: str) -> Table:
    """Return flagged shares by stratum and model; ``flag`` says what flags an item."""

    def share(number: int) -> Callable[[Stratum], Cell]:
        def cell(stratum: Stratum) -> Cell:
            share = stratum.shares[number]
            rate = rate_cell(share.rate)
            q = "" if share.q_value is None else f", q {formats.p_value(share.q_value)}"
            return Cell(rate.text, f"{rate.small}{q}")

        return cell

    models = [share.model for share in strata[0].shares] if strata else []
    return build_table(
        "subpopulations",
        f"Share of items with {flag}, by stratum. Strata of a factor sum to all items. q"
        " (Benjamini-Hochberg over all shares shown): does the stratum differ from the rest of the"
        f" factor. Strata under {MIN_ITEMS} items are marked small and not tested.",
        "stratum",
        [
            ("n", lambda stratum: Cell(str(stratum.n), "small" if stratum.small else "")),
            *((model, share(number)) for number, model in enumerate(models)),
            ("largest difference", lambda stratum: formats.percent(stratum.spread)),
        ],
        {
            factor: [(stratum.name, stratum) for stratum in group]
            for factor, group in groupby(strata, attrgetter("factor"))
        },
    )


def within_strata_table(results: pd.DataFrame) -> Table:
    """Return the Cochran-Mantel-Haenszel tests, one row for each factor and pair of models."""
    return build_table(
        "models_within_strata",
        "Cochran-Mantel-Haenszel test of flag by model, given the stratum; p corrected by Holm. It"
        " takes the models’ items as independent samples, which is cautious for models that flag"
        " the same items.",
        "models",
        [
            ("odds ratio", lambda result: formats.decimals(result.odds_ratio)),
            ("p", lambda result: formats.p_value(result.p_value)),
            ("p corrected", lambda result: formats.p_value(result.p_adjusted)),
        ],
        {
            str(factor): [(" against ".join(row.models), row) for row in _rows(rows)]
            for factor, rows in results.groupby("factor", sort=False)
        },
    )
