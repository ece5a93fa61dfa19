"""Runs that an earlier version made are done: today's code finds all of it there, under its ids.

``stored_run.tar.xz`` was made by the version of 2026-11-22 (``flipbench run shapes.yaml``, ``audit
shapes.yaml`` and ``run pairs.yaml``, a person's verdicts in between), and is never made anew: where
a test here fails, people's runs would be trained and paid for a second time. Its plans hold a
washing, too, which was not trained.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import is_torchvision_available

from flipbench.config.experiment import load_config
from flipbench.core.records import (
    Caption,
    Checkpoint,
    Edit,
    Flip,
    Item,
    Probe,
    Record,
    Response,
    TrainingPlan,
    Verdict,
    Wording,
)
from flipbench.distributed import workers
from flipbench.models.chat.answer_judge import Judgement
from flipbench.models.vlm.checkpoints import fingerprint
from tests.fixtures.command_line import Flipbench, Result
from tests.fixtures.stored_run import unpack

N_RECORDS: dict[type[Record], int] = {
    Item: 8,
    Flip: 8,
    Caption: 8,
    Edit: 8,
    Verdict: 58,
    Wording: 2,
    TrainingPlan: 5,
    Checkpoint: 6,
    Probe: 49,
    Response: 315,
    Judgement: 14,
}
STAGES = {"flip": 8, "caption": 8, "edit": 8, "rules": 40, "judge": 16, "ask": 7 * 41}
SAME_QUESTIONS = (
    "evaluate.detectors=[perturbation_gap,circular_eval,choice_confusion,text_only_leakage,"
    "guided_prompting,slot_guessing,loss,codec]"
)
"""Detector loss asks what min_k asked when the runs were made."""
KEPT = "contaminate.items=kept"
"""What the stored checkpoints were trained on."""
_REPORT = re.compile(r"^(\w+)[^:\n]*.*: (\d+) done, (\d+) already there, (\d+) failed$", re.M)

pytestmark = pytest.mark.skipif(
    is_torchvision_available(), reason="torchvision prepares pictures otherwise: other models' ids"
)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return such a folder to read from."""
    return unpack(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a folder with the runs, and the configurations that made them."""
    return unpack(tmp_path)


def lines(stored: Path, kind: type[Record]) -> Iterator[str]:
    for path in sorted(stored.glob(f"runs/*/{kind.kind}/**/*.jsonl")):
        yield from path.read_text().splitlines()


def contents(stored: Path) -> dict[str, bytes]:
    """Return every record, picture and weight; a report and a configuration are written anew."""
    folders = [kind.kind for kind in N_RECORDS] + ["images", "failures"]
    paths = [path for folder in folders for path in stored.glob(f"runs/*/{folder}/**/*")]
    return {str(path.relative_to(stored)): path.read_bytes() for path in paths if path.is_file()}


def done_and_there(result: Result) -> tuple[Counter[str], Counter[str]]:
    """Return how many records each stage made, and how many it found."""
    made, found = Counter[str](), Counter[str]()
    for stage, n_done, n_there, n_failed in _REPORT.findall(result.err):
        made[stage] += int(n_done) + int(n_failed)
        found[stage] += int(n_there)
    return made, found


@pytest.mark.parametrize("kind", N_RECORDS, ids=lambda kind: kind.kind)
def test_records_read_and_have_the_ids_that_are_made_today(
    kind: type[Record], untouched: Path
) -> None:
    rows = [json.loads(line) for line in lines(untouched, kind)]
    assert len(rows) == N_RECORDS[kind]
    for row in rows:
        anew = kind.model_validate({key: value for key, value in row.items() if key != "id"})
        assert anew.id == row["id"]
        assert kind.model_validate(row) == anew


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("run", "shapes.yaml", SAME_QUESTIONS, KEPT, "--workers", "2"), STAGES),
        (("audit", "shapes.yaml"), {"ask": 24}),
        (("run", "pairs.yaml"), {"ask": 8, "judge": 16}),
    ],
    ids=["run shapes", "audit shapes", "run pairs"],
)
def test_the_same_command_finds_everything_there(
    stored: Path,
    flipbench: Flipbench,
    command: tuple[str, ...],
    expected: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_start_locally", None)  # nobody waits for workers without work
    before = contents(stored)
    result = flipbench(*command, "--quiet")
    assert result.status == 0
    made, found = done_and_there(result)
    assert made == Counter(dict.fromkeys(expected, 0))
    assert found == Counter(expected)
    assert contents(stored) == before


def test_what_changes_is_done_anew(stored: Path, flipbench: Flipbench) -> None:
    made, found = done_and_there(flipbench("generate", "shapes.yaml", "seed=4", "--quiet"))
    assert made["flip"] == 8 and not found["flip"]
    made, found = done_and_there(
        flipbench("generate", "shapes.yaml", "generate.editor.wrong=0", "--quiet")
    )
    assert (made["caption"], found["caption"], made["edit"]) == (0, 8, 8)


def test_stored_checkpoints_keep_their_fingerprints(untouched: Path) -> None:
    rows = [json.loads(line) for line in lines(untouched, Checkpoint)]
    run = untouched / "runs" / "shapes"
    assert [fingerprint(str(run / row["path"]), "float32") for row in rows] == [
        row["fingerprint"] for row in rows
    ]


def test_trained_plans_are_not_trained_again(stored: Path, flipbench: Flipbench) -> None:
    for changes, n_todo in (([KEPT], 0), ([KEPT, "contaminate.epochs=3"], 3), ([], 3)):
        planned = flipbench("contaminate", "shapes.yaml", *changes, "--dry-run").out
        assert f"to do: {n_todo} of 3 plans" in planned


def test_the_stored_configuration_is_the_one_that_its_file_gives(
    untouched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(untouched)
    for name in ("shapes", "pairs"):
        assert load_config(f"runs/{name}/config.yaml") == load_config(f"{name}.yaml")
