"""A stage over numbers, for actors; as a program it runs the stage on a given cluster.

``python number_stage.py ADDRESS RUN N PAUSE``
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.config.experiment import ExecutorConfig
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import Caption, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.distributed.cluster import RayCluster


@dataclass
class Numbers:
    """Make the caption of each number; negative ones fail, each in its own way."""

    pause: float = 0.0
    pids: Path | None = None
    held: object = None

    name = "caption"
    record: type[Record] = Caption

    def id_of(self, number: int) -> str:
        return self._caption(number).id

    def subject(self, number: int) -> str:
        return f"number {number}"

    def __call__(self, numbers: Sequence[int]) -> list[Record | Exception]:
        if self.pids:
            (self.pids / str(os.getpid())).touch()
        time.sleep(self.pause)
        if -9 in numbers:
            os._exit(1)
        if -2 in numbers:
            raise PrerequisiteError("no weights")
        return [DataError("odd") if n == -1 else self._caption(n) for n in numbers]

    def _caption(self, number: int) -> Caption:
        return Caption(
            flip_id=str(number), captioner="n", prompt="p/1", text=f"é\u2028{number}" * 9
        )


def go(
    folder: Path,
    numbers: Sequence[int],
    stage: Numbers,
    *,
    batch_size: int = 4,
    address: str = "auto",
    **settings: object,
) -> StageReport:
    """Run the stage on the cluster that Ray is connected to."""
    config = ExecutorConfig.model_validate(
        {"kind": "ray", "address": address, "stages": {"caption": settings}}
    )
    executor = RayCluster(config, folder)
    with Run(folder) as run:
        options = StageOptions(batch_size=batch_size, progress=False, executor=executor)
        return run_stage(stage, numbers, run, options)


if __name__ == "__main__":
    at, where, n, pause = sys.argv[1:]
    print(go(Path(where), range(int(n)), Numbers(float(pause)), address=at))
