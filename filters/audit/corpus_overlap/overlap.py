"""Whether a benchmark has more near neighbours in a corpus than the corpus' own pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.rates import Rate
from flipbench.reporting import formats

from .calibration import (
    ALPHAS,
    CleanTest,
    Distances,
    binomial_p,
    compare_with_clean,
    describe,
    sample_rows,
    sampled_p,
    threshold,
)
from .neighbours import BLOCK_BYTES, Array, Vectors, nearest
from .result import (
    BENCHMARK,
    CLEAN,
    CORPUS,
    Clean,
    Control,
    CorpusOverlap,
    Hub,
    NearPair,
    OverlapVerdict,
    SweepRow,
)

Rows = NDArray[np.int64]


class Embedded(Protocol):
    """Unique pictures and their embeddings, row by row."""

    @property
    def vectors(self) -> Array | Sequence[Array]:
        """One or several arrays of shape (n, d): see `Vectors`."""

    @property
    def keys(self) -> Sequence[str]:
        """Names of the pictures, shape (n,)."""

    @property
    def sha256(self) -> Sequence[str]:
        """Hashes of the pictures' files, shape (n,)."""

    @property
    def types(self) -> Sequence[str]:
        """Modality or view of each picture, shape (n,); empty if unknown."""

    @property
    def encoder(self) -> str:
        """Name of the encoder."""


def corpus_overlap(
    benchmark: Embedded,
    corpus: Embedded,
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
    benchmark, corpus : Embedded
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
    for value in (alpha, *alphas):
        if not 0 < value < 1:
            raise ConfigError(f"alpha must be between 0 and 1, not {value:g}")
    if taken := {BENCHMARK, CORPUS, CLEAN} & set(controls or {}):
        raise ConfigError(f"the name {min(taken)!r} is taken; name the control otherwise")
    _check(benchmark, corpus, match_types)
    pictures = _load("the corpus", corpus.vectors, len(corpus.sha256))
    own = _load("the benchmark", benchmark.vectors, len(benchmark.sha256))
    rows = sample_rows(
        pictures.n,
        n_sample,
        seed,
        types=corpus.types if match_types else None,
        like=benchmark.types if match_types else None,
    )
    parts = {BENCHMARK: own}
    parts |= {name: _load(name, vectors) for name, vectors in (controls or {}).items()}
    parts |= {CLEAN: _load(*clean)} if clean else {}
    search = _search(parts, pictures, rows, block_bytes, progress)
    near, null = search.distances[BENCHMARK], search.distances[CORPUS]
    types = [corpus.types[row] for row in rows] if match_types else []
    calibration = describe(null, alpha, types)

    per_picture = _items(benchmark, items)
    sweep = [_at(a, near, null, per_picture) for a in sorted({*map(float, alphas), alpha})]
    chosen = next(row for row in sweep if row.alpha == alpha)
    clean_test = compare_with_clean(near, search.distances[CLEAN], alpha) if clean else None
    pairs = _pairs(benchmark, corpus, search, calibration.threshold, per_picture, clean_test)
    hubs, n_lost = _hubs(benchmark, corpus, pictures, search, calibration.threshold, min_hub)
    wanted = set(benchmark.sha256)
    found = CorpusOverlap(
        encoder=corpus.encoder,
        alpha=alpha,
        level=level,
        n_corpus=pictures.n,
        n_same_files=len({sha256 for sha256 in corpus.sha256 if sha256 in wanted}),
        calibration=calibration,
        flagged=chosen.flagged,
        n_items=None if per_picture is None else int(per_picture.sum()),
        n_items_flagged=chosen.n_items,
        p_value=chosen.p_value,
        p_binomial=chosen.p_binomial,
        sweep=tuple(sweep),
        controls=tuple(_control(name, search, alpha) for name in controls or {}),
        clean=_clean(clean[0], clean_test, len(near), level) if clean and clean_test else None,
        hubs=tuple(hubs),
        without_hubs=Rate.exact(chosen.flagged.k - n_lost, len(near)),
        pairs=tuple(pairs),
        distances={name: tuple(part.tolist()) for name, part in search.distances.items()},
        verdict="not_more",
        sentence="",
    )
    verdict = _verdict(found)
    return found.model_copy(update={"verdict": verdict, "sentence": _sentence(found, verdict)})


def _check(benchmark: Embedded, corpus: Embedded, match_types: bool) -> None:
    """Check what the embeddings say about themselves."""
    if benchmark.encoder != corpus.encoder:
        raise DataError(
            f"the benchmark was embedded by {benchmark.encoder!r}, the corpus by"
            f" {corpus.encoder!r}; embed both with the same encoder"
        )
    for name, one in (("benchmark", benchmark), ("corpus", corpus)):
        n = len(one.sha256)
        if not len(one.keys) == n == len(one.types or one.sha256):
            raise DataError(
                f"the {name} has {len(one.keys)} names, {n} hashes and {len(one.types)} types;"
                " there must be one of each per picture"
            )
        if match_types and not one.types:
            raise DataError(f"pictures of the {name} have no types; calibrate on a random sample")
    if len(set(benchmark.sha256)) < len(benchmark.sha256):
        raise DataError("the benchmark has a picture twice; embed unique pictures only")


def _load(name: str, vectors: Array | Sequence[Array], n: int | None = None) -> Vectors:
    """Return embeddings with a name; ``n`` is how many there must be."""
    loaded = Vectors(vectors, name)
    if n is not None and loaded.n != n:
        raise DataError(f"{name}: {n} hashes for {loaded.n} embeddings; embed again")
    return loaded


def _items(benchmark: Embedded, items: Mapping[str, int] | None) -> Rows | None:
    if items is None:
        return None
    for sha256, key in zip(benchmark.sha256, benchmark.keys, strict=True):
        if sha256 not in items:
            raise DataError(f"the number of items of picture {key} ({sha256[:12]}) is missing")
    return np.array([items[sha256] for sha256 in benchmark.sha256], np.int64)


class _Searched(NamedTuple):
    distances: dict[str, Distances]
    vectors: Array
    """The benchmark's."""
    neighbours: Rows
    """Their nearest rows in the corpus."""


def _search(
    parts: Mapping[str, Vectors], corpus: Vectors, rows: Rows, block_bytes: int, progress: bool
) -> _Searched:
    """Find the nearest corpus picture of all pictures, and of the sample, in one pass."""
    for part in parts.values():
        part.check_like(corpus)
    loaded = {name: part.take(np.arange(part.n)) for name, part in parts.items()}
    loaded[CORPUS] = corpus.take(rows)
    stops = np.cumsum([len(array) for array in loaded.values()])
    own_row = np.full(stops[-1], -1, np.int64)
    own_row[-len(rows) :] = rows
    queries = np.concatenate(list(loaded.values()))
    found = nearest(queries, corpus, exclude=own_row, block_bytes=block_bytes, progress=progress)
    distances = np.split(found.distances[:, 0], stops[:-1])
    n = len(loaded[BENCHMARK])
    return _Searched(
        dict(zip(loaded, distances, strict=True)), loaded[BENCHMARK], found.rows[:n, 0]
    )


def _at(alpha: float, near: Distances, null: Distances, per_picture: Rows | None) -> SweepRow:
    tau = threshold(null, alpha)
    flagged = near <= tau
    k, n = int(flagged.sum()), len(near)
    return SweepRow(
        alpha=alpha,
        threshold=tau,
        flagged=Rate.exact(k, n),
        n_items=None if per_picture is None else int(per_picture[flagged].sum()),
        p_value=sampled_p(k, n, int((null <= tau).sum()), len(null)),
        p_binomial=binomial_p(k, n, alpha),
    )


def _control(name: str, search: _Searched, alpha: float) -> Control:
    distances = search.distances[name]
    row = _at(alpha, distances, search.distances[CORPUS], None)
    return Control(
        name=name, flagged=row.flagged, minimum=float(distances.min()), p_value=row.p_value
    )


def _clean(name: str, test: CleanTest, n: int, level: float) -> Clean:
    return Clean(
        name=name,
        n=test.n_clean,
        flagged=Rate.exact(test.n_flagged, n),
        p_value=test.p_value,
        mann_whitney_p=test.mann_whitney_p,
        n_significant=int((test.q_values <= level).sum()),
    )


def _pairs(
    benchmark: Embedded,
    corpus: Embedded,
    search: _Searched,
    tau: float,
    per_picture: Rows | None,
    clean: CleanTest | None,
) -> list[NearPair]:
    """Return the flagged pictures with their nearest corpus pictures, the nearest first."""
    near = search.distances[BENCHMARK]
    order = np.argsort(near, kind="stable")
    return [
        NearPair(
            sha256=benchmark.sha256[at],
            key=benchmark.keys[at],
            corpus_sha256=corpus.sha256[search.neighbours[at]],
            corpus_key=corpus.keys[search.neighbours[at]],
            distance=float(near[at]),
            type=benchmark.types[at] if len(benchmark.types) else "",
            n_items=None if per_picture is None else int(per_picture[at]),
            q_value=None if clean is None else float(clean.q_values[at]),
        )
        for at in order[near[order] <= tau].tolist()
    ]


def _hubs(
    benchmark: Embedded,
    corpus: Embedded,
    pictures: Vectors,
    search: _Searched,
    tau: float,
    min_hub: int,
) -> tuple[list[Hub], int]:
    """Return the hubs, and how many pictures would not be flagged without them."""
    flagged = search.distances[BENCHMARK] <= tau
    counts = Counter(search.neighbours[flagged].tolist())
    hubs = {row: n for row, n in counts.most_common() if n >= min_hub}
    if not hubs:
        return [], 0
    by_hub = flagged & np.isin(search.neighbours, list(hubs))
    again = nearest(search.vectors[by_hub], pictures, k=len(hubs) + 1)
    others = np.where(np.isin(again.rows, list(hubs)), np.inf, again.distances).min(axis=1)
    named = [Hub(key=corpus.keys[r], sha256=corpus.sha256[r], n_flagged=n) for r, n in hubs.items()]
    return named, int((others > tau).sum())


def _verdict(found: CorpusOverlap) -> OverlapVerdict:
    """Return the verdict; controls share the level, and a clean benchmark decides if given."""
    if _flagged_controls(found):
        return "withheld"
    p_value = found.clean.p_value if found.clean else found.p_value
    return "more" if p_value <= found.level else "not_more"


def _flagged_controls(found: CorpusOverlap) -> list[Control]:
    level = found.level / max(1, len(found.controls))
    return [control for control in found.controls if control.p_value <= level]


def _sentence(found: CorpusOverlap, verdict: OverlapVerdict) -> str:
    clean = found.clean
    flagged = clean.flagged if clean else found.flagged
    like = " of the same types" if found.calibration.shares else ""
    usual = (
        f"the nearest {formats.percent(found.alpha)} % of the pictures of {clean.name}"
        if clean
        else f"the nearest {formats.percent(found.alpha)} % of the corpus' own pictures{like}"
    )
    text = f"{flagged.k} of {flagged.n} pictures are as near to a corpus picture as {usual}"
    if verdict == "withheld":
        names = ", ".join(control.name for control in _flagged_controls(found))
        return f"{text}, but so are pictures that cannot be in the corpus ({names}): no verdict."
    p = formats.p_equation(clean.p_value if clean else found.p_value)
    if verdict == "more":
        return (
            f"{text}: more than expected ({p}). Near is not the same picture, and no model was"
            " asked: look at the pairs."
        )
    return f"{text}: no more than expected ({p}). Other encoders may find copies that this misses."
