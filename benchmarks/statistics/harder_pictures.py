"""What McNemar's test, old-answer attraction and the confidence gap react to besides contamination.

    flipbench demo                                    # makes runs/demo, with 18 models
    python -m benchmarks.statistics.harder_pictures runs/demo [--figure docs/harder-pictures.png]

Asks the demo's 8 contaminated and 10 clean models about variants of its perturbed pictures: blurred
(harder for everyone), and with a share of failed edits, in which the old answer still holds
although something else has changed. Prints a Markdown table with the number of models flagged
(p <= .05) by each detector, alone and against the family's released model, and the pairs needed for
80 % power with the pictures as they are. Run it again to go on after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np

from flipbench.api.stages.assembly import Assembly
from flipbench.config.experiment import load_config
from flipbench.core.paired import PairedBenchmark
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Checkpoint, Score, TrainingPlan
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.distributed.workers import Workers
from flipbench.evaluate import pipeline
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.prompting.prompts import PromptSettings
from studies.population.settings import Edit, as_made, blurred, edited, failed

RULES = {
    "McNemar": ("perturbation_gap", "mcnemar"),
    "attraction": ("old_answer_attraction", "chance"),
    "confidence gap": ("confidence_gap", "label_swap"),
    "gap against clean": ("perturbation_gap", "relative"),
    "attraction against clean": ("old_answer_attraction", "relative"),
    "confidence gap against clean": ("confidence_gap", "relative"),
}
SIZES = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240, 280, 320)
N_SUBSETS = 300
N_FLIPS = 499


CONDITIONS: dict[str, Edit] = {
    "as made": as_made,
    "blur 2": blurred(2),
    "blur 4": blurred(4),
    "blur 7": blurred(7),
    "10 % failed edits": failed(0.1),
    "30 % failed edits": failed(0.3),
}


def models_of(folder: Path) -> list[pipeline.ModelUnderTest]:
    """Return the models of a finished demo run."""
    config = load_config(folder / "config.yaml", [f"run={folder}"])
    run = Run(folder)
    assembly = Assembly(config, run, Workers(run))
    checkpoints = list(run.read(Checkpoint))
    trained = [
        (plan, sorted((c for c in checkpoints if c.plan_id == plan.id), key=lambda c: c.epoch))
        for plan in run.read(TrainingPlan)
    ]
    return assembly.grid([(plan, found) for plan, found in trained if found])


def flagged(scores: Sequence[Score], rule: tuple[str, str], fingerprints: set[str]) -> str:
    """Return how many of some models a rule flags, with Wilson's interval in percent."""
    p_values = [
        s.p_value
        for s in scores
        if (s.detector, s.rule) == rule and s.model_fingerprint in fingerprints
        and s.p_value is not None
    ]  # fmt: skip
    k, n = sum(p <= 0.05 for p in p_values), len(p_values)
    between = wilson_interval(k, n)
    return f"{k}/{n} [{100 * between.low:.0f}, {100 * between.high:.0f}]"


def power_curve(values: np.ndarray, sizes: Sequence[int], seed: int) -> list[float]:
    """Return the share of random subsets of each size whose sign-flip test gives p <= .05.

    ``values``, shape (N,), are negative if the item got worse; for -1, 0 and 1 the test is
    McNemar's, up to the number of flips.
    """
    rng, shares = np.random.default_rng(seed), []
    for size in sizes:
        hits = 0
        for _ in range(N_SUBSETS):
            subset = rng.choice(values, size, replace=False)
            flips = rng.choice([-1.0, 1.0], (N_FLIPS, size)) @ np.abs(subset)
            hits += (1 + (flips <= subset.sum() + 1e-9).sum()) / (N_FLIPS + 1) <= 0.05
        shares.append(hits / N_SUBSETS)
    return shares


def pairs_for_80_percent(sizes: Sequence[int], power: Sequence[float]) -> str:
    """Return the number of pairs at which the power reaches .8, interpolated between sizes."""
    for (n, low), (m, high) in pairwise(zip(sizes, power, strict=True)):
        if low >= 0.8:
            break
        if high >= 0.8:
            return f"{n + (m - n) * (0.8 - low) / (high - low):.0f}"
    return f"at most {sizes[0]}" if power[0] >= 0.8 else f"more than {sizes[-1]}"


def power_table(scores: Sequence[Score], models: Sequence[pipeline.ModelUnderTest]) -> str:
    """Return each contaminated model's pairs for 80 % power, as Markdown."""
    lines = ["| model | McNemar | confidence gap | ratio |", "| --- | ---: | ---: | ---: |"]
    ratios = []
    for subject in models:
        if not subject.model.contaminated:
            continue
        needed = []
        for name in ("McNemar", "confidence gap"):
            (score,) = [
                s
                for s in scores
                if (s.detector, s.rule) == RULES[name]
                and s.model_fingerprint == subject.model.fingerprint
            ]
            values = np.array(list(score.per_item.values()))
            sizes = [size for size in SIZES if size <= len(values)]
            needed.append(pairs_for_80_percent(sizes, power_curve(values, sizes, seed=0)))
        ratio = "–"
        if all(text.isdigit() for text in needed):
            ratios.append(int(needed[1]) / int(needed[0]))
            ratio = f"{ratios[-1]:.2f}"
        lines.append(f"| {subject.model.name} | {needed[0]} | {needed[1]} | {ratio} |")
    mean = np.exp(np.mean(np.log(ratios))) if ratios else np.nan
    return "\n".join([*lines, "", f"Geometric mean of the ratios: {mean:.2f}"])


def write_figure(shares: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw the share of models flagged against blur: clean models left, contaminated right."""
    import matplotlib.pyplot as plt

    radii = [0, 2, 4, 7]
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.2), sharey=True, layout="constrained")
    for axis, side, title in zip(
        axes, (1, 0), ("clean models", "contaminated models"), strict=True
    ):
        for name in ("McNemar", "confidence gap", "attraction"):
            line = [100 * shares[condition][name][side] for condition in list(CONDITIONS)[:4]]
            axis.plot(radii, line, marker="o", label=name)
        axis.set(title=title, xlabel="blur of the perturbed pictures, pixels", xticks=radii)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="models flagged, %", ylim=(-4, 104))
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a finished run of the demo")
    parser.add_argument("--out", type=Path, default=Path("runs/harder-pictures"))
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    models = models_of(options.run)
    grid = [subject.model for subject in models]
    sides = [{m.fingerprint for m in grid if m.contaminated is side} for side in (True, False)]
    detectors = [make_detector(name) for name in dict.fromkeys(d for d, _ in RULES.values())]
    original = PairedBenchmark.load(options.run / "benchmark")
    run = Run(options.out)
    header = ["perturbed pictures", "models", *RULES]
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    shares: dict[str, dict[str, list[float]]] = {}
    first: list[Score] = []
    for condition, edit in CONDITIONS.items():
        benchmark = edited(original, edit, run.images)
        for report in pipeline.ask_all(
            benchmark, models, detectors, PromptSettings(), run, StageOptions(batch_size=64)
        ):
            assert not report.n_failed, report
        scores = pipeline.score(benchmark, grid, detectors, PromptSettings(), run)
        first = first or scores
        cells = {
            name: [flagged(scores, rule, side) for side in sides] for name, rule in RULES.items()
        }
        for row, label in enumerate(("contaminated", "clean")):
            found = " | ".join(text[row] for text in cells.values())
            print(f"| {condition} | {label} | {found} |", flush=True)
        shares[condition] = {
            name: [float(Fraction(text.split()[0])) for text in both]
            for name, both in cells.items()
        }
    print(f"\nPairs needed for 80 % power (as made):\n\n{power_table(first, models)}")
    if options.figure:
        write_figure(shares, options.figure)


if __name__ == "__main__":
    main()
