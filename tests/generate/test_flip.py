from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flipbench.core.records import Flip, Item, Source
from flipbench.generate.flip import FlipStage


def item(options: tuple[str, ...] | None, answer: int | None = 0, name: str = "1") -> Item:
    text = options[answer] if options is not None and answer is not None else "a bridge"
    return Item(
        benchmark="made-up",
        name=name,
        question="What is it?",
        options=options,
        answer=answer if options is not None else None,
        answer_text=text,
        source=Source(dataset="made-up"),
    )


def flip(stage: FlipStage, task: Item) -> Flip:
    (made,) = stage([task])
    assert isinstance(made, Flip), made
    return made


@pytest.mark.parametrize("answer", range(4))
def test_uniform_over_the_other_options(answer: int) -> None:
    asked = item(("red", "blue", "green", "black"), answer)
    drawn = [flip(FlipStage(seed), asked).new_answer for seed in range(1500)]
    counts = [drawn.count(option) for option in range(4) if option != answer]
    assert drawn.count(answer) == 0
    assert stats.chisquare(counts).pvalue > 0.001, counts


def test_uniform_over_items_of_one_seed_too() -> None:
    stage = FlipStage(0)
    drawn = [flip(stage, item(("red", "blue", "green"), 1, str(i))).new_answer for i in range(1500)]
    assert stats.chisquare([drawn.count(0), drawn.count(2)]).pvalue > 0.001
    runs = sum(a == b for a, b in zip(drawn, drawn[1:], strict=False))
    assert stats.binomtest(runs, len(drawn) - 1, 0.5).pvalue > 0.001, "draws depend on each other"


@given(
    st.lists(st.sampled_from(["Red", "red ", "RED", "blue", "Straße", "STRASSE", "2"]), min_size=2),
    st.data(),
    st.integers(0, 5),
)
def test_the_new_answer_never_reads_like_the_old_one(
    options: list[str], data: st.DataObject, seed: int
) -> None:
    answer = data.draw(st.integers(0, len(options) - 1))
    asked = item(tuple(options), answer)
    (made,) = FlipStage(seed)([asked])
    folded = {text.casefold().strip() for text in options}
    if len(folded) == 1:
        assert isinstance(made, Exception)
        return
    assert isinstance(made, Flip)
    assert made.new_answer is not None
    assert made.new_text == options[made.new_answer]
    assert made.new_text.casefold().strip() != asked.answer_text.casefold().strip()
    assert made.id == FlipStage(seed).id_of(asked)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (item(None), "free-form"),
        (item(("yes", "Yes", " YES ")), "no option differs"),
        (item(("only",)), "no option differs"),
    ],
)
def test_items_that_cannot_be_flipped_say_why(task: Item, reason: str) -> None:
    stage = FlipStage()
    (error,) = stage([task])
    assert isinstance(error, Exception) and reason in str(error)
    assert stage.id_of(task) == stage.id_of(task)
    assert stage.id_of(task) != stage.id_of(item(("yes", "no")))


@pytest.mark.parametrize(("old", "new"), [("Yes", "No"), ("no.", "yes"), ("NO", "YES")])
def test_yes_and_no_are_exchanged_without_options(old: str, new: str) -> None:
    asked = Item.model_validate(item(None).model_dump() | {"id": "", "answer_text": old})
    made = flip(FlipStage(), asked)
    assert (made.new_answer, made.new_text) == (None, new)


def test_a_bad_item_does_not_spoil_its_batch() -> None:
    tasks = [item(("a", "b")), item(None), item(("c", "d"))]
    made = FlipStage()(tasks)
    assert [isinstance(m, Flip) for m in made] == [True, False, True]


def test_the_other_items_do_not_change_a_flip() -> None:
    tasks = [item(("a", "b", "c", "d"), 0, str(i)) for i in range(30)]
    together = FlipStage(3)(tasks)
    assert FlipStage(3)(tasks[::-1])[::-1] == together
    assert [flip(FlipStage(3), task) for task in tasks] == together
    assert FlipStage(4)(tasks) != together
    assert {t.id for t in together if isinstance(t, Flip)} == {FlipStage(3).id_of(t) for t in tasks}


def test_the_id_depends_on_seed_and_draw() -> None:
    task = item(("a", "b"))
    a, b = flip(FlipStage(0), task), flip(FlipStage(1), task)
    assert (a.new_text, a.seed, b.seed) == (b.new_text, 0, 1)
    assert a.id != b.id
