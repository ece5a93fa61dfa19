"""Kernel divergence: how far fine-tuning on a set moves a model's embeddings of its items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.spatial.distance import pdist

from flipbench.evaluate.likelihood import answer_probe
from flipbench.images import ImageStore
from flipbench.prompts import Asking
from flipbench.randomness import generator
from flipbench.records import Item, Probe

Array = NDArray[np.float64]


class Embedder(Protocol):
    """A model that gives hidden states, such as `flipbench.models.huggingface.HuggingFaceVLM`."""

    name: str

    def embed(self, probes: Sequence[Probe], images: ImageStore) -> torch.Tensor:
        """Return the state of each probe's last token, shape (n_probes, hidden size)."""


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


def embeddings(
    model: Embedder,
    items: Sequence[Item],
    images: ImageStore,
    asking: Asking,
    *,
    batch_size: int = 16,
) -> Array:
    """Return the items' embeddings, shape (N, d): the state of the last token of the right answer.

    The image and the question stand before it. Divided by sqrt(d) and then of length 1, as in the
    paper's code.
    """
    probes = [answer_probe(item, asking, "original") for item in items]
    parts = [
        model.embed(probes[start : start + batch_size], images)
        for start in range(0, len(probes), batch_size)
    ]
    z = torch.cat(parts).double().numpy()
    z = z / np.sqrt(z.shape[1])
    return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))


def checkpoint_divergence(
    before: Embedder,
    after: Embedder,
    items: Sequence[Item],
    images: ImageStore,
    asking: Asking,
    *,
    batch_size: int = 16,
) -> float:
    """Return the kernel divergence between a checkpoint and the same one fine-tuned on ``items``.

    ``after`` comes from one epoch of `flipbench contaminate` on ``before``; in a grid, each epoch
    of a plan is the "after" of the epoch before it. It takes two models' states, not answers, so
    it is no `Detector`.

    References
    ----------
    Choi et al., arXiv 2502.00678. Differs from the paper in the fine-tuning, which is the plan's
    (the paper: LoRA of rank 8, plain gradient descent, learning rate 1e-4, batches of 4), and in
    items with images, of which it takes the last token of the right answer.
    """
    sides = [embeddings(m, items, images, asking, batch_size=batch_size) for m in (before, after)]
    return kernel_divergence(sides[0], sides[1])


@dataclass(frozen=True)
class DivergenceAgainstControl:
    """Scores of folds of a benchmark and of a control set, all folds of ``fold_size`` items.

    ``p_value`` is the exact one-sided Mann-Whitney test that the benchmark's lie nearer to 0.
    """

    benchmark: tuple[float, ...]
    control: tuple[float, ...]
    p_value: float
    fold_size: int

    @property
    def difference(self) -> float:
        """Mean score of the benchmark - mean score of the control."""
        return float(np.mean(self.benchmark) - np.mean(self.control))


def divergence_against_control(
    benchmark: tuple[ArrayLike, ArrayLike],
    control: tuple[ArrayLike, ArrayLike],
    *,
    n_folds: int = 5,
    seed: int = 0,
) -> DivergenceAgainstControl:
    """Compare a benchmark's kernel divergence with that of fresh items of the same kind.

    The score has no threshold of its own; it only ranks sets. Both are cut into disjoint folds of
    one size, drawn at random, and the folds' scores are compared.

    Parameters
    ----------
    benchmark, control : (array_like, array_like), shapes (N, d) and (C, d)
        Embeddings before and after fine-tuning. The control's are of a model fine-tuned on the
        control in the same way.
    n_folds : int
        With 3 the least p-value is 0.05, with 5 it is 0.004.

    Raises
    ------
    ValueError
        Where a fold would have fewer than 2 items.
    """
    sets = [tuple(np.asarray(z, dtype=float) for z in pair) for pair in (benchmark, control)]
    size = min(len(one) for one, _ in sets) // n_folds
    if size < 2:
        raise ValueError(f"folds of {size} items; give more items or ask for fewer folds")
    scores = []
    for name, (one, two) in zip(("benchmark", "control"), sets, strict=True):
        order = generator(seed, name, "folds").permutation(len(one))[: size * n_folds]
        folds = order.reshape(n_folds, size)
        scores.append(tuple(kernel_divergence(one[fold], two[fold]) for fold in folds))
    test = stats.mannwhitneyu(scores[0], scores[1], alternative="greater", method="exact")
    return DivergenceAgainstControl(scores[0], scores[1], float(test.pvalue), size)
