"""Kernel divergence: how far fine-tuning on a set moves a model's embeddings of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
from numpy.typing import ArrayLike

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Interval, JsonDict, Probe, ReferenceResult, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, AnswersOf
from ...protocol.grid import UNTOUCHED, GridModel, reference_of
from ...protocol.rules import significant
from ...scoring.conditions import Settings
from ...scoring.likelihood import answer_probe
from ...scoring.scores import make_score
from ...statistics.resampling import LEVEL, Array, label_swap_p

Moves = Sequence[tuple[Array, Array]]
"""Embeddings of the same items before and after fine-tuning, each of shape (N, d)."""

ABOUT = About(
    name="kernel_divergence",
    title="Kernel divergence",
    paper="Choi et al., How Contaminated Is Your Benchmark?, arXiv 2502.00678",
    variant="rule relative: against the clean model, both after the same fine-tuning on the items",
    deviates_from_paper="the fine-tuning is the first epoch of a plan that starts from the model"
    " under test (the paper: LoRA of rank 8, plain gradient descent, learning rate 1e-4, batches of"
    " 4); a plan's later epochs do not count, since they move any model less; the embedding is that"
    " of the last token of the right answer, after picture and question; the paper only ranks, the"
    " test over folds of items is ours",
    rules={"relative": True},
    needs=frozenset({"hidden_states"}),
    direction="fine-tuning on the items moves their embeddings less than the clean model's",
    excluded_because="it compares the model before and after training on the items; detect only"
    " asks questions",
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    evidence="published",
    caveat="the paper ranks data sets and has no threshold; the number of items and familiarity"
    " with the domain move it as well",
)


def kernel_divergence(
    embeddings: ArrayLike, tuned_embeddings: ArrayLike, gammas: tuple[float, float] | None = None
) -> float:
    """Return the kernel divergence score S <= 0; closer to 0 is more contaminated.

    Parameters
    ----------
    embeddings, tuned_embeddings : array_like, shape (N, d)
        Embeddings of the same items before and after one epoch of fine-tuning on them.
    gammas : (float, float), optional
        Parameters of the two kernels exp(-gamma distance^2); by default 1 / median distance of
        each.

    Notes
    -----
    S = -sum over i, j of abs(K log(K / K')) / sqrt(sum of K). The logarithm is computed from the
    exponents, so that kernels may underflow. S depends on N: compare only sets of the same size.

    Examples
    --------
    >>> before, after = [[0.0, 0.0], [2**0.5, 0.0]], [[0.0, 0.0], [1.0, 0.0]]
    >>> round(kernel_divergence(before, after, (1.0, 1.0)), 5)
    -0.17962

    Raises
    ------
    ValueError
        If shapes do not match, there are fewer than 2 items, or most embeddings are equal.
    """
    states = [np.asarray(side, dtype=float) for side in (embeddings, tuned_embeddings)]
    shapes = [z.shape for z in states]
    if {len(shape) for shape in shapes} != {2} or shapes[0][0] != shapes[1][0] or shapes[0][0] < 2:
        raise ValueError(f"needs embeddings of the same 2 or more items: {shapes[0]}, {shapes[1]}")
    exponents = []
    for z, gamma in zip(states, gammas or (None, None), strict=True):
        distances = scipy.spatial.distance.pdist(z)
        exponents.append((_gamma(distances) if gamma is None else gamma) * distances**2)
    kernel = np.exp(-exponents[0])
    total = 2 * float(np.abs(kernel * (exponents[1] - exponents[0])).sum())
    return -total / float(np.sqrt(len(states[0]) + 2 * kernel.sum()))


def _gamma(distances: Array) -> float:
    median = float(np.median(distances))
    if median == 0:
        raise ValueError("most embeddings are equal, so their median distance is 0")
    return 1 / median


@dataclass(frozen=True)
class Divergences:
    """Kernel divergence of a model and of a reference on the same folds of the items.

    Attributes
    ----------
    model, reference : tuple of float, shape (n_folds,)
        Scores, averaged over fine-tunings if there are several.
    interval : Interval
        Student's, of the mean difference over folds.
    p_value : float
        One-sided and exact, by swapping the labels model and reference fold by fold.
    """

    model: tuple[float, ...]
    reference: tuple[float, ...]
    interval: Interval
    p_value: float
    n_items: int
    fold_size: int

    @property
    def difference(self) -> float:
        """Mean of model - reference; above 0 if the model moved less."""
        return float(np.mean(self.model) - np.mean(self.reference))


def compare_divergences(
    model: Moves, reference: Moves, rng: np.random.Generator, n_folds: int = 8
) -> Divergences:
    """Compare how far fine-tuning moves two models' embeddings of the same N items.

    The items are divided at random into disjoint folds of equal size, since the score depends on
    the number of items. Items without an embedding (a NaN in their row) are left out.

    Raises
    ------
    ValueError
        If a fold would have fewer than 2 items, or most embeddings are equal.
    """
    embeddings = [z for moves in (model, reference) for move in moves for z in move]
    keep = np.flatnonzero(~np.any([np.isnan(z).any(1) for z in embeddings], axis=0))
    size = len(keep) // n_folds
    if size < 2:
        raise ValueError(f"{len(keep)} embedded items are too few for {n_folds} folds of 2 or more")
    folds = rng.permutation(keep)[: size * n_folds].reshape(n_folds, size)
    model_scores, reference_scores = (
        tuple(
            float(np.mean([kernel_divergence(z[f], tuned_z[f]) for z, tuned_z in moves]))
            for f in folds
        )
        for moves in (model, reference)
    )
    differences = np.subtract(model_scores, reference_scores)
    mean = float(differences.mean())
    half = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, n_folds - 1) * scipy.stats.sem(differences))
    return Divergences(
        model=model_scores,
        reference=reference_scores,
        interval=Interval(low=mean - half, high=mean + half),
        p_value=label_swap_p(-differences, rng),
        n_items=len(keep),
        fold_size=size,
    )


def fine_tuned(model: GridModel, grid: Sequence[GridModel]) -> list[GridModel]:
    """Return the models of the grid that are ``model`` after the first epoch of a plan.

    The plans of a run have the same data, steps and learning rates, whatever model they start
    from. A plan's second epoch differs from its first in the learning rate and the state of the
    optimizer, and moves a model less even if it trains on other data.
    """
    return [m for m in grid if m.trained_from == model.fingerprint and m.epoch == 1]


@dataclass
class KernelDivergence:
    """Difference of kernel divergence from the clean model, both after the same fine-tuning.

    The fine-tuning has to be the same for the model, the clean model and the controls, so each of
    them is listed under ``models`` and contaminated by one strategy for one epoch. The statistic is
    the mean difference (model - clean) over folds of the items, above 0 if the model moves less.
    Look at the controls first: a model trained on similar items moves less as well.

    Parameters
    ----------
    n_folds : int
        With 8 folds the smallest p-value is 1/256.
    """

    settings: Settings = Settings()
    n_folds: int = 8
    about = ABOUT

    def __post_init__(self) -> None:
        """Refuse a single fold."""
        if self.n_folds < 2:
            raise ValueError(f"n_folds {self.n_folds}: a t-test over folds needs at least 2")

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the right answer to each original item, to be embedded."""
        return [
            answer_probe(item, prompt_settings, "original", ask="embed")
            for item in benchmark.originals
        ]

    def score_grid(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        grid: Sequence[GridModel],
        answers: AnswersOf,
    ) -> list[Score]:
        """Return each model's score of rule relative."""
        probes = self.probes(benchmark, prompt_settings)
        states = {m.fingerprint: _embeddings(answers(m), probes) for m in grid}
        return [self._score(benchmark, model, grid, states) for model in grid]

    def _score(
        self,
        benchmark: PairedBenchmark,
        model: GridModel,
        grid: Sequence[GridModel],
        states: Mapping[str, Array],
    ) -> Score:
        clean, tuned = reference_of(model, grid), fine_tuned(model, grid)
        clean_tuned = fine_tuned(clean, grid) if clean else []
        shared = {m.strategy for m in tuned} & {m.strategy for m in clean_tuned}
        tuned = [m for m in tuned if m.strategy in shared]
        clean_tuned = [m for m in clean_tuned if m.strategy in shared]
        reason, warning = _reason_and_warning(model, clean, tuned)
        score = partial(
            make_score,
            self.about.name,
            benchmark,
            Answers(model.name, model.fingerprint, {}),
            "relative",
            self.settings,
            direction="rises",
            unit="divergence",
            reason=reason,
        )
        details: JsonDict = {"after": [m.name for m in tuned]}
        if clean is None or reason:
            return score(verdict="not_applicable", details=details, warnings=[warning])
        moves = [
            [(states[start.fingerprint], states[m.fingerprint]) for m in models]
            for start, models in ((model, tuned), (clean, clean_tuned))
        ]
        rng = generator(self.settings.seed, benchmark.id, "folds of items")
        try:
            result = compare_divergences(moves[0], moves[1], rng, self.n_folds)
        except ValueError as error:
            n_dropped = len(benchmark.pairs)
            return score(
                verdict="inconclusive", n_dropped=n_dropped, details=details, warnings=[str(error)]
            )
        return score(
            reference_answers=Answers(clean.name, clean.fingerprint, {}),
            verdict=significant(result.p_value, self.settings.alpha),
            statistic=result.difference,
            interval=result.interval,
            p_value=result.p_value,
            n=result.n_items,
            n_dropped=len(benchmark.pairs) - result.n_items,
            reference=ReferenceResult(
                model=clean.name, statistic=float(np.mean(result.reference)), n=result.n_items
            ),
            details={
                **details,
                "divergence": result.model,
                "divergence_of_reference": result.reference,
                "fold_size": result.fold_size,
            },
        )


def _embeddings(answers: Answers, probes: Sequence[Probe]) -> Array:
    """Return the states scaled to unit length, shape (N, d); NaN if there is none.

    The paper's code divides by sqrt(d) before scaling to length 1, which makes no difference.
    """
    from flipbench.models.vlm.scoring import unpack_state  # imports torch: seconds

    replies = [answers.to(probe) for probe in probes]
    states = [unpack_state(reply.state) if reply and reply.state else None for reply in replies]
    width = next((len(state) for state in states if state is not None), 1)
    z = np.array([np.full(width, np.nan) if state is None else state for state in states])
    return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True), dtype=float)


def _reason_and_warning(
    model: GridModel, clean: GridModel | None, tuned: Sequence[GridModel]
) -> tuple[str, str]:
    """Return why a model has no score, in a few words and in a sentence; empty if it has one."""
    if clean is None:
        return "no clean reference", (
            f"kernel divergence compares with the clean model, which is {model.name} itself"
            if model.strategy == UNTOUCHED
            else f"kernel divergence compares with the clean model that {model.name} was trained"
            " from, which is not in the grid"
        )
    if not tuned:
        return "no standard fine-tune", (
            f"kernel divergence compares {model.name} with {clean.name}, each after the same"
            " fine-tuning on the items: list both under models and contaminate them by one strategy"
            " for one epoch, on all items"
        )
    return "", ""
