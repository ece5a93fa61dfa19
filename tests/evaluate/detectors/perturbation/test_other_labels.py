"""Other labels and replaced options: what is asked, left out, and when the reference cannot."""

from __future__ import annotations

from typing import Any

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe
from flipbench.evaluate.detectors.perturbation.none_of_the_others import (
    NONE,
    NoneOfTheOthers,
    with_none,
)
from flipbench.evaluate.detectors.perturbation.number_labels import NumberLabels, can_be_numbered
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import NUMBERS, PromptSettings
from tests.fixtures.planted import Planted, planted_benchmark, scores_by_rule

DETECTORS = (NumberLabels(), NoneOfTheOthers())


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("planted"), 24, 2)


def with_options(item: Item, *options: str) -> Item:
    return item.model_copy(update={"options": options, "answer": 0, "id": ""})


def test_the_prompt_numbers_the_options(benchmark: PairedBenchmark) -> None:
    item = benchmark.originals[0]
    probe = PromptSettings().probe(item, "numbers", labels=NUMBERS)
    options = [f"{n}. {text}" for n, text in enumerate(item.options or (), 1)]
    asked = "Answer with the option number only."
    assert probe.prompt.split("\n") == [item.question, *options, asked]
    letters = PromptSettings().probe(item, "original")
    assert letters.labels == "" and letters.id != probe.id
    same = Probe.model_validate(letters.model_dump() | {"labels": "", "id": letters.id})
    assert same == letters


def test_numbers_among_the_options_are_left_out(benchmark: PairedBenchmark) -> None:
    plain = benchmark.originals[0]
    assert can_be_numbered(plain) and can_be_numbered(with_options(plain, "3 cats", "red"))
    for options in (("3", "red"), ("(2)", "red"), ("1,000", "x"), tuple("abcdefghij")):
        assert not can_be_numbered(with_options(plain, *options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("red", "blue", "green"), (NONE, "blue", "green")),
        (("red", "blue"), ()),
        (("red", "blue", "None of these"), ()),
        (("red", "blue", "cannot be determined"), ()),
        (("red", "another", "nothing"), (NONE, "another", "nothing")),
    ],
)
def test_the_right_option_is_replaced(
    benchmark: PairedBenchmark, options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert with_none(with_options(benchmark.originals[0], *options)) == expected


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.about.name)
def test_a_reference_that_guesses_allows_no_verdict(
    detector: Any, benchmark: PairedBenchmark
) -> None:
    memoriser = Planted("memoriser", 1.0, 0.1)
    guesser = scores_by_rule(detector, benchmark, memoriser, [Planted("guesser", 0.9, 0.2)])
    assert guesser["relative"].verdict == "inconclusive"
    assert "not above chance (6)" in guesser["relative"].warnings[-1]
    able = scores_by_rule(detector, benchmark, memoriser, [Planted("able", 0.9, 0.9)])
    assert able["relative"].verdict == "contaminated"


@pytest.mark.parametrize("begins", [[], [7]], ids=["one token each", "space as a token"])
def test_a_model_chooses_between_numbers(
    begins: list[int],
    shapes_items: list[Item],
    shapes_store: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vlm = HuggingFaceVLM("shapes:qwen2_vl")
    plain = vlm.conversation.reply_ids(NUMBERS[:4])
    monkeypatch.setattr(
        vlm.conversation, "reply_ids", lambda texts: [begins + ids for ids in plain[: len(texts)]]
    )
    assert vlm.conversation.label_ids("123") == (begins, [ids[0] for ids in plain[:3]])
    settings = PromptSettings()
    item = next(i for i in shapes_items if i.options and len(i.options) == 4)
    probe = settings.probe(item, "numbers", labels=NUMBERS)
    (reply,) = vlm.ask([probe], shapes_store)
    assert not isinstance(reply, Exception)
    assert len(reply.option_log_probs) == 4 and reply.choice == max(
        range(4), key=reply.option_log_probs.__getitem__
    )


def test_a_number_is_as_likely_as_when_it_is_scored(
    shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    vlm, settings = HuggingFaceVLM("shapes:qwen2_vl"), PromptSettings()
    item = next(i for i in shapes_items if i.options and len(i.options) == 4)
    probe = settings.probe(item, "numbers", labels=NUMBERS)
    (reply,) = vlm.ask([probe], shapes_store)
    assert not isinstance(reply, Exception)
    ids = {
        text: settings.probe(item, "x").model_copy(
            update={"prompt": probe.prompt, "ask": "score", "continuation": text, "id": ""}
        )
        for text in "1234"
    }
    scored = vlm.ask(list(ids.values()), shapes_store)
    for own, response in zip(reply.option_log_probs, scored, strict=True):
        assert not isinstance(response, Exception)
        assert response.log_likelihood == pytest.approx(own, abs=1e-4)
