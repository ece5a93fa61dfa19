"""A grid's training data out, for trainers elsewhere: LLaVA's official one, and LLaMA-Factory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.records import TrainingPlan

from ..data.examples import Example
from ..training.train import checkpoint_folder
from .llamafactory_data import write_llamafactory
from .llava_json import write_llava

log = logging.getLogger(__name__)
FORMS = ("llava", "llamafactory")


def check_form(form: str) -> None:
    """Refuse the name of a form that there is not.

    Raises
    ------
    ConfigError
    """
    if form not in FORMS:
        raise ConfigError(f"--export {form}: no such form; choose one of {', '.join(FORMS)}")


def write_plans(
    plans: Sequence[tuple[TrainingPlan, Sequence[Example], str]], form: str, folder: Path
) -> tuple[list[str], int]:
    """Write a folder for each plan; return lines for people, and how many were refused.

    A plan that the other trainer cannot carry out is named in the log; the others are written.

    Parameters
    ----------
    plans : sequence of (TrainingPlan, sequence of Example, str)
        Each with one epoch's examples and the precision of its model's weights.

    Raises
    ------
    ConfigError
        Where there is no such form, or no plan.
    """
    check_form(form)
    if not plans:
        raise ConfigError(
            "nothing to export: contaminate.strategies or the models' paths are empty"
        )
    lines: list[str] = []
    n_refused = 0
    for plan, examples, dtype in plans:
        out = folder / checkpoint_folder(plan).name
        try:
            if form == "llava":
                written, command = write_llava(plan, examples, out), f"bash {out}/train.sh"
            else:
                written = write_llamafactory(plan, examples, out, dtype)
                command = f"cd {out} && llamafactory-cli train train.yaml"
        except (ConfigError, DataError, PrerequisiteError) as error:
            log.error("not exported: %s", error)
            n_refused += 1
            continue
        names = ", ".join(path.name for path in written)
        lines += [f"{plan.model}, {plan.label}: {len(examples):,} examples in {out} ({names})"]
        lines += [f"  {command}"]
    return lines, n_refused
