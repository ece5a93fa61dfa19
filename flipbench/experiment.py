"""A configured experiment: its run directory, and how the stages are to go about it.

What the stages do with it: `flipbench.twins` (generate, filter), `flipbench.contamination`,
`flipbench.evaluation`; `flipbench.loop` does all in order.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from flipbench.config import Config
from flipbench.run import Run


@dataclass
class Experiment:
    """A resolved configuration, its run directory, and how the stages are to go about it."""

    config: Config
    run: Run
    limit: int | None = None
    progress: bool = True
    command: str = ""

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        limit: int | None = None,
        progress: bool = True,
        command: str = "",
        keep_provenance: bool = True,
    ) -> Experiment:
        """Open the run directory and keep configuration and environment with it."""
        _quiet_libraries()
        run = Run(config.run)
        if keep_provenance:
            run.keep_provenance(config.to_yaml())
        return cls(config, run, limit, progress, command)

    @property
    def benchmark_folder(self) -> Path:
        """Where the paired benchmark lies."""
        return self.run.path / "benchmark"


def _quiet_libraries() -> None:
    """Leave the terminal to our own progress bars."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
