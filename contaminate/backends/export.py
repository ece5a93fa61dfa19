"""Export a grid's training data for LLaVA's official trainer or LLaMA-Factory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.records import TrainingPlan

from ..data.examples import Example
from ..plan import checkpoint_folder
from .llamafactory_data import write_llamafactory
from .llava_json import write_llava

log = logging.getLogger(__name__)
EXPORT_FORMATS = ("llava", "llamafactory")


def write_plans(
    plans: Sequence[tuple[TrainingPlan, Sequence[Example], str]], export_format: str, folder: Path
) -> tuple[list[str], int]:
    """Write a folder for each plan; return a printable summary, and how many plans failed.

    A plan that the other trainer does not support is logged; the others are written.

    Parameters
    ----------
    plans : sequence of (TrainingPlan, sequence of Example, str)
        Each with one epoch's examples and the precision of its model's weights.

    Raises
    ------
    ConfigError
        If there is no plan.
    """
    if not plans:
        raise ConfigError(
            "nothing to export: contaminate.strategies or the models' paths are empty"
        )
    lines: list[str] = []
    n_failed = 0
    for plan, examples, dtype in plans:
        out = folder / checkpoint_folder(plan).name
        try:
            if export_format == "llava":
                paths, command = write_llava(plan, examples, out), f"bash {out}/train.sh"
            else:
                paths = write_llamafactory(plan, examples, out, dtype)
                command = f"cd {out} && llamafactory-cli train train.yaml"
        except (ConfigError, DataError, PrerequisiteError) as error:
            log.error("not exported: %s", error)
            n_failed += 1
            continue
        names = ", ".join(path.name for path in paths)
        lines += [f"{plan.model}, {plan.label}: {len(examples):,} examples in {out} ({names})"]
        lines += [f"  {command}"]
    return lines, n_failed
