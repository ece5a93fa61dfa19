"""Every detector's power, false alarms and AUROC, by kind and condition, and their agreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.protocol.grid import KINDS
from flipbench.evaluate.statistics.design_effect import ClusteredRate
from flipbench.evaluate.statistics.roc import Separation, separation
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell, rate_cell
from studies.population.results import (
    AS_MADE,
    CLEAN,
    CONTAMINATED,
    CONTROL,
    Results,
    Rule,
    flagged,
    suspicion,
)

NOTHING = Cell(formats.NOTHING)
MIN_MODELS = 6


def short_rate(rate: ClusteredRate) -> Cell:
    """Return k/n and the interval in whole percent.

    >>> short_rate(ClusteredRate.wilson(0, 0)).plain()
    '–'
    """
    if not rate.n or rate.interval is None:
        return NOTHING
    low, high = (f"{100 * bound:.0f}" for bound in (rate.interval.low, rate.interval.high))
    return Cell(f"{rate.k}/{rate.n}", f"[{low}, {high}]")


def separated(results: Results, rule: Rule, kind: str | None = None) -> Separation | None:
    """Compare contaminated models with clean ones and controls, by the rule's statistic."""
    arms = [results.of(rule, arm, None if arm == CLEAN else kind) for arm in (CLEAN, CONTROL)]
    rows = pd.concat([*arms, results.of(rule, CONTAMINATED, kind)])
    rows = rows[rows["statistic"].notna()]
    if not len(rows):
        return None
    return separation(
        suspicion(rows).tolist(),
        (rows["arm"] == CONTAMINATED).tolist(),
        rows["lineage"].tolist(),
    )


def overview(results: Results) -> Table:
    """Return the main table: each default rule's power, false alarms and AUROC over all kinds."""
    rows = []
    for rule in results.default_rules:
        power = flagged(results.of(rule, CONTAMINATED))
        alarms = [flagged(results.of(rule, arm), exact=True) for arm in (CLEAN, CONTROL)]
        separation = separated(results, rule)
        auroc = estimate_cell(separation.auroc, separation.interval, 2) if separation else NOTHING
        clean = Cell("yes" if rule.needs_clean_model else "no")
        rows.append(
            (power, Row(rule.title, (rate_cell(power), *map(rate_cell, alarms), auroc, clean)))
        )
    rows.sort(key=lambda pair: -(pair[0].value or 0))
    return Table(
        "overview",
        "All kinds of contamination together. Caught: contaminated models that the default rule"
        " flags. Flagged: clean models, as released and fine-tuned in the same way on other items."
        " A rule that needs a clean model compares with the released one, so it cannot judge that"
        " one. Brackets: 95 % intervals that allow for lineages, in percent.",
        "Detector",
        (
            Column("Caught, %"),
            Column("Flagged, as released, %"),
            Column("Flagged, fine-tuned, %"),
            Column("AUROC"),
            Column("Needs a clean model", numeric=False),
        ),
        (("", tuple(row for _, row in rows)),),
    )


def controls(results: Results) -> Table | None:
    """Return what each detector catches among the kinds it is made for, and among the others."""
    if "shows" not in results.scores:
        return None
    rows = []
    for rule in results.default_rules:
        made_for = DETECTORS[rule.detector].about.catches
        scores = results.of(rule, CONTAMINATED)
        scores = scores[scores["shows"].isin(list(KINDS))]
        is_target = scores["shows"].isin(list(made_for))
        cells = (Cell(", ".join(made_for)), rate_cell(flagged(scores[is_target])))
        rows.append(Row(rule.title, (*cells, rate_cell(flagged(scores[~is_target])))))
    return Table(
        "controls",
        "Positive controls: models whose training showed what the detector is made for. Negative"
        " controls: contaminated models whose training showed something else, which it need not"
        " see. Washed models, and texts in another order than the file's, are in neither.",
        "Detector",
        (
            Column("Made for", numeric=False),
            Column("Positive controls caught, %"),
            Column("Negative controls caught, %"),
        ),
        (("", tuple(rows)),),
    )


def by_kind(results: Results) -> list[Table]:
    """Return three tables of detectors by kinds: power, alarms of the controls, AUROC."""

    def rates(arm: str, *, exact: bool = False) -> Callable[[Rule, str], Cell]:
        return lambda rule, kind: short_rate(flagged(results.of(rule, arm, kind), exact=exact))

    caught = "Contaminated models that the default rule flags, k/n [95 % interval, percent]."
    alarms = "Controls that the default rule flags: the same training on other items, k/n."
    auroc = (
        "AUROC of the default rule's statistic: contaminated models of the kind against its"
        " controls and the released models."
    )
    return [
        _kinds_by_rules(key, caption, results.kinds, results.default_rules, cell)
        for key, caption, cell in (
            ("power", caught, rates(CONTAMINATED)),
            ("alarms", alarms, rates(CONTROL, exact=True)),
            ("auroc", auroc, lambda rule, kind: _auroc(separated(results, rule, kind))),
        )
    ]


def doses(results: Results, kinds: Sequence[str], n_rules: int = 5) -> Table | None:
    """Return the power of the rules that catch most, for kinds that differ in dose or share."""
    present = [kind for kind in kinds if kind in results.kinds]
    if len(present) < 2:
        return None
    power = {
        rule: flagged(results.of(rule, CONTAMINATED)).value or 0 for rule in results.default_rules
    }
    best = sorted(power, key=lambda rule: -power[rule])[:n_rules]
    return _kinds_by_rules(
        "doses",
        f"The {len(best)} detectors that catch most: contaminated models flagged, k/n [95 %"
        " interval, percent].",
        present,
        best,
        lambda rule, kind: short_rate(flagged(results.of(rule, CONTAMINATED, kind))),
    )


def _kinds_by_rules(
    key: str,
    caption: str,
    kinds: Sequence[str],
    rules: Sequence[Rule],
    cell: Callable[[Rule, str], Cell],
) -> Table:
    rows = tuple(Row(kind, tuple(cell(rule, kind) for rule in rules)) for kind in kinds)
    columns = tuple(Column(rule.title) for rule in rules)
    return Table(key, caption, "Kind of contamination", columns, (("", rows),))


def _auroc(separation: Separation | None) -> Cell:
    if separation is None:
        return NOTHING
    low, high = separation.interval.low, separation.interval.high
    return Cell(
        formats.decimals(separation.auroc), f"[{formats.decimals(low)}, {formats.decimals(high)}]"
    )


def conditions(results: Results) -> Table | None:
    """Return power and alarms of the paired detectors with other perturbed pictures."""
    names = [str(c) for c in results.scores["condition"].unique() if c != AS_MADE]
    if not names:
        return None
    of_conditions = results.scores["condition"] != AS_MADE
    pairs = results.scores[of_conditions][["detector", "rule"]].drop_duplicates()
    rules = [Rule(str(d), str(r)) for d, r in pairs.itertuples(index=False)]
    kinds = set(results.scores[of_conditions & (results.scores["arm"] == CONTAMINATED)]["kind"])
    groups = []
    for condition in [AS_MADE, *names]:
        rows = []
        for rule in rules:
            cells = []
            for arm in (CONTAMINATED, CONTROL, CLEAN):
                scores = results.of(rule, arm, condition=condition)
                scores = scores[scores["kind"].isin(kinds)] if arm != CLEAN else scores
                cells.append(short_rate(flagged(scores, exact=arm != CONTAMINATED)))
            rows.append(Row(rule.title, tuple(cells)))
        groups.append((condition, tuple(rows)))
    columns = (Column("Caught"), Column("Flagged, fine-tuned"), Column("Flagged, as released"))
    caption = f"Other perturbed pictures, or other pairs; kinds: {', '.join(sorted(kinds))}."
    return Table("conditions", caption, "Rule", columns, tuple(groups))


def models(results: Results) -> Table:
    """Return the lineages with the accuracy of each clean model on its own draw of questions."""
    facts = results.lineages
    facts_shown = [fact for fact in ("class", "size", "level") if fact in facts]
    values_by_fact = {
        (str(name), fact): str(value)
        for fact in facts_shown
        for name, value in zip(facts["name"], facts[fact], strict=True)
    }
    rows = []
    items = results.items
    clean = items[(items["arm"] == CLEAN) & (items["condition"] == AS_MADE)]
    for name, models_of_lineage in clean.groupby("lineage"):
        sides = [
            rate_cell(
                ClusteredRate.wilson(int(models_of_lineage[side].sum()), len(models_of_lineage))
            )
            for side in ("original_right", "perturbed_right")
        ]
        about = [
            Cell(values_by_fact.get((str(name), fact), formats.NOTHING)) for fact in facts_shown
        ]
        rows.append(Row(str(name), (*about, *sides)))
    columns = [Column(fact.capitalize(), numeric=False) for fact in facts_shown]
    columns += [Column("Original, %"), Column("Perturbed, %")]
    caption = "Clean models as released, on the pairs of their own draw."
    return Table("lineages", caption, "Lineage", tuple(columns), (("", tuple(rows)),))


def correlations(results: Results) -> pd.DataFrame:
    """Return Spearman's correlation of the default rules' suspicion, within lineages.

    Each lineage's mean is subtracted first, so that two detectors do not agree merely because
    both find one lineage more suspicious, clean or not. NaN below six models.
    """
    columns = {}
    for rule in results.default_rules:
        rows = pd.concat([results.of(rule, arm) for arm in (CLEAN, CONTROL, CONTAMINATED)])
        rows = rows[rows["statistic"].notna()]
        values = pd.Series(
            suspicion(rows), pd.MultiIndex.from_frame(rows[["lineage", "kind", "arm", "dose"]])
        )
        columns[rule] = values - values.groupby(level="lineage").transform("mean")
    if not columns:
        return pd.DataFrame()
    frame = pd.DataFrame({rule.title: values for rule, values in columns.items()})
    return frame.corr(method="spearman", min_periods=MIN_MODELS)


def agreement(results: Results) -> Table | None:
    """Return the correlations as a table."""
    frame = correlations(results)
    if frame.empty:
        return None
    rows = tuple(
        Row(
            str(name),
            tuple(
                Cell(formats.NOTHING if np.isnan(value) else formats.signed(value))
                for value in values
            ),
        )
        for name, values in zip(frame.index, frame.to_numpy(), strict=True)
    )
    columns = tuple(Column(str(name)) for name in frame.columns)
    caption = "Rank correlation of the detectors' suspicion over models, within lineages."
    return Table("agreement", caption, "Detector", columns, (("", rows),))
