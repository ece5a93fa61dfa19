"""``flipbench demo``: the whole loop on the embedded world, by real parts, in minutes."""

from __future__ import annotations

import time
from pathlib import Path

from flipbench.config import load_config
from flipbench.experiment import Experiment
from flipbench.loop import run_all

CONFIG = Path(__file__).parent / "shapes" / "demo.yaml"
SMALL = (
    "benchmark.n_items=60",
    "contaminate.epochs=1",
    "contaminate.copies=2",
)
NOTES = (
    "Everything here is real but small: two VLMs of about two million weights that were trained on"
    " other scenes of the same world, contaminated by trl and peft, and asked by transformers.",
    "Each pair's original is drawn by a coin from two scenes that differ only in the answer, so a"
    " clean model's gap has expectation zero. Edits of real photographs carry no such guarantee.",
    "One seed and one clean model of each family: the page shows how the method works and what it"
    " costs, not how often it errs.",
)


def run_demo(out: Path, *, small: bool = False, progress: bool = True) -> int:
    """Run the demo into ``out``; return the exit status."""
    start = time.time()
    config = load_config(CONFIG, [f"run={out}", *(SMALL if small else ())])
    command = "flipbench demo" + (" --small" if small else "")
    experiment = Experiment.open(config, progress=progress, command=command)
    page, reports = run_all(experiment, NOTES)
    print((page.parent / "gap.md").read_text())
    print((page.parent / "requirements.md").read_text())
    n_failed = sum(report.n_failed for report in reports)
    print(f"{time.time() - start:.0f} s, {n_failed} failed. Now open {page}")
    return 1 if n_failed else 0
