"""Prompts about the same images share what they begin with, and are answered as if they did not."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flipbench.config.local_models import ModelConfig
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Probe, Response
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.prefill import SHARING
from flipbench.models.vlm.scoring import unpack_state
from flipbench.models.vlm.token_trees import by_length, prefix_lengths, token_trees
from flipbench.prompting.prompts import choice_prompt
from tests.fixtures.tiny_families import FAMILIES, save

Answers = Callable[[HuggingFaceVLM], list[Response | Exception]]
IMAGE = 9
QUESTIONS = ("What color is the star?", "What color is the circle?", "Is it red? Look with care.")


def probe(number: int, images: tuple[ImageRef, ...], **changes: Any) -> Probe:
    asked: dict[str, Any] = {"ask": "choose", "options": ("red", "blue"), "n_options": 2} | changes
    prompt = choice_prompt(
        QUESTIONS[number % 3], ("red", "blue") if number % 2 else ("blue", "red")
    )
    return Probe(item_id=str(number), variant="original", images=images, prompt=prompt, **asked)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("prefix") / "images")


@pytest.fixture(scope="module")
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


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"labels": "1 2"},
    {"ask": "score", "continuation": "blue and red"},
    {"ask": "score", "continuation": "blue"},
    {"ask": "generate", "max_new_tokens": 6},
    {"ask": "generate", "max_new_tokens": 3},
    {"ask": "generate", "max_new_tokens": 5, "temperature": 1.0, "seed": 1},
    {"ask": "generate", "max_new_tokens": 4, "token_statistics": True},
    {"ask": "embed", "continuation": "blue"},
)
RAW: tuple[dict[str, Any], ...] = (
    {"ask": "score_text", "continuation": "blue and red"},
    {"ask": "continue_text", "max_new_tokens": 4},
)


def of_all_kinds(sets: list[tuple[ImageRef, ...]]) -> list[Probe]:
    """Return probes of every kind about no, one and two pictures, those of one kind together."""
    return [
        probe(n, images, **kind)
        for kind in (*KINDS, *RAW)
        for images in ((), *sets[: 0 if kind in RAW else 3])
        for n in range(3)
    ]


NUMBERS = (
    "option_log_probs",
    "letter_share",
    "log_likelihood",
    "token_log_probs",
    "token_means",
    "token_deviations",
)


def differences(ours: Response | Exception, theirs: Response | Exception) -> list[str]:
    """Return the fields that differ, numbers by more than 1e-4."""
    if not (isinstance(ours, Response) and isinstance(theirs, Response)):
        return [repr((ours, theirs))]
    differ = []
    for name in Response.model_fields:
        a, b = getattr(ours, name), getattr(theirs, name)
        if name in NUMBERS and b:
            same = a == pytest.approx(b, abs=1e-4)
        elif name == "state" and a and b:
            same = unpack_state(a) == pytest.approx(unpack_state(b), abs=1e-4)
        else:
            same = a == b
        differ += [] if same else [f"{name}: {a} instead of {b}"]
    return differ


def alone(vlm: HuggingFaceVLM) -> HuggingFaceVLM:
    """Return a model with the same weights that shares nothing."""
    other = copy.copy(vlm)
    other._prefiller = None
    return other


@pytest.fixture(scope="module")
def one_by_one(store: ImageStore, sets: list[tuple[ImageRef, ...]]) -> Answers:
    """Answer the probes of all kinds one by one, once with each model."""
    known: dict[str, list[Response | Exception]] = {}

    def answers(vlm: HuggingFaceVLM) -> list[Response | Exception]:
        if vlm.fingerprint not in known:
            other = alone(vlm)
            known[vlm.fingerprint] = [other.ask([p], store)[0] for p in of_all_kinds(sets)]
        return known[vlm.fingerprint]

    return answers


def count_opened(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> list[ImageRef]:
    """Return a list to which each picture is added when it is read."""
    opened, really_open = list[ImageRef](), store.open

    def open_and_count(ref: ImageRef) -> Image.Image:
        opened.append(ref)
        return really_open(ref)

    monkeypatch.setattr(store, "open", open_and_count)
    return opened


QUICK = ("llava", "qwen2_vl", "llava-onevision")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in FAMILIES
        if name.replace("-", "_") in SHARING
    ],
)
def test_all_kinds_together_are_answered_as_one_by_one(
    family: str,
    store: ImageStore,
    sets: list[tuple[ImageRef, ...]],
    one_by_one: Answers,
    tmp_path: Path,
) -> None:
    vlm = load(family, tmp_path / "model")
    assert vlm._prefiller
    probes = of_all_kinds(sets)
    for size in (len(probes), 7):
        parts = (vlm.ask(probes[i : i + size], store) for i in range(0, len(probes), size))
        together = [answer for part in parts for answer in part]
        for answer, expected in zip(together, one_by_one(vlm), strict=True):
            assert differences(answer, expected) == []


def test_pictures_are_kept_from_one_call_to_the_next_until_the_weights_change(
    store: ImageStore, sets: list[tuple[ImageRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm, opened = HuggingFaceVLM("shapes:llava"), count_opened(store, monkeypatch)
    for kind in KINDS:
        vlm.ask([probe(0, sets[0], **kind), probe(1, sets[1], **kind)], store)
    assert len(opened) == 2
    with torch.no_grad():
        vlm.model.get_decoder().layers[0].mlp.down_proj.weight.mul_(1.5)
    asked = probe(0, sets[0])
    assert differences(vlm.ask([asked], store)[0], alone(vlm).ask([asked], store)[0]) == []


@pytest.mark.parametrize(("cache_mib", "most_kept"), [(0, 0), (1, 2**19)])
def test_memory_bounds_what_is_kept_and_changes_no_answer(
    cache_mib: int,
    most_kept: int,
    store: ImageStore,
    sets: list[tuple[ImageRef, ...]],
    one_by_one: Answers,
) -> None:
    vlm = HuggingFaceVLM(**ModelConfig(path="shapes:llava", cache_mib=cache_mib).model_dump())
    assert vlm._prefiller
    for answer, expected in zip(vlm.ask(of_all_kinds(sets), store), one_by_one(vlm), strict=True):
        assert differences(answer, expected) == []
    kept = [kept.layers for kept in vlm._prefiller._cache.values()]
    assert sum(x.nbytes for layers in kept for both in layers for x in both) <= most_kept


def test_an_image_is_encoded_once_for_a_batch(
    store: ImageStore, sets: list[tuple[ImageRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_opened(store, monkeypatch)
    probes = [probe(n, sets[n % 2]) for n in range(8)]
    sharing = HuggingFaceVLM("shapes:llava")
    for vlm, n_read in ((sharing, 2), (alone(sharing), 8)):
        opened.clear()
        vlm.ask(probes, store)
        assert len(opened) == n_read


@pytest.mark.parametrize(
    ("expanded", "plain", "expected"),
    [
        ([1, 9, 9, 9, 5], [1, 9, 5], (2, 4)),  # the placeholder is the image token itself
        ([9, 9, 4, 9, 9, 5, 7], [8, 4, 8, 5, 7], (3, 5)),  # two images, text between
        ([1, 9, 9], [1, 8], (2, 3)),  # nothing after the image to ask with
        ([1, 5], [1, 5], (2, 2)),  # no image token at all
    ],
)
def test_where_the_pictures_of_a_prompt_end(
    expanded: list[int], plain: list[int], expected: tuple[int, int]
) -> None:
    assert prefix_lengths(expanded, plain, IMAGE) == expected


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=8), st.integers(1, 12)
)
def test_a_tree_holds_each_beginning_once(rows: list[list[int]], most: int) -> None:
    trees = token_trees(dict(enumerate(rows)), most)
    assert sorted(row for tree in trees for row in tree.paths) == list(range(len(rows)))
    for tree in trees:
        beginnings = {tuple(rows[i][: n + 1]) for i in tree.paths for n in range(len(rows[i]))}
        assert len(tree.tokens) == len(beginnings)
        assert len(tree.paths) == 1 or len(tree.tokens) <= most
        sees = tree.sees()
        for row, path in tree.paths.items():
            assert [tree.tokens[node] for node in path] == rows[row]
            assert [tree.depths[node] for node in path] == list(range(len(path)))
            for n, node in enumerate(path):
                assert np.flatnonzero(sees[node]).tolist() == path[: n + 1]


@given(
    st.lists(st.lists(st.integers(1, 2), max_size=5), min_size=1, max_size=6), st.integers(1, 12)
)
def test_trees_repeat_as_little_as_possible(rows: list[list[int]], most: int) -> None:
    def size(part: Sequence[list[int]]) -> int:
        return len({tuple(ids[: n + 1]) for ids in part for n in range(len(ids))})

    ordered, totals = sorted(rows), list[int]()
    for cuts in itertools.product((False, True), repeat=len(rows) - 1):
        ends = [place for place, cut in enumerate(cuts, start=1) if cut]
        parts = [ordered[a:b] for a, b in itertools.pairwise([0, *ends, len(rows)])]
        if all(len(part) == 1 or size(part) <= most for part in parts):
            totals.append(sum(map(size, parts)))
    trees = token_trees(dict(enumerate(rows)), most)
    assert sum(len(tree.tokens) for tree in trees) == min(totals)


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


def test_a_letter_asked_in_every_way_is_read_once(
    store: ImageStore, sets: list[tuple[ImageRef, ...]]
) -> None:
    vlm, sizes = HuggingFaceVLM("shapes:llava"), list[tuple[int, ...]]()
    vlm.model.get_decoder().register_forward_pre_hook(
        lambda _, args, inputs: sizes.append(tuple(inputs["inputs_embeds"].shape[:2])),
        with_kwargs=True,
    )
    replies = ("blue", "blue and", "blue and red", "red")
    probes = [probe(0, sets[0], ask="score", continuation=reply) for reply in replies]
    vlm.ask([probe(0, sets[0]), *probes, probe(0, sets[0], ask="generate")], store)
    prompt = vlm._encode(vlm._tasks(probes[:1]), store)["input_ids"].shape[1]
    ids = vlm.conversation.reply_ids(replies)
    after = {tuple(reply[: n + 1]) for reply in ids for n in range(len(reply) - 1)}
    assert sum(rows * width for rows, width in sizes[:2]) == prompt + len(after)
    assert {width for _, width in sizes[2:]} == {1}  # generation goes on from there
