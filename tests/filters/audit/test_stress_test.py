"""The stress test: planted shortcuts are found and named, shapes-vqa has none."""

from __future__ import annotations

import numpy as np
import pytest

from flipbench.config.audit import AuditSettings
from flipbench.core.records import Item
from flipbench.filters.audit.stress_test import option_texts, stress_test
from tests.filters.audit.conftest import MakeItem

QUICK = AuditSettings(n_permutations=199)


@pytest.mark.slow
def test_shapes_vqa_gives_nothing_away(shapes_items: list[Item]) -> None:
    found = stress_test(shapes_items, QUICK).rates[0]
    assert found.n == 60 and found.p_value is not None and found.p_value > 0.01


def random_items(make_item: MakeItem, n: int, seed: int = 0) -> list[Item]:
    """Return items of four random words, the right one drawn by chance."""
    rng = np.random.default_rng(seed)
    words = np.array(["ash", "elm", "oak", "fir", "yew", "box", "bay", "fig"])
    return [
        make_item(f"{i}", rng.permutation(words)[:4].tolist(), int(rng.integers(4)))
        for i in range(n)
    ]


@pytest.mark.slow
def test_without_a_shortcut_the_stress_test_keeps_its_level(make_item: MakeItem) -> None:
    settings = AuditSettings(n_permutations=99)
    p_values = [
        stress_test(random_items(make_item, 60, seed), settings).rates[0].p_value
        for seed in range(20)
    ]
    assert sum(p is not None and p <= 0.05 for p in p_values) <= 4  # binomial(20, .05): p < .003
    assert np.std([p or 0 for p in p_values]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("shortcut", ["word", "length", "letter", "crossed"])
def test_each_planted_shortcut_is_found_and_named(make_item: MakeItem, shortcut: str) -> None:
    rng, items = np.random.default_rng(1), []
    for i, item in enumerate(random_items(make_item, 120)):
        options, answer, question = list(item.options or ()), item.answer or 0, "What is it?"
        if i % 3 == 0:
            pass  # two thirds of the items carry the shortcut
        elif shortcut == "word":
            options[answer] = f"roughly {options[answer]}"
        elif shortcut == "length":
            options[answer] += " " + "".join(rng.choice(list("abcdefgh"), 12))
        elif shortcut == "letter":
            answer = 3
        else:
            options[answer] = "ja" if i % 2 else "nein"
            options[(answer + 1) % 4] = "nein" if i % 2 else "ja"
            question = "odd?" if i % 2 else "even?"
        items.append(make_item(f"{i}", options, answer, question=question))
    found = stress_test(items, QUICK)
    (measured,) = found.rates
    assert measured.p_value == pytest.approx(1 / 200)
    assert measured.k > 60 and measured.chance == 0.25
    cue = {"word": "roughly", "length": "length rank 1", "letter": "letter D", "crossed": "asked:"}
    assert any(cue[shortcut] in c["cue"] for c in found.details["cues"][:4]), found.details["cues"]


@pytest.mark.slow
def test_copies_of_an_image_share_a_fold(make_item: MakeItem) -> None:
    items = random_items(make_item, 60)
    twice = [
        item.model_copy(update={"id": f"{n}{item.id}", "name": f"{n}{item.name}"})
        for n in range(2)
        for item in items
    ]
    apart = stress_test(twice, QUICK).rates[0]
    together = stress_test(twice, QUICK, groups=[item.name[1:] for item in twice]).rates[0]
    assert together.k < apart.k


def test_the_stress_test_needs_items_and_repeated_words(make_item: MakeItem) -> None:
    assert stress_test(random_items(make_item, 9), QUICK).status == "not_run"
    unique = [make_item(f"{i}", (f"a{i}", f"b{i}"), i % 2, question=f"q{i}") for i in range(30)]
    assert stress_test(unique, QUICK).rates[0].n == 30
    assert [t.rank for t in option_texts(make_item("r", ("aa", "b", "cc"), 0))] == [0, 2, 0]
