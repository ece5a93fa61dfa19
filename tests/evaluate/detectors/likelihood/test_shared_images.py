"""Likelihood detectors where several items are about one image."""

from collections.abc import Callable, Mapping
from typing import Any

from flipbench.core.randomness import generator
from flipbench.core.records import Item, Response, Score
from flipbench.evaluate.detectors.likelihood.order_trend import OrderTrendDetector
from flipbench.evaluate.detectors.likelihood.shared_likelihood import SharedLikelihood
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

N_ITEMS, PER_IMAGE = 40, 5
Make = Callable[..., Any]


def benchmark_of(make_world: Any, make_item: Make, make_pair: Make, n: int = N_ITEMS) -> Any:
    """Return a benchmark of five questions about each image, one after the other."""
    items = [
        make_item(str(i), ["a", "b"], 0, picture=f"{i // PER_IMAGE}", category="xy"[i % 2])
        for i in range(n)
    ]
    return make_world.of([make_pair(item, 1) for item in items]).benchmark


def answers_of(detector: Any, benchmark: Any, likelihoods: Mapping[str, float]) -> Answers:
    """Return a model with these likelihoods by item, and noise for all other texts."""
    name = "model" if likelihoods else "clean"
    replies = {
        p.id: Response(
            probe_id=p.id,
            model_fingerprint=name,
            model=name,
            log_likelihood=likelihoods.get(p.item_id, float(generator(0, p.id, name).normal())),
            n_tokens=1,
        )
        for p in detector.probes(benchmark, PromptSettings())
    }
    return Answers(name, name, replies)


def scored(benchmark: Any, likelihoods: Mapping[str, float]) -> dict[str, Score]:
    """Return the scores of a model with these likelihoods by item, against one with noise."""
    detector = OrderTrendDetector()
    models = [answers_of(detector, benchmark, likelihoods), answers_of(detector, benchmark, {})]
    return {s.rule: s for s in detector.score(benchmark, PromptSettings(), *models)}


def hard_at_the_end(items: list[Item]) -> dict[str, float]:
    """Return likelihoods that are low for the last ten items, two of eight images."""
    noise = [float(generator(0, item.id, "noise").normal()) for item in items]
    return {item.id: noise[i] - 4 * (i > 29) for i, item in enumerate(items)}


def test_a_trend_over_few_images_is_no_trend_over_their_questions(
    make_world: Any, make_item: Make, make_pair: Make
) -> None:
    benchmark = benchmark_of(make_world, make_item, make_pair)
    found = scored(benchmark, hard_at_the_end(benchmark.originals))
    assert found["paper"].p_value is not None and found["paper"].p_value < 0.001
    assert found["controlled"].p_value is not None and found["controlled"].p_value > 0.01
    notes = {rule: " ".join(score.warnings) for rule, score in found.items()}
    assert "40 items share 8 images or groups: the test takes the items as" in notes["paper"]
    assert "treats each image or group, not each item, as independent" in notes["controlled"]


def test_three_images_have_no_trend(make_world: Any, make_item: Make, make_pair: Make) -> None:
    score = scored(benchmark_of(make_world, make_item, make_pair, 15), {})["controlled"]
    assert (score.verdict, score.n) == ("inconclusive", 15)
    assert "only 15 items, of 3 images or groups" in score.warnings[-1]


def test_questions_about_one_image_in_a_row_are_noted(
    make_world: Any, make_item: Make, make_pair: Make
) -> None:
    """Each names what the one before it named, so release order is likelier for any model."""
    benchmark, detector = benchmark_of(make_world, make_item, make_pair), SharedLikelihood()
    apart = make_world.of([p for i in range(5) for p in benchmark.pairs[i::5]]).benchmark
    single = make_world.of(benchmark.pairs[::5]).benchmark
    notes = []
    for pairs in (benchmark, apart, single):
        score = detector.score(pairs, PromptSettings(), answers_of(detector, pairs, {}))[1]
        notes.append(any("same image or group follow one another" in w for w in score.warnings))
    assert notes == [True, False, False]
