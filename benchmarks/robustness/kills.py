"""What kills and other disturbances of every stage do to a run.

    python -m benchmarks.robustness.kills [--kills 1000] [--seed 0] [--out FILE]
    python -m benchmarks.robustness.kills --table docs/results/kills.jsonl

Each stage is started in a copy of a small run, disturbed at random moments, started again until it
is done, and then compared with a run that nothing disturbed: records that are lost, doubled, or
different, and result files that differ. Disturbances: SIGKILL, SIGINT, files that cannot grow (as
on a full disk), a user who may not write, a folder or file in the way of a result, and a clock that
jumps. A command that is disturbed must end with one of flipbench's own messages. The results of
each round are appended to a file, so that the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
from benchmarks.robustness.served import BatchServer, review_round
from benchmarks.robustness.states import State

CONFIG = """\
run: run
seed: 3
benchmark: {format: shapes, n_items: 8}
generate: {editor: {kind: shapes, wrong: 0.3}, batch_size: 1}
filter: {judges: [shapes], batch_size: 1}
audit:
  checks: [duplicates]
  corpus: {pictures: pictures, encoders: [phash], n_sample: 100, batch_size: 4}
models:
  tiny-llava: {path: "shapes:llava"}
contaminate:
  epochs: 2
  strategies:
    LoRA:
      {train: lora, learning_rate: 0.002, lora_rank: 2, lora_alpha: 4, batch_size: 4,
       lora_targets: [q_proj]}
evaluate: {detectors: [perturbation_gap, circular_eval], batch_size: 4}
"""
BATCH = """\
run: run
seed: 3
benchmark: {{format: shapes, n_items: 8}}
generate:
  captioner:
    kind: api
    batch: true
    chat: {{model: gpt-4o-2024-08-06, base_url: "{base_url}", max_retries: 2, timeout: 5}}
  editor: {{kind: shapes, wrong: 0.3}}
"""
LONGEST = 120.0
"""Seconds after which a command hangs."""
MOST = 12
"""Disturbances of a run."""


@dataclass(frozen=True)
class Work:
    """A stage to disturb: its command, and the stages that the run needs before it."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    counts_requests: bool = False


REVIEW = Work("review", ())
WORKS = (
    REVIEW,
    Work("generate", ("generate", "c.yaml", "--quiet")),
    Work("filter", ("filter", "c.yaml", "--quiet"), ("generate",)),
    Work("contaminate", ("contaminate", "c.yaml", "--quiet"), ("generate", "filter")),
    Work("evaluate", ("evaluate", "c.yaml", "--quiet"), ("generate", "filter", "contaminate")),
    Work("Batch API", ("generate", "batch.yaml", "--quiet"), counts_requests=True),
    Work("audit", ("audit", "c.yaml", "--quiet"), ("generate", "filter")),
)
WAYS = {
    "killed": 0.80,
    "interrupted": 0.08,
    "full disk": 0.06,
    "read-only": 0.02,
    "in the way": 0.02,
    "clock": 0.02,
}


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
            (folder / "batch.yaml").write_text(BATCH.format(base_url=self.server.base_url))
            shutil.copytree(self.base / "corpus", folder / "pictures")
            return folder
        shutil.copytree(self.folder(stages[:-1]), folder)
        command = next(work.command for work in WORKS if work.name == stages[-1])
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
        names = list(WAYS)
        for _ in range(MOST):
            way = str(self.rng.choice(names, p=[WAYS[name] for name in names]))
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
        after = float(self.rng.uniform(0, self.templates.seconds[self.work.name]))
        ended = command.wait(after)
        if ended is None:
            command.stop(signal.SIGKILL if way == "killed" else signal.SIGINT)
            ended = self._wait(command)
            self.counts[way] += 1
        if way == "interrupted" and ended.defect:
            self._problem("defects", f"{way}: {ended.defect}: {gist(ended.text)}")
        if ended.status > 0 and ended.status != 130:
            self._problem("lost", f"ended with {ended.status}: {gist(ended.text)}")
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


COLUMNS = ("rounds", *WAYS, "lost", "doubled", "different", "defects")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts by work as Markdown."""
    lines = [f"| stage | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    names = list(dict.fromkeys(row["work"] for row in rows))
    for name in [*names, "all"]:
        counts: Counter[str] = Counter()
        for row in rows:
            if name in (row["work"], "all"):
                counts.update(row["counts"])
        lines.append(f"| {name} | {' | '.join(f'{counts[c]:,}' for c in COLUMNS)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="how many in all, of all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness/kills.jsonl"))
    parser.add_argument("--stages", default=",".join(work.name for work in WORKS))
    args = parser.parse_args()
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
    while sum(sum(row["counts"].get(way, 0) for way in WAYS) for row in rows) < args.kills:
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
