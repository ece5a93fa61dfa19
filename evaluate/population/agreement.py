"""Which detectors measure the same thing: rank correlations of their statistics over models."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from .results import CLEAN, CONTAMINATED, CONTROL, Results, suspicion

MIN_MODELS = 6


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
    found = correlations(results)
    if found.empty:
        return None
    rows = tuple(
        Row(
            str(name),
            tuple(
                Cell(formats.NOTHING if np.isnan(value) else formats.signed(value))
                for value in values
            ),
        )
        for name, values in zip(found.index, found.to_numpy(), strict=True)
    )
    columns = tuple(Column(str(name)) for name in found.columns)
    caption = "Rank correlation of the detectors' suspicion over models, within lineages."
    return Table("agreement", caption, "Detector", columns, (("", rows),))
