"""Peak memory and time of a run directory with many records, each step in a separate process.

    python benchmarks/memory/run_memory.py [--n 100000] [--batch-size 64]

Steps: import flipbench and open the run (baseline), append all records through a stage, run the
same stage again with everything done, read all records one by one, and load all of them into an
index. The table shows each step's peak resident memory (resource.getrusage), the difference from
the baseline, and its time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.records import Caption, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage

TEXT = "A small scene: a red star left of a blue square, on a white ground. " * 4
STEPS = {
    "import and open (baseline)": "open",
    "append all": "stage",
    "resume, all done": "resume",
    "read one by one": "read",
    "load all into an index": "index",
}


class Captions:
    name = "caption"
    record: type[Record] = Caption

    def id_of(self, number: int) -> str:
        made_of = {"captioner": "none", "prompt": "p/1", "settings": {}, "picture": 0}
        return Caption.id_for(flip_id=str(number), **made_of)

    def subject(self, number: int) -> str:
        return f"number {number}"

    def __call__(self, numbers: Sequence[int]) -> list[Record | Exception]:
        return [
            Caption(flip_id=str(number), captioner="none", prompt="p/1", text=TEXT)
            for number in numbers
        ]


def do(step: str, run: Run, n: int, batch_size: int) -> None:
    """Run one step and check its result."""
    if step in ("stage", "resume"):
        report = run_stage(
            Captions(), range(n), run, StageOptions(batch_size=batch_size, progress=False)
        )
        assert (report.n_done if step == "stage" else report.n_skipped) == n
    elif step == "read":
        assert sum(1 for _ in run.read(Caption)) == n
    elif step == "index":
        assert len(run.index(Caption)) == n


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step", choices=STEPS.values(), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.step:
        start, start_cpu = time.perf_counter(), time.process_time()
        with Run(args.run) as run:
            do(args.step, run, args.n, args.batch_size)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)  # in MiB
        print(peak, time.perf_counter() - start, time.process_time() - start_cpu)
        return

    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = ["--n", str(args.n), "--batch-size", str(args.batch_size), "--run", folder]
        for name, step in STEPS.items():
            command = [sys.executable, __file__, *sizes, "--step", step]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            rows[name] = [float(number) for number in result.stdout.split()]
        on_disk = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl")) / 2**20

    base = rows["import and open (baseline)"][0]
    print(f"{args.n:,} records, {on_disk:.0f} MiB on disk, batches of {args.batch_size}\n")
    print("| step | peak MiB | over the baseline | bytes per record | seconds | CPU seconds |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (peak, wall, busy) in rows.items():
        over = peak - base
        print(
            f"| {name} | {peak:.0f} | {over:+.0f} | {over * 2**20 / args.n:.0f}"
            f" | {wall:.1f} | {busy:.1f} |"
        )


if __name__ == "__main__":
    main()
