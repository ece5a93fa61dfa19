"""Tables of overlap inflation and of subpopulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from .overlap_inflation import AccuracyInflation, Churn, Inflation
from .subpopulations import MIN_ITEMS, ModelsWithinStrata, Stratum


def inflation_table(results: Mapping[str, Sequence[Inflation]], unit: str) -> Table:
    """Return the score form: models by strata; ``unit`` is the scores', if any."""
    columns = (
        Column("flagged"),
        Column("not flagged"),
        Column(", ".join(filter(None, ("difference", unit)))),
        Column("p by pictures"),
        Column("p by items"),
        Column("flag × position"),
    )
    return Table(
        "overlap_inflation",
        "Mean score of items whose picture has a near neighbour in the corpus, minus that of the"
        " others, with a bootstrap interval over pictures. The test permutes flags among pictures;"
        " the p-value by items is the paper’s and too small where items share pictures. Last:"
        " correlation of flag and position in the file.",
        "stratum",
        columns,
        tuple(
            (model, tuple(_inflation_row(one) for one in strata))
            for model, strata in results.items()
        ),
    )


def accuracy_inflation_table(results: Sequence[AccuracyInflation], churn: Churn) -> Table:
    """Return the accuracy form, one row a model, with the leaderboard's churn in the caption."""
    tau = "undefined"
    if churn.tau is not None:
        between = formats.interval(churn.interval, formats.decimals)
        tau = f"{formats.decimals(churn.tau)} {between}".rstrip()
    swaps = [f"{a} falls behind {b}" for a, b in churn.swapped] or ["no pair changes place"]
    return Table(
        "accuracy_inflation",
        "Accuracy over all items minus accuracy over those whose picture has no near neighbour in"
        " the corpus, in points, with a bootstrap interval over pictures. Kendall’s τ between both"
        f" rankings: {tau}; {'; '.join(swaps)}.",
        "model",
        (Column("all items"), Column("without flagged"), Column("inflation")),
        (
            (
                "",
                tuple(
                    Row(
                        one.model,
                        (
                            _share(one.k, one.n),
                            _share(one.k_clean, one.n_clean),
                            _points(one),
                        ),
                    )
                    for one in results
                ),
            ),
        ),
    )


def subpopulation_table(strata: Sequence[Stratum], flag: str) -> Table:
    """Return flagged shares by stratum and model; ``flag`` says what flags an item."""
    models = [share.model for share in strata[0].shares] if strata else []
    factors = dict.fromkeys(stratum.factor for stratum in strata)
    return Table(
        "subpopulations",
        f"Share of items with {flag}, by stratum. Strata of a factor sum to all items. q"
        " (Benjamini-Hochberg over all shares shown): does the stratum differ from the rest of the"
        f" factor. Strata under {MIN_ITEMS} items are marked small and not tested.",
        "stratum",
        (Column("n"), *(Column(model) for model in models), Column("largest difference")),
        tuple(
            (factor, tuple(_stratum_row(s) for s in strata if s.factor == factor))
            for factor in factors
        ),
    )


def within_strata_table(results: Sequence[ModelsWithinStrata]) -> Table:
    """Return the Cochran-Mantel-Haenszel tests, one row for each factor and pair of models."""
    factors = dict.fromkeys(result.factor for result in results)
    return Table(
        "models_within_strata",
        "Cochran-Mantel-Haenszel test of flag by model, given the stratum; p corrected by Holm. It"
        " takes the models’ items as independent samples, which is cautious for models that flag"
        " the same items.",
        "models",
        (Column("odds ratio"), Column("p"), Column("p corrected")),
        tuple(
            (
                factor,
                tuple(
                    Row(
                        " against ".join(result.models),
                        (
                            Cell(formats.decimals(result.odds_ratio)),
                            Cell(formats.p_value(result.p_value)),
                            Cell(formats.p_value(result.p_adjusted)),
                        ),
                    )
                    for result in results
                    if result.factor == factor
                ),
            )
            for factor in factors
        ),
    )


def _inflation_row(one: Inflation) -> Row:
    missing = f", {one.n_missing} without a score" if one.n_missing else ""
    tested = one.n_flagged > 0 and one.n_unflagged > 0
    return Row(
        one.stratum,
        (
            _side(one.mean_flagged, one.n_flagged, one.n_pictures_flagged),
            _side(one.mean_unflagged, one.n_unflagged, one.n_pictures_unflagged, missing),
            Cell(
                formats.signed(one.difference, 3) if tested else formats.NOTHING,
                formats.interval(one.interval, lambda value: formats.signed(value, 3)),
            ),
            Cell(formats.p_value(one.p_value if tested else None)),
            Cell(formats.p_value(one.p_items if tested else None)),
            Cell(formats.signed(one.position_correlation) if tested else formats.NOTHING),
        ),
    )


def _side(mean: float, n_items: int, n_pictures: int, missing: str = "") -> Cell:
    text = formats.signed(mean, 3) if n_items else formats.NOTHING
    return Cell(text, f"{n_items} items, {n_pictures} pictures{missing}")


def _share(k: int, n: int) -> Cell:
    return Cell(formats.percent(k / n) if n else formats.NOTHING, f"{k}/{n}")


def _points(one: AccuracyInflation) -> Cell:
    if not one.n or not one.n_clean:
        return Cell(formats.NOTHING)
    return Cell(formats.points(one.inflation), formats.interval(one.interval))


def _stratum_row(stratum: Stratum) -> Row:
    shares = []
    for share in stratum.shares:
        cell = rate_cell(share.rate)
        q = f", q {formats.p_value(share.q_value)}" if share.q_value is not None else ""
        shares.append(Cell(cell.text, f"{cell.small}{q}"))
    return Row(
        stratum.name,
        (
            Cell(str(stratum.n), "small" if stratum.small else ""),
            *shares,
            Cell(formats.percent(stratum.spread)),
        ),
    )
