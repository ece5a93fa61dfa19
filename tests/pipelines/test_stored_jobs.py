"""An audit, a verdict on a model, and edits that people reviewed are done, under the same ids.

``stored_jobs.tar.xz`` was made by the version of 2026-11-25 beside the runs of
``stored_run.tar.xz``, whose checkpoint was examined, with the commands of `JOBS`. Two people
reviewed the edits and adjudicated the flagged corpus pictures on the pages of ``flipbench review
runs/discs`` and ``flipbench adjudicate audit.yaml``. It is never made anew.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers.utils import is_torchvision_available

from flipbench.core.records import (
    Adjudication,
    Caption,
    Edit,
    Flip,
    Item,
    Probe,
    Record,
    Response,
    Verdict,
)
from tests.fixtures.command_line import Flipbench
from tests.fixtures.stored_run import unpack
from tests.pipelines.test_stored_run import done_and_there

ROOT = Path(__file__).parents[2]
DETECT = (
    "detect", "--model", "runs/shapes/checkpoints/tiny-llava-lora-fa1f3f53/epoch-2",
    "--reference", "shapes:llava", "--benchmark", "discs", "--out", "runs/detect",
    "--limit", "8", "--diagnose",
)  # fmt: skip
JOBS = {
    DETECT: {"ask": 2 * (355 + 30)},
    ("audit", "audit.yaml"): {"ask": 3 * 25 + 1 + 3 * 50},
    ("generate", "discs.yaml", "--limit", "8"): {"flip": 8, "caption": 8, "edit": 8},
    ("filter", "discs.yaml", "--limit", "8"): {
        "flip": 8, "caption": 8, "edit": 8, "rules": 40, "judge": 8,
    },
}  # fmt: skip
N_RECORDS: dict[type[Record], int] = {
    Item: 8,
    Flip: 8,
    Caption: 8,
    Edit: 8,
    Verdict: 58,
    Adjudication: 7,
    Probe: 433,
    Response: 991,
}

pytestmark = pytest.mark.skipif(
    is_torchvision_available(), reason="torchvision prepares pictures otherwise: other models' ids"
)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the jobs to read from."""
    return unpack(tmp_path_factory.mktemp("untouched"), jobs=True)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the jobs, where the plug-ins of the configurations can be imported."""
    monkeypatch.syspath_prepend(ROOT)
    return unpack(tmp_path, jobs=True)


def records(stored: Path, kind: type[Record]) -> list[str]:
    """Return the lines of all records of a kind that the jobs made."""
    paths = [
        path
        for job in ("audit", "detect", "discs")
        for path in sorted((stored / "runs" / job / kind.kind).rglob("*.jsonl"))
    ]
    return [line for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", N_RECORDS, ids=lambda kind: kind.kind)
def test_records_read_and_have_the_ids_that_are_made_today(
    kind: type[Record], untouched: Path
) -> None:
    rows = [json.loads(line) for line in records(untouched, kind)]
    assert len(rows) == N_RECORDS[kind]
    for row in rows:
        anew = kind.model_validate({key: value for key, value in row.items() if key != "id"})
        assert anew.id == row["id"]
        assert kind.model_validate(row) == anew


@pytest.mark.slow
@pytest.mark.parametrize("command", JOBS, ids=lambda command: " ".join(command[:2]))
def test_the_same_command_finds_everything_there(
    stored: Path, flipbench: Flipbench, command: tuple[str, ...]
) -> None:
    before = {kind: records(stored, kind) for kind in N_RECORDS}
    result = flipbench(*command, "--quiet")
    assert result.status == 0, result.err
    made, found = done_and_there(result)
    assert made == Counter(dict.fromkeys(JOBS[command], 0))
    assert found == Counter(JOBS[command])
    assert {kind: records(stored, kind) for kind in N_RECORDS} == before
