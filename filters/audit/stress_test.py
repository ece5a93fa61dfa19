"""Test-set stress test: how far a text-only classifier gets that is trained on the test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from flipbench.config.audit import AuditSettings
from flipbench.core.errors import need
from flipbench.core.randomness import generator
from flipbench.core.records import Item

from .finding import (
    AuditFinding,
    Named,
    chances_of,
    n_items,
    not_run,
    rate,
)
from .option_features import option_texts, surface, words

TITLE = "What the text alone predicts"
MAX_WORDS = 1_000
N_CUES = 12
N_NAMED = 50
ALPHA = 1.0
_BATCH = 128  # permutations that are solved for at a time, to bound memory

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Table:
    """All options of all items, one row each; ``starts`` has shape (N + 1,)."""

    features: Array
    names: list[str]
    starts: NDArray[np.intp]
    gold: NDArray[np.intp]

    @property
    def n_items(self) -> int:
        return len(self.gold)


def stress_test(
    items: Sequence[Item], settings: AuditSettings, groups: Sequence[object] | None = None
) -> AuditFinding:
    """Train on the text of all folds but one, predict that one, and count the right answers.

    A ridge regression scores every option from its words (TF-IDF), its words beside those of the
    question, its letter and its length; the option with the highest score is the prediction. For
    the p-value the right options are drawn anew, uniformly within each item, and the whole
    cross-validation is done again: all drawings are targets of the same regression.

    Parameters
    ----------
    groups : sequence, shape (n_items,), optional
        Items of one group (copies of an image) stay in one fold. ``None`` in it stands alone.

    References
    ----------
    *Benchmark Designers Should "Train on the Test Set" to Expose Exploitable Non-Visual Shortcuts*,
    arXiv 2511.04655. Differs from the paper in the classifier (there a fine-tuned language model
    or a random forest on features made for one benchmark) and in the permutation test.
    """
    keep = [row for row, item in enumerate(items) if item.options is not None]
    asked = [items[row] for row in keep]
    of = [str(row) if groups is None or groups[row] is None else f"g{groups[row]}" for row in keep]
    if len(set(of)) < 2 * settings.n_folds:
        why = f"{n_items(len(asked))} with options are too few for {settings.n_folds} folds."
        return not_run("stress_test", TITLE, why, "")
    table = _table(asked)
    rng = generator(settings.seed, "stress_test", "audit")
    sizes = np.diff(table.starts)
    drawn = (rng.random((settings.n_permutations, table.n_items)) * sizes).astype(np.intp)
    margins, null = _cross_validate(table, of, np.vstack([table.gold, drawn]), settings)
    k, n = int((margins > 0).sum()), table.n_items
    p = (1 + int((null >= k).sum())) / (settings.n_permutations + 1)
    found = rate("right by text alone, out of fold", k, n, chances_of(asked))
    found = found.model_copy(update={"p_value": p})
    cues = _cues(table)
    order = np.argsort(-margins, kind="stable")[:N_NAMED]
    named = [
        Named(
            item_id=asked[i].id,
            name=asked[i].name,
            action="look",
            why=f"predicted from its text, {margins[i]:.2f} ahead of its other options",
            details={"margin": float(margins[i])},
        )
        for i in order
        if margins[i] > 0
    ]
    return AuditFinding(
        check="stress_test",
        title=TITLE,
        status="ok",
        sentence=f"A classifier that never sees an image and was trained on the other folds is"
        f" right on {k} of {n_items(n)}; chance is {sum(chances_of(asked)):.1f}.",
        todo="Look at the cues below: a cue that no picture explains is a shortcut. Rewrite the"
        " options that carry it, or balance it over right and wrong options.",
        limits="A linear classifier of words finds simple cues only; knowledge of the world, which"
        " text-only models have, it lacks.",
        rates=(found,),
        items=tuple(named),
        details={
            "cues": [{"cue": name, "weight": weight} for name, weight in cues],
            "null_mean": float(null.mean()),
            "null_highest": int(null.max()),
            "n_permutations": settings.n_permutations,
            "n_folds": settings.n_folds,
            "n_left_out": len(items) - n,
        },
    )


def _table(items: Sequence[Item]) -> _Table:
    """Return the features of all options. TF-IDF sees no label, so all folds may share it."""
    need("sklearn", "audit")
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text for item in items for text in option_texts(item)]
    vectorizer = TfidfVectorizer(analyzer=words, max_features=MAX_WORDS, min_df=2)
    signs = DictVectorizer(sparse=False)
    blocks, names = [signs.fit_transform(surface(texts))], list(signs.feature_names_)
    if _any_repeated_word(texts):
        blocks.append(vectorizer.fit_transform(texts).toarray())
        names += list(vectorizer.get_feature_names_out())
    features = np.hstack(blocks)
    sizes = [len(item.options or ()) for item in items]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    # within an item only differences between its options count
    for a, b in zip(starts, starts[1:], strict=False):
        features[a:b] -= features[a:b].mean(axis=0)
    return _Table(features, names, starts, np.array([item.answer or 0 for item in items]))


def _any_repeated_word(texts: Sequence[object]) -> bool:
    seen: set[str] = set()
    for text in texts:
        mine = set(words(text))  # type: ignore[arg-type]
        if seen & mine:
            return True
        seen |= mine
    return False


def _cross_validate(
    table: _Table, groups: Sequence[str], golds: NDArray[np.intp], settings: AuditSettings
) -> tuple[Array, Array]:
    """Return (margins of the true labels, shape (N,); right answers of each drawing, shape (B,)).

    Parameters
    ----------
    golds : int array, shape (1 + B, N)
        The true right options, then the drawn ones.
    """
    from sklearn.model_selection import GroupKFold

    splitter = GroupKFold(settings.n_folds, shuffle=True, random_state=settings.seed)
    sizes = np.diff(table.starts)
    owner = np.repeat(np.arange(table.n_items), sizes)
    folds = [tested for _, tested in splitter.split(owner[: table.n_items], groups=groups)]
    rows = [np.flatnonzero(np.isin(owner, tested)) for tested in folds]
    parts = [table.features[r] for r in rows]
    whole = table.features.T @ table.features + ALPHA * np.eye(table.features.shape[1])
    # one factorisation for each fold serves all drawings of the right options
    solvers = [cho_factor(whole - part.T @ part) for part in parts]
    n_right, margins = np.zeros(len(golds)), np.zeros(table.n_items)
    for start in range(0, len(golds), _BATCH):
        batch = golds[start : start + _BATCH]
        targets = _targets(table, batch)
        moments = table.features.T @ targets
        for tested, out, part, solver in zip(folds, rows, parts, solvers, strict=True):
            weights = cho_solve(solver, moments - part.T @ targets[out])
            found = _margins(part @ weights, sizes[tested], batch[:, tested])
            n_right[start : start + _BATCH] += (found > 0).sum(axis=0)
            if start == 0:
                margins[tested] = found[:, 0]
    return margins, n_right[1:]


def _targets(table: _Table, golds: NDArray[np.intp]) -> Array:
    """Return 1 - 1/k for the right option of each item and -1/k for others, shape (rows, B)."""
    sizes = np.diff(table.starts)
    targets = np.repeat(-1.0 / sizes, sizes)[:, None].repeat(len(golds), axis=1)
    rows = table.starts[:-1] + golds
    targets[rows, np.arange(len(golds))[:, None]] += 1.0
    return targets


def _margins(scores: Array, sizes: NDArray[np.intp], golds: NDArray[np.intp]) -> Array:
    """Return score of the right option - best other score, shape (items, B).

    A tie is no right answer: the margin must be above 0 (beyond rounding).
    """
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = (starts + golds).T
    columns = np.arange(scores.shape[1])
    right = scores[rows, columns]
    others = scores.copy()
    others[rows, columns] = -np.inf
    margins = right - np.maximum.reduceat(others, starts, axis=0)
    return np.where(np.abs(margins) < 1e-9, 0.0, margins)


def _cues(table: _Table) -> list[tuple[str, float]]:
    """Return the features that speak most for an option being right, from a fit on all items."""
    x = table.features
    solver = cho_factor(x.T @ x + ALPHA * np.eye(x.shape[1]))
    weights = cho_solve(solver, x.T @ _targets(table, table.gold[None]))[:, 0]
    effect = weights * x.std(axis=0)
    order = np.argsort(-effect, kind="stable")[:N_CUES]
    return [(table.names[i], float(effect[i])) for i in order if effect[i] > 0]
