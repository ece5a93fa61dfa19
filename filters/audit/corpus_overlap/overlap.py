"""Whether a benchmark has more near neighbours in a corpus than the corpus' own pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.rates import Rate
from flipbench.core.records import Value
from flipbench.reporting import formats

from .calibration import (
    ALPHAS,
    Calibration,
    Clean,
    Distances,
    binomial_p,
    compare_with_clean,
    describe,
    sample_rows,
    sampled_p,
    threshold,
)
from .embeddings import Embeddings
from .neighbours import BLOCK_BYTES, Array, Rows, Vectors, nearest

BENCHMARK, CORPUS, CLEAN = "benchmark", "corpus", "clean benchmark"
"""Names of the distances in a result; all others are controls."""

OverlapVerdict = Literal["more", "not_more", "withheld"]


class NearPair(Value):
    """A picture of the benchmark and its nearest corpus picture, within the threshold.

    ``n_items`` is the number of the benchmark's items with this picture; ``q_value`` is from the
    comparison with a clean benchmark.
    """

    sha256: str
    key: str
    corpus_sha256: str
    corpus_key: str
    distance: float
    type: str = ""
    n_items: int | None = None
    q_value: float | None = None


class SweepRow(Value):
    """The pictures flagged at one alpha; `CorpusOverlap` describes the p-values."""

    alpha: float
    threshold: float
    flagged: Rate
    n_items: int | None
    p_value: float
    p_binomial: float


class Control(Value):
    """Pictures that cannot be in the corpus, and how many of them are flagged."""

    name: str
    flagged: Rate
    minimum: float
    p_value: float


class Hub(Value):
    """A corpus picture that is the nearest of several flagged pictures."""

    key: str
    sha256: str
    n_flagged: int


class CorpusOverlap(Value):
    """The overlap of a benchmark's pictures with a corpus.

    Attributes
    ----------
    alpha, level : float
        Share of the corpus' own pictures within the threshold; significance level.
    n_same_files : int
        Pictures whose file, byte for byte, is in the corpus.
    flagged : Rate
        Unique pictures within the threshold, with the Clopper-Pearson interval.
    n_items, n_items_flagged : int or None
        Items with such pictures. Never tested: items that share a picture are not independent.
    p_value : float
        One-sided, allowing for the sample that the threshold comes from: `sampled_p`.
    p_binomial : float
        As in the paper, which takes alpha as the exact rate.
    without_hubs : Rate
        Pictures flagged if the hubs were not in the corpus, at the same threshold.
    pairs : tuple of NearPair
        The flagged pictures, the nearest first.
    distances : dict of str to tuple of float
        To the nearest corpus picture: of the benchmark, of the corpus' own sample, and of controls.
    verdict : str
        ``more`` near neighbours than expected, ``not_more``, or ``withheld`` because a control is
        flagged as well.
    sentence : str
        What was measured.
    adjudication : dict of str to int
        Flagged pairs by the label that raters gave; empty until they have.
    """

    encoder: str
    alpha: float
    level: float
    n_corpus: int
    n_same_files: int
    calibration: Calibration
    flagged: Rate
    n_items: int | None
    n_items_flagged: int | None
    p_value: float
    p_binomial: float
    sweep: tuple[SweepRow, ...]
    controls: tuple[Control, ...]
    clean: Clean | None
    hubs: tuple[Hub, ...]
    without_hubs: Rate
    pairs: tuple[NearPair, ...]
    distances: dict[str, tuple[float, ...]]
    verdict: OverlapVerdict
    sentence: str
    adjudication: dict[str, int] = {}

    def adjudicated(self, labels: Mapping[str, int]) -> CorpusOverlap:
        """Return the same result with the number of flagged pairs by label."""
        return self.model_copy(update={"adjudication": dict(labels)})


def corpus_overlap(
    benchmark: Embeddings,
    corpus: Embeddings,
    *,
    alpha: float = 0.01,
    level: float = 0.05,
    alphas: Sequence[float] = ALPHAS,
    n_sample: int = 5_000,
    match_types: bool = False,
    seed: int = 0,
    items: Mapping[str, int] | None = None,
    controls: Mapping[str, Array | Sequence[Array]] | None = None,
    clean: tuple[str, Array | Sequence[Array]] | None = None,
    min_hub: int = 2,
    block_bytes: int = BLOCK_BYTES,
    progress: bool = False,
) -> CorpusOverlap:
    """Count the benchmark's pictures that are as near to a corpus as its nearest own pictures.

    The corpus is read once, and again if there are hubs.

    Parameters
    ----------
    benchmark, corpus : Embeddings
        Unique pictures, embedded by the same encoder.
    alpha, alphas : float, sequence of float
        Quantile of the corpus' own distances that is the threshold, and others for the sweep.
    level : float
        Significance level of the verdict.
    n_sample, seed : int
        Corpus pictures in the calibration, and the seed of the draw.
    match_types : bool
        Draw them with the benchmark's shares of types.
    items : mapping of str to int, optional
        Number of the benchmark's items for each picture, by sha256.
    controls : mapping of str to array, optional
        Embeddings of pictures that cannot be in the corpus, by name.
    clean : (str, array), optional
        Name and embeddings of a benchmark of the same domain that cannot be in the corpus. The
        verdict then rests on the comparison with it.
    min_hub : int
        Flagged pictures that make their common nearest corpus picture a hub.

    Raises
    ------
    ConfigError
        If an alpha is not between 0 and 1, or a control has a name that results use.
    DataError
        If there are no pictures, encoders or dimensions differ, embeddings are not finite or not
        normalised, types are missing, or the clean benchmark is too small for alpha.

    References
    ----------
    arXiv 2606.10066, Detector 1. Differs from the paper: all counts are of unique pictures, never
    of items; the p-value allows for the chance in the calibration sample; the sample can have the
    benchmark's types.
    """
    controls = controls or {}
    for value in (alpha, *alphas):
        if not 0 < value < 1:
            raise ConfigError(f"alpha must be between 0 and 1, not {value:g}")
    if taken_names := {BENCHMARK, CORPUS, CLEAN} & set(controls):
        raise ConfigError(f"the name {min(taken_names)!r} is taken; name the control otherwise")
    _check(benchmark, corpus, match_types)
    vectors = _vectors("the corpus", corpus)
    sample = sample_rows(
        vectors.n,
        n_sample,
        seed,
        types=corpus.types if match_types else None,
        like=benchmark.types if match_types else None,
    )
    groups = {BENCHMARK: _vectors("the benchmark", benchmark)}
    groups |= {name: Vectors(arrays, name) for name, arrays in controls.items()}
    groups |= {CLEAN: Vectors(clean[1], clean[0])} if clean else {}
    distances, neighbours = _nearest_distances(groups, vectors, sample, block_bytes, progress)
    near, null = distances[BENCHMARK], distances[CORPUS]
    calibration = describe(null, alpha, [corpus.types[row] for row in sample if match_types])
    tau = calibration.threshold
    n_items = _n_items(benchmark, items)
    sweep = [_at(a, near, null, n_items) for a in sorted({*map(float, alphas), alpha})]
    at_alpha = next(row for row in sweep if row.alpha == alpha)
    clean_test, q_values = (
        compare_with_clean(near, distances[CLEAN], alpha, name=clean[0], level=level)
        if clean
        else (None, None)
    )
    hubs, n_by_hubs = _hubs(groups[BENCHMARK], vectors, near <= tau, neighbours, tau, min_hub)
    order = np.argsort(near, kind="stable")
    hashes = set(benchmark.sha256)
    overlap = CorpusOverlap(
        encoder=corpus.encoder,
        alpha=alpha,
        level=level,
        n_corpus=vectors.n,
        n_same_files=len({sha256 for sha256 in corpus.sha256 if sha256 in hashes}),
        calibration=calibration,
        flagged=at_alpha.flagged,
        n_items=None if n_items is None else int(n_items.sum()),
        n_items_flagged=at_alpha.n_items,
        p_value=at_alpha.p_value,
        p_binomial=at_alpha.p_binomial,
        sweep=tuple(sweep),
        controls=tuple(_control(name, distances[name], null, alpha) for name in controls),
        clean=clean_test,
        hubs=tuple(
            Hub(key=corpus.keys[row], sha256=corpus.sha256[row], n_flagged=n)
            for row, n in hubs.items()
        ),
        without_hubs=Rate.exact(at_alpha.flagged.k - n_by_hubs, len(near)),
        pairs=tuple(
            NearPair(
                sha256=benchmark.sha256[i],
                key=benchmark.keys[i],
                corpus_sha256=corpus.sha256[neighbours[i]],
                corpus_key=corpus.keys[neighbours[i]],
                distance=float(near[i]),
                type=benchmark.types[i] if len(benchmark.types) else "",
                n_items=None if n_items is None else int(n_items[i]),
                q_value=None if q_values is None else float(q_values[i]),
            )
            for i in order[near[order] <= tau].tolist()
        ),
        distances={name: tuple(values.tolist()) for name, values in distances.items()},
        verdict="not_more",
        sentence="",
    )
    verdict = _verdict(overlap)
    return overlap.model_copy(update={"verdict": verdict, "sentence": _sentence(overlap, verdict)})


def _check(benchmark: Embeddings, corpus: Embeddings, match_types: bool) -> None:
    """Check what the embeddings say about themselves."""
    if benchmark.encoder != corpus.encoder:
        raise DataError(
            f"the benchmark was embedded by {benchmark.encoder!r}, the corpus by"
            f" {corpus.encoder!r}; embed both with the same encoder"
        )
    for name, embeddings in (("benchmark", benchmark), ("corpus", corpus)):
        n, types = len(embeddings.sha256), embeddings.types
        if not len(embeddings.keys) == n == len(types or embeddings.sha256):
            raise DataError(
                f"the {name} has {len(embeddings.keys)} names, {n} hashes and {len(types)} types;"
                " there must be one of each per picture"
            )
        if match_types and not types:
            raise DataError(f"pictures of the {name} have no types; calibrate on a random sample")
    if len(set(benchmark.sha256)) < len(benchmark.sha256):
        raise DataError("the benchmark has a picture twice; embed unique pictures only")


def _vectors(name: str, embeddings: Embeddings) -> Vectors:
    vectors = Vectors(embeddings.vectors, name)
    if vectors.n != len(embeddings.sha256):
        n = len(embeddings.sha256)
        raise DataError(f"{name}: {n} hashes for {vectors.n} embeddings; embed again")
    return vectors


def _n_items(benchmark: Embeddings, items: Mapping[str, int] | None) -> Rows | None:
    if items is None:
        return None
    for sha256, key in zip(benchmark.sha256, benchmark.keys, strict=True):
        if sha256 not in items:
            raise DataError(f"the number of items of picture {key} ({sha256[:12]}) is missing")
    return np.array([items[sha256] for sha256 in benchmark.sha256], np.int64)


def _nearest_distances(
    groups: Mapping[str, Vectors], corpus: Vectors, sample: Rows, block_bytes: int, progress: bool
) -> tuple[dict[str, Distances], Rows]:
    """Return the distances of all groups and of the corpus' sample, found in one pass.

    Also returns the benchmark's nearest rows in the corpus.
    """
    for group in groups.values():
        group.check_like(corpus)
    queries = {name: group.take(np.arange(group.n)) for name, group in groups.items()}
    queries[CORPUS] = corpus.take(sample)
    stops = np.cumsum([len(array) for array in queries.values()])
    own_row = np.full(stops[-1], -1, np.int64)
    own_row[-len(sample) :] = sample
    neighbours = nearest(
        np.concatenate(list(queries.values())),
        corpus,
        exclude=own_row,
        block_bytes=block_bytes,
        progress=progress,
    )
    distances = np.split(neighbours.distances[:, 0], stops[:-1])
    rows = neighbours.rows[: groups[BENCHMARK].n, 0]
    return dict(zip(queries, distances, strict=True)), rows


def _at(alpha: float, near: Distances, null: Distances, n_items: Rows | None) -> SweepRow:
    tau = threshold(null, alpha)
    flagged = near <= tau
    k, n = int(flagged.sum()), len(near)
    return SweepRow(
        alpha=alpha,
        threshold=tau,
        flagged=Rate.exact(k, n),
        n_items=None if n_items is None else int(n_items[flagged].sum()),
        p_value=sampled_p(k, n, int((null <= tau).sum()), len(null)),
        p_binomial=binomial_p(k, n, alpha),
    )


def _control(name: str, distances: Distances, null: Distances, alpha: float) -> Control:
    row = _at(alpha, distances, null, None)
    minimum = float(distances.min())
    return Control(name=name, flagged=row.flagged, minimum=minimum, p_value=row.p_value)


def _hubs(
    benchmark: Vectors,
    corpus: Vectors,
    flagged: Array,
    neighbours: Rows,
    tau: float,
    min_hub: int,
) -> tuple[dict[int, int], int]:
    """Return the flagged pictures per hub, and how many would not be flagged without hubs."""
    counts = Counter(neighbours[flagged].tolist())
    hubs = {row: n for row, n in counts.most_common() if n >= min_hub}
    if not hubs:
        return {}, 0
    by_hub = np.flatnonzero(flagged & np.isin(neighbours, list(hubs)))
    nearer = nearest(benchmark.take(by_hub), corpus, k=len(hubs) + 1)
    next_distances = np.where(np.isin(nearer.rows, list(hubs)), np.inf, nearer.distances).min(
        axis=1
    )
    return hubs, int((next_distances > tau).sum())


def _verdict(overlap: CorpusOverlap) -> OverlapVerdict:
    """Return the verdict; controls share the level, and a clean benchmark decides if given."""
    if _flagged_controls(overlap):
        return "withheld"
    p_value = overlap.clean.p_value if overlap.clean else overlap.p_value
    return "more" if p_value <= overlap.level else "not_more"


def _flagged_controls(overlap: CorpusOverlap) -> list[Control]:
    level = overlap.level / max(1, len(overlap.controls))
    return [control for control in overlap.controls if control.p_value <= level]


def _sentence(overlap: CorpusOverlap, verdict: OverlapVerdict) -> str:
    test = overlap.clean or overlap
    same_types = " of the same types" if overlap.calibration.shares else ""
    usual = (
        f"pictures of {overlap.clean.name}"
        if overlap.clean
        else f"corpus' own pictures{same_types}"
    )
    text = (
        f"{test.flagged.k} of {test.flagged.n} pictures are as near to a corpus picture as the"
        f" nearest {formats.percent(overlap.alpha)} % of the {usual}"
    )
    if verdict == "withheld":
        names = ", ".join(control.name for control in _flagged_controls(overlap))
        return f"{text}, but so are pictures that cannot be in the corpus ({names}): no verdict."
    p = formats.p_equation(test.p_value)
    if verdict == "more":
        return (
            f"{text}: more than expected ({p}). Near is not the same picture, and no model was"
            " asked: look at the pairs."
        )
    return f"{text}: no more than expected ({p}). Other encoders may find copies that this misses."
