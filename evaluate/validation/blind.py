"""A blind baseline: how well the texts alone separate members from non-members, without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu, rankdata

from flipbench.core.errors import DataError, need
from flipbench.core.records import Interval

from ..statistics.resampling import Array
from ..statistics.roc import newcombe_interval

N_FOLDS = 5


@dataclass(frozen=True)
class BlindBaseline:
    """How well a classifier of texts ranks members above non-members it was not trained on.

    Attributes
    ----------
    auroc : float
        Probability that a member ranks above a non-member; 0.5 if their texts do not differ.
    interval : Interval
        Newcombe's, with the numbers of groups as sample sizes.
    """

    auroc: float
    interval: Interval
    n_members: int
    n_non_members: int
    n_groups: int

    @property
    def shifted(self) -> bool:
        """Whether the texts differ: then a membership score needs no memory to separate them."""
        return self.interval.low > 0.5


def blind_baseline(
    texts: Sequence[str],
    is_member: Sequence[bool],
    groups: Sequence[str],
    *,
    n_folds: int = N_FOLDS,
    seed: int = 0,
) -> BlindBaseline:
    """Cross-validate a classifier that knows words, word pairs and lengths, but no model.

    A membership score of the same texts shows memory only where its AUROC is above this one.

    Parameters
    ----------
    texts : sequence of str, shape (N,)
    is_member : sequence of bool, shape (N,)
    groups : sequence of str, shape (N,)
        Texts of one group, such as an item and its perturbed version, are never on both sides of a
        split.

    Raises
    ------
    DataError
        If there are fewer groups of members or of non-members than folds.
    PrerequisiteError
        If scikit-learn is missing.

    Notes
    -----
    Logistic regression (L2, C = 1, classes balanced) of TF-IDF of words and word pairs, and of the
    numbers of characters, words, digits and capitals. Scores are ranked within each fold, since
    the folds' classifiers have different offsets.

    References
    ----------
    Das et al., Blind Baselines Beat Membership Inference Attacks for Foundation Models, arXiv
    2406.16201. Differs from the paper in one classifier for all texts, where the authors also use
    dates and rules made for a data set, and in folds that keep groups together.
    """
    need("sklearn", "audit")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    member = np.asarray(is_member, dtype=bool)
    names = np.asarray(groups, dtype=str)
    sizes = [len(set(names[side])) for side in (member, ~member)]
    if min(sizes) < n_folds:
        raise DataError(
            f"a blind baseline needs at least {n_folds} groups of members and of non-members, not"
            f" {sizes[0]} and {sizes[1]}"
        )
    words = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", ngram_range=(1, 2), sublinear_tf=True)
    lengths = make_pipeline(FunctionTransformer(_lengths), StandardScaler())
    classifier = make_pipeline(
        make_union(words, lengths), LogisticRegression(class_weight="balanced", max_iter=1_000)
    )
    splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
    rows, ranks = np.asarray(texts, dtype=object), np.zeros(len(texts))
    for train, test in splitter.split(rows, member, names):
        classifier.fit(rows[train], member[train])
        ranks[test] = rankdata(classifier.decision_function(rows[test])) / (len(test) + 1)
    n_members, n_others = int(member.sum()), int((~member).sum())
    wins = float(mannwhitneyu(ranks[member], ranks[~member]).statistic)
    auroc = wins / (n_members * n_others)
    return BlindBaseline(
        auroc=auroc,
        interval=newcombe_interval(auroc, [(float(sizes[0]), float(sizes[1]))]),
        n_members=n_members,
        n_non_members=n_others,
        n_groups=len(set(names)),
    )


def _lengths(texts: Sequence[str]) -> Array:
    return np.array(
        [
            [
                math.log1p(len(text)),
                math.log1p(len(text.split())),
                sum(character.isdigit() for character in text),
                sum(character.isupper() for character in text),
            ]
            for text in texts
        ],
        dtype=float,
    )
