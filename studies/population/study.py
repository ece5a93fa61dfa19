"""All units of a population study, phase by phase, shared out among workers."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from flipbench.core.files import atomic_file, write_atomically
from flipbench.core.processes import process_pool
from flipbench.reporting.writers import frame_csv
from studies.population.results import SHUFFLED
from studies.population.settings import StudyConfig, drawn_order, lineages_of
from studies.population.unit import Unit, can_be_trained, run_unit

log = logging.getLogger(__name__)
TABLES = ("scores", "items")
N_TRIES = 2


def units_of(study: StudyConfig) -> Iterator[Unit]:
    """Return all units in order; lineages that are not trained yet are left out.

    A kind with ``pretraining`` is left out for lineages whose recipe is not known.
    """
    lineages = drawn_order(lineages_of(study), study.seed)
    keys: set[tuple[str, str]] = set()
    for phase in study.phases:
        for lineage in lineages[: phase.lineages]:
            for kind in phase.kinds:
                unit = Unit(lineage, kind)
                possible = not unit.is_pretraining(study) or can_be_trained(lineage)
                if possible and (lineage.name, kind) not in keys:
                    keys.add((lineage.name, kind))
                    yield unit


def budget(study: StudyConfig) -> str:
    """Return what is done, and the CPU hours that the rest needs, from the units measured."""
    units = list(units_of(study))
    todo = [unit for unit in units if not unit.done(study)]
    costs = [json.loads(p.read_text()) for p in sorted(study.run.glob("units/*/unit.json"))]
    n_models = sum(unit["models"] for unit in costs)
    seconds = sum(u["cpu_seconds"] for u in costs) / n_models if costs else study.seconds
    anew = [float(u.lineage.facts.get("cpu_seconds", 0)) for u in todo if u.is_pretraining(study)]
    hours = 2 * (len(todo) * seconds + sum(anew)) / 3600  # each kind and its control
    source = f"measured on {n_models} models" if costs else "assumed"
    n_lineages = len({unit.lineage.name for unit in units})
    return (
        f"{_counted(n_lineages, 'lineage')}, {_counted(len(units), 'unit')} of one kind and its"
        f" control, {len(todo)} to do:"
        f" about {hours:.1f} CPU hours ({seconds:.0f} s a model, {source})"
    )


def run_study(study: StudyConfig, n_workers: int = 1) -> list[str]:
    """Do all units that are not done, and collect the results; return what failed.

    Each lineage belongs to one worker. New lineages are found while the study runs.
    """
    study.run.mkdir(parents=True, exist_ok=True)
    if n_workers == 1:
        failed = _work(study, 0, 1)
    else:
        with process_pool(n_workers) as pool:
            shares = [pool.submit(_work, study, i, n_workers) for i in range(n_workers)]
            failed = [message for share in shares for message in share.result()]
    collect(study.run)
    return failed


def _work(study: StudyConfig, number: int, n_workers: int) -> list[str]:
    """Do one worker's units; return what failed twice."""
    if n_workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // n_workers))
    failures: dict[tuple[str, str], list[str]] = {}
    start, n_tried = time.monotonic(), 0
    while todo := _todo(study, number, n_workers, failures):
        unit = todo[0]
        seconds_left = len(todo) * (time.monotonic() - start) / n_tried if n_tried else None
        log.info("%s, %s; %s", unit.lineage.name, unit.kind, _left(len(todo), seconds_left))
        n_tried += 1
        try:
            run_unit(study, unit)
        except Exception as error:  # one unit must not stop the others
            log.error("%s, %s: %s", unit.lineage.name, unit.kind, error)
            log.debug("%s", unit.folder(study), exc_info=True)
            message = f"{unit.lineage.name}, {unit.kind}: {error}"
            failures.setdefault((unit.lineage.name, unit.kind), []).append(message)
        if number == 0:
            collect(study.run)
    return [messages[-1] for messages in failures.values() if len(messages) == N_TRIES]


def _left(n_units: int, seconds: float | None) -> str:
    """Return how much is left, with this unit.

    >>> _left(1, None), _left(12, 4000)
    ('1 unit left', '12 units left, about 1:06:40')
    """
    units = f"{_counted(n_units, 'unit')} left"
    return units if seconds is None else f"{units}, about {tqdm.format_interval(seconds)}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _todo(
    study: StudyConfig, number: int, n_workers: int, failures: dict[tuple[str, str], list[str]]
) -> list[Unit]:
    """Return one worker's units that are not done and have not failed too often."""
    return [
        unit
        for unit in units_of(study)
        if unit.lineage.benchmark_seed // 2 % n_workers == number
        and len(failures.get((unit.lineage.name, unit.kind), ())) < N_TRIES
        and not unit.done(study)
    ]


def collect(run: Path) -> None:
    """Join the units' tables into ``scores.parquet``, ``items.parquet`` and ``lineages.csv``."""
    folders = sorted(path.parent for path in run.glob("units/*/unit.json"))
    if not folders:
        return
    for name in TABLES:
        frame = pd.concat([pd.read_parquet(folder / f"{name}.parquet") for folder in folders])
        keys = ["lineage", "kind", "arm", "dose", "condition"]
        keys += ["detector", "rule"] if name == "scores" else ["item"]
        frame = frame.drop_duplicates(keys).sort_values(keys)
        if SHUFFLED in frame:  # null where a unit has none
            frame[SHUFFLED] = frame[SHUFFLED].astype("boolean")
        for column in frame.columns[frame.dtypes == "str"]:
            frame[column] = frame[column].astype("category")
        with atomic_file(run / f"{name}.parquet") as partial:
            frame.to_parquet(partial, compression="zstd", index=False)
    costs = [json.loads((folder / "unit.json").read_text()) for folder in folders]
    facts = {unit["lineage"]["name"]: unit["lineage"] for unit in costs}
    write_atomically(run / "lineages.csv", frame_csv(pd.DataFrame(list(facts.values()))))
