from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from studies.tiny_models import population
from studies.tiny_models.lineage import LOG, RECORD, Lineage
from studies.tiny_models.population import (
    LIST,
    accuracy_table,
    budget,
    main,
    planned,
    records,
)


def write(folder: Path, lineage: Lineage) -> dict[str, Any]:
    """Write what a finished lineage leaves behind, without training one."""
    record = {
        "family": lineage.family,
        "size": lineage.size,
        "level": lineage.level,
        "seed": lineage.seed,
        "name": lineage.name,
        "model_class": "LlavaForConditionalGeneration",
        "parameters": 1000,
        "steps": {"cells": 2},
        "cpu_seconds": 90,
        "torch": "2",
        "n_items": 10,
        "right": 8,
        "right_perturbed": 7,
        "right_text_only": 3,
        "only_original": 2,
        "only_perturbed": 1,
        "right_by_kind": {"color": 4, "shape": 4},
    }
    partial = folder / f"{lineage.name}.partial"
    partial.mkdir(parents=True)
    (partial / RECORD).write_text(json.dumps(record))
    (partial / LOG).write_text('{"lesson": "cells"}\n')
    partial.rename(folder / lineage.name)
    return record


def test_24_lineages_have_every_class_size_and_level_and_a_seed_each() -> None:
    lineages = planned(24)
    assert planned(7) == lineages[:7]
    assert [one.seed for one in lineages] == list(range(1, 25))
    mixed = Counter((one.family, one.size, one.level) for one in lineages)
    assert len(mixed) == 12
    assert {n for (_, size, _), n in mixed.items() if size == "small"} == {3}
    assert {n for (_, size, _), n in mixed.items() if size == "large"} == {1}
    assert {one.family for one in lineages[:3]} == {"llava", "qwen2_vl", "internvl"}


def test_only_unfinished_lineages_are_trained_and_the_budget_is_printed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lineages = planned(4)
    write(tmp_path, lineages[1])
    trained, printed = [], []

    def train(folder: Path, lineage: Lineage) -> None:
        printed.append(capsys.readouterr().out)
        trained.append(lineage)
        write(folder, lineage)

    monkeypatch.setattr(population, "train_lineage", train)
    monkeypatch.setattr(population, "process_pool", lambda n_workers: ThreadPoolExecutor(1))
    monkeypatch.setattr("sys.argv", ["population", str(tmp_path), "--n", "4"])
    main()
    assert trained == [lineages[0], lineages[2], lineages[3]]
    assert printed[0].startswith("1 of 4 lineages are finished; the others take about ")
    header, *rows = (tmp_path / LIST).read_text().splitlines()
    assert header.startswith("name,family,size,level,seed,model_class,parameters,")
    assert [row.split(",")[0] for row in rows] == [one.name for one in lineages]
    main()
    assert len(trained) == 3


def test_results_are_made_from_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in planned(2):
        write(tmp_path / "lineages", one)
    results = tmp_path / "results"
    monkeypatch.setattr(
        "sys.argv", ["population", str(tmp_path / "lineages"), "--results", str(results)]
    )
    main()
    lines = [json.loads(line) for line in (results / "lineages.jsonl").read_text().splitlines()]
    assert lines == [{"lineage": one.name, "lesson": "cells"} for one in planned(2)]
    assert "80.0 (8/10) [49.0, 94.3]" in (results / "lineages.md").read_text()
    assert len((results / LIST).read_text().splitlines()) == 3


def test_pairs_of_which_one_is_right_are_tested_exactly(tmp_path: Path) -> None:
    lineages = planned(1)
    record = write(tmp_path, lineages[0])
    for only, p in (((2, 1), ">.999"), ((8, 0), ".008"), ((0, 0), ">.999")):
        record |= {"only_original": only[0], "only_perturbed": only[1]}
        (row,) = accuracy_table([record]).rows
        assert [cell.plain() for cell in row.cells[3:]] == [f"{only[0]}, {only[1]}", p, "1.5"]
    assert records(tmp_path, planned(3)) == records(tmp_path, lineages)


def test_the_budget_counts_what_is_left() -> None:
    everything = planned(12)
    assert "about 0.0 CPU hours on 2 workers" in budget(everything, [], 2)
    assert budget(everything, everything, 1).startswith("0 of 12 lineages are finished")
