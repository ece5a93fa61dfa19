"""A cohort without one of its models, and frames as rows."""

from dataclasses import replace
from typing import Any

import pandas as pd

from flipbench.evaluate.cohort.cohort import Cohort


def without(cohort: Cohort, model: str) -> Cohort:
    columns = [number for number, name in enumerate(cohort.models) if name != model]
    return replace(
        cohort,
        models=[cohort.models[number] for number in columns],
        external=cohort.external - {model},
        scores=cohort.scores[:, columns],
    )


def rows_of(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))
