"""Workers as jobs of a SLURM array; submitit writes, submits, watches and requeues them."""

from __future__ import annotations

import getpass
import hashlib
import logging
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipbench.config.experiment import SlurmConfig
from flipbench.core.errors import ConfigError, PrerequisiteError, need, shorten

log = logging.getLogger(__name__)
_STATUSES = (0, 1, 2, 130)  # of flipbench; any other is submitit's own, on its way to requeue
_LOST, _STOPPED = -1, -15


class SlurmArray:
    """Start workers as the jobs of one SLURM array.

    A job is the same command that `--workers` starts here, in a process of submitit that catches
    SLURM's warning before a time limit or a preemption and puts the job back into the queue. Its
    finished work is in the run, so it goes on where it stopped.

    Parameters
    ----------
    config : SlurmConfig
        What each job asks for.
    run : Path
        The run directory, on a file system that all nodes share; logs are in its folder ``slurm``.
    """

    def __init__(self, config: SlurmConfig, run: Path) -> None:
        self.config, self.run = config, run.absolute()
        self.folder = run / "slurm"

    def check(self, n_workers: int) -> None:
        """Refuse what cannot be submitted, before any work.

        Raises
        ------
        ConfigError
            If there is nothing to divide.
        PrerequisiteError
            If submitit or SLURM is missing.
        """
        if n_workers < 2:
            raise ConfigError("--slurm: say how many jobs share the work, with --workers 2 or more")
        need("submitit", "slurm")
        absent = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
        if absent and self.config.cluster == "slurm":
            raise PrerequisiteError(
                f"--slurm: there is no {absent[0]} here; start the command on a login node of"
                " the cluster, or try it on this machine with executor.slurm.cluster=local"
            )

    def start(self, stage: str, commands: Sequence[list[str]]) -> list[ArrayJob]:
        """Submit an array with a job for each command.

        Raises
        ------
        PrerequisiteError
            If SLURM refuses the array, or an earlier one of this run and stage is not over.
        """
        submitit, cluster = need("submitit", "slurm"), self.config.cluster
        run = hashlib.sha256(str(self.run).encode()).hexdigest()[:8]
        name = f"flipbench-{stage}-{run}"
        if cluster == "slurm" and (queued_id := _in_queue(name)):
            raise PrerequisiteError(
                f"{self.run}: SLURM array {queued_id} of the same stage is not over; wait for it,"
                f" or stop it with 'scancel {queued_id}'"
            )
        executor = submitit.AutoExecutor(
            folder=self.run / "slurm" / stage,
            cluster=cluster,
            slurm_max_num_timeout=self.config.extensions,
            local_max_num_timeout=self.config.extensions,
        )
        executor.update_parameters(**_parameters(self.config, name))
        try:
            jobs = executor.map_array(RunShare(), commands)
        except (submitit.core.utils.FailedJobError, OSError) as error:
            raise PrerequisiteError(
                f"SLURM refused the array ({shorten(str(error))}); see executor.slurm"
            ) from error
        array = jobs[0].job_id.partition("_")[0]
        place = f"jobs of SLURM array {array}" if cluster == "slurm" else "jobs of this machine"
        log.info("%s: %d %s; logs: %s", stage, len(jobs), place, self.folder / stage)
        return [ArrayJob(job) for job in jobs]


class RunShare:
    """What a job does: run a module as ``python -m`` would, in the process that gets the signals.

    submitit calls `checkpoint` when SLURM warns that it will end the job.
    """

    def __call__(self, command: list[str]) -> int:
        """Return the exit status of ``[python, "-m", module, *arguments]``."""
        _, _, module, *arguments = command
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            if stop.code is not None and stop.code not in _STATUSES:
                raise
            return int(stop.code or 0)
        return 0

    def checkpoint(self, command: list[str]) -> Any:
        """Return the same job; what it has finished is in the run."""
        return need("submitit", "slurm").helpers.DelayedSubmission(self, command)


class ArrayJob:
    """A job of the array, as `flipbench.distributed.workers.Worker`."""

    def __init__(self, job: Any) -> None:
        self.job, self.is_stopped = job, False

    def poll(self) -> int | None:
        """Return its exit status; None while it is queued or runs."""
        return self.wait() if self.job.done() else None

    def terminate(self) -> None:
        """Cancel it."""
        self.is_stopped = True
        self.job.cancel(check=False)

    def wait(self) -> int:
        """Return its exit status when it is over; -1 if it was lost, with a message."""
        if self.is_stopped:  # SLURM's accounting may learn of it minutes later
            return _STOPPED
        try:
            return int(self.job.result())
        except Exception as error:  # submitit's, or whatever ended the job
            lines = str(error).strip().splitlines() or [type(error).__name__]
            log.error("job %s: %s", self.job.job_id, shorten(lines[-1], 300))
            return _LOST


def _parameters(config: SlurmConfig, name: str) -> dict[str, Any]:
    """Return submitit's names of what a job asks for."""
    return {
        "name": name,
        "timeout_min": config.minutes,
        "gpus_per_node": config.gpus,
        "cpus_per_task": config.cpus,
        "mem_gb": config.memory_gb,
        "slurm_partition": config.partition,
        "slurm_account": config.account,
        "slurm_qos": config.qos,
        "slurm_array_parallelism": config.parallel,
        "slurm_setup": list(config.setup) or None,
        "local_setup": list(config.setup) or None,
        "slurm_additional_parameters": {"requeue": True},
    }


def _in_queue(name: str) -> str:
    """Return the number of this user's array of that name in the queue, or an empty string."""
    squeue = [
        "squeue",
        "--noheader",
        "--user",
        getpass.getuser(),
        "--name",
        name,
        "--format",
        "%A",
    ]
    try:
        process = subprocess.run(squeue, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter(process.stdout.split()), "") if process.returncode == 0 else ""
