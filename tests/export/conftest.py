"""A paired benchmark of single-colour pictures: JPEG originals, PNG edits."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Source


def picture(store: ImageStore, colour: str, form: str = "PNG") -> Any:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(out, format=form)
    return store.put(out.getvalue(), colour)


@pytest.fixture
def make(store: ImageStore) -> Callable[..., PairedBenchmark]:
    def build(
        option_lists: list[tuple[str, ...] | None], name: str = "MMBench-Lite", licence: str = ""
    ) -> PairedBenchmark:
        pairs = []
        for number, options in enumerate(option_lists):
            common: dict[str, Any] = {
                "benchmark": name,
                "name": f"00{number}",
                "question": "Which is it?",
                "options": options,
                "category": "NA",
                "licence": licence,
                "source": Source(dataset="made-up", row=number),
            }
            texts = options or ("red", "blue")
            sides = [
                Item(
                    **common,
                    images=(picture(store, colour, form),),
                    answer=answer if options else None,
                    answer_text=texts[answer],
                )
                for answer, colour, form in ((0, "red", "JPEG"), (1, "blue", "PNG"))
            ]
            pairs.append(Pair(*sides))
        return PairedBenchmark(name, tuple(pairs), store, {"items": len(pairs)}, {"seed": "0"})

    return build
