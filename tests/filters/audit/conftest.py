"""Small benchmarks with planted defects."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from flipbench.benchmarks import Benchmark
from flipbench.core.records import ImageRef, Item, Source

MakeItem = Callable[..., Item]


@pytest.fixture(scope="session")
def make_item() -> MakeItem:
    """Return a function that makes an item of few words."""

    def make(
        name: str,
        options: Sequence[str] | None = ("red", "blue", "green"),
        answer: int | None = 0,
        *,
        question: str = "What color is it?",
        answer_text: str = "",
        images: Sequence[ImageRef] = (),
        group: str = "",
    ) -> Item:
        text = options[answer] if options is not None and answer is not None else answer_text
        return Item(
            benchmark="planted",
            name=name,
            images=tuple(images),
            question=question,
            options=None if options is None else tuple(options),
            answer=answer,
            answer_text=text,
            group=group,
            source=Source(dataset="planted"),
        )

    return make


def as_benchmark(items: list[Item], name: str = "planted") -> Benchmark:
    return Benchmark(name, items, [], len(items))
