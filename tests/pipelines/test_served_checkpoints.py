"""``flipbench evaluate`` with ``engine: vllm``: a stand-in serves, transformers is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.core.records import Response
from flipbench.core.run import Run
from tests.fixtures.command_line import Flipbench
from tests.fixtures.report_data import make_benchmark
from tests.fixtures.vllm_stand_in import VERSION, install

pytest.importorskip("openai", reason="the extra api is not installed")
pytestmark = pytest.mark.slow

N_PAIRS = 6


@pytest.fixture
def write(tmp_path: Path, tiny_folders: dict[str, Path]) -> Callable[..., Path]:
    """Return a function that writes a configuration with pairs and a served model."""
    make_benchmark(tmp_path / "r", N_PAIRS).save(tmp_path / "r" / "benchmark")

    def write(**engine: Any) -> Path:
        served = {"path": str(tiny_folders["llava"]), "engine": {"kind": "vllm", **engine}}
        settings = {
            "run": str(tmp_path / "r"),
            "benchmark": {"format": "shapes"},
            "models": {"served": served},
            "evaluate": {"detectors": ["perturbation_gap", "text_only_leakage"]},
        }
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    return write


def test_every_table_says_how_the_server_compares_with_transformers(
    flipbench: Flipbench, write: Callable[..., Path], tmp_path: Path
) -> None:
    vllm = str(install(tmp_path))
    first = flipbench("evaluate", str(write(executable=vllm, parity=4)))
    assert first.status == 0, first.err
    with Run(tmp_path / "r") as run:
        by_model: dict[str, list[Response]] = {}
        for response in run.read(Response):
            by_model.setdefault(response.model, []).append(response)
    assert len(by_model["served, transformers"]) == 4, "the first items, and no more"
    assert len(by_model["served"]) > 2 * N_PAIRS
    note = rf"served: asked through vLLM {re.escape(VERSION)} \(not batch-invariant\); the same"
    note += r" letter as transformers for 100\.0 % \(4/4\) \[39\.8, 100\.0\]; largest difference"
    folder = tmp_path / "r" / "report"
    tables = [*folder.glob("*.md"), folder / "table.tex", folder / "index.html"]
    assert len(tables) > 4
    for path in tables:
        text = path.read_text().replace("\\%", "%")
        assert re.search(note, text), path.name
    nats = re.search(r"largest difference ([\d.e-]+) nats", (folder / "gap.md").read_text())
    assert nats and float(nats[1]) < 1e-4
    (log,) = (tmp_path / "r" / "servers").glob("*.log")
    assert "stand-in: " in log.read_text()
    (record,) = (tmp_path / "r" / "responses").glob("*/server.json")
    assert json.loads(record.read_text())[0]["version"] == VERSION

    again = flipbench("evaluate", str(write(executable="/no/such/vllm", parity=4)))
    assert again.status == 0, "a finished run needs no server"
    assert re.search(note, (folder / "gap.md").read_text())
