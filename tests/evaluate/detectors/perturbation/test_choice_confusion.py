"""Choice confusion: who may be a donor, and models made of rules."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.core.records import Count
from flipbench.evaluate.detectors.perturbation.choice_confusion import (
    GENERIC,
    ChoiceConfusion,
    generalise,
)
from flipbench.models.chat.labels import LabelTask
from flipbench.prompting.prompts import PromptSettings

ASKING = PromptSettings()
DETECTOR = ChoiceConfusion()


@pytest.mark.slow
def test_known_option_strings_confuse_the_model(make_world: Any) -> None:
    world = make_world.make(n=400)
    score = world.scores(DETECTOR, world.ask(DETECTOR, world.string_memoriser()))["mcnemar"]
    assert score.accuracies["original"] == Count(k=400, n=400)
    assert score.statistic == pytest.approx(-0.75, abs=0.06)
    assert score.verdict == "contaminated"


def test_the_relative_rule_catches_a_smaller_gain(make_world: Any) -> None:
    world = make_world.make(n=120)
    clean = world.ask(
        DETECTOR,
        lambda p: world.seer()(p) if p.variant == "generalised" else world.seer(0.3)(p),
        "clean",
    )
    scores = world.scores(DETECTOR, world.ask(DETECTOR, world.seer()), clean)
    assert [scores[r].verdict for r in ("sign", "mcnemar")] == ["not_detected"] * 2
    assert scores["relative"].verdict == "contaminated"


def test_generalised_options_come_from_other_items_answers(world: Any) -> None:
    items = world.benchmark.originals
    golds = {item.answer_text for item in items}
    made = generalise(items, 0)
    assert [g.item.id for g in made] == [item.id for item in items]
    for g in made:
        assert len(g.options) == 4 and g.options[g.answer] == g.item.answer_text
        assert set(g.options) <= golds and len(set(g.options)) == 4
    assert len({g.answer for g in made}) == 4
    assert generalise(items, 0) == made and generalise(items, 1) != made
    assert {g.item.id: g for g in generalise(items[::-1], 0)} == {g.item.id: g for g in made}


def donors_of(items: list[Any], target: Any) -> set[str]:
    """Return every text that ever stands in for a false option of ``target``."""
    return {
        text
        for seed in range(30)
        for g in generalise(items, seed)
        if g.item.id == target.id
        for text in g.options
    } - {target.answer_text}


def test_generic_donors_and_golds_are_refused(make_item: Any) -> None:
    golds = ["cup", "Yes", "None of the above.", "7", "B", "three", "vase", "CUP", "tree"]
    items = [make_item(str(i), [g, "x" * 9], 0) for i, g in enumerate(golds)]
    assert donors_of(items, items[0]) == {"vase", "tree"}
    assert {g.item.answer_text for g in generalise(items, 0)}.isdisjoint(
        {"Yes", "None of the above."}
    )
    assert "three" in donors_of(items, items[3]) and "B" not in donors_of(items, items[3])
    assert not donors_of(items, items[4]) & {"7", "three"}
    assert "yes" in GENERIC


def test_donors_come_from_another_category_before_another_image(make_item: Any) -> None:
    target = make_item("t", ["cup", "x"], 0, picture="one", category="c")
    same_place = make_item("u", ["vase", "x"], 0, picture="one", category="c")
    other_image = make_item("v", ["tree", "x"], 0, picture="two", category="c")
    other_category = make_item("w", ["car", "x"], 0, picture="one", category="d")
    elsewhere = make_item("z", ["door", "x"], 0, picture="two", category="d")
    both = make_item("y", ["door", "x"], 0, picture="two", category="c")
    assert donors_of([target, same_place], target) == set()
    assert donors_of([target, same_place, other_image], target) == {"tree"}
    assert donors_of([target, other_image, other_category], target) == {"car"}
    assert donors_of([target, other_category, elsewhere], target) == {"door"}
    assert donors_of([target, other_category, elsewhere, both], target) == {"car"}


def test_a_donor_that_contains_the_right_answer_is_refused(make_item: Any) -> None:
    golds = ["top left", "left", "The Left Top corner", "right", "left door"]
    items = [make_item(str(i), [g, "x"], 0, category=str(i)) for i, g in enumerate(golds)]
    assert donors_of(items, items[0]) == {"right", "left door"}
    assert donors_of(items, items[1]) == {"right"}


def test_items_with_options_that_may_be_right_are_left_out(make_world: Any) -> None:
    world = make_world.make(n=24)
    doubtful = {item.id for item in world.benchmark.originals[:5]}
    questions = {item.question for item in world.benchmark.originals if item.id in doubtful}

    def label(task: LabelTask) -> str | None:
        question, gold, others = task.texts
        assert gold not in others.split("; ") and len(others.split("; ")) == 3
        unread = question == world.benchmark.originals[-1].question
        return None if unread else "some" if question in questions else "none"

    judged = ChoiceConfusion(label=label)
    assert judged.probes(world.benchmark, ASKING) == DETECTOR.probes(world.benchmark, ASKING)
    answers = world.ask(judged, world.seer())
    tasks = list(judged.to_judge(world.benchmark, answers))
    assert len(tasks) == 24 and tasks == list(DETECTOR.to_judge(world.benchmark, answers))
    score = world.scores(judged, answers)["mcnemar"]
    assert (score.n, score.n_dropped) == (19, 5) and not doubtful & set(score.per_item)
    assert score.details["donors"] == {"judged": 23, "may_be_right": 5}
    assert any("5 items are left out" in w and "a judge" in w for w in score.warnings)
    unjudged = world.scores(DETECTOR, answers)["mcnemar"]
    assert unjudged.n == 24 and unjudged.details["donors"] == {"judged": 0, "may_be_right": 0}


def test_items_without_enough_donors_are_dropped_and_counted(
    make_world: Any, make_item: Any, make_pair: Any
) -> None:
    golds = ["cup", "vase", "tree", "car", "yes", "door"]
    pairs = [
        make_pair(make_item(g, [g, *(f"no {g} {i}" for i in range(9 if g == "car" else 2))], 0), 1)
        for g in golds
    ]
    world = make_world.of(pairs)
    score = world.scores(DETECTOR, world.ask(DETECTOR, world.seer()))["mcnemar"]
    assert (score.n, score.n_dropped, score.details["n_left_out"]) == (4, 2, 2)
    assert any("2 items are left out" in w for w in score.warnings)


def test_an_item_s_own_option_is_never_a_donor(make_item: Any) -> None:
    items = [make_item("0", ["cup", "Vase"], 0), make_item("1", ["vase", "x"], 0)]
    assert [g.item.name for g in generalise(items, 0)] == ["1"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["a", "B", "cup", "Cup", "no", "3", "four", "tree"]), max_size=12))
def test_no_option_text_is_repeated(golds: list[str]) -> None:
    from flipbench.core.records import Item, Source

    items = [
        Item(
            benchmark="x",
            name=str(i),
            question="?",
            options=(gold, "other 1", "other 2"),
            answer=0,
            answer_text=gold,
            category=str(i),
            source=Source(dataset="x"),
        )
        for i, gold in enumerate(golds)
    ]
    for g in generalise(items, 0):
        assert len({text.casefold() for text in g.options}) == 3
        assert g.options[g.answer] == g.item.answer_text
