"""Membership scores of tokens: values by hand, and what the comparison cancels."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Response
from flipbench.evaluate.detectors.likelihood.membership import max_renyi, zlib_ratio
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.evaluate.scoring.membership import full_answer, reordered
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.planted import Planted, answers_of, planted_benchmark

NAMES = ("max_renyi", "zlib_ratio", "lowercase_ratio", "reference_ratio")
SETTINGS = PromptSettings()
every_score = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("planted"), 12, 2)


def changed(answers: Answers, change: Any) -> Answers:
    """Return another model's answers: ``change`` maps a response to its new fields."""
    responses = {
        key: Response(**(reply.model_dump(exclude={"id"}) | change(reply)))
        for key, reply in answers.responses.items()
    }
    return Answers("other", "other", responses)


def scores_of(name: str, benchmark: PairedBenchmark, own: Answers, clean: Answers) -> Any:
    scores = make_detector(name).score(benchmark, SETTINGS, own, clean)  # type: ignore[union-attr]
    return {score.rule: score for score in scores}


def test_max_renyi_is_the_mean_of_the_highest_entropies() -> None:
    entropy = -sum(p * math.log(p) for p in (0.7, 0.2, 0.1))
    assert entropy == pytest.approx(0.80182, abs=1e-5)
    assert max_renyi([entropy, 0.1, 0.2], 0.2) == pytest.approx(-0.80182, abs=1e-5)
    assert max_renyi([0.1, 0.2, 0.3], 1.0) == pytest.approx(-0.2)
    assert max_renyi([0.1, 0.2, 0.3, 0.4], 0.5) == pytest.approx(-0.35)


def test_a_text_that_compresses_well_weighs_more() -> None:
    once, often = "abcdefgh", "abcdefgh" * 20
    assert zlib_ratio(-10.0, once) == -10.0 / len(zlib.compress(once.encode()))
    assert zlib_ratio(-10.0, once) < zlib_ratio(-10.0, often)


@every_score
def test_what_moves_both_sides_alike_cancels(name: str, benchmark: PairedBenchmark) -> None:
    own = answers_of(make_detector(name), benchmark, Planted("clean", 0.6, 0.6))

    def likelier(reply: Response) -> dict[str, Any]:
        assert reply.log_likelihood is not None
        return {
            "log_likelihood": reply.log_likelihood + 0.3,
            "token_means": tuple(mean + 0.2 for mean in reply.token_means),
        }

    scores = scores_of(name, benchmark, changed(own, likelier), own)
    for score in scores.values():
        exact = name != "zlib_ratio"  # which divides by sizes that differ
        assert score.statistic == pytest.approx(0, abs=1e-9 if exact else 0.1)
        assert score.verdict == "not_detected"


@every_score
def test_a_likelihood_that_is_not_finite_is_dropped(name: str, benchmark: PairedBenchmark) -> None:
    own = answers_of(make_detector(name), benchmark, Planted("clean", 0.6, 0.6))
    probes = make_detector(name).probes(benchmark, SETTINGS)
    lost = next(p for p in probes if p.item_id == benchmark.pairs[0].original.id)
    reply = own.responses[lost.id].model_copy(update={"log_likelihood": -math.inf})
    some = Answers("some", "some", {**own.responses, lost.id: reply})
    before, after = scores_of(name, benchmark, own, own), scores_of(name, benchmark, some, own)
    assert after["relative"].n == before["relative"].n - 1
    assert all(math.isfinite(s.statistic) for s in after.values())


@every_score
def test_without_token_statistics_there_is_no_verdict(
    name: str, benchmark: PairedBenchmark
) -> None:
    own = answers_of(make_detector(name), benchmark, Planted("clean", 0.6, 0.6))
    bare = changed(own, lambda _: {"log_likelihood": None, "token_means": (), "n_tokens": None})
    for score in scores_of(name, benchmark, bare, own).values():
        assert (score.verdict, score.statistic, score.n) == ("inconclusive", None, 0)


def test_the_other_order_is_another_order(benchmark: PairedBenchmark) -> None:
    asked = [item for item in benchmark.originals if item.options]
    for item in asked:
        order = reordered(item, 0)
        assert order != item.options and sorted(order) == sorted(item.options or ())
    equal = asked[0].model_copy(update={"options": ("a", "b", "a"), "id": ""})
    assert reordered(equal, 0) == () and reordered(benchmark.originals[-1], 0) == ()


def test_probes_of_all_scores_are_shared(benchmark: PairedBenchmark, tmp_path: Path) -> None:
    ids = {
        name: {probe.id for probe in make_detector(name).probes(benchmark, SETTINGS)}
        for name in NAMES
    }
    assert ids["max_renyi"] == ids["zlib_ratio"] == ids["reference_ratio"]
    assert ids["lowercase_ratio"] & ids["max_renyi"]
    pair = benchmark.pairs[0]
    texts = [p.continuation for p in make_detector("zlib_ratio").probes(benchmark, SETTINGS)]
    assert full_answer(pair.original) in texts and full_answer(pair.perturbed) in texts
    assert all(p.images for p in make_detector("lowercase_ratio").probes(benchmark, SETTINGS))
    turned = replace(benchmark, pairs=benchmark.pairs[::-1])
    again = {probe.id for probe in make_detector("max_renyi").probes(turned, SETTINGS)}
    assert again == ids["max_renyi"]
