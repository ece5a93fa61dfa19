"""Text-only leakage: its vectors, and models made of rules."""

from typing import Any

from flipbench.core.records import Count
from flipbench.evaluate.detectors.grounding.text_only_leakage import TextOnlyLeakage
from flipbench.models.engine import Answers

DETECTOR = TextOnlyLeakage()


def right_on(world: Any, k: int) -> Any:
    """Return a policy that answers the first k questions right without an image."""
    gold = {item.id: item.answer for item in world.benchmark.originals}
    knows = {item.id for item in world.benchmark.originals[:k]}
    return lambda p: (gold[p.item_id] + (p.item_id not in knows)) % p.n_options


def test_a_lower_accuracy_than_the_clean_model_is_not_detected(make_world: Any) -> None:
    world = make_world.make(n=495)
    model, clean = (
        world.ask(DETECTOR, right_on(world, 43)),
        world.ask(DETECTOR, right_on(world, 96), "c"),
    )
    scores = world.scores(DETECTOR, model, clean)
    assert round(100 * scores["paper"].statistic, 2) == -10.71  # printed from rounded accuracies
    assert [s.verdict for s in scores.values()] == ["not_detected"] * 2


def test_two_items_of_495_meet_the_paper_s_rule_but_not_the_test(make_world: Any) -> None:
    world = make_world.make(n=495)
    model, clean = (
        world.ask(DETECTOR, right_on(world, 98)),
        world.ask(DETECTOR, right_on(world, 96), "c"),
    )
    scores = world.scores(DETECTOR, model, clean)
    assert (scores["paper"].verdict, scores["mcnemar"].verdict) == ("contaminated", "not_detected")
    assert scores["mcnemar"].p_value == 0.25
    assert scores["paper"].accuracies == {
        "text-only of the reference": Count(k=96, n=495),
        "text-only": Count(k=98, n=495),
    }


def test_text_memory_is_flagged(world: Any) -> None:
    clean = world.ask(DETECTOR, world.seer(), "clean")
    scores = world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()), clean)
    for score in scores.values():
        assert score.verdict == "contaminated" and score.statistic > 0.5
        assert score.reference_fingerprint == "fingerprint of clean"
        assert score.details["chance"] == 0.25
    assert scores["paper"].details["multimodal_gain"]["gain"] == 0.0
    assert set(scores["paper"].per_item.values()) <= {0.0, 1.0}


def test_without_a_clean_model_the_accuracy_is_still_reported(world: Any) -> None:
    score = world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()))["paper"]
    assert score.statistic is None and score.verdict == "not_applicable"
    assert score.accuracies == {"text-only": Count(k=40, n=40)}


def test_the_probe_has_no_image(world: Any) -> None:
    from flipbench.prompting.prompts import PromptSettings

    probes = DETECTOR.probes(world.benchmark, PromptSettings())
    assert all((p.images == ()) == (p.variant == "text-only") for p in probes)
    assert sum(p.variant == "text-only" for p in probes) == 40


def test_refusals_are_counted_separately(world: Any) -> None:
    seer = world.seer()
    answers = world.ask(DETECTOR, lambda p: seer(p) if p.images else -1)
    texts = ["Sorry, I cannot see an image.", "hm", "There is no image."]
    responses = {}
    for number, (key, r) in enumerate(sorted(answers.responses.items())):
        text = texts[number % 3] if r.choice < 0 else "A"
        responses[key] = r.model_copy(update={"text": text})
    expected = sum("image" in r.text for r in responses.values())
    answers = Answers(answers.model, answers.fingerprint, responses)
    score = world.scores(DETECTOR, answers)["paper"]
    assert score.details["n_refused"] == expected and 0 < expected < 40
    assert score.unparsed == {"text-only": 40}
