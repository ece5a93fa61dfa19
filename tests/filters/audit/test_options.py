"""Checks of options: length, letters, pruning. Planted defects are found, clean sets pass."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.config.audit import AuditSettings
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe, Response
from flipbench.core.run import Run
from flipbench.filters.audit.finding import AuditFinding, correct, rate
from flipbench.filters.audit.options import (
    balance_letters,
    balance_longest,
    has_fixed_options,
    lengths,
    letter_balance,
    longest_option,
    option_pruning,
    prune_options,
)
from tests.filters.audit.conftest import MakeItem


def by_length(make_item: MakeItem, n: int, n_longest: int, k: int = 5) -> list[Item]:
    """Return items of ``k`` options of lengths 1..k; the right one is the longest in some."""
    options = tuple("x" * (size + 1) for size in range(k))
    return [
        make_item(f"{row}", options, k - 1 if row < n_longest else row % (k - 1))
        for row in range(n)
    ]


def test_a_rate_has_an_exact_p_value() -> None:
    chances = [0.5, 0.25, 0.2]
    found = rate("x", 2, 3, chances)
    exact = sum(
        float(np.prod([c if hit else 1 - c for c, hit in zip(chances, hits, strict=True)]))
        for hits in itertools.product([0, 1], repeat=3)
        if sum(hits) >= 2
    )
    assert found.p_value == pytest.approx(exact)
    assert found.interval and found.interval.low == pytest.approx(0.2077, abs=1e-3)
    assert rate("x", 0, 0).value is None


def test_p_values_of_an_audit_are_adjusted_together() -> None:
    findings = [
        AuditFinding(check=name, title=name, status="ok", sentence="", rates=(found,))
        for name, found in [
            ("a", rate("a", 5, 5, [0.25] * 5)),
            ("b", rate("b", 1, 5)),
            ("c", rate("c", 2, 5, [0.25] * 5)),
        ]
    ]
    a, b, c = (f.rates[0] for f in correct(findings))
    assert a.p_value and a.p_adjusted == pytest.approx(2 * a.p_value)
    assert b.p_adjusted is None and c.p_adjusted == pytest.approx(c.p_value)


def test_removing_46_items_balances_the_longest_option(make_item: MakeItem) -> None:
    items = by_length(make_item, 100, 57)
    found = longest_option(items).rates[0]
    assert (found.k, found.n, found.chance) == (57, 100, pytest.approx(0.2))
    assert found.p_value is not None and found.p_value < 1e-12
    removed = {named.item_id for named in balance_longest(items, seed=0)}
    assert len(removed) == 46, "(57 - 100/5)/(1 - 1/5) = 46.25"
    left = longest_option([item for item in items if item.id not in removed]).rates[0]
    assert (left.k, left.n) == (11, 54)
    again = balance_longest(items, seed=0)
    assert {n.item_id for n in again} == removed
    assert {n.item_id for n in balance_longest(items, seed=1)} != removed


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(0, 4)),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_balancing_lengths_gets_closest_to_chance(
    make_item: MakeItem, rows: list[tuple[list[int], int]], seed: int
) -> None:
    items = [
        make_item(f"{i}", [f"{j}" + "x" * size for j, size in enumerate(sizes)], a % len(sizes))
        for i, (sizes, a) in enumerate(rows)
    ]

    def excess(some: list[Item]) -> float:
        found = [lengths(item) for item in some]
        return sum(f.excess for f in found)

    removed = [named.item_id for named in balance_longest(items, seed)]
    left = [item for item in items if item.id not in removed]
    assert all(lengths(item).strict for item in items if item.id in removed)
    assert abs(excess(left)) <= abs(excess(items)) + 1e-9
    removable = any(lengths(item).strict for item in left)
    assert not removable or excess(left) <= 0.4 + 1e-9, "half of one more removal, at most"


def test_ties_of_length_are_no_evidence(make_item: MakeItem) -> None:
    digits = [make_item(f"{i}", ("1", "2", "3"), 0) for i in range(50)]
    found = longest_option(digits)
    assert found.rates[0].n == 0 and balance_longest(digits, 0) == []
    pairs = [make_item(f"{i}", ("aaa", "bbb", "c"), i % 3) for i in range(30)]
    assert longest_option(pairs).rates[0].k == 20
    assert longest_option(pairs).rates[0].chance == pytest.approx(2 / 3)


def test_an_unbalanced_letter_is_found_and_fixed(make_item: MakeItem) -> None:
    items = [make_item(f"{i}", ("a", "b", "c", "d"), 2 if i % 3 else i % 4) for i in range(120)]
    found = letter_balance(items, AuditSettings())
    (test,) = [r for r in found.rates if r.p_value is not None]
    assert test.name.startswith("correct letter C") and test.p_value == pytest.approx(1e-4)
    mended = balance_letters(items, seed=42)
    assert Counter(item.answer for item in mended) == {0: 30, 1: 30, 2: 30, 3: 30}
    for old, new in zip(items, mended, strict=True):
        assert sorted(old.options or ()) == sorted(new.options or ())
        assert old.answer_text == new.answer_text


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 6), st.integers(0, 5)), min_size=1, max_size=60))
def test_letters_are_balanced_up_to_one(make_item: MakeItem, rows: list[tuple[int, int]]) -> None:
    items = [make_item(f"{i}", [f"o{j}" for j in range(k)], a % k) for i, (k, a) in enumerate(rows)]
    mended = balance_letters(items, seed=1)
    for k in {len(item.options or ()) for item in items}:
        counts = [
            sum(i.answer == slot for i in mended if len(i.options or ()) == k) for slot in range(k)
        ]
        assert max(counts) - min(counts) <= 1
    assert [i.answer_text for i in mended] == [i.answer_text for i in items]


@pytest.mark.parametrize(
    ("option", "fixed"),
    [
        ("All of the above", True),
        ("none of these", True),
        ("Both A and B", True),
        ("A and C", True),
        ("Neither of the others", True),
        ("Both a cat and a dog", False),
        ("a", False),
        ("Option pricing", False),
        ("vitamin B and C", False),
        ("all of it", False),
    ],
)
def test_options_that_refer_to_others_keep_their_place(
    make_item: MakeItem, option: str, fixed: bool
) -> None:
    item = make_item("1", ("red", "blue", option), 2)
    assert has_fixed_options(item) == fixed
    assert (balance_letters([item] * 9, 0) == [item] * 9) == fixed


class Chooser:
    """A model that always chooses the same letter."""

    can = frozenset({"choose"})

    def __init__(self, slot: int) -> None:
        self.name, self.fingerprint, self.slot = f"chooser {slot}", f"f{slot}", slot

    def ask(self, probes: list[Probe], images: ImageStore) -> list[Response]:
        return [
            Response(
                probe_id=probe.id,
                model_fingerprint=self.fingerprint,
                model=self.name,
                choice=self.slot,
            )
            for probe in probes
        ]


def test_pruning_keeps_confusing_options(make_item: MakeItem, tmp_path: Path) -> None:
    many = [make_item(f"{i}", [f"o{j}" for j in range(9)], i) for i in range(9)]
    few = make_item("few", ("a", "b"), 0)
    stay = make_item("stay", [*"abcdefg", "all of the above"], 0)
    run = Run(tmp_path)
    models = [Chooser(7), Chooser(3)]
    found, pruned, reports = option_pruning(
        [*many, few, stay], AuditSettings(n_options=3), run, models, progress=False
    )
    assert found.status == "look" and len(found.items) == 10 and len(reports) == 2
    assert pruned[-2:] == [few, stay]
    assert pruned[0].options == ("o0", "o3", "o7") and pruned[0].answer == 0
    assert pruned[5].options == ("o3", "o5", "o7") and pruned[5].answer == 1
    assert {"o3", "o7"} <= set(pruned[3].options or ()), "the right option and one model's error"
    assert pruned[0].extra["pruned_from"] == many[0].id
    alone = prune_options(many[0], {}, 5, seed=0)
    assert len(alone.options or ()) == 5 and alone.answer_text == "o0"
    none, same, _ = option_pruning(many, AuditSettings(), run, progress=False)
    assert none.status == "not_run" and same == many
