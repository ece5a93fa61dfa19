"""Why items fell: each category by a model made of rules, its order, and what is not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Count, Item, Probe, Response
from flipbench.evaluate.diagnosis.diagnosis import (
    CATEGORIES,
    Category,
    Diagnosis,
    Evidence,
    diagnose,
    outcomes,
)
from flipbench.evaluate.diagnosis.questions import (
    Inquiry,
    closed_pairs,
    first_questions,
    questions_about,
    reorderings,
)
from flipbench.evaluate.diagnosis.section import (
    diagnosis_of_one,
    diagnosis_section,
    sentence,
    shares_table,
    symptoms_table,
)
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting import writers
from tests.fixtures.planted import planted_benchmark, reword

SETTINGS = PromptSettings()
INQUIRY = Inquiry(reword)
Policy = Callable[[Probe, str, str], str]
"""Maps a probe, the old and the new answer to the text of the option chosen."""


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("planted"), n_open=0)


def answer(benchmark: PairedBenchmark, policy: Policy, skip: str = "never") -> Answers:
    """Return a model's answers to all questions, but those whose variant contains ``skip``."""
    pairs = {i.id: p for p in benchmark.pairs for i in (p.original, p.perturbed)}
    probes = [p for pair in closed_pairs(benchmark) for p in first_questions(pair, SETTINGS)]
    for asked in questions_about(closed_pairs(benchmark), benchmark, SETTINGS, INQUIRY):
        probes += asked.follow_ups
    responses: dict[str, Response] = {}
    for probe in probes:
        pair = pairs[probe.item_id]
        text = policy(probe, pair.original.answer_text, pair.perturbed.answer_text)
        choice = probe.options.index(text) if text in probe.options else -1
        if skip not in probe.variant:
            reply = Response(probe_id=probe.id, model_fingerprint="f", model="m", choice=choice)
            responses.setdefault(probe.id, reply)
    return Answers("m", "f", responses)


def found(benchmark: PairedBenchmark, policy: Policy, skip: str = "never") -> Diagnosis:
    return diagnose(benchmark, SETTINGS, answer(benchmark, policy, skip), INQUIRY, {})


def third(probe: Probe, *known: str) -> str:
    return next(text for text in sorted(probe.options) if text not in known)


def prior(probe: Probe, old: str, new: str) -> str:
    return old


def verbatim_text(probe: Probe, old: str, new: str) -> str:
    return third(probe, old, new) if "moved" in probe.variant else old


def image_keyed(probe: Probe, old: str, new: str) -> str:
    if "moved" in probe.variant and probe.images:
        return new
    return old if probe.images and "swapped" not in probe.variant else third(probe, old)


def sees_badly(probe: Probe, old: str, new: str) -> str:
    return old if probe.variant == "original" else third(probe, old, new)


def restless(probe: Probe, old: str, new: str) -> str:
    return new if "darker" in probe.variant else image_keyed(probe, old, new)


def touchy(probe: Probe, old: str, new: str) -> str:
    return new if "reworded" in probe.variant else image_keyed(probe, old, new)


def confused(probe: Probe, old: str, new: str) -> str:
    return new if "text-only" in probe.variant else verbatim_text(probe, old, new)


@pytest.mark.parametrize(
    ("policy", "category"),
    [
        (prior, "text prior"),
        (verbatim_text, "memorised text"),
        (image_keyed, "image-keyed memory"),
        (sees_badly, "weak perception"),
        (restless, "weak perception"),
        (touchy, "fragile"),
    ],
)
def test_each_cause_has_its_category(
    benchmark: PairedBenchmark, policy: Policy, category: Category
) -> None:
    diagnosis = found(benchmark, policy)
    assert (diagnosis.n, diagnosis.n_fell, diagnosis.n_rose) == (24, 24, 0)
    assert diagnosis.counts[category] == 24 and sum(diagnosis.counts.values()) == 24
    rate = diagnosis.share(category)
    assert rate.value == 1.0 and rate.interval is not None and rate.interval.low > 0.8


def test_only_items_that_fell_are_placed(benchmark: PairedBenchmark) -> None:
    first = {pair.original.name: i for i, pair in enumerate(benchmark.pairs)}
    names = {i.id: i.name for p in benchmark.pairs for i in (p.original, p.perturbed)}

    def mixed(probe: Probe, old: str, new: str) -> str:
        kind = first[names[probe.item_id]] % 4
        if kind == 0:
            return image_keyed(probe, old, new)
        right = old if probe.variant == "original" else new
        if kind == 1:
            return right
        wrong = third(probe, old, new)
        return wrong if kind == 2 or probe.variant == "original" else new

    diagnosis = found(benchmark, mixed)
    assert (diagnosis.n, diagnosis.n_fell) == (24, 6)
    assert (diagnosis.n_both_wrong, diagnosis.n_rose) == (6, 6)
    assert diagnosis.counts["image-keyed memory"] == 6
    seen = outcomes(benchmark, SETTINGS, answer(benchmark, prior, skip="original"))
    assert (seen.n, seen.fell) == (0, ())


def test_a_missing_answer_is_not_asked_and_nothing_is_guessed(benchmark: PairedBenchmark) -> None:
    for skip in ("swapped", "perturbed, moved"):
        diagnosis = found(benchmark, image_keyed, skip)
        assert diagnosis.counts["not asked"] == 24, skip
        rate, missing = diagnosis.symptom("old answer, keyed to the picture")
        assert (rate.n, missing) == (0, 24)
    assert not found(benchmark, image_keyed, "swapped").was_asked
    blind = found(benchmark, prior, "text-only")
    assert blind.counts["text alone"] == 24, "a server that needs a picture"
    everything = found(benchmark, confused)
    assert everything.counts["weak perception"] == 24, "the new answer is never found"


def test_the_edit_comes_first_and_overlaps_are_counted(benchmark: PairedBenchmark) -> None:
    doubted = {pair.original.id: number < 6 for number, pair in enumerate(benchmark.pairs)}
    diagnosis = diagnose(benchmark, SETTINGS, answer(benchmark, prior), INQUIRY, doubted)
    assert diagnosis.counts["bad edit"] == 6 and diagnosis.counts["text prior"] == 18
    assert diagnosis.overlap("bad edit", "no picture needed") == 6
    assert diagnosis.symptom("no picture needed")[0].k == 24
    assert len(diagnosis.attributed) == 24
    data = diagnosis.to_json()
    assert data["shares"]["bad edit"]["k"] == 6 and data["shares"]["bad edit"]["n"] == 24
    assert {"both": ["bad edit", "no picture needed"], "k": 6, "n": 24} in data["overlaps"]
    assert data["items"][0]["swapped"] == {"k": 5, "n": 5}


def test_an_edit_that_left_the_picture_as_it_was_is_bad_without_a_rater(tmp_path: Path) -> None:
    benchmark = planted_benchmark(tmp_path, n_choices=8, n_open=0)
    pair = benchmark.pairs[0]
    picture = benchmark.images.open(pair.original.images[0])
    picture.putpixel((8, 8), (255, 255, 255))
    same = benchmark.images.put_image(picture, "almost the same")
    edited = pair.perturbed.model_copy(update={"images": (same,)})
    pairs = (replace(pair, perturbed=edited), *benchmark.pairs[1:])
    spoilt = replace(benchmark, pairs=pairs)
    diagnosis = found(spoilt, image_keyed)
    assert diagnosis.counts["bad edit"] == 1 and diagnosis.counts["image-keyed memory"] == 7


def test_other_pictures_have_other_right_answers_and_retouches_keep_the_size(
    benchmark: PairedBenchmark,
) -> None:
    right = {
        image.sha256: item.answer_text
        for pair in benchmark.pairs
        for item in (pair.original, pair.perturbed)
        for image in item.images
    }
    for asked in questions_about(benchmark.pairs, benchmark, SETTINGS, INQUIRY):
        swaps = [image.sha256 for probe in asked.swapped for image in probe.images]
        assert len(set(swaps)) == 5
        assert asked.pair.original.answer_text not in {right[sha] for sha in swaps}
        assert len(asked.follow_ups) == INQUIRY.n_most - 1  # two other wordings, not three
        sizes = {benchmark.images.open(p.images[0]).size for p in asked.retouched}
        assert sizes == {(16, 16)}
        assert len({probe.id for probe in asked.follow_ups}) == len(asked.follow_ups)
    few = Inquiry(n_swaps=100)
    (asked,) = questions_about(benchmark.pairs[:1], benchmark, SETTINGS, few)
    assert asked.swapped == () and asked.reworded == ()


def test_a_question_whose_answer_is_always_the_same_tells_no_memory(tmp_path: Path) -> None:
    made = planted_benchmark(tmp_path, n_choices=8, n_open=0)
    options = ("four", "three", "five", "two")
    same = {"question": "How many legs has the dog?", "options": options}

    def asked(item: Item, gold: int) -> Item:
        fields = {"id": "", "answer": gold, "answer_text": options[gold]}
        return Item.model_validate(item.model_dump() | same | fields)

    def of(golds: list[int]) -> PairedBenchmark:
        pairs = [
            Pair(asked(p.original, gold), asked(p.perturbed, (gold + 1) % 4))
            for p, gold in zip(made.pairs, golds, strict=False)
        ]
        return replace(made, pairs=tuple(pairs))

    plain = Inquiry()
    for golds, n_usual in (([0] * 8, 8), ([0] * 7 + [2], 7), ([0, 1] * 4, 0), ([0] * 5, 0)):
        benchmark = of(golds)
        diagnosis = diagnose(benchmark, SETTINGS, answer(benchmark, image_keyed), plain, {})
        assert diagnosis.counts["usual answer"] == n_usual, golds


def test_items_with_one_option_or_none_are_left_out(tmp_path: Path) -> None:
    benchmark = planted_benchmark(tmp_path, n_choices=3, n_open=2)
    assert len(closed_pairs(benchmark)) == 3
    assert reorderings(["only"]) == [] and len(reorderings("abcdefg")) == 3


KEYED = {"old": True, "text_only": False, "swapped": Count(k=1, n=5), "moved": Count(k=2, n=3)}

PRIOR = {"text_only": True, "swapped": Count(k=5, n=5), "reordered": Count(k=3, n=3)}


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({}, "image-keyed memory"),
        ({"doubted": False}, "image-keyed memory"),
        ({"doubted": True}, "bad edit"),
        ({"moved": Count(k=1, n=3)}, "weak perception"),
        ({"moved": None}, "not asked"),
        ({"old": False}, "fragile"),
        ({"old": False, "moved": None}, "weak perception"),
        ({"retouched": Count(k=1, n=3)}, "weak perception"),
        ({"retouched": Count(k=0, n=3), "reworded": Count(k=1, n=2)}, "fragile"),
        ({"usual": True}, "usual answer"),
        ({"usual": False}, "image-keyed memory"),
        ({"usual": True, "old": False}, "fragile"),
        ({"usual": True, **PRIOR}, "text prior"),
        ({"swapped": Count(k=4, n=5)}, "unexplained"),
        ({"swapped": Count(k=3, n=5), "text_only": True}, "image-keyed memory"),
        ({"swapped": Count(k=4, n=5), "text_only": True}, "text alone"),
        ({"old": False, "readable": False, "moved": Count(k=3, n=3)}, "unexplained"),
    ],
)
def test_the_order_of_precedence(changes: dict[str, object], category: Category) -> None:
    item = {"item_id": "i", "name": "1", "cluster": "i", "n_options": 4}
    assert Evidence.model_validate({**item, **KEYED, **changes}).category == category


@pytest.mark.figures
def test_sentence_tables_figure_and_section(benchmark: PairedBenchmark, tmp_path: Path) -> None:
    keyed, nothing = found(benchmark, image_keyed), found(benchmark, lambda p, old, new: "none")
    assert sentence(keyed) == (
        "24 of 24 items fell and 0 rose. What the answers to the fallen ones look like:"
        " image-keyed memory 100.0 % (24/24) [86.2, 100.0]."
    )
    assert sentence(nothing) == "No item of 24 fell, so there is nothing to explain."
    groups = {"f": [("keyed", keyed), ("nothing", nothing)]}
    shares = writers.markdown(shares_table(groups))
    assert "Image-keyed memory, %" in shares and "100.0 (24/24) [86.2, 100.0]" in shares
    assert "0/24" in shares and "– (0/0)" in shares
    assert "24" in writers.markdown(symptoms_table(groups))
    grid = [GridModel("m", "f", "tiny", "clean", 0, 0)]
    section = diagnosis_section(grid, {"f": keyed}, tmp_path / "report")
    assert section is not None and "image-keyed memory 24" in section.figures[0].panels[0].alt
    assert any(note.startswith("Image-keyed memory: ") for note in section.notes)
    assert {p.name for p in (tmp_path / "report").iterdir()} == {"diagnosis.svg", "diagnosis.png"}
    with Image.open(tmp_path / "report" / "diagnosis.png") as drawn:
        assert drawn.width > 500
    assert diagnosis_section(grid, {"f": nothing}, tmp_path) is None
    assert set(diagnosis_of_one("m", keyed).data["shares"]) == set(CATEGORIES)
