"""A stage on a real Ray cluster of two nodes: the same records, whatever dies on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flipbench.api.stages.assembly import Assembly
from flipbench.config.experiment import ExecutorConfig, load_config
from flipbench.core.errors import ConfigError, FlipbenchError, PrerequisiteError
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage
from flipbench.distributed.cluster import RayCluster
from tests.distributed.conftest import NODE
from tests.distributed.number_stage import Numbers, go


def lines(folder: Path) -> Counter[str]:
    """Return how often each caption was written."""
    written: Counter[str] = Counter()
    for path in folder.rglob("captions/*.jsonl"):
        written.update(path.read_text().split("\n")[:-1])
    return written


def here(folder: Path, numbers: range) -> Counter[str]:
    """Return the captions that one process writes."""
    with Run(folder) as run:
        run_stage(Numbers(), numbers, run, StageOptions(progress=False))
    return lines(folder)


@contextlib.contextmanager
def meanwhile(run: Path, n_records: int, what: Callable[[], None]) -> Iterator[None]:
    """Do something once ``n_records`` captions are there."""

    def wait() -> None:
        while sum(lines(run).values()) < n_records:
            time.sleep(0.05)
        what()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow
def test_records_are_those_of_one_process_and_a_second_time_skipped(
    cluster: Any, tmp_path: Path
) -> None:
    numbers = range(-1, 40)
    report = go(tmp_path / "ray", numbers, Numbers(0.3, tmp_path))
    assert (report.n_done, report.n_failed) == (40, 1)
    assert report.failures[0].message == "odd"
    assert lines(tmp_path / "ray") == here(tmp_path / "one", range(40))
    pids = [path for path in tmp_path.iterdir() if path.name.isdigit()]
    assert 1 <= len(pids) <= 2, "an actor that starts late may find nothing left"
    assert str(os.getpid()) not in {path.name for path in pids}
    assert go(tmp_path / "ray", range(40), Numbers()).n_skipped == 40


@pytest.mark.slow
def test_an_actor_is_killed_and_nothing_is_lost_or_doubled(cluster: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    run = tmp_path / "ray"

    def kill() -> None:
        os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)

    with meanwhile(run, 12, kill):
        report = go(run, range(80), Numbers(0.4, pids))
    assert (report.n_done, report.n_failed) == (80, 0)
    assert len(list(pids.iterdir())) >= 2, "another process went on"
    assert lines(run) == here(tmp_path / "one", range(80))


@pytest.mark.slow
def test_an_item_over_which_actors_die_fails_alone(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flipbench.distributed.cluster._MAX_DEATHS", 2)
    report = go(tmp_path, [*range(6), -9, 6], Numbers(), batch_size=2)
    assert (report.n_done, report.n_failed) == (7, 1)
    assert report.failures[0].subject == "number -9"
    assert "2 actors died over it" in report.failures[0].message


@pytest.mark.slow
def test_what_concerns_every_item_stops_the_stage(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="^no weights$"):
        go(tmp_path, [-2, *range(20)], Numbers())


@pytest.mark.slow
def test_an_actor_that_cannot_be_started_stops_the_stage(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import ActorUnschedulableError

    def refuse(*_: object) -> None:
        raise ActorUnschedulableError("no node has room")

    monkeypatch.setattr("flipbench.distributed.cluster._result", refuse)
    with pytest.raises(FlipbenchError, match="^caption: an actor cannot be .*no node has room"):
        go(tmp_path, range(20), Numbers())


@pytest.mark.slow
def test_what_cannot_be_sent_stays(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Numbers(pids=tmp_path, held=threading.Lock())
    assert go(tmp_path / "run", range(8), stage).n_done == 8
    assert (tmp_path / str(os.getpid())).exists()
    assert "caption stays in this process, since it cannot be sent" in caplog.text


@pytest.mark.slow
def test_the_command_is_killed_and_continues(cluster: Any, tmp_path: Path) -> None:
    program = Path(__file__).with_name("number_stage.py")
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    words = [sys.executable, str(program), cluster.address, str(tmp_path / "ray"), "60", "0.3"]
    with subprocess.Popen(words, env=environment, cwd=root) as driver:
        while sum(lines(tmp_path / "ray").values()) < 8:
            assert driver.poll() is None
            time.sleep(0.1)
        driver.kill()
    n_before = sum(lines(tmp_path / "ray").values())
    assert 8 <= n_before < 60
    report = go(tmp_path / "ray", range(60), Numbers())
    assert (report.n_done, report.n_skipped) == (60 - n_before, n_before)
    assert lines(tmp_path / "ray") == here(tmp_path / "one", range(60))


@pytest.mark.slow
def test_a_machine_is_lost_and_nothing_is_lost_or_doubled(cluster: Any, tmp_path: Path) -> None:
    third = cluster.add_node(**NODE)
    run = tmp_path / "ray"
    with meanwhile(run, 12, lambda: cluster.remove_node(third, allow_graceful=False)):
        report = go(run, range(80), Numbers(0.1), actors=3)
    assert (report.n_done, report.n_failed) == (80, 0)
    assert lines(run) == here(tmp_path / "one", range(80))


def test_a_cluster_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(PrerequisiteError, match="no Ray cluster at 'auto'.*ray start --head"):
        go(tmp_path, range(3), Numbers())


def test_stages_that_are_not_named_or_null_stay(tmp_path: Path) -> None:
    config = ExecutorConfig.model_validate(
        {"kind": "ray", "stages": {"caption": None, "ask": {"batch_size": 8}}}
    )
    cluster = RayCluster(config, tmp_path)
    sizes = [cluster.batch_size(name, 16) for name in ("caption", "ask llava", "flip", "judge x")]
    assert sizes == [16, 8, 16, 16]
    assert [config.stage(name) is None for name in ("caption", "flip", "edit")] == [
        True,
        True,
        False,
    ]


def test_the_setting_is_one_word_or_a_mapping() -> None:
    short = load_config("configs/shapes.yaml", ["executor=ray"])
    assert short.executor == ExecutorConfig(kind="ray")
    assert load_config("configs/shapes.yaml").executor.kind == "local"
    with pytest.raises(ValidationError, match="address and stages need kind: ray"):
        ExecutorConfig(address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match="drop --workers"):
        Assembly.open(short, n_workers=2)
