"""What is said of a published benchmark, for its data card and its Croissant metadata."""

from __future__ import annotations

from collections import Counter

from flipbench.core.paired import PairedBenchmark

_MACHINES = ("captioner", "editor", "raters")

USES = "Measuring whether a model was trained on the originals: its accuracy on both versions."
NOT_FOR_TRAINING = "Do not train on either version."


def is_edited(benchmark: PairedBenchmark) -> bool:
    """Return whether the perturbed pictures were made, not found."""
    return benchmark.exchangeable is not False


def sources(benchmark: PairedBenchmark) -> Counter[str]:
    """Return the items by the dataset and revision that they come from."""
    return Counter(f"{i.source.dataset} {i.source.revision}".strip() for i in benchmark.originals)


def description(benchmark: PairedBenchmark) -> str:
    """Return what the benchmark holds, in two sentences."""
    version = (
        "one whose picture was edited so that another option is correct"
        if is_edited(benchmark)
        else "one with another picture of the source, for which another option is correct"
    )
    return (
        f"Every item comes in two versions: the original, and {version}. Ask a model both with the"
        " same prompt: one that has memorised the originals does worse on the perturbed versions."
    )


def collection(benchmark: PairedBenchmark) -> str:
    """Return where questions and pictures come from."""
    names = ", ".join(f"{name} ({n:,} items)" for name, n in sources(benchmark).most_common())
    if not is_edited(benchmark):
        return f"Questions, options and the pictures of both versions come from {names}."
    return (
        f"Questions, options and original pictures come from {names}. The perturbed pictures are"
        " synthetic: for each item, a new answer was chosen, a caption of a picture that shows it"
        " was written, and a picture was drawn from the caption and the original."
    )


def judgement(benchmark: PairedBenchmark) -> str:
    """Return who judged how many of the pairs."""
    n, n_judged = len(benchmark.pairs), len(benchmark.judged)
    if not n_judged:
        return "Nobody is known to have judged that the perturbed pictures show the new answers."
    return (
        f"{n_judged:,} of {n:,} pairs were judged to show the new answer, by {benchmark.judged_by}."
    )


def tools(benchmark: PairedBenchmark) -> list[str]:
    """Return the models and rules that made or judged the pairs, as recorded."""
    return [f"{name}: {benchmark.made_by[name]}" for name in _MACHINES if name in benchmark.made_by]


def biases(benchmark: PairedBenchmark) -> list[str]:
    """Return how the kept pairs may differ from the source."""
    lines = []
    steps = list(benchmark.funnel.items())
    if len(steps) > 1 and steps[0][1] > steps[-1][1]:
        lines.append(
            f"{steps[-1][1]:,} of {steps[0][1]:,} items were kept; what cannot be edited or judged"
            " well is missing, so accuracies need not be those of the whole source."
        )
    if benchmark.exchangeable is None:
        lines.append(
            "Edited pictures may be harder or easier than the originals, so that the gap of a clean"
            " model need not be zero: compare with a clean model."
        )
    if benchmark.exchangeable is False:
        lines.append(
            "The pairs were found, not made: the two versions are not known to be equally hard."
        )
    return lines


def limitations(benchmark: PairedBenchmark) -> list[str]:
    """Return what the data do not show."""
    lines = []
    if is_edited(benchmark):
        lines.append(
            "The perturbed pictures are synthetic: they show no real event, place, person or"
            " patient, and may contradict the facts that the originals show."
        )
    return [*lines, "A gap measures memory of these items alone, not of their subject."]


def personal_data() -> str:
    """Return what is known of personal data: nothing was examined."""
    return (
        "Not examined. What the source's pictures show of people is in the originals, and may be"
        " in the perturbed pictures."
    )
