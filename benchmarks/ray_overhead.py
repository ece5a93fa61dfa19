"""Cost of a stage on a Ray cluster per record, compared with one process.

    python -m benchmarks.ray_overhead [--n 10000] [--batch-size 16] [--actors 2]

A cluster of this machine is started, and a stage whose batches cost nothing is run in one process
and on actors; this is the worst case, since a real batch takes seconds. The start of the actors,
which import flipbench, is measured by a stage of one record each.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from flipbench.config.experiment import ExecutorConfig
from flipbench.core.run import Run
from flipbench.core.stage import Executor, InProcessExecutor, StageOptions, run_stage
from flipbench.distributed.cluster import RayCluster
from tests.distributed.number_stage import Numbers


def seconds(n: int, batch_size: int, executor: Executor) -> float:
    with tempfile.TemporaryDirectory() as folder, Run(folder) as run:
        options = StageOptions(batch_size=batch_size, progress=False, executor=executor)
        start = time.perf_counter()
        report = run_stage(Numbers(), range(n), run, options)
        assert report.n_done == n
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--actors", type=int, default=2)
    args = parser.parse_args()
    import ray

    start = time.perf_counter()
    ray.init(
        num_cpus=args.actors,
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    print(f"start of the cluster  {time.perf_counter() - start:8.2f} s")
    stages = {"caption": {"actors": args.actors}}
    config = ExecutorConfig.model_validate({"kind": "ray", "stages": stages})
    cluster = RayCluster(config, Path(tempfile.gettempdir()))
    starting = seconds(args.actors, 1, cluster)
    print(f"start of {args.actors} actors     {starting:8.2f} s")
    for name, executor in (("one process", InProcessExecutor()), ("Ray", cluster)):
        took = seconds(args.n, args.batch_size, executor)
        print(f"{name:20}  {took:8.2f} s for {args.n:,} records, {1e3 * took / args.n:.2f} ms each")


if __name__ == "__main__":
    main()
