"""Whether asking every pair in several option orders saves pairs.

    flipbench demo                                    # makes runs/demo, with 18 models
    python -m benchmarks.statistics.option_rotations runs/demo

Asks the demo's 8 contaminated models both versions of every pair in all rotations of the options,
and the 10 clean ones also with blurred perturbed pictures. Prints two Markdown tables: the pairs
needed for 80 % power by tests of one order and of several, and the clean models each test flags
(p <= .05). Run it again to go on after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.statistics.harder_pictures import (
    CONDITIONS,
    SIZES,
    edited,
    models_of,
    pairs_for_80_percent,
    power_curve,
)
from flipbench.core.paired import PairedBenchmark
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Item, Probe, Response
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.evaluate.detectors.perturbation.circular_eval import rotate
from flipbench.evaluate.detectors.perturbation.confidence_gap import log_confidence
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.statistics.resampling import label_swap_p
from flipbench.models.engine import answers_of, ask
from flipbench.prompting.prompts import PromptSettings

Values = Callable[[Response, int, int], float]
Combine = Callable[[Sequence[float]], float]


def right(reply: Response, gold: int, other: int) -> float:
    """Return 1 if the reply names the right option, else 0."""
    return float(reply.choice == gold)


def confidence(reply: Response, gold: int, other: int) -> float:
    """Return ln p(right letter), as the confidence gap does."""
    value = log_confidence(gold)(reply)
    assert value is not None, f"{reply.probe_id}: no log-probabilities"
    return value


def margin(reply: Response, gold: int, other: int) -> float:
    """Return ln p(right letter) - ln p(letter of the other version's answer), at most ln 1000."""
    return confidence(reply, gold, other) - confidence(reply, other, gold)


def first(values: Sequence[float]) -> float:
    """Return the value in the item's own order."""
    return values[0]


def two(values: Sequence[float]) -> float:
    """Return the mean over the item's own order and the next rotation."""
    return fmean(values[:2])


def most(values: Sequence[float]) -> float:
    """Return 1 if more than half of the replies are right, else 0."""
    return float(2 * sum(values) > len(values))


TESTS: dict[str, tuple[Values, Combine]] = {
    "McNemar": (right, first),
    "McNemar, right in most rotations": (right, most),
    "McNemar, right in all rotations": (right, min),
    "share right, all rotations": (right, fmean),
    "confidence gap": (confidence, first),
    "confidence gap, two rotations": (confidence, two),
    "confidence gap, all rotations": (confidence, fmean),
    "margin over the other answer": (margin, first),
    "margin, all rotations": (margin, fmean),
}


def rotated(item: Item, other: int) -> list[tuple[Probe, int, int]]:
    """Return every rotation's probe, right option and option of the other version's answer."""
    assert item.options is not None and item.answer is not None
    asked = []
    for rotation in range(len(item.options)):
        options, gold = rotate(item.options, item.answer, rotation)
        probe = PromptSettings().probe(item, f"rotated-{rotation}", options=options)
        asked.append((probe, gold, rotate(item.options, other, rotation)[1]))
    return asked


def differences(
    benchmark: PairedBenchmark, subject: ModelUnderTest, run: Run
) -> dict[str, np.ndarray]:
    """Return each test's values, perturbed - original, shape (N,); asks what is not stored."""
    sides = [
        (
            rotated(pair.original, pair.perturbed.answer or 0),
            rotated(pair.perturbed, pair.original.answer or 0),
        )
        for pair in benchmark.pairs
        if pair.original.options is not None
    ]
    probes = {probe.id: probe for both in sides for side in both for probe, _, _ in side}
    model = subject.model
    ids = {Response.id_for(probe_id=id_, model_fingerprint=model.fingerprint) for id_ in probes}
    if not run.ids(Response, model.fingerprint) >= ids:
        options = StageOptions(batch_size=64)
        report = ask(list(probes.values()), subject.load(), run, benchmark.images, options)
        assert not report.n_failed, report
    answers = answers_of(model.name, model.fingerprint, run)

    def value(side: list[tuple[Probe, int, int]], read: Values, combine: Combine) -> float:
        replies = [(answers.responses[probe.id], gold, other) for probe, gold, other in side]
        return combine([read(*reply) for reply in replies])

    return {
        name: np.array([value(new, *how) - value(old, *how) for old, new in sides])
        for name, how in TESTS.items()
    }


def power_table(values: dict[str, dict[str, np.ndarray]]) -> str:
    """Return each model's pairs for 80 % power by each test, as Markdown.

    The last rows are the geometric mean of the ratios to McNemar's test, over the models for which
    both are known, and how many models need at most half.
    """
    needed: dict[str, list[str]] = {name: [] for name in TESTS}
    for tests in values.values():
        for name, changes in tests.items():
            sizes = [size for size in SIZES if size <= len(changes)]
            needed[name].append(pairs_for_80_percent(sizes, power_curve(changes, sizes, seed=0)))
    lines = [f"| model | {' | '.join(TESTS)} |", f"| --- |{' ---: |' * len(TESTS)}"]
    for row, model in enumerate(values):
        lines.append(f"| {model} | {' | '.join(column[row] for column in needed.values())} |")
    means, halves = [], []
    for column in needed.values():
        both = zip(column, needed["McNemar"], strict=True)
        ratios = [int(a) / int(b) for a, b in both if a.isdigit() and b.isdigit()]
        mean = f"{np.exp(np.mean(np.log(ratios))):.2f}" if ratios else "–"
        means.append(mean if len(ratios) == len(column) else f"{mean} (of {len(ratios)})")
        halves.append(f"{sum(ratio <= 0.5 for ratio in ratios)}/{len(column)}")
    lines.append(f"| mean ratio | {' | '.join(means)} |")
    lines.append(f"| at most half | {' | '.join(halves)} |")
    return "\n".join(lines)


def flagged(values: Sequence[np.ndarray]) -> str:
    """Return how many models the sign-flip test flags, with Wilson's interval in percent."""
    k = sum(label_swap_p(changes, np.random.default_rng(0)) <= 0.05 for changes in values)
    between = wilson_interval(k, len(values))
    return f"{k}/{len(values)} [{100 * between.low:.0f}, {100 * between.high:.0f}]"


def clean_table(original: PairedBenchmark, clean: Sequence[ModelUnderTest], run: Run) -> str:
    """Return the clean models that each test flags, by perturbed pictures, as Markdown."""
    names = ("as made", "blur 4", "blur 7")
    columns = []
    for name in names:
        benchmark = edited(original, CONDITIONS[name], run.images)
        found = [differences(benchmark, subject, run) for subject in clean]
        columns.append({test: flagged([values[test] for values in found]) for test in TESTS})
    lines = [f"| test | {' | '.join(names)} |", f"|{' --- |' * (1 + len(names))}"]
    lines += [f"| {test} | {' | '.join(column[test] for column in columns)} |" for test in TESTS]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a finished run of the demo")
    parser.add_argument("--out", type=Path, default=Path("runs/option-rotations"))
    options = parser.parse_args()
    models, run = models_of(options.run), Run(options.out)
    original = PairedBenchmark.load(options.run / "benchmark")
    as_made = edited(original, CONDITIONS["as made"], run.images)
    contaminated = [subject for subject in models if subject.model.contaminated]
    clean = [subject for subject in models if not subject.model.contaminated]
    print(power_table({s.model.name: differences(as_made, s, run) for s in contaminated}))
    print(f"\nClean models flagged:\n\n{clean_table(original, clean, run)}")


if __name__ == "__main__":
    main()
