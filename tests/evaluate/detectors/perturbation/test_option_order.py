"""Option order: its vectors and bands, its shuffles, and models made of rules."""

from typing import Any

import pytest

from flipbench.core.records import Count, Probe
from flipbench.evaluate.detectors.completion.slot_guessing import BANDS as CAPTION_BANDS
from flipbench.evaluate.detectors.perturbation.option_order import BANDS, OptionOrder, shuffles
from flipbench.evaluate.scoring.comparison import (
    Condition,
    compare,
    mcnemar_score,
    two_conditions,
    with_leakage,
)
from flipbench.evaluate.scoring.conditions import Query, QueryPair, choice
from flipbench.prompting.prompts import PromptSettings

DETECTOR = OptionOrder()
BOUNDS = [-5.1, -5.0, -2.9, -2.4, -2.3, -1.6, -1.1, -1.0, -0.2, -0.1, 0.0]


@pytest.mark.parametrize(
    ("bands", "degrees"),
    [
        (BANDS, "severe severe severe partial partial partial minor minor minor none none"),
        (CAPTION_BANDS, "severe severe partial partial minor minor minor none none none none"),
    ],
)
def test_bands_include_their_upper_bounds(bands: Any, degrees: str) -> None:
    found = {gap: bands.degree(gap / 100) for gap in BOUNDS}
    assert found == dict(zip(BOUNDS, degrees.split(), strict=True))
    assert bands.degree(100 * (-16 / 1000) / 100) == bands.degree(-0.016)


def test_the_worked_example_of_four_items(make_world: Any, replies: Any) -> None:
    world = make_world.make(n=4, k=3)
    before, after = (1, 1, 0, 1), (1, 0, 1, 0)
    prompt_settings, gold = PromptSettings(), {i.id: i.answer for i in world.benchmark.originals}
    asked = []
    for item in world.benchmark.originals:
        (options, slot) = shuffles(item, 1, 0)[0]
        shuffled = choice(prompt_settings, item, "shuffled", options=options, gold=slot)
        asked.append(QueryPair(item, choice(prompt_settings, item, "original"), shuffled))
    right = {}
    for query_pair, one, two in zip(asked, before, after, strict=True):
        right[query_pair.first.probes[0].id] = (gold[query_pair.item.id] + 1 - one) % 3
        slot = query_pair.second.probes[0].options.index(query_pair.item.answer_text)
        right[query_pair.second.probes[0].id] = (slot + 1 - two) % 3
    only = [QueryPair(t.item, t.first, Query(t.second.parts[:1])) for t in asked]

    class Asked(OptionOrder):
        def probes(self, benchmark: Any, prompt_settings: Any) -> list[Probe]:
            return [probe for query_pair in only for probe in query_pair.probes]

    answers = replies(Asked(), world.benchmark, lambda probe: right[probe.id])
    contrast = two_conditions(only, ("CR", "PCR"), (mcnemar_score,))
    comparison = compare(OptionOrder(), world.benchmark, contrast, answers, None)
    score = with_leakage(mcnemar_score(comparison))
    assert score.accuracies == {"CR": Count(k=3, n=4), "PCR": Count(k=2, n=4)}
    assert (score.statistic, score.paired.b, score.paired.c) == (-0.25, 2, 1)
    leakage = score.details["leakage"]
    assert leakage["rate"] == 0.5 and leakage["normalised"] == pytest.approx(-1 / 3)


def test_every_shuffle_moves_the_right_answer(world: Any, make_item: Any) -> None:
    for item in world.benchmark.originals:
        drawn = shuffles(item, 3, 0)
        assert drawn == shuffles(item, 3, 0) and len({options for options, _ in drawn}) == 3
        for options, gold in drawn:
            assert sorted(options) == sorted(item.options) and options[gold] == item.answer_text
            assert gold != item.answer
    three = make_item("three", ["a", "b", "c"], 1)
    assert len({options for options, _ in shuffles(three, 4, 0)}) == 4
    with pytest.raises(ValueError, match="1 to 4"):
        shuffles(three, 5, 0)


def test_items_that_cannot_be_shuffled_are_left_out(
    make_world: Any, make_item: Any, make_pair: Any
) -> None:
    two = make_item("two", ["left", "right"], 0)
    same = make_item("same", ["red", "Red ", "blue"], 2)
    blind = make_item("blind", ["a", "b", "c"], 0)
    good = make_item("good", ["a", "b", "c"], 0)
    assert shuffles(two, 1, 0) == shuffles(same, 1, 0) == []
    assert shuffles(blind.model_copy(update={"images": ()}), 1, 0) == []
    world = make_world.of([make_pair(two, 1), make_pair(same, 0), make_pair(good, 1)])
    scores = world.scores(DETECTOR, world.ask(DETECTOR, lambda p: 0))
    assert all(s.details["n_left_out"] == 2 and s.n == 1 for s in scores.values())
    assert any("2 items are left out" in w for w in scores["mcnemar"].warnings)
    alone = make_world.of([make_pair(two, 1)])
    for score in alone.scores(DETECTOR, alone.ask(DETECTOR, lambda p: 0)).values():
        assert (score.verdict, score.statistic, score.n) == ("not_applicable", None, 0)


def test_a_missing_shuffle_drops_the_item_only_from_the_mean(world: Any) -> None:
    first = world.benchmark.originals[0].id
    answers = world.ask(
        DETECTOR, world.seer(), skip=lambda p: p.item_id == first and p.variant == "shuffled-2"
    )
    scores = world.scores(DETECTOR, answers)
    assert (scores["mcnemar"].n, scores["shuffles"].n) == (40, 39)
    assert scores["shuffles"].n_dropped == 1


def test_a_condition_counts_unparsed_replies(world: Any) -> None:
    item = world.benchmark.originals[0]
    query = choice(PromptSettings(), item, "original")
    mute = world.ask(DETECTOR, lambda p: -1)
    found = Condition.read("x", mute, [query])
    assert (list(found.outcomes), found.n_unparsed, found.n_replies) == ([False], 1, 1)
