"""Pairs on the same images: vectors, direct counting, intervals."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng as rng

from flipbench.core.paired import Pair
from flipbench.core.rates import wilson_interval
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.group_metrics import (
    GroupCell,
    group_metrics,
    group_table,
    has_groups,
)
from flipbench.evaluate.report.group_metrics import cells_of as read_cells
from flipbench.prompting.prompts import PromptSettings

ASKING = PromptSettings()
PLACES = tuple(itertools.product(("q0", "q1"), ("i0", "i1")))


def cells_of(groups: Any) -> list[GroupCell]:
    return [
        GroupCell(f"g{number}", *place, outcome)
        for number, group in enumerate(groups)
        for place, outcome in zip(PLACES, group, strict=True)
    ]


def grid_model(name: str, dose: int = 0, **more: Any) -> GridModel:
    facts = {"family": name, "strategy": "lora" if dose else "clean", "epoch": dose} | more
    return GridModel(name, f"fingerprint of {name}", dose=dose, **facts)


def test_group_metrics_of_the_worked_example() -> None:
    found = group_metrics(cells_of([(True, True, False, True)]))
    rates = (found.accuracy, found.question, found.image, found.group)
    assert [(r.k, r.n) for r in rates] == [(3, 4), (1, 2), (1, 2), (0, 1)]


def test_intervals_resample_whole_groups() -> None:
    draw = rng(4)
    alike = [(bool(x),) * 4 for x in draw.random(60) < 0.5]
    mixed = [tuple(bool(x) for x in row) for row in draw.random((60, 4)) < 0.5]
    wide, narrow = (group_metrics(cells_of(g)).accuracy.interval for g in (alike, mixed))
    assert wide is not None and narrow is not None
    assert wide.high - wide.low > 1.6 * (narrow.high - narrow.low)
    found = group_metrics(cells_of(mixed))
    assert found.group.interval == wilson_interval(found.group.k, 60)
    every = group_metrics(cells_of([(True,) * 4] * 60)).accuracy
    assert (every.k, every.n) == (240, 240) and every.interval == wilson_interval(60, 60)


@given(st.lists(st.tuples(*[st.sampled_from([True, False, None])] * 4), max_size=6))
def test_group_metrics_equal_direct_counting(groups: list[tuple[bool | None, ...]]) -> None:
    found = group_metrics(cells_of(groups))
    wanted = {
        "accuracy": [(x,) for g in groups for x in g],
        "question": [q for g in groups for q in (g[:2], g[2:])],
        "image": [i for g in groups for i in (g[::2], g[1::2])],
        "group": groups,
    }
    for name, sets in wanted.items():
        whole = [members for members in sets if None not in members]
        rate = getattr(found, name)
        assert (rate.k, rate.n) == (sum(all(m) for m in whole), len(whole))
        assert rate.interval is not None or rate.n == 0 or len(groups) == 1 or 0 < rate.k < rate.n
    assert found.n_missing == sum(x is None for g in groups for x in g)


def test_pairs_on_the_same_two_images_form_a_group(
    make_world: Any, make_item: Any, make_pair: Any
) -> None:
    first = make_pair(make_item("0", ("yes", "no"), 0), 1)
    images = (first.perturbed.images, first.original.images)
    changed = [
        item.model_dump() | {"id": "", "question": "Another?", "images": picture}
        for item, picture in zip((first.original, first.perturbed), images, strict=True)
    ]
    second = Pair(*(type(first.original).model_validate(c) for c in changed))
    world = make_world.of([first, second, make_pair(make_item("1", ("yes", "no"), 0), 1)])
    from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap

    always_yes = world.ask(PerturbationGap(), lambda probe: 0, "yes-sayer")
    skilled = world.ask(PerturbationGap(), lambda p: p.prompt.startswith("Another"), "other")
    assert has_groups(world.benchmark) and not has_groups(make_world.make().benchmark)
    metrics = {
        answers.fingerprint: group_metrics(read_cells(world.benchmark, ASKING, answers))
        for answers in (always_yes, skilled)
    }
    found = metrics[always_yes.fingerprint]
    assert [(r.k, r.n) for r in (found.accuracy, found.question, found.image, found.group)] == [
        (3, 6),
        (0, 3),
        (1, 4),
        (0, 2),
    ]
    table = group_table([grid_model("yes-sayer"), grid_model("other")], metrics)
    assert [name for name, _ in table.groups] == ["yes-sayer", "other"]
    (row,) = table.groups[0][1]
    assert [cell.text for cell in row.cells] == [
        "50.0 (3/6)", "0.0 (0/3)", "25.0 (1/4)", "0.0 (0/2)", "0",
    ]  # fmt: skip
    assert row.cells[1].small == "[0.0, 65.8]", "two groups, whatever the number of questions"
