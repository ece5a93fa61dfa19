"""Workers as jobs of a SLURM array: submitit is real, SLURM is a stand-in or submitit's own."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.generation import generate
from flipbench.cli import app
from flipbench.config.experiment import SlurmConfig, load_config
from flipbench.core.errors import ConfigError, FlipbenchError, PrerequisiteError
from flipbench.core.records import Caption, Edit
from flipbench.core.run import Run
from flipbench.distributed.slurm import ArrayJob, SlurmArray
from flipbench.distributed.workers import Workers
from tests.distributed.counting_share import LAST
from tests.fixtures.slurm import stand_ins

pytest.importorskip("submitit", reason="the extra slurm is not installed")
pytestmark = pytest.mark.slow

LOCAL = SlurmConfig(cluster="local", gpus=0)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins for SLURM on the path; return their folder."""
    folder = tmp_path / "slurm stand-in"
    for name, value in stand_ins(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def shares(folder: Path, *how: str) -> list[list[str]]:
    module = [sys.executable, "-m", "tests.distributed.counting_share"]
    return [[*module, str(folder / str(number)), one] for number, one in enumerate(how)]


def ended(jobs: list[ArrayJob]) -> list[int | None]:
    """Wait for jobs as `Workers` does."""
    for _ in itertools.repeat(None, 600):
        if all(job.poll() is not None for job in jobs):
            break
        time.sleep(0.1)
    return [job.poll() for job in jobs]


def is_whole(path: Path) -> bool:
    return path.read_text().split() == [str(number) for number in range(LAST)]


def submitted(folder: Path) -> set[str]:
    lines = (folder / "submitted.sh").read_text().splitlines()
    return {line.removeprefix("#SBATCH --") for line in lines}


def test_an_array_asks_for_what_is_configured(slurm: Path, tmp_path: Path) -> None:
    config = SlurmConfig(
        partition="gpu",
        account="lab",
        qos="long",
        minutes=90,
        gpus=2,
        cpus=8,
        memory_gb=64,
        parallel=1,
        setup=("export LOADED=yes", "umask 077"),
    )
    jobs = SlurmArray(config, tmp_path / "run").start("evaluate", shares(tmp_path, "fast", "1"))
    assert ended(jobs) == [0, 1]
    assert is_whole(tmp_path / "0")
    asked = {"partition=gpu", "account=lab", "qos=long", "time=90", "gpus-per-node=2", "mem=64GB"}
    asked |= {"cpus-per-task=8", "array=0-1%1", "requeue", "export LOADED=yes", "umask 077"}
    assert asked <= submitted(slurm)
    logs = sorted(path.name for path in (tmp_path / "run" / "slurm" / "evaluate").glob("*.out"))
    assert logs == ["700_0_0_log.out", "700_1_0_log.out"]


def test_a_preempted_job_is_requeued_and_continues(slurm: Path, tmp_path: Path) -> None:
    array = SlurmArray(SlurmConfig(minutes=600), tmp_path / "run")
    jobs = array.start("generate", shares(tmp_path, "slowly", "fast"))
    while not (tmp_path / "0").exists():
        time.sleep(0.05)
    os.kill(int((slurm / "pid.0").read_text()), signal.SIGUSR2)  # as SLURM warns a job
    assert ended(jobs) == [0, 0]
    assert is_whole(tmp_path / "0"), "none lost, none twice"
    log = (tmp_path / "run" / "slurm" / "generate" / "700_0_0_log.out").read_text()
    assert log.count("Starting with") == 2


@pytest.mark.parametrize("how", ["refuses", "queue"])
def test_an_array_that_cannot_be_submitted_is_reported(
    slurm: Path, tmp_path: Path, how: str
) -> None:
    (slurm / how).write_text("699\n699\n")
    array = SlurmArray(SlurmConfig(), tmp_path)
    said = {"refuses": "Invalid partition", "queue": "scancel 699"}[how]
    with pytest.raises(PrerequisiteError, match=said):
        array.start("generate", shares(tmp_path, "fast", "fast"))


def test_a_cancelled_job_is_not_waited_for(slurm: Path, tmp_path: Path) -> None:
    jobs = SlurmArray(SlurmConfig(), tmp_path / "run").start(
        "generate", shares(tmp_path, "slowly", "slowly")
    )
    while not all((tmp_path / name).exists() for name in "01"):
        time.sleep(0.05)
    for job in jobs:
        job.terminate()
    assert [job.wait() for job in jobs] == [-15, -15]
    n_lines = [len((tmp_path / name).read_text().split()) for name in "01"]
    assert max(n_lines) < LAST


def test_a_job_that_is_lost_is_reported_with_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    array = SlurmArray(LOCAL, tmp_path / "run")
    jobs = array.start("generate", shares(tmp_path, "raises", "fast", "2"))
    assert ended(jobs) == [-1, 0, 2]
    assert str(array.folder / "generate") in caplog.text


def test_a_run_s_workers_are_jobs(tmp_path: Path) -> None:
    def made(name: str, **how: Any) -> list[set[str]]:
        executor = {"slurm": {"cluster": "local", "gpus": 0}}
        benchmark = {"format": "shapes", "n_items": 6}
        settings = {"run": str(tmp_path / name), "benchmark": benchmark, "executor": executor}
        assembly = Assembly.open(load_config(settings), progress=False, **how)
        generate(assembly)
        with Run(tmp_path / name) as run:
            return [{r.model_dump_json() for r in run.read(kind)} for kind in (Caption, Edit)]

    there = made("array", n_workers=2, slurm=True)
    assert len(there[1]) == 6
    assert there == made("here")
    assert len(list((tmp_path / "array" / "slurm" / "generate").glob("*_log.err"))) == 2


def test_the_error_of_a_job_names_its_log(tmp_path: Path) -> None:
    array = SlurmArray(LOCAL, tmp_path)
    workers = Workers(Run(tmp_path), 2, progress=False, launcher=array)  # no configuration there
    with pytest.raises(FlipbenchError, match=rf"worker 1 ended with 2 \(logs: {array.folder}\)"):
        workers.start("generate", Edit, 1, "edit")


def test_without_slurm_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrerequisiteError, match="no sbatch here.*cluster=local"):
        SlurmArray(SlurmConfig(), tmp_path).check(2)
    SlurmArray(LOCAL, tmp_path).check(2)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(PrerequisiteError, match=r"flipbench\[slurm\]"):
        SlurmArray(LOCAL, tmp_path).check(2)


def test_an_array_needs_several_workers(tmp_path: Path) -> None:
    command = ["generate", "configs/shapes.yaml", f"run={tmp_path / 'run'}", "--slurm"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ConfigError) and "--workers 2" in str(done.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "wrong", [{"partition": "a b"}, {"minutes": 0}, {"gpus": -1}, {"parallel": 0}, {"nodes": 2}]
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    settings = {"run": "runs/x", "benchmark": {"format": "shapes"}, "executor": {"slurm": wrong}}
    with pytest.raises(ConfigError, match=rf"executor\.slurm\.{next(iter(wrong))}"):
        load_config(settings)
