"""A configured experiment: its run directory, and how the stages are to go about it.

What the stages do with it: `flipbench.pipelines.pairs` (generate, filter), `flipbench.pipelines.contamination`,
`flipbench.pipelines.evaluation`; `flipbench.pipelines.loop` does all in order.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from flipbench.config.experiment import Config
from flipbench.core.processes import is_main
from flipbench.core.records import Record
from flipbench.core.run import Run
from flipbench.core.workers import Share, run_workers


@dataclass
class Experiment:
    """A resolved configuration, its run directory, and how the stages are to go about it."""

    config: Config
    run: Run
    limit: int | None = None
    progress: bool = True
    command: str = ""
    n_workers: int = 1
    share: Share | None = None

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        limit: int | None = None,
        progress: bool = True,
        command: str = "",
        n_workers: int = 1,
        share: Share | None = None,
    ) -> Experiment:
        """Open the run directory; who is no other's worker keeps configuration and environment.

        Parameters
        ----------
        n_workers : int
            Processes for editing, training and asking, one for each GPU.
        share : Share, optional
            This process is one of several workers; it does this part only.
        """
        _quiet_libraries()
        run = Run(config.run)
        if share is None and is_main():
            run.keep_provenance(config.to_yaml())
        return cls(config, run, limit, progress, command, n_workers, share)

    @property
    def benchmark_folder(self) -> Path:
        """Where the paired benchmark lies."""
        return self.run.path / "benchmark"


def have_workers_do(
    experiment: Experiment, stage: str, kind: type[Record], total: int, what: str
) -> None:
    """Have the experiment's workers run a stage of its configuration, each its share.

    Parameters
    ----------
    stage : str
        The command, such as ``contaminate``.
    kind : type of Record
        What is counted for the progress bar, up to ``total``.
    """
    command = [stage, str(experiment.run.path / "config.yaml")]
    command += ["--limit", str(experiment.limit)] if experiment.limit else []
    count = partial(experiment.run.count, kind)
    run_workers(
        command, experiment.n_workers, count, total, what=what, progress=experiment.progress
    )


def _quiet_libraries() -> None:
    """Leave the terminal to our own progress bars."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
