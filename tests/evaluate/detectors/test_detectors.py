"""What every detector must do, whatever it measures."""

from typing import Any

import pytest

from flipbench.core.paired import Pair
from flipbench.evaluate.detectors.registry import DETECTORS, default_rule
from flipbench.prompting.prompts import Asking

RULES = {
    "perturbation_gap": ["sign", "mcnemar", "relative"],
    "circular_eval": ["paper", "relative"],
    "choice_confusion": ["sign", "mcnemar", "relative"],
    "text_only_leakage": ["paper", "mcnemar"],
}
NAMES = list(RULES)  # those that compare conditions; the others go by likelihood
NEED_REFERENCE = {
    ("perturbation_gap", "relative"),
    ("circular_eval", "paper"),
    ("circular_eval", "relative"),
    ("choice_confusion", "relative"),
    ("text_only_leakage", "paper"),
    ("text_only_leakage", "mcnemar"),
}


@pytest.mark.parametrize("name", NAMES)
def test_about_and_rules(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    assert detector.about.name == name and "arXiv" in detector.about.paper
    assert default_rule(name) == default_rule(detector) and default_rule(name) in RULES[name]
    answers = world.ask(detector, world.seer())
    reference = world.ask(detector, world.seer(name="other"), "clean")
    assert list(world.scores(detector, answers, reference)) == RULES[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_without_its_reference_is_not_applicable(name: str, world: Any) -> None:
    scores = world.scores(DETECTORS[name], world.ask(DETECTORS[name], world.seer()))
    for rule, score in scores.items():
        if (name, rule) in NEED_REFERENCE:
            assert score.verdict == "not_applicable" and score.p_value is None
            assert any("clean model" in w and "reference" in w for w in score.warnings)
        else:
            assert score.verdict != "not_applicable"
        assert score.reference_fingerprint == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_items_changes_nothing(name: str, world: Any, make_world: Any) -> None:
    turned = make_world.of(world.benchmark.pairs[::-1])
    found = []
    for w in (world, turned):
        answers = w.ask(DETECTORS[name], w.seer(0.7))
        reference = w.ask(DETECTORS[name], w.seer(0.8, "other"), "clean")
        found.append(
            [
                s.model_dump(exclude={"id", "benchmark_id"})
                for s in w.scores(DETECTORS[name], answers, reference).values()
            ]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("name", NAMES)
def test_missing_answers_are_dropped_and_never_wrong(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    lost = {world.benchmark.originals[i].id for i in range(5)}
    lost |= {world.benchmark.perturbed[i].id for i in range(5)}
    reference = world.ask(detector, world.seer(0.6, "other"), "clean")
    answers = world.ask(detector, world.seer(0.8), skip=lambda probe: probe.item_id in lost)
    kept = world.ask(detector, world.seer(0.8))
    for rule, score in world.scores(detector, answers, reference).items():
        whole = world.scores(detector, kept, reference)[rule]
        assert (score.n, score.n_dropped) == (whole.n - 5, whole.n_dropped + 5)
        assert not set(score.per_item) & lost
        assert {i: whole.per_item[i] for i in score.per_item} == score.per_item
        assert any("5 of 40 items are dropped" in w for w in score.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_without_any_answer_there_is_no_verdict(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    nothing = world.ask(detector, world.seer(), skip=lambda probe: True)
    reference = world.ask(detector, world.seer(), "clean")
    for score in world.scores(detector, nothing, reference).values():
        assert (score.verdict, score.statistic, score.n) == ("inconclusive", None, 0)
        assert score.p_value is None and score.interval is None


@pytest.mark.parametrize("name", NAMES)
def test_every_probe_is_asked_with_the_given_settings(name: str, world: Any) -> None:
    asking = Asking(ask="generate", instruction="Letter, please.", max_new_tokens=3)
    probes = DETECTORS[name].probes(world.benchmark, asking)
    assert {(p.ask, p.max_new_tokens) for p in probes} == {("generate", 3)}
    assert all(p.prompt.endswith("Letter, please.") for p in probes)


@pytest.mark.parametrize("name", NAMES)
def test_replies_that_cannot_be_read_forbid_a_verdict(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    reader = world.seer()

    def mute(probe: Any) -> int:
        return reader(probe) if probe.variant == "original" else -1

    reference = world.ask(detector, world.seer(), "clean")
    for rule, score in world.scores(detector, world.ask(detector, mute), reference).items():
        assert score.verdict == "inconclusive", rule
        assert any("name no option" in w for w in score.warnings)
        assert max(score.unparsed.values()) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_its_own_reference_says_so(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    answers = world.ask(detector, world.seer(0.7))
    for rule, score in world.scores(detector, answers, answers).items():
        if (name, rule) in NEED_REFERENCE:
            assert score.verdict == "not_detected"
            assert any("its own reference" in w for w in score.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_too_few_items_forbid_a_test(name: str, make_world: Any) -> None:
    small = make_world.make(n=4, k=2)
    detector = DETECTORS[name]
    answers = small.ask(detector, small.memoriser())
    reference = small.ask(detector, small.seer(), "clean")
    for rule, score in small.scores(detector, answers, reference).items():
        if rule in ("mcnemar", "relative"):
            assert score.verdict == "inconclusive"
            assert any("only 4 items" in w for w in score.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_free_form_items_are_left_out(
    name: str, world: Any, make_world: Any, make_item: Any
) -> None:
    one = make_item("open", None, None)
    two = make_item("open", None, None, picture="other").model_copy(update={"answer_text": "b"})
    mixed = make_world.of([*world.benchmark.pairs, Pair(one, two)])
    detector = DETECTORS[name]
    answers = mixed.ask(detector, world.seer())
    reference = mixed.ask(detector, world.seer(), "clean")
    for score in mixed.scores(detector, answers, reference).values():
        assert (score.n, score.n_dropped, score.details["n_left_out"]) == (40, 1, 1)
    alone = make_world.of([Pair(one, two)])
    for score in alone.scores(detector, alone.ask(detector, lambda p: 0), reference).values():
        assert (score.verdict, score.n, score.statistic) == ("not_applicable", 0, None)
