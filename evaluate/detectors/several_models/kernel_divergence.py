"""Kernel divergence: how far fine-tuning on a set moves a model's embeddings of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.spatial.distance import pdist

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Interval, JsonDict, Probe, ReferenceResult, Score
from flipbench.models.vlm.states import unpack_state
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, AnswersOf
from ...protocol.grid import UNTOUCHED, GridModel, reference_of
from ...protocol.rules import Verdict, significant
from ...scoring.conditions import Settings
from ...scoring.likelihood import answer_probe, make_score
from ...statistics.resampling import LEVEL, label_swap_p

Array = NDArray[np.float64]
Moves = Sequence[tuple[Array, Array]]
"""Embeddings of the same items before and after fine-tuning, each of shape (N, d)."""

ABOUT = About(
    name="kernel_divergence",
    title="Kernel divergence",
    paper="Choi et al., How Contaminated Is Your Benchmark?, arXiv 2502.00678",
    variant="rule relative: against the clean model, each after one more epoch on the items",
    deviates_from_paper="the fine-tuning is the grid's own, from one checkpoint of a plan to the"
    " next (the paper: LoRA of rank 8, plain gradient descent, learning rate 1e-4, batches of 4),"
    " so that a plan's last checkpoint has no score; the last token of the right answer, with"
    " picture and question before it; the paper only ranks, the test over folds of items is ours",
    default_rule="relative",
    needs=frozenset({"hidden_states"}),
    direction="one more epoch on the items moves their embeddings less than it moves the clean"
    " model's",
    needs_clean_model=True,
    practical=False,
    not_in_detect="it compares the model before and after it is trained on the items; detect only"
    " asks",
)


def kernel_divergence(
    before: ArrayLike, after: ArrayLike, gammas: tuple[float, float] | None = None
) -> float:
    """Return the kernel divergence score S <= 0; closer to 0 is more contaminated.

    Parameters
    ----------
    before, after : array_like, shape (N, d)
        Embeddings of the same items before and after one epoch of fine-tuning on them.
    gammas : (float, float), optional
        Widths of the two kernels exp(-gamma distance^2); by default 1 / median distance, each by
        its own.

    Notes
    -----
    S = -sum over i, j of abs(K log(K / K')) / sqrt(sum of K). The logarithm is taken of exponents,
    not of kernels, so nothing has to be kept from underflow. S depends on N: compare sets of the
    same size only.

    Examples
    --------
    >>> two, one = [[0.0, 0.0], [2**0.5, 0.0]], [[0.0, 0.0], [1.0, 0.0]]
    >>> round(kernel_divergence(two, one, (1.0, 1.0)), 5)
    -0.17962

    Raises
    ------
    ValueError
        Where shapes do not fit, there are fewer than 2 items, or all embeddings are equal.

    References
    ----------
    Choi et al., How Contaminated Is Your Benchmark?, arXiv 2502.00678, and its code.
    """
    one, two = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if one.ndim != 2 or two.ndim != 2 or len(one) != len(two) or len(one) < 2:
        raise ValueError(f"needs embeddings of the same 2 or more items: {one.shape}, {two.shape}")
    exponents = []
    for z, gamma in zip((one, two), gammas or (None, None), strict=True):
        distances = pdist(z)
        exponents.append(_gamma(distances, gamma) * distances**2)
    kernel = np.exp(-exponents[0])
    total = 2 * float(np.abs(kernel * (exponents[1] - exponents[0])).sum())
    return -total / float(np.sqrt(len(one) + 2 * kernel.sum()))


def _gamma(distances: Array, gamma: float | None) -> float:
    if gamma is not None:
        return gamma
    middle = float(np.median(distances))
    if middle == 0:
        raise ValueError("most embeddings are equal, so that there is no median distance to go by")
    return 1 / middle


@dataclass(frozen=True)
class Divergences:
    """Kernel divergence of a model and of a reference on the same folds of the items.

    Attributes
    ----------
    model, reference : tuple of float, shape (n_folds,)
        Scores; of several fine-tunings, their mean.
    interval : Interval
        Student's, of the mean difference over folds.
    p_value : float
        One-sided and exact: the labels model and reference are swapped fold by fold.
    """

    model: tuple[float, ...]
    reference: tuple[float, ...]
    interval: Interval
    p_value: float
    n_items: int
    fold_size: int

    @property
    def difference(self) -> float:
        """Mean of model - reference; above 0, the model was moved less."""
        return float(np.mean(self.model) - np.mean(self.reference))


def compare_divergences(
    model: Moves, reference: Moves, rng: np.random.Generator, n_folds: int = 8
) -> Divergences:
    """Compare how far one more epoch moves two models' embeddings of the same N items.

    The items are cut into disjoint folds of one size, drawn at random, since the score depends on
    the number of items. Items without an embedding (a NaN in their row) are left out.

    Raises
    ------
    ValueError
        Where a fold would have fewer than 2 items, or most embeddings are equal.
    """
    every = [z for moves in (model, reference) for move in moves for z in move]
    keep = np.flatnonzero(~np.any([np.isnan(z).any(1) for z in every], axis=0))
    size = len(keep) // n_folds
    if size < 2:
        raise ValueError(f"{len(keep)} embedded items make no {n_folds} folds of 2 items or more")
    folds = rng.permutation(keep)[: size * n_folds].reshape(n_folds, size)
    mine, theirs = (
        tuple(
            float(np.mean([kernel_divergence(one[fold], two[fold]) for one, two in moves]))
            for fold in folds
        )
        for moves in (model, reference)
    )
    differences = np.subtract(mine, theirs)
    middle = float(differences.mean())
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n_folds - 1) * stats.sem(differences))
    return Divergences(
        model=mine,
        reference=theirs,
        interval=Interval(low=middle - half, high=middle + half),
        p_value=label_swap_p(-differences, rng),
        n_items=len(keep),
        fold_size=size,
    )


def next_checkpoints(model: GridModel, grid: Sequence[GridModel]) -> list[GridModel]:
    """Return the models of the grid that are ``model`` after one more epoch on the items."""
    dose = model.dose or 0
    return [m for m in grid if m.trained_from == model.fingerprint and (m.dose or 0) > dose]


@dataclass
class KernelDivergence:
    """Score of a model and of its clean model, each after one more epoch on the items, compared.

    In a grid, a plan's next checkpoint is the model after one more epoch. The statistic is the
    mean difference (model - clean) over folds of the items; it lies above 0 where the model is
    moved less. A later epoch may also move less because its learning rate is lower: a constant
    schedule keeps that apart.

    Parameters
    ----------
    n_folds : int
        With 8 the least p-value is 1/256.

    References
    ----------
    Choi et al., arXiv 2502.00678. Differs from the paper as ``about.deviates_from_paper`` says.
    """

    settings: Settings = field(default_factory=Settings)
    n_folds: int = 8
    about: About = ABOUT

    def __post_init__(self) -> None:
        """Refuse folds that cannot be compared."""
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
        clean, after = reference_of(model, grid), next_checkpoints(model, grid)
        alike = {m.strategy for m in after}
        first = [m for m in next_checkpoints(clean, grid) if m.strategy in alike] if clean else []
        reason, why = _lacking(model, clean, after)
        found: Divergences | None = None
        if clean is not None and not reason:
            moves = [
                [(states[before.fingerprint], states[m.fingerprint]) for m in trained]
                for before, trained in ((model, after), (clean, first))
            ]
            rng = generator(self.settings.seed, benchmark.id, "folds of items")
            try:
                found = compare_divergences(moves[0], moves[1], rng, self.n_folds)
            except ValueError as error:
                why = str(error)
        verdict: Verdict = "not_applicable" if reason else "inconclusive"
        if found is not None:
            verdict = significant(found.p_value, self.settings.alpha)
        n = found.n_items if found else 0
        return make_score(
            self.about,
            benchmark,
            Answers(model.name, model.fingerprint, {}),
            "relative",
            verdict=verdict,
            direction="rises",
            settings=self.settings,
            statistic=found.difference if found else None,
            unit="divergence",
            interval=found.interval if found else None,
            p_value=found.p_value if found else None,
            n=n,
            n_dropped=0 if reason else len(benchmark.pairs) - n,
            reference=Answers(clean.name, clean.fingerprint, {}) if clean and found else None,
            reason=reason,
            reference_result=_reference_result(found, clean) if found and clean else None,
            details={"after": [m.name for m in after]} | (_by_fold(found) if found else {}),
            warnings=[why] if why else [],
        )


def _reference_result(found: Divergences, clean: GridModel) -> ReferenceResult:
    return ReferenceResult(
        model=clean.name, statistic=float(np.mean(found.reference)), n=found.n_items
    )


def _by_fold(found: Divergences) -> JsonDict:
    return {
        "divergence": found.model,
        "divergence_of_reference": found.reference,
        "fold_size": found.fold_size,
    }


def _embeddings(answers: Answers, probes: Sequence[Probe]) -> Array:
    """Return the states of unit length, shape (N, d); NaN where there is none.

    The paper's code divides by sqrt(d) before it scales to length 1, which changes nothing.
    """
    replies = [answers.to(probe) for probe in probes]
    found = [unpack_state(reply.state) if reply and reply.state else None for reply in replies]
    width = next((len(state) for state in found if state is not None), 1)
    z = np.array([np.full(width, np.nan) if state is None else state for state in found])
    return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True), dtype=float)


def _lacking(
    model: GridModel, clean: GridModel | None, after: Sequence[GridModel]
) -> tuple[str, str]:
    """Return what a model lacks for a score, in a few words and in a sentence; empty: nothing."""
    if not after:
        return "no next checkpoint", (
            f"kernel divergence needs {model.name} after one more epoch on the items, and no"
            " checkpoint of the grid is that: contaminate with more epochs, on all items"
        )
    if clean is None:
        return "no clean reference", (
            f"kernel divergence compares with the clean model, and {model.name} is that model"
            if model.strategy == UNTOUCHED
            else f"kernel divergence compares with the clean model that {model.name} was trained"
            " from, which is not in the grid"
        )
    return "", ""
