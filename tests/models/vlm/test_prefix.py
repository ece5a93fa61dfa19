"""Prompts about the same images share what they begin with, and are answered as if they did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Probe, Response
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.prefix import SHARING, Prefix, by_length, common_prefix
from flipbench.prompting.prompts import choice_prompt
from tests.fixtures.tiny_families import FAMILIES, save

IMAGE = 9
QUESTIONS = ("What color is the star?", "What color is the circle?", "Is it red? Look with care.")


def probe(number: int, images: tuple[ImageRef, ...], **changes: Any) -> Probe:
    asked = {"ask": "choose", "options": ("red", "blue"), "n_options": 2} | changes
    prompt = choice_prompt(
        QUESTIONS[number % 3], ("red", "blue") if number % 2 else ("blue", "red")
    )
    return Probe(item_id=str(number), variant="original", images=images, prompt=prompt, **asked)


@pytest.fixture
def sets(store: ImageStore) -> list[tuple[ImageRef, ...]]:
    """Return sets of one and of two pictures, of unlike shapes."""
    rng = np.random.default_rng(0)
    a, b, c = (
        store.put_image(
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)), "a test"
        )
        for width, height in ((40, 40), (70, 32), (56, 84))
    )
    return [(a,), (b,), (c, a)]


def load(family: str, folder: Path, **options: Any) -> HuggingFaceVLM:
    path = f"shapes:{family}" if family in ("llava", "qwen2_vl") else str(save(family, folder))
    return HuggingFaceVLM(path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name.replace("-", "_") in SHARING])
def test_batched_answers_equal_one_by_one(
    family: str, store: ImageStore, sets: list[tuple[ImageRef, ...]], tmp_path: Path
) -> None:
    vlm = load(family, tmp_path / "model")
    assert vlm._shares
    for changes in (
        {},
        {"ask": "score", "continuation": "blue and red"},
        {"ask": "generate", "max_new_tokens": 6},
        {"ask": "embed", "continuation": "blue"},
    ):
        probes = [probe(n, sets[n % 3 if n < 9 else 0], **changes) for n in range(12)]
        together = vlm.ask(probes, store)
        for one, asked in zip(together, probes, strict=True):
            assert isinstance(one, Response), one
            (alone,) = vlm.ask([asked], store)
            assert isinstance(alone, Response)
            assert (one.text, one.choice, one.probe_id) == (alone.text, alone.choice, asked.id)
            for name in ("option_log_probs", "token_log_probs", "token_means"):
                assert getattr(one, name) == pytest.approx(getattr(alone, name), abs=5e-5)
        if changes.get("ask") == "embed":
            alone_bd = torch.cat([vlm.embed([asked], store) for asked in probes])
            torch.testing.assert_close(vlm.embed(probes, store), alone_bd, atol=1e-4, rtol=1e-4)


def test_an_image_is_encoded_once_for_a_batch(
    store: ImageStore, sets: list[tuple[ImageRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    really_open = store.open

    def open_and_count(ref: ImageRef) -> Image.Image:
        opened.append(ref.sha256)
        return really_open(ref)

    monkeypatch.setattr(store, "open", open_and_count)
    probes = [probe(n, sets[n % 2]) for n in range(8)]
    for share_images, n_read in ((True, 2), (False, 8)):
        vlm = HuggingFaceVLM("shapes:llava", share_images=share_images)
        opened.clear()
        vlm.ask(probes, store)
        assert len(opened) == n_read


def test_a_batch_with_few_repeated_images_is_encoded_whole(
    store: ImageStore, sets: list[tuple[ImageRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm = HuggingFaceVLM("shapes:llava")
    monkeypatch.setattr("flipbench.models.vlm.huggingface.share", None)  # calling it would raise
    vlm.ask([probe(0, sets[0]), probe(1, sets[1])], store)
    with pytest.raises(TypeError):
        vlm.ask([probe(0, sets[0]), probe(1, sets[0])], store)


@pytest.mark.parametrize(
    ("expanded", "plain", "expected"),
    [
        # the placeholder is the image token itself, and the texts differ at once
        ([1, 9, 9, 9, 5], [[1, 9, 5], [1, 9, 6]], Prefix(0, 4, (), (0, 1), ((5,), (6,)))),
        # one text is the beginning of the other: a token is left to each
        ([9, 9, 5, 6], [[9, 5, 6], [9, 5]], Prefix(0, 2, (), (0, 1), ((5, 6), (5,)))),
        # two images, text between
        ([9, 9, 4, 9, 9, 5, 7], [[8, 4, 8, 5, 7]], Prefix(0, 5, (5,), (0,), ((7,),))),
        # other images' places
        ([1, 9, 9, 5], [[1, 8, 5], [2, 8, 5]], None),
        # nothing after the image to ask with
        ([1, 9, 9], [[1, 8], [1, 8]], None),
        # no image token at all
        ([1, 5], [[1, 5], [1, 5]], None),
    ],
)
def test_shared_prefixes_of_prompts(
    expanded: list[int], plain: list[list[int]], expected: Prefix | None
) -> None:
    assert common_prefix(0, expanded, IMAGE, plain, list(range(len(plain)))) == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 12))
def test_batches_of_similar_length_cost_least(lengths: list[int], cost: int) -> None:
    def total(batches: list[list[int]]) -> int:
        return sum(len(rows) * max(lengths[i] for i in rows) + cost for rows in batches)

    batches = by_length(lengths, cost)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for cuts in range(2 ** (len(lengths) - 1)):
        other: list[list[int]] = [[]]
        for place, row in enumerate(order):
            if place and cuts >> (place - 1) & 1:
                other.append([])
            other[-1].append(row)
        assert total(batches) <= total(other)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_prompt_with_several_replies_is_read_once_and_scored_alike(
    family: str, store: ImageStore, sets: list[tuple[ImageRef, ...]]
) -> None:
    vlm, replies = HuggingFaceVLM(f"shapes:{family}"), ("blue", "blue and", "blue and red", "red")
    probes = [
        probe(n, images, ask="score", continuation=reply)
        for n in range(6)
        for images in sets[: 1 + n % 2]
        for reply in replies[n % 3 :]
    ]
    n_tokens: list[int] = []
    vlm.model.register_forward_pre_hook(
        lambda _, args, inputs: n_tokens.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    together = vlm.ask(probes, store)
    n_together = sum(n_tokens)
    n_tokens.clear()
    for one, asked in zip(together, probes, strict=True):
        (alone,) = vlm.ask([asked], store)
        assert isinstance(one, Response) and isinstance(alone, Response)
        assert (one.probe_id, one.n_tokens) == (alone.probe_id, alone.n_tokens)
        for name in ("token_log_probs", "token_means", "token_deviations"):
            assert getattr(one, name) == pytest.approx(getattr(alone, name), abs=5e-5)
    assert n_together < 0.6 * sum(n_tokens)
