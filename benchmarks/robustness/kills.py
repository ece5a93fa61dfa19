"""What kills and other disturbances of every stage do to a run.

    python -m benchmarks.robustness.kills [--kills 1000] [--seed 0] [--out FILE]
    python -m benchmarks.robustness.kills --table docs/results/kills.jsonl

Each stage is started in a copy of a small run, disturbed at random moments, started again until it
is done, and then compared with a run that nothing disturbed: records that are lost, doubled, or
different, and result files that differ. Disturbances: SIGKILL, SIGINT, files that cannot grow (as
on a full disk), a user who may not write, a folder or file in the way of a result, and a clock that
jumps; where two workers share a stage, SIGKILL for one of them alone. A command that is disturbed
must end with one of flipbench's own messages. The results of each round are appended to a file, so
that the command can be stopped and started again; ``--table`` prints what such files hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.robustness.commands import (
    Command,
    Ended,
    Prepare,
    file_limit,
    gist,
    nobody,
    warm,
    wrong_clock,
)
from benchmarks.robustness.counts import DISTURBANCES, summary, table, total
from benchmarks.robustness.served import BatchServer, review_round
from benchmarks.robustness.states import State
from benchmarks.robustness.works import (
    BATCH,
    BETWEEN,
    CONFIG,
    OF_WORKERS,
    REVIEW,
    SHARED,
    WAYS,
    WORKS,
    Work,
)

LONGEST = 600.0
"""Seconds after which a command hangs."""
MOST = 12
"""Disturbances of a run."""


class Templates:
    """Undisturbed runs, one after each sequence of stages."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.server = BatchServer(base)
        self.seconds: dict[str, float] = {}
        pictures = base / "corpus"
        pictures.mkdir()
        rng = np.random.default_rng(0)
        for number in range(20):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((128, 128)).save(pictures / f"{number:02d}.png")

    def folder(self, stages: Sequence[str]) -> Path:
        """Return a folder in which these stages are done."""
        folder = self.base / "-".join(["done", *stages])
        if folder.exists():
            return folder
        if not stages:
            folder.mkdir()
            (folder / "c.yaml").write_text(CONFIG)
            (folder / "s.yaml").write_text(SHARED)
            (folder / "batch.yaml").write_text(BATCH.format(base_url=self.server.base_url))
            shutil.copytree(self.base / "corpus", folder / "pictures")
            return folder
        shutil.copytree(self.folder(stages[:-1]), folder)
        command = next(work.alone for work in (*WORKS, BETWEEN) if work.name == stages[-1])
        ended = warm(command, folder)
        if ended.status:
            raise SystemExit(f"{stages[-1]} does not work undisturbed: {ended.text}")
        return folder

    def prepare(self, work: Work) -> State:
        """Make what a work needs; return its undisturbed result."""
        done = self.folder([*work.after, work.name])
        again = Path(shutil.copytree(self.folder(work.after), self.base / f"time-{work.name}"))
        ended = Command(work.command, again).wait(LONGEST)
        assert ended is not None and ended.status == 0, ended
        self.seconds[work.name] = ended.seconds
        first, second = State.read(done / "run"), State.read(again / "run")
        if names := first.differences(second):
            print(f"{work.name}: two undisturbed runs differ: {names[:5]}", file=sys.stderr)
            first.files = {n: h for n, h in first.files.items() if second.files.get(n) == h}
        shutil.rmtree(again)
        self.server.new_requests()
        return first


class Round:
    """One run of a work, disturbed until it is done."""

    def __init__(
        self, work: Work, templates: Templates, expected: State, rng: np.random.Generator
    ) -> None:
        self.work, self.templates, self.expected, self.rng = work, templates, expected, rng
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.folder = templates.base / "round"

    def run(self) -> Counter[str]:
        """Return the counts of disturbances and of what was lost."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.templates.folder(self.work.after), self.folder)
        self.templates.server.new_requests()
        ways = OF_WORKERS if self.work.n_workers > 1 else WAYS
        for _ in range(MOST):
            way = str(self.rng.choice(list(ways), p=list(ways.values())))
            if self._disturb(way):
                break
        ended = self._wait(Command(self.work.command, self.folder))
        if ended.status != 0:
            self._problem("lost", f"the last command ended with {ended.status}: {ended.text}")
        state = State.read(self.folder / "run")
        found = self.expected.compare(state)
        if found.total():
            self.problems += self.expected.differences(state)[:6]
        if self.work.counts_requests:
            paid = self.templates.server.new_requests()
            if twice := paid.total() - len(paid):
                self._problem("doubled", f"{twice} requests were sent twice")
        self.counts.update(found)
        self.counts["rounds"] += 1
        return self.counts

    def _disturb(self, way: str) -> bool:
        """Start the command and disturb it; return whether it ended well all the same."""
        if way in ("killed", "interrupted"):
            return self._signal(way)
        if way == "one worker killed":
            return self._kill_worker()
        prepare: Prepare = lambda: None  # noqa: E731
        restore: Callable[[], Any] = lambda: None  # noqa: E731
        if way == "full disk":
            prepare = file_limit(int(10 ** self.rng.uniform(0, 5.5)))
        elif way == "read-only":
            prepare = nobody
        elif way == "clock":
            prepare = wrong_clock(float(10 ** self.rng.uniform(0, 9)))
        else:
            restore = self._block()
        ended = self._wait(Command(self.work.command, self.folder, prepare))
        restore()
        self.counts[way] += 1
        if ended.defect:
            self._problem("defects", f"{way}: {ended.defect}: {gist(ended.text)}")
        if way == "clock" and ended.status:
            self._problem("defects", f"{way}: {ended.text[-500:]}")
        return False

    def _signal(self, way: str) -> bool:
        command = Command(self.work.command, self.folder)
        ended = command.wait(self._moment())
        if ended is None:
            command.stop(signal.SIGKILL if way == "killed" else signal.SIGINT)
            ended = self._wait(command)
            self.counts[way] += 1
        if way == "interrupted" and ended.defect:
            self._problem("defects", f"{way}: {ended.defect}: {gist(ended.text)}")
        if ended.status > 0 and ended.status != 130:
            self._problem("lost", f"ended with {ended.status}: {gist(ended.text)}")
        return ended.status == 0

    def _moment(self) -> float:
        """Draw when to disturb: workers need half of their time to start."""
        first = 0.4 if self.work.n_workers > 1 else 0.0
        return float(self.rng.uniform(first, 1.0) * self.templates.seconds[self.work.name])

    def _kill_worker(self) -> bool:
        """Kill one worker; the command must wait for the others, and then name it."""
        command = Command(self.work.command, self.folder)
        ended = command.wait(self._moment())
        workers = [] if ended else psutil.Process(command.pid).children()
        number = int(self.rng.integers(self.work.n_workers))
        share = f"{number}/{self.work.n_workers}"
        n_killed = 0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                if share in worker.cmdline():
                    worker.kill()
                    n_killed += 1
        ended = ended or self._wait(command)
        named = f"worker {number} ended with -9" in ended.text
        self.counts["one worker killed"] += named
        if ended.defect or ended.status not in ((0, 1, 2) if n_killed else (0, 1)):
            self._problem("defects", f"one worker killed: {ended.status}: {gist(ended.text)}")
        if (ended.status == 2) != named:
            self._problem("lost", f"worker {number} is not named: {gist(ended.text)}")
        return ended.status == 0

    def _block(self) -> Callable[[], Any]:
        """Put a folder in the way of a file, or a file in the way of a folder."""
        done = self.templates.folder([*self.work.after, self.work.name]) / "run"
        there = self.folder / "run"
        missing = [
            path.relative_to(done)
            for path in sorted(done.rglob("*"))
            if not (there / path.relative_to(done)).exists()
            and (there / path.relative_to(done)).parent.is_dir()
            and not path.name.startswith(".")
        ]
        if not missing:
            return lambda: None
        place = missing[int(self.rng.integers(len(missing)))]
        if (done / place).is_dir():
            (there / place).write_text("in the way")
            return (there / place).unlink
        (there / place / "in the way").mkdir(parents=True)
        return lambda: shutil.rmtree(there / place, ignore_errors=True)

    def _wait(self, command: Command) -> Ended:
        ended = command.wait(LONGEST)
        if ended is None:
            command.stop(signal.SIGKILL)
            self._problem(
                "lost", f"hangs after {LONGEST:.0f} s: {command.text.decode(errors='replace')}"
            )
            ended = command.wait(10)
            assert ended is not None
        return ended

    def _problem(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.problems.append(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="how many in all, of all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness/kills.jsonl"))
    parser.add_argument("--stages", default=",".join(work.name for work in WORKS))
    parser.add_argument("--table", type=Path, nargs="+", help="print the rounds of these files")
    args = parser.parse_args()
    if args.table:
        rows = [json.loads(line) for path in args.table for line in path.open()]
        print(table(rows), summary(rows), sep="\n\n")
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in args.out.open()] if args.out.exists() else []
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    base = args.out.absolute().with_suffix("")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    templates = Templates(base)
    works = [work for work in WORKS if work.name in args.stages.split(",")]
    expected = {work.name: templates.prepare(work) for work in works if work is not REVIEW}
    base.chmod(0o755)
    start = time.monotonic()
    while sum(total(rows)[way] for way in DISTURBANCES) < args.kills:
        number = len(rows)
        work = works[number % len(works)]
        rng = np.random.default_rng([args.seed, number])
        if work is REVIEW:
            counts, problems = review_round(templates.folder(["generate"]), base / "round", rng)
        else:
            played = Round(work, templates, expected[work.name], rng)
            counts, problems = played.run(), played.problems
        rows.append({"work": work.name, "number": number, "counts": counts})
        if problems:
            rows[-1]["problems"] = problems
            print(number, work.name, *problems, sep="\n  ", file=sys.stderr, flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    templates.server.stop()
    shutil.rmtree(base, ignore_errors=True)
    print(table(rows))
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return int(any(row.get("problems") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
