"""Processor time and peak memory of building the tables from many stored responses.

    python benchmarks/response_tables.py [--responses 10000000] [--pairs 5000]

Writes a run with a synthetic paired benchmark and that many responses, by as many models of one
family as necessary, in the files and with the ids of a real run. Then, in separate processes: read
all lines as JSON and nothing else (baseline), and score the perturbation gap of every model and
write gap.md and scores.csv, first from the lines and then from the copies made of them. Queries no
model; needs about 0.4 kB of disk per response.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Item, Response, Source
from flipbench.core.run import Run
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.pipeline import score
from flipbench.evaluate.protocol.grid import UNTOUCHED, GridModel
from flipbench.evaluate.report.score_frame import score_frame, write_scores_csv
from flipbench.evaluate.report.score_tables import gap_table
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.writers import markdown

PROMPT_SETTINGS = PromptSettings()
STEPS = {
    "json": "read every line as JSON (baseline)",
    "tables": "score all models, write tables: first time",
    "again": "again, from the copies",
}


def synthetic(n_pairs: int, folder: Path) -> PairedBenchmark:
    """Return ``n_pairs`` pairs whose image files do not exist."""

    def item(number: int, version: str, answer: int) -> Item:
        image = ImageRef(sha256=f"{version}{number:063d}", format="png", width=64, height=64)
        options = ("red", "green", "blue", "yellow")
        return Item(
            benchmark="synthetic",
            name=str(number),
            images=(image,),
            question=f"What colour is thing {number}?",
            options=options,
            answer=answer,
            answer_text=options[answer],
            source=Source(dataset="synthetic"),
        )

    pairs = (Pair(item(n, "a", n % 4), item(n, "b", (n + 1) % 4)) for n in range(n_pairs))
    return PairedBenchmark("synthetic", tuple(pairs), ImageStore(folder / "images"))


def grid(n_models: int) -> list[GridModel]:
    """Return a clean model, followed by contaminated ones."""
    return [
        GridModel(f"model {n}", f"{n:016x}", "family", "LoRA" if n else UNTOUCHED, n, n)
        for n in range(n_models)
    ]


def write(run: Run, benchmark: PairedBenchmark, models: list[GridModel]) -> None:
    """Store each model's responses: 60 % right, and 90 % on contaminated items."""
    detector = DETECTORS["perturbation_gap"]
    probes = detector.probes(benchmark, PROMPT_SETTINGS)
    items = [item for pair in benchmark.pairs for item in (pair.original, pair.perturbed)]
    gold = np.array([item.answer or 0 for item in items])
    for number, model in enumerate(models):
        rng = np.random.default_rng(number)
        p_right = np.where(np.arange(len(probes)) % 2 == 0, 0.9 if model.dose else 0.6, 0.6)
        right = rng.random(len(probes)) < p_right
        choices = np.where(right, gold, (gold + 1) % 4)
        folder = run.path / Response.kind / model.fingerprint
        folder.mkdir(parents=True)
        with (folder / "shard.jsonl").open("w") as file:
            for probe, choice in zip(probes, choices.tolist(), strict=True):
                log_probs = tuple(math.log(0.7 if i == choice else 0.1) for i in range(4))
                response = Response(
                    probe_id=probe.id,
                    model_fingerprint=model.fingerprint,
                    model=model.name,
                    choice=choice,
                    option_log_probs=log_probs,
                )
                file.write(response.model_dump_json() + "\n")


def step(name: str, folder: Path, n_pairs: int, n_models: int) -> None:
    """Run one step and print its time and memory as JSON."""
    start = time.process_time()
    run, n = Run(folder), 0
    if name == "json":
        for path in sorted((folder / Response.kind).rglob("*.jsonl")):
            with path.open() as file:
                n += sum(1 for line in file if json.loads(line))
    else:
        models = grid(n_models)
        scores = score(
            synthetic(n_pairs, folder),
            models,
            [DETECTORS["perturbation_gap"]],
            PROMPT_SETTINGS,
            run,
        )
        frame = score_frame(scores, models)
        (folder / "gap.md").write_text(markdown(gap_table(models, frame)))
        write_scores_csv(folder / "scores.csv", frame)
        n = sum(s.n for s in scores if s.rule == "mcnemar")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": time.process_time() - start, "mib": peak / 1024, "n": n}))


def main() -> None:
    """Write the run, time the steps, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=10_000_000)
    parser.add_argument("--pairs", type=int, default=5_000)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    n_models = max(2, args.responses // (2 * args.pairs))
    if args.step:
        step(args.step, args.folder, args.pairs, n_models)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Run(folder), synthetic(args.pairs, Path(folder)), grid(n_models))
        size = sum(p.stat().st_size for p in (Path(folder) / Response.kind).rglob("*.jsonl"))
        n = 2 * args.pairs * n_models
        print(f"{n:,} responses of {n_models:,} models, {size / 2**30:.2f} GiB\n")
        print("| step | processor s | ratio | µs per response | peak MiB |")
        print("|---|---:|---:|---:|---:|")
        baseline = 0.0
        for name, label in STEPS.items():
            command = [sys.executable, __file__, "--step", name, "--folder", folder]
            command += ["--responses", str(args.responses), "--pairs", str(args.pairs)]
            usage = json.loads(subprocess.check_output(command))
            seconds = usage["seconds"]
            baseline = baseline or seconds
            print(
                f"| {label} | {seconds:.1f} | {seconds / baseline:.2f} | {seconds / n * 1e6:.1f} |"
                f" {usage['mib']:.0f} |"
            )


if __name__ == "__main__":
    main()
