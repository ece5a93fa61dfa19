"""The tables of the consistency study, on outcomes that are known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipbench.core.records import Count, TrainingPlan
from flipbench.evaluate.statistics.quadrants import QUADRANTS
from flipbench.reporting import writers
from flipbench.reporting.tables import Table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shapes" / "consistency.py"


@pytest.fixture(scope="module")
def study() -> Any:
    spec = importlib.util.spec_from_file_location("consistency_study", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def outcome(study: Any, *quadrants: str, right: str) -> Any:
    """Return an outcome, a row of quadrants (by initial) for each seed."""
    names = {name[0]: at for at, name in enumerate(QUADRANTS)}
    flags = [[float(letter == "r") for letter in row] for row in right.split()]
    found = np.array([[names[letter] for letter in row] for row in quadrants])
    return study.Outcome(found, np.array(flags), Count(k=2, n=4))


@pytest.fixture
def families(study: Any) -> Any:
    """Two kinds of training, two seeds; two of four items were fragile, one is dangerous once."""
    kinds = [study.Kind("all layers", True, loss) for loss in ("plain", "grounded")]
    trained = {
        kinds[0]: outcome(study, "ddid", "ddid", right="rrrr rr.r"),
        kinds[1]: outcome(study, "dfid", "ffid", right="rrrr rrrr"),
    }
    clean = outcome(study, "ffid", right="rr..")
    return {"tiny": study.Family(clean, trained, np.array(["color", "place", "color", "place"]))}


def rows(table: Table) -> dict[str, list[str]]:
    return {row.header: [cell.plain() for cell in row.cells] for row in table.rows}


def test_transitions_start_from_the_model_before_training(study: Any, families: Any) -> None:
    origins = rows(study.origin_table(families))
    plain, grounded = "plain KL + labels, all layers", "grounded KL + labels, all layers"
    fragile = QUADRANTS.index("fragile")
    assert origins[plain][fragile].startswith("100.0 (4/4) [34.2, 100.0]"), "two items, two seeds"
    assert origins[grounded][fragile].startswith("25.0 (1/4)")
    assert origins[plain][QUADRANTS.index("worst")] == "–"
    main = rows(study.quadrant_table(families))
    assert main["none"][0].startswith("50.0 (2/4)") and main["none"][3].startswith("50.0 (2/4)")
    assert main["none"][2] == "–", "what is fragile is not dangerous"
    assert main[plain][1].startswith("75.0 (6/8)") and "75.0–75.0" in main[plain][1]
    assert main[grounded][4:] == ["60.0 (3/5)", "50.0 (2/4)"]
    dangerous, right = (rows(study.category_table(families, name)) for name in ("DF", "right"))
    starts = [[cell.split(" [")[0] for cell in table[plain]] for table in (dangerous, right)]
    assert starts == [["50.0 (2/4)", "100.0 (4/4)"], ["75.0 (3/4)", "100.0 (4/4)"]]


def test_differences_are_paired_and_between_kinds_that_differ_in_one_thing(
    study: Any, families: Any
) -> None:
    (found,) = study.difference_table(families).rows
    assert found.header == "grounded − plain, with labels, all layers"
    flips, dangerous, fragile, right = (cell.plain() for cell in found.cells)
    assert [text.split()[0] for text in (flips, dangerous, fragile, right)] == [
        "+37.5",
        "−37.5",
        "−75.0",
        "+12.5",
    ]
    kinds = [
        study.Kind(layers, labels, divergence)
        for layers in ("layers 2, 3", "all layers")
        for labels, divergence in (
            (True, "none"), (True, "plain"), (True, "grounded"), (False, "plain"),
            (False, "grounded"),
        )
    ]  # fmt: skip
    names = [name for name, *_ in study.differences(kinds)]
    assert len(names) == len(set(names)) == 2 + 4 + 5
    assert "plain − labels only, with labels, layers 2, 3" in names
    assert "all layers − layers 2, 3: grounded KL" in names


def test_a_kind_follows_from_the_plan(study: Any) -> None:
    def kind(layers: list[int] | None, **loss: Any) -> str:
        plan = TrainingPlan(
            model="m", parent="p", parent_fingerprint="f", benchmark="b", item_ids=("i",),
            epochs=1, strategy="lora", prompt="", seed=0,
            settings={"lora_layers": layers, "consistency": loss},
        )  # fmt: skip
        return str(study.Kind.of(plan))

    assert kind([2, 3], answer_weight=0) == "plain KL, layers 2, 3"
    assert kind(None, answer_weight=1, weight=0) == "labels only, all layers"
    assert kind(None, answer_weight=1, grounded=True) == "grounded KL + labels, all layers"


@pytest.mark.figures
def test_the_figure_is_drawn(study: Any, families: Any, tmp_path: Path) -> None:
    study.write_figure(families, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000
    assert "grounded" in writers.markdown(study.difference_table(families))
