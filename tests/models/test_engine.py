"""In which order probes are asked: what a batch can share stands together, padding stays small."""

from __future__ import annotations

from random import Random

from flipbench.core.records import ImageRef, Probe
from flipbench.models.engine import batching_key


def picture(number: int) -> ImageRef:
    return ImageRef(sha256=f"{number:064x}", format="png", width=8, height=8)


def probe(image: int | None, prompt: str, continuation: str = "") -> Probe:
    return Probe(
        item_id=f"{image}",
        variant="v",
        images=() if image is None else (picture(image),),
        prompt=prompt,
        ask="score" if continuation else "generate",
        continuation=continuation,
        max_new_tokens=0 if continuation else 8,
    )


def test_prompts_about_one_image_are_batched_together() -> None:
    probes = [probe(n, "word " * (40 + k)) for k in range(5) for n in range(6)]
    Random(0).shuffle(probes)
    asked = [int(p.item_id) for p in sorted(probes, key=batching_key)]
    assert asked == [n for n in range(6) for _ in range(5)]


def test_long_texts_are_not_padded_into_batches_of_short_ones() -> None:
    probes = [probe(None, "", "word " * (300 if n % 2 else 10 + n % 3)) for n in range(64)]
    probes += [probe(n, "word " * (10 if n % 2 else 200), "B") for n in range(64)]
    probes.sort(key=batching_key)
    batches = [probes[i : i + 16] for i in range(0, len(probes), 16)]
    for batch in batches:
        lengths = [len(p.prompt) + len(p.continuation) for p in batch]
        assert max(lengths) < 2 * min(lengths)
