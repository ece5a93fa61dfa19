"""Test-set stress test: accuracy of a text-only classifier trained on the test set itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.config.audit import AuditSettings
from flipbench.core.errors import need
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS

from .finding import AuditFinding, chances_of, flag, n_items, not_run, rate

TITLE = "What the text alone predicts"
MAX_WORDS = 1_000
N_CUES = 12
N_NAMED = 50
ALPHA = 1.0
_BATCH = 128  # permutations solved at a time, to limit memory
_WORD = re.compile(r"\w+")
_MAX_QUESTION_WORDS = 24

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Features:
    """All options of all items, one row each; ``starts`` has shape (N + 1,)."""

    features: Array
    names: list[str]
    starts: NDArray[np.intp]
    gold: NDArray[np.intp]

    @property
    def sizes(self) -> NDArray[np.intp]:
        return np.diff(self.starts)

    def targets(self, golds: NDArray[np.intp]) -> Array:
        """Return 1 - 1/k for the correct option of each item and -1/k for others, (rows, B)."""
        targets = np.repeat(-1.0 / self.sizes, self.sizes)[:, None].repeat(len(golds), axis=1)
        targets[self.starts[:-1] + golds, np.arange(len(golds))[:, None]] += 1.0
        return targets


def stress_test(
    items: Sequence[Item], settings: AuditSettings, groups: Sequence[object] | None = None
) -> AuditFinding:
    """Count the correct predictions of a text classifier in cross-validation.

    A ridge regression scores every option from its words (TF-IDF), its words crossed with those of
    the question, its letter and its length; the highest score is the prediction. The p-value comes
    from repeating the cross-validation with correct options drawn uniformly within each item; all
    draws are targets of the same regression.

    Parameters
    ----------
    groups : sequence, shape (n_items,), optional
        Items of one group (copies of an image) stay in one fold; ``None`` is a group of its own.

    References
    ----------
    *Benchmark Designers Should "Train on the Test Set" to Expose Exploitable Non-Visual Shortcuts*,
    arXiv 2511.04655. Differs from the paper in the classifier (there a fine-tuned language model
    or a random forest on features made for one benchmark) and in the permutation test.
    """
    rows = [row for row, item in enumerate(items) if item.options is not None]
    closed = [items[row] for row in rows]
    group_of = [
        str(row) if groups is None or groups[row] is None else f"g{groups[row]}" for row in rows
    ]
    if len(set(group_of)) < 2 * settings.n_folds:
        problem = f"{n_items(len(closed))} with options are too few for {settings.n_folds} folds."
        return not_run("stress_test", TITLE, problem)
    table = _table(closed)
    rng = generator(settings.seed, "stress_test", "audit")
    n = len(closed)
    random_golds = (rng.random((settings.n_permutations, n)) * table.sizes).astype(np.intp)
    margins, null = _cross_validate(
        table, group_of, np.vstack([table.gold, random_golds]), settings
    )
    k = int((margins > 0).sum())
    p = (1 + int((null >= k).sum())) / (settings.n_permutations + 1)
    accuracy = rate("correct from text alone, out of fold", k, n, chances_of(closed))
    accuracy = accuracy.model_copy(update={"p_value": p})
    cues = _cues(table)
    order = np.argsort(-margins, kind="stable")[:N_NAMED]
    flagged = [
        flag(
            closed[i],
            "look",
            f"predicted from its text, {margins[i]:.2f} ahead of its other options",
            details={"margin": float(margins[i])},
        )
        for i in order
        if margins[i] > 0
    ]
    return AuditFinding(
        check="stress_test",
        title=TITLE,
        status="ok",
        sentence=f"A classifier trained on the other folds, without images, is correct on {k} of"
        f" {n_items(n)}; chance is {sum(chances_of(closed)):.1f}.",
        todo="Review the cues below: a cue that the image does not explain is a shortcut. Rewrite"
        " the options that contain it, or balance it over correct and wrong options.",
        limits="A linear classifier of words finds only simple cues; it lacks the world knowledge"
        " that text-only models have.",
        rates=(accuracy,),
        items=tuple(flagged),
        details={
            "cues": [{"cue": name, "weight": weight} for name, weight in cues],
            "null_mean": float(null.mean()),
            "null_highest": int(null.max()),
            "n_permutations": settings.n_permutations,
            "n_folds": settings.n_folds,
            "n_left_out": len(items) - n,
        },
    )


class OptionText(NamedTuple):
    """An option with its question, position and rank by length: 0 the longest, ties the better."""

    question: str
    option: str
    slot: int
    rank: int
    n_options: int


def option_texts(item: Item) -> list[OptionText]:
    """Return the options of an item."""
    options = item.options or ()
    sizes = [len(" ".join(option.split())) for option in options]
    ranks = [sum(other > size for other in sizes) for size in sizes]
    return [
        OptionText(item.question, option, slot, ranks[slot], len(options))
        for slot, option in enumerate(options)
    ]


def words(text: OptionText) -> list[str]:
    """Return the option's words and bigrams, and each word crossed with each question word."""
    option = _WORD.findall(text.option.casefold())
    question = list(dict.fromkeys(_WORD.findall(text.question.casefold())))[:_MAX_QUESTION_WORDS]
    bigrams = [f"{a} {b}" for a, b in pairwise(option)]
    crossed = [f"{word} | asked: {other}" for word in option for other in question]
    return [*option, *bigrams, *crossed]


def surface(text: OptionText) -> dict[str, float]:
    """Return an option's letter, rank by length, and character types."""
    return {
        f"letter {LETTERS[text.slot]} of {text.n_options}": 1.0,
        f"length rank {text.rank + 1} of {text.n_options}": 1.0,
        "holds a digit": float(any(c.isdigit() for c in text.option)),
        "holds punctuation": float(bool(re.search(r"[,;:()/-]", text.option))),
        "starts with a capital": float(text.option[:1].isupper()),
    }


def _table(items: Sequence[Item]) -> _Features:
    """Return the features of all options. TF-IDF uses no labels, so all folds may share it."""
    need("sklearn", "audit")
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text for item in items for text in option_texts(item)]
    vectorizer = TfidfVectorizer(analyzer=words, max_features=MAX_WORDS, min_df=2)
    signs = DictVectorizer(sparse=False)
    blocks, names = [signs.fit_transform(list(map(surface, texts)))], list(signs.feature_names_)
    counts = Counter(word for text in texts for word in set(words(text)))
    if max(counts.values(), default=0) > 1:  # else no word would be left
        blocks.append(vectorizer.fit_transform(texts).toarray())
        names += list(vectorizer.get_feature_names_out())
    features = np.hstack(blocks)
    sizes = [len(item.options or ()) for item in items]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    # only differences between the options of an item matter
    for a, b in zip(starts, starts[1:], strict=False):
        features[a:b] -= features[a:b].mean(axis=0)
    return _Features(features, names, starts, np.array([item.answer or 0 for item in items]))


def _cross_validate(
    table: _Features, groups: Sequence[str], golds: NDArray[np.intp], settings: AuditSettings
) -> tuple[Array, Array]:
    """Return margins of the true labels, (N,), and correct predictions of each draw, (B,).

    ``golds`` has the correct options, then the drawn ones, shape (1 + B, N).
    """
    from sklearn.model_selection import GroupKFold

    n = len(table.gold)
    splitter = GroupKFold(settings.n_folds, shuffle=True, random_state=settings.seed)
    owner = np.repeat(np.arange(n), table.sizes)
    n_correct, margins = np.zeros(len(golds)), np.zeros(n)
    for train, test in splitter.split(np.zeros(n), groups=groups):
        train_rows, test_rows = np.isin(owner, train), np.isin(owner, test)
        for start in range(0, len(golds), _BATCH):
            batch = golds[start : start + _BATCH]
            model = _ridge(table.features[train_rows], table.targets(batch)[train_rows])
            scores = table.features[test_rows] @ model
            fold_margins = _margins(scores, table.sizes[test], batch[:, test])
            n_correct[start : start + _BATCH] += (fold_margins > 0).sum(axis=0)
            if start == 0:
                margins[test] = fold_margins[:, 0]
    return margins, n_correct[1:]


def _ridge(features: Array, targets: Array) -> Array:
    """Return the weights, (features, B), of a regression for each column of the targets."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=ALPHA, fit_intercept=False, solver="cholesky").fit(features, targets)
    return np.asarray(model.coef_, np.float64).reshape(targets.shape[1], -1).T


def _margins(scores: Array, sizes: NDArray[np.intp], golds: NDArray[np.intp]) -> Array:
    """Return score of the correct option - best other score, shape (items, B).

    Margins within rounding error are set to 0, so that ties do not count as correct.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = (starts + golds).T
    columns = np.arange(scores.shape[1])
    correct = scores[rows, columns]
    other_scores = scores.copy()
    other_scores[rows, columns] = -np.inf
    margins = correct - np.maximum.reduceat(other_scores, starts, axis=0)
    return np.where(np.abs(margins) < 1e-9, 0.0, margins)


def _cues(table: _Features) -> list[tuple[str, float]]:
    """Return the features most predictive of the correct option, from a fit on all items."""
    weights = _ridge(table.features, table.targets(table.gold[None]))[:, 0]
    effect = weights * table.features.std(axis=0)
    order = np.argsort(-effect, kind="stable")[:N_CUES]
    return [(table.names[i], float(effect[i])) for i in order if effect[i] > 0]
