"""A cohort without one of its models."""

from dataclasses import replace

from flipbench.evaluate.cohort.cohort import Cohort


def without(cohort: Cohort, model: str) -> Cohort:
    columns = [number for number, name in enumerate(cohort.models) if name != model]
    return replace(
        cohort,
        models=[cohort.models[number] for number in columns],
        external=cohort.external - {model},
        scores=cohort.scores[:, columns],
    )
