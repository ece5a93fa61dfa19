"""ConStat: accuracy on a test beyond what the score on a reference test predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, Interval, Item, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, AnswersOf
from ...protocol.grid import GridModel
from ...protocol.rules import Verdict, significant, too_few_warning
from ...scoring.conditions import Settings
from ...scoring.paired_replies import PairedReplies
from ...scoring.scores import cluster_of, make_score
from ...statistics.resampling import LEVEL, Array, permutation_p
from ..perturbation.perturbation_gap import PerturbationGap

MIN_MODELS = 3

ABOUT = About(
    name="constat",
    title="ConStat",
    paper="Dekoninck et al., ConStat, arXiv 2405.16281",
    variant="the perturbed items are the reference benchmark; rule bootstrap",
    deviates_from_paper="the difficulty curve is an isotonic regression, linear between the models,"
    " from chance to perfect accuracy (the paper fits a smoothing spline); original and perturbed"
    " items are drawn in pairs; no verdict on fewer items than an exact paired test needs",
    rules={"bootstrap": True},
    needs=frozenset({"choose or generate"}),
    direction="accuracy on the originals exceeds what accuracy on the perturbed items predicts",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    signal="answers to the perturbed items",
    evidence="published",
    caveat="the difficulty curve is as good as the clean models: with few, or none of similar"
    " accuracy, it is mostly interpolation",
)


@dataclass(frozen=True)
class ConStatResult:
    """Accuracy that difficulty does not explain, a fraction, and its bootstrap.

    ``delta`` = accuracy on the test - ``expected``, the value of the curve at the accuracy on the
    reference test. ``p_value`` is one-sided against "delta is not above 0".
    """

    delta: float
    expected: float
    interval: Interval
    p_value: float
    n_items: int
    n_models: int


def difficulty_curve(
    reference: ArrayLike, test: ArrayLike, at: float, chance: tuple[float, float] = (0.0, 0.0)
) -> float:
    """Return the accuracy on the test expected for accuracy ``at`` on the reference test.

    Parameters
    ----------
    reference, test : array_like, shape (M,)
        Accuracies of M reference models, fractions.
    chance : (float, float)
        Accuracy of guessing on both; the curve begins there and ends at (1, 1).

    Examples
    --------
    >>> round(difficulty_curve([0.4, 0.6], [0.45, 0.65], 0.5), 6)
    0.55
    """
    x = np.concatenate([[chance[0]], np.asarray(reference, dtype=float), [1.0]])
    y = np.concatenate([[chance[1]], np.asarray(test, dtype=float), [1.0]])
    knots, index, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(index, weights=y) / counts
    fitted = scipy.optimize.isotonic_regression(means, weights=counts.astype(float)).x
    return float(np.interp(at, knots, fitted))


def constat(
    target: ArrayLike,
    models: ArrayLike,
    rng: np.random.Generator,
    *,
    chance: tuple[float, float] = (0.0, 0.0),
    clusters: Sequence[str] | None = None,
    n_bootstrap: int = 2_000,
    level: float = LEVEL,
) -> ConStatResult:
    """Compare a model with reference models on a test and on a reference test.

    Parameters
    ----------
    target : array_like, shape (2, N)
        The model's right (1) or wrong (0) answers on N reference items and on N test items. Item i
        of one belongs to item i of the other: they are drawn together.
    models : array_like, shape (M, 2, N)
        The same for M reference models, M at least 3.
    clusters : sequence of str, shape (N,), optional
        What each item shares with others; whole clusters are drawn.

    Raises
    ------
    ValueError
        If shapes do not match, or there are fewer than 3 models or no items.
    """
    y, references = np.asarray(target, dtype=float), np.asarray(models, dtype=float)
    if y.ndim != 2 or references.ndim != 3 or references.shape[1:] != y.shape or len(y) != 2:
        raise ValueError(f"shapes must be (2, N) and (M, 2, N), not {y.shape}, {references.shape}")
    n_models, _, n = references.shape
    if n_models < MIN_MODELS or n == 0:
        raise ValueError(f"needs items and {MIN_MODELS} reference models, got {n}, {n_models}")
    rows = np.concatenate([y[None], references]).reshape(-1, n)
    names = list(range(n)) if clusters is None else list(clusters)
    _, index = np.unique(np.asarray(names), return_inverse=True)
    sizes = np.bincount(index).astype(float)
    totals = np.stack([np.bincount(index, weights=row) for row in rows])
    draws = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=n_bootstrap)
    means = ((draws @ totals.T) / (draws @ sizes)[:, None]).reshape(n_bootstrap, -1, 2)
    picks = 1 + rng.integers(n_models, size=(n_bootstrap, n_models))
    deltas = np.array(
        [_delta(row, pick, chance)[0] for row, pick in zip(means, picks, strict=True)]
    )
    accuracies = rows.mean(1).reshape(-1, 2)
    delta, expected = _delta(accuracies, np.arange(1, n_models + 1), chance)
    low, high = np.quantile(deltas, [0.5 - level / 2, 0.5 + level / 2])
    return ConStatResult(
        delta=delta,
        expected=expected,
        interval=Interval(low=float(low), high=float(high), level=level),
        p_value=permutation_p(0.0, deltas, "less"),
        n_items=n,
        n_models=n_models,
    )


def _delta(
    accuracies: Array, models: NDArray[np.int64], chance: tuple[float, float]
) -> tuple[float, float]:
    """Return (delta, expected) of model 0, from accuracies of shape (1 + M, 2)."""
    references = accuracies[models]
    expected = difficulty_curve(references[:, 0], references[:, 1], float(accuracies[0, 0]), chance)
    return float(accuracies[0, 1]) - expected, expected


@dataclass
class ConStat:
    """Delta = accuracy on the originals - what accuracy on the perturbed items predicts.

    It uses the probes of `perturbation_gap` and, like rule ``relative`` there, does not assume that
    both versions are equally hard. Its references are all other models of the grid that are known
    to be clean, at least 3.
    """

    settings: Settings = Settings()
    about = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the original and the perturbed question of every multiple-choice pair."""
        return PerturbationGap(self.settings).probes(benchmark, prompt_settings)

    def score_grid(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        grid: Sequence[GridModel],
        answers: AnswersOf,
    ) -> list[Score]:
        """Return each model's score of rule bootstrap, on items that all references answered."""
        items = [pair.original for pair in benchmark.pairs if pair.original.options is not None]
        outcomes = {
            model.fingerprint: PairedReplies.read(
                benchmark, prompt_settings, answers(model)
            ).outcomes()[::-1]
            for model in grid
        }
        return [self._score(benchmark, items, model, grid, outcomes) for model in grid]

    def _score(
        self,
        benchmark: PairedBenchmark,
        items: Sequence[Item],
        model: GridModel,
        grid: Sequence[GridModel],
        outcomes: Mapping[str, Array],
    ) -> Score:
        references = [m for m in grid if m.clean and m.fingerprint != model.fingerprint]
        rows = np.array([outcomes[m.fingerprint] for m in (model, *references)])  # (1 + M, 2, N)
        is_complete = ~np.isnan(rows).any(axis=(0, 1))
        values, n = rows[:, :, is_complete], int(is_complete.sum())
        complete_items = list(compress(items, is_complete.tolist()))
        verdict: Verdict = "not_applicable"
        warnings, reason, result = _cautions(references), "", None
        if len(references) < MIN_MODELS:
            reason = f"{len(references)} of {MIN_MODELS} clean references"
            warnings = [
                f"constat needs at least {MIN_MODELS} clean reference models besides"
                f" {model.name}, and {len(references)} were given"
            ]
        elif not items:
            reason = "no options"
            warnings = ["constat needs questions with options; the benchmark has none"]
        elif not n:
            verdict = "inconclusive"
            warnings = ["no item was answered by all models; run the same command again"]
        else:
            chance = sum(1 / len(item.options or "?") for item in complete_items) / n
            clusters = [cluster_of(item) for item in complete_items]
            result = constat(
                values[0],
                values[1:],
                generator(self.settings.seed, model.name, "constat"),
                chance=(chance, chance),
                clusters=clusters,
                n_bootstrap=self.settings.n_bootstrap,
            )
            verdict = significant(result.p_value, self.settings.alpha)
            if refusal := too_few_warning(len(set(clusters)), self.settings.alpha):
                verdict = "inconclusive"
                warnings.append(refusal)
        return make_score(
            self.about.name,
            benchmark,
            Answers(model.name, model.fingerprint, {}),
            "bootstrap",
            self.settings,
            verdict=verdict,
            direction="rises",
            statistic=result.delta if result else None,
            interval=result.interval if result else None,
            p_value=result.p_value if result else None,
            n=n,
            n_dropped=0 if reason else len(benchmark.pairs) - n,
            reason=reason,
            accuracies={
                name: Count(k=int(values[0, side].sum()), n=n)
                for side, name in enumerate(("perturbed", "original"))
            },
            details={
                "expected": result.expected if result else None,
                "references": [m.name for m in references],
            },
            warnings=warnings,
        )


def _cautions(references: Sequence[GridModel]) -> list[str]:
    """Return a warning if references share a lineage, which the bootstrap ignores."""
    n_lineages = len({m.cluster for m in references})
    if n_lineages == len(references):
        return []
    return [
        f"the {len(references)} clean references descend from {n_lineages} clean"
        f" {'model' if n_lineages == 1 else 'models'} and are drawn as if they were independent:"
        " the interval is too narrow"
    ]
