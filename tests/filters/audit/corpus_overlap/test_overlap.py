"""The comparison of a benchmark with a corpus, on pictures whose overlap is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from flipbench.core.errors import FlipbenchError
from flipbench.filters.audit.corpus_overlap.neighbours import Array
from flipbench.filters.audit.corpus_overlap.overlap import CorpusOverlap, corpus_overlap
from flipbench.filters.audit.corpus_overlap.presentation import distance_figure, overlap_tables
from flipbench.reporting.writers import markdown

D = 12


@dataclass(frozen=True)
class Pictures:
    vectors: Array | Sequence[Array]
    keys: Sequence[str]
    sha256: Sequence[str]
    types: Sequence[str] = ()
    encoder: str = "random"


def unit(vectors: Any) -> Array:
    vectors = np.atleast_2d(vectors)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def pictures(name: str, vectors: Array, types: Sequence[str] = ()) -> Pictures:
    keys = [f"{name}-{at}" for at in range(len(vectors))]
    return Pictures(vectors, [f"{key}.png" for key in keys], keys, types)


def drawn(n: int, seed: int) -> Array:
    return unit(np.random.default_rng(seed).normal(size=(n, D)) * (np.arange(D) < D - 2))


def foreign(n: int, seed: int) -> Array:
    """Pictures far from all that is drawn."""
    return unit(np.random.default_rng(seed).normal(size=(n, D)) + 20 * (np.arange(D) == D - 1))


def near(vectors: Array, seed: int, step: float = 1e-3) -> Array:
    return unit(vectors + step * np.random.default_rng(seed).normal(size=vectors.shape))


CORPUS = drawn(3_000, 0)
STORE = pictures("corpus", CORPUS)
LEAKED = pictures("bench", np.vstack([near(CORPUS[:9], 1), drawn(91, 2)]))
FOUND = corpus_overlap(
    LEAKED,
    replace(STORE, vectors=np.split(CORPUS, [1, 900, 2_700])),
    n_sample=1_000,
    items={sha256: 1 + at % 3 for at, sha256 in enumerate(LEAKED.sha256)},
    controls={"paintings": foreign(200, 3)},
    block_bytes=D * 4 * 700,
)


def test_copies_in_the_corpus_are_found_and_paired() -> None:
    assert FOUND.verdict == "more" and FOUND.p_value < 1e-4
    assert FOUND.flagged.n == 100 and FOUND.flagged.k >= 9
    assert FOUND.flagged.interval is not None and FOUND.flagged.interval.low > 0.03
    copies = [pair for pair in FOUND.pairs if pair.distance < 1e-3]
    assert {(p.sha256, p.corpus_key) for p in copies} == {
        (f"bench-{at}", f"corpus-{at}.png") for at in range(9)
    }
    distances = [pair.distance for pair in FOUND.pairs]
    assert distances == sorted(distances) and max(distances) <= FOUND.calibration.threshold
    assert FOUND.n_same_files == 0 and FOUND.n_corpus == 3_000
    assert "9 of 100 pictures" in FOUND.sentence or f"{FOUND.flagged.k} of 100" in FOUND.sentence
    assert "no model was asked" in FOUND.sentence


def test_items_are_counted_and_never_tested() -> None:
    assert FOUND.n_items == sum(1 + at % 3 for at in range(100))
    assert FOUND.n_items_flagged == sum(pair.n_items or 0 for pair in FOUND.pairs)
    assert all(row.flagged.n == 100 for row in FOUND.sweep)
    without = corpus_overlap(LEAKED, STORE, n_sample=1_000)
    assert (without.n_items, without.n_items_flagged) == (None, None)
    assert without.flagged == FOUND.flagged and without.p_value == FOUND.p_value


def test_the_sweep_grows_and_has_the_chosen_alpha() -> None:
    counts = [row.flagged.k for row in FOUND.sweep]
    assert counts == sorted(counts)
    assert [row.alpha for row in FOUND.sweep] == [0.001, 0.005, 0.01, 0.02, 0.05, 0.1]
    chosen = FOUND.sweep[2]
    assert (chosen.threshold, chosen.p_value) == (FOUND.calibration.threshold, FOUND.p_value)
    own = corpus_overlap(LEAKED, STORE, n_sample=1_000, alpha=0.03)
    assert 0.03 in [row.alpha for row in own.sweep]


def test_pictures_like_the_corpus_are_flagged_at_the_rate_alpha() -> None:
    found = corpus_overlap(pictures("fresh", drawn(400, 9)), STORE, n_sample=2_000, alpha=0.05)
    assert found.verdict == "not_more"
    assert found.flagged.interval is not None
    assert found.flagged.interval.low < 0.05 < found.flagged.interval.high
    assert "no more than expected" in found.sentence and "clean" not in found.sentence


def test_same_files_are_counted() -> None:
    shared = replace(LEAKED, sha256=["corpus-7", *LEAKED.sha256[1:]])
    twice = replace(STORE, sha256=[*STORE.sha256[:-1], "corpus-7"])
    assert corpus_overlap(shared, twice, n_sample=500).n_same_files == 1


def test_a_control_that_is_flagged_withholds_the_verdict() -> None:
    controls = {"paintings": foreign(50, 3), "not so foreign": near(CORPUS[50:80], 4)}
    found = corpus_overlap(LEAKED, STORE, n_sample=1_000, controls=controls)
    assert found.verdict == "withheld"
    assert "(not so foreign): no verdict" in found.sentence
    assert [control.name for control in found.controls] == list(controls)
    assert found.controls[1].flagged.k == 30 and found.controls[1].minimum < 1e-3


def test_hubs_are_named_and_the_next_neighbour_is_looked_up() -> None:
    around = np.vstack([near(np.repeat(CORPUS[:1], 4, axis=0), 5), near(CORPUS[1:2], 6)])
    corpus = np.vstack([CORPUS, near(around[:1], 7, 1e-2)])  # one of the four has another neighbour
    bench = pictures("bench", np.vstack([around, drawn(95, 2)]))
    found = corpus_overlap(bench, pictures("corpus", corpus), n_sample=1_000, alpha=0.001)
    assert [(hub.key, hub.n_flagged) for hub in found.hubs] == [("corpus-0.png", 4)]
    close = 1 - around.astype(float) @ corpus[1:].T.astype(float)
    left = int((close.min(axis=1) <= found.calibration.threshold).sum())
    assert (found.flagged.k, found.without_hubs.k, found.without_hubs.n) == (5, left, 100)
    assert found.without_hubs.k < 5 or left == 5
    none = corpus_overlap(bench, pictures("corpus", corpus), n_sample=500, min_hub=5, alpha=0.001)
    assert none.hubs == () and none.without_hubs == none.flagged


def test_types_of_the_benchmark_decide_what_is_near() -> None:
    """Pictures of one narrow type are near each other; their copies are no nearer than that."""
    rng = np.random.default_rng(0)
    center = np.eye(D)[0]
    narrow = unit(center + 0.05 * rng.normal(size=(600, D)))
    corpus = pictures(
        "corpus", np.vstack([drawn(2_400, 0), narrow]), ["any"] * 2_400 + ["ct"] * 600
    )
    bench = pictures("bench", unit(center + 0.05 * rng.normal(size=(150, D))), ["ct"] * 150)
    general = corpus_overlap(
        bench, replace(corpus, vectors=corpus.vectors), n_sample=1_500, alpha=0.1
    )
    matched = corpus_overlap(bench, corpus, n_sample=1_500, alpha=0.1, match_types=True)
    assert general.verdict == "more" and general.flagged.k > 60
    assert matched.verdict == "not_more" and matched.flagged.k < 30
    assert matched.calibration.shares == {"ct": 1.0} and matched.calibration.n == 600
    assert general.calibration.shares == {} and "of the same types" in matched.sentence
    assert {pair.type for pair in matched.pairs} == {"ct"}


def test_with_a_clean_benchmark_the_verdict_rests_on_it() -> None:
    rng = np.random.default_rng(0)
    center = np.eye(D)[0]
    domain = unit(center + 0.05 * rng.normal(size=(900, D)))
    corpus = pictures("corpus", np.vstack([CORPUS, domain[:200]]))
    clean = ("other hospital", domain[200:500])
    same_domain = corpus_overlap(
        pictures("bench", domain[500:]), corpus, n_sample=1_000, clean=clean
    )
    assert same_domain.p_value < 1e-6, "the corpus is wider than the domain"
    assert same_domain.clean is not None and same_domain.clean.p_value > 0.05
    assert same_domain.verdict == "not_more" and "other hospital" in same_domain.sentence
    copied = np.vstack([near(domain[:40], 3, 1e-4), domain[540:]])
    leaked = corpus_overlap(pictures("bench", copied), corpus, n_sample=1_000, clean=clean)
    assert leaked.verdict == "more" and leaked.clean is not None
    assert leaked.clean.n_significant >= 40 and leaked.clean.n == 300
    significant = [
        pair for pair in leaked.pairs if pair.q_value is not None and pair.q_value < 0.05
    ]
    assert {f"bench-{at}" for at in range(40)} <= {pair.sha256 for pair in significant}


def test_it_survives_json_and_takes_the_labels_of_raters() -> None:
    again = CorpusOverlap.model_validate_json(FOUND.model_dump_json())
    assert again == FOUND
    assert len(again.distances["benchmark"]) == 100 and len(again.distances["paintings"]) == 200
    labelled = FOUND.adjudicated({"unrelated": 2, "duplicate": 9})
    assert "exact or near duplicate" in [row.header for row in overlap_tables([labelled])[-1].rows]
    assert json.loads(labelled.model_dump_json())["adjudication"]["unrelated"] == 2
    assert FOUND.adjudication == {}


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (corpus_overlap(LEAKED, STORE, n_sample=300, seed=5) for _ in range(2))
    assert first == second
    other = corpus_overlap(LEAKED, STORE, n_sample=300, seed=6)
    assert other.calibration.threshold != first.calibration.threshold
    blocks = corpus_overlap(LEAKED, STORE, n_sample=300, seed=5, block_bytes=D * 4 * 11)
    assert blocks == first


def test_hash_codes_are_compared_as_well() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2_000, 8), dtype=np.uint8)
    own = np.vstack([codes[:6], rng.integers(0, 256, (54, 8), dtype=np.uint8)])
    found = corpus_overlap(pictures("bench", own), pictures("corpus", codes), n_sample=500)
    assert found.verdict == "more"
    assert [pair.distance for pair in found.pairs][:6] == [0] * 6
    assert all((64 * distance).is_integer() for distance in found.distances["benchmark"])


@pytest.mark.parametrize(
    ("benchmark", "corpus", "options", "message"),
    [
        (replace(LEAKED, encoder="clip"), STORE, {}, "embedded by 'clip', the corpus by 'random'"),
        (pictures("bench", drawn(0, 0)), STORE, {}, "the benchmark: there are no embeddings"),
        (LEAKED, pictures("corpus", drawn(0, 0)), {}, "the corpus: there are no embeddings"),
        (LEAKED, pictures("corpus", drawn(1, 0)), {}, "a corpus of 1 pictures"),
        (replace(LEAKED, vectors=LEAKED.vectors[:, :5]), STORE, {}, "the benchmark: 5 x float32"),
        (LEAKED, STORE, {"controls": {"art": drawn(5, 0)[:, :5]}}, "art: 5 x float32, but the"),
        (LEAKED, STORE, {"match_types": True}, "pictures of the benchmark have no types"),
        (
            replace(LEAKED, types=["ct"] * 100),
            STORE,
            {"match_types": True},
            "of the corpus have no",
        ),
        (replace(LEAKED, sha256=["a"] * 100), STORE, {}, "has a picture twice"),
        (replace(LEAKED, sha256=["a"], keys=["a"]), STORE, {}, "1 hashes for 100 embeddings"),
        (LEAKED, replace(STORE, keys=["a"]), {}, "the corpus has 1 names, 3000 hashes and 0"),
        (replace(LEAKED, vectors=2 * LEAKED.vectors), STORE, {}, "benchmark, row 0: its norm is 2"),
        (LEAKED, replace(STORE, vectors=CORPUS * np.nan), {}, "row 0: it is not finite"),
        (LEAKED, STORE, {"clean": ("small", drawn(98, 0))}, "needs at least 99"),
        (LEAKED, STORE, {"items": {"bench-0": 3}}, "number of items of picture bench-1"),
        (LEAKED, STORE, {"alpha": 0.0}, "alpha must be between 0 and 1, not 0"),
        (LEAKED, STORE, {"controls": {"corpus": drawn(5, 0)}}, "'corpus' is taken"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    benchmark: Any, corpus: Any, options: Any, message: str
) -> None:
    with pytest.raises(FlipbenchError, match=message):
        corpus_overlap(benchmark, corpus, **options)


@pytest.mark.slow
@pytest.mark.figures
def test_tables_and_figure_show_what_was_measured(tmp_path: Any) -> None:
    tables = {table.key: markdown(table) for table in overlap_tables([FOUND])}
    assert [name.removeprefix("corpus_") for name in tables if name != "corpus_hubs"] == [
        "overlap",
        "calibration",
        "sweep",
        "controls",
        "pairs",
    ]
    assert f"({FOUND.flagged.k}/100)" in tables["corpus_overlap"]
    assert f"{FOUND.n_items_flagged}/{FOUND.n_items}" in tables["corpus_overlap"]
    assert "not tested" in tables["corpus_overlap"]
    assert "0.0 (0/200)" in tables["corpus_controls"]
    assert "corpus-3.png" in tables["corpus_pairs"]
    figure = distance_figure([FOUND, FOUND], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"corpus_distances_{at}.{form}" for at in (1, 2) for form in ("png", "svg")
    }
    svg = figure.panels[0].svg
    order = [svg.index(f">{name} (") for name in ("benchmark", "corpus", "paintings")]
    assert order == sorted(order)
    tau = FOUND.calibration.threshold
    assert f"threshold {tau:.3g}" in svg and f"Threshold {tau:.3g}" in figure.panels[0].alt
    assert f"benchmark: {FOUND.flagged.k} of 100 within" in figure.panels[0].alt
