"""A grid's training data out, for trainers elsewhere: LLaVA's official one, and LLaMA-Factory."""

from __future__ import annotations

import logging
from pathlib import Path

from flipbench.contaminate.backends.llamafactory_data import write_llamafactory
from flipbench.contaminate.backends.llava_json import write_llava
from flipbench.contaminate.training.train import checkpoint_folder
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.paired import PairedBenchmark
from flipbench.pipelines.contamination import lessons_by_plan
from flipbench.pipelines.experiment import Experiment

log = logging.getLogger(__name__)
FORMS = {"llava": write_llava, "llamafactory": write_llamafactory}


def export_training(
    experiment: Experiment, benchmark: PairedBenchmark, form: str, folder: Path
) -> tuple[list[str], int]:
    """Write a folder for each plan; return lines for people, and how many were refused.

    A plan that the other trainer cannot carry out is named in the log; the others are written.

    Raises
    ------
    ConfigError
        Where there is no such form, or no plan.
    """
    if form not in FORMS:
        raise ConfigError(f"--export {form}: no such form; choose one of {', '.join(FORMS)}")
    plans = lessons_by_plan(experiment, benchmark)
    if not plans:
        raise ConfigError(
            "nothing to export: contaminate.strategies or the models' paths are empty"
        )
    lines: list[str] = []
    n_refused = 0
    for plan, examples in plans:
        out = folder / checkpoint_folder(plan).name
        try:
            if form == "llava":
                written, command = write_llava(plan, examples, out), f"bash {out}/train.sh"
            else:
                dtype = experiment.config.models[plan.model].dtype
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
