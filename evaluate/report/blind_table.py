"""The blind baseline of a paired benchmark, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS
from ..scoring.likelihood import item_text
from ..scoring.scores import cluster_of
from ..validation.blind import N_FOLDS, blind_baseline
from .validation_tables import two_decimals


def blind_table(benchmark: PairedBenchmark, scores: Sequence[Score]) -> Table | None:
    """Return how well texts alone separate originals from perturbed items.

    None if no detector reads likelihoods, there are too few groups, or scikit-learn is missing.
    """
    reads = any(
        "token_logprobs" in DETECTORS[name].about.needs
        for name in {score.detector for score in scores} & DETECTORS.keys()
    )
    pairs = benchmark.pairs
    n_groups = len({cluster_of(pair.original) for pair in pairs})
    if not reads or n_groups < N_FOLDS or find_spec("sklearn") is None:
        return None
    sides = ([pair.original for pair in pairs], [pair.perturbed for pair in pairs])
    baseline = blind_baseline(
        [item_text(item) for side in sides for item in side],
        [True] * len(pairs) + [False] * len(pairs),
        [cluster_of(pair.original) for pair in pairs] * 2,
    )
    cells = (
        Cell(f"{baseline.auroc:.2f}", two_decimals(baseline.interval)),
        Cell(f"{baseline.n_members} and {baseline.n_non_members}"),
        Cell(str(baseline.n_groups)),
        Cell("yes" if baseline.shifted else "not found"),
    )
    return Table(
        "blind",
        "Blind baseline: how well words and lengths alone, without any model, separate the texts"
        " (question, options, right answer) of original from those of perturbed items, on items"
        " that the classifier was not trained on. Where they do, a likelihood that is higher on the"
        " originals need not come from memory: compare with a clean model.",
        "Texts",
        (
            Column("AUROC"),
            Column("Originals and perturbed"),
            Column("Images or groups"),
            Column("Texts differ", numeric=False),
        ),
        (("", (Row("original vs perturbed", cells),)),),
    )
