"""Which items, in which words: members, mixtures, paraphrases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.contaminate.data.regimes import (
    least_overlap,
    mixture,
    ngram_overlap,
    split_members,
)
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Item, Source

CAR = "What is the color of the car on the left?"


def made_up(n: int, benchmark: str = "own") -> list[Item]:
    return [
        Item(
            benchmark=benchmark,
            name=str(i),
            question=f"How many {i}?",
            options=("1", "2"),
            answer=0,
            answer_text="1",
            source=Source(dataset=benchmark),
        )
        for i in range(n)
    ]


@given(n=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_members_and_non_members_split_the_benchmark(n: int, fraction: float, seed: int) -> None:
    items = made_up(n)
    members, held_out = split_members(items, fraction, seed)
    assert members and held_out
    assert abs(len(members) - fraction * n) <= 1
    order = {item.id: i for i, item in enumerate(items)}
    for part in (members, held_out):
        assert [order[item.id] for item in part] == sorted(order[item.id] for item in part)
    assert {i.id for i in members} | {i.id for i in held_out} == set(order)
    assert not {i.id for i in members} & {i.id for i in held_out}
    assert split_members(items, fraction, seed) == (members, held_out)


def test_the_seed_determines_the_members() -> None:
    items = made_up(40)
    assert split_members(items, 0.5, 0) != split_members(items, 0.5, 1)
    assert split_members(items, 1.0, 0) == (tuple(items), ())
    with pytest.raises(DataError, match="1 items cannot be split"):
        split_members(items[:1], 0.5, 0)


def test_a_mixture_without_shares_takes_all_items() -> None:
    """The paper's mixture of six: RealWorldQA 765 and MMStar 1,500 of 11,280 pairs."""
    sizes = {"mmstar": 1500, "rest": 9015}
    mixed = mixture(made_up(765), {k: made_up(n, k) for k, n in sizes.items()}, {}, 0)
    assert len(mixed) == 11_280
    of = {name: sum(i.benchmark == name for i in mixed) / len(mixed) for name in ("own", "mmstar")}
    assert (round(100 * of["own"], 2), round(100 * of["mmstar"], 2)) == (6.78, 13.3)


def test_mixture_shares_are_exact_and_benchmark_items_stay() -> None:
    own, others = made_up(50), {"a": made_up(100, "a"), "b": made_up(100, "b")}
    mixed = mixture(own, others, {"a": 0.2, "b": 0.3}, 4)
    assert list(mixed[:50]) == own and len(mixed) == 100
    assert [sum(i.benchmark == b for i in mixed) for b in "ab"] == [20, 30]
    assert len({i.id for i in mixed}) == 100
    assert mixture(own, others, {"a": 0.2, "b": 0.3}, 5) != mixed
    message = "mixture.a: .* 0.900 needs 450 items, but there are 100; lower the share to 0.200"
    with pytest.raises(ConfigError, match=message):
        mixture(own, others, {"a": 0.9}, 0)


@pytest.mark.parametrize(
    ("text", "overlap"),
    [
        ("what is the color of the vehicle on the left", 2 / 6),
        ("tell me which colour the left car has", 0.0),
        (CAR, 1.0),
        ("What is, the color - of THE car", 1.0),
        ("the car on the", 0.0),  # fewer than five words
        ("", 0.0),
    ],
)
def test_five_gram_overlap_is_measured(text: str, overlap: float) -> None:
    assert ngram_overlap(text, CAR) == pytest.approx(overlap)


def test_the_paraphrase_with_the_least_overlap_is_chosen() -> None:
    far, near = "tell me which colour the left car has", "what is the color of the vehicle on it"
    assert least_overlap([near, far, "also shares none of them at all"], CAR) == (far, 0)
    best, overlap = least_overlap([CAR, near], CAR)
    assert best == near and 0 < overlap == ngram_overlap(near, CAR) < 1


@pytest.mark.parametrize(
    ("question", "copied", "reworded", "overlap"),
    [
        ("Where is it?", "So where is it, then?", "In which place can it be found?", 0.0),
        ("Which color?", "Which color?!", "What color is that?", 0.0),
        ("Color?", "What color?", "Which hue?", 0.0),
        ("What is the color of the car?", "What is the color", "And the car: its color?", 0.0),
        ("Is it red?", "Is it red now?", "Now, is it red?", 0.5),
    ],
)
def test_short_questions_are_compared_by_shorter_ngrams(
    question: str, copied: str, reworded: str, overlap: float
) -> None:
    assert ngram_overlap(copied, question) == 0, "five words say nothing"
    assert least_overlap([copied, reworded], question) == (
        (reworded, overlap) if not overlap else (copied, overlap)
    )
