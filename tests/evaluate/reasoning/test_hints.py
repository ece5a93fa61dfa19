"""Accuracy with images only, with hints, with a summary, and with the model's own texts."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import flipbench as fb
from flipbench.config.experiment import HintSettings
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Item, Probe, Response
from flipbench.evaluate.reasoning.hints import (
    IMAGES_ONLY,
    VARIANTS,
    HintedItem,
    compare_hints,
    given_text,
    hint_table,
    hinted_items,
    probes_for_model,
)
from flipbench.models.engine import Answers
from flipbench.models.protocols import Capability
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import scene_of
from flipbench.shapes.wording import describe
from tests.fixtures.cases import cases
from tests.fixtures.command_line import Flipbench

ASKING, SETTINGS = PromptSettings(), HintSettings(max_new_tokens=8)
ALL: frozenset[Capability] = frozenset({"choose", "generate", "text_only"})


def with_texts(item: Item, **texts: Any) -> Item:
    return item.model_copy(update={"extra": item.extra | texts})


@pytest.fixture
def items(store: ImageStore) -> list[Item]:
    """Return eight cases; the last two lack a summary, the last one has blank hints."""
    found = []
    for row, item in enumerate(cases(store)):
        scene = describe(scene_of(Candidate(item)))
        hints = ["A scan." for _ in item.images]
        hints[item.extra["decides"]] = scene
        summary = f"In all, it is {item.answer_text}." if row < 6 else ""
        found.append(with_texts(item, hints=hints if row < 7 else " ", summary=summary))
    return found


@pytest.fixture
def hinted(items: list[Item]) -> list[HintedItem]:
    return hinted_items(items, ASKING, SETTINGS)[0]


def answers(hinted: list[HintedItem], rule: Callable[[HintedItem, str], bool]) -> Answers:
    """Return answers that are right where ``rule`` says so, and own texts for even items."""
    found = {}
    for number, one in enumerate(hinted):
        for probe in one.requests.values():
            text = "It looks grey." if number % 2 == 0 else "  \n"
            made_of = {"probe_id": probe.id, "model_fingerprint": "f", "model": "m"}
            found[probe.id] = Response(**made_of, text=text)
        for variant, probe in one.probes.items():
            choice = one.gold if rule(one, variant) else (one.gold + 1) % probe.n_options
            found[probe.id] = Response(
                probe_id=probe.id, model_fingerprint="f", model="m", choice=choice
            )
    return Answers("m", "f", found)


def test_each_variant_adds_its_texts_before_the_question(hinted: list[HintedItem]) -> None:
    one = hinted[0]
    assert tuple(one.probes) == VARIANTS
    plain = one.probes[IMAGES_ONLY]
    assert plain == ASKING.probe(one.item, IMAGES_ONLY), "the same probe as every other detector's"
    both = one.probes["hints and summary"].prompt
    assert both.startswith("What the images show:\nImage 1: A scan.\nImage 2: ")
    assert f"Summary of the case:\nIn all, it is {one.item.answer_text}.\n\n" in both
    assert both.endswith(plain.prompt)
    assert "Summary" not in one.probes["hints"].prompt
    assert all(probe.images == one.item.images for probe in one.probes.values())
    own = one.probes["own hints"]
    assert own.follows == one.requests["own hints"].id and "{first reply}" in own.prompt
    asked = one.requests["own hints"]
    assert one.item.question in asked.prompt and asked.ask == "generate"
    assert not any(option in asked.prompt.splitlines()[0] for option in one.item.options or ())


def test_differences_are_paired_and_tested_exactly(hinted: list[HintedItem]) -> None:
    helped = {"summary", "hints and summary"}
    found = answers(hinted, lambda one, variant: variant in helped or one is hinted[0])
    results = {result.variant: result for result in compare_hints(hinted, found)}
    base = results[IMAGES_ONLY]
    assert (base.paired.k_perturbed, base.paired.n, base.paired.n_dropped) == (1, 8, 0)
    summary = results["summary"].paired
    assert (summary.n, summary.c, summary.b, summary.n_dropped) == (6, 5, 0, 2)
    assert summary.gap == pytest.approx(5 / 6) and summary.p_two_sided == 2 * 0.5**5
    assert results["summary"].p_holm == pytest.approx(5 * 2 * 0.5**5)
    hints = results["hints"].paired
    assert (hints.n, hints.gap, hints.p_two_sided) == (7, 0.0, 1.0)
    assert results["own hints"].paired.n == 4, "blank texts of its own are missing ones"
    assert (results["summary"].reveals.k, results["summary"].reveals.n) == (6, 6)
    assert results["own hints"].reveals.k == 0
    lacking = {"n": {"own hints": "needs x"}}
    table = hint_table([*results.values()], {"with one option": 2}, lacking)
    rows = {row.header: [cell.plain() for cell in row.cells] for row in table.rows}
    assert rows[IMAGES_ONLY][0].startswith("12.5 (1/8)")
    assert rows["summary"][1].startswith("16.7 (1/6)")
    assert rows["summary"][2].startswith("+83.3 [") and rows["summary"][5] == "5, 0"
    assert "Not asked: 2 items with one option." in table.caption
    assert "n was not asked with own hints: it needs x." in table.caption


@pytest.mark.parametrize(
    ("answer", "text", "named"),
    [
        ("red", "A hundred cells.", 0),
        ("3", "There are 13.", 0),
        ("Red.", "It is RED, clearly.", 1),
        ("肺炎", "诊断为肺炎。", 1),
    ],
)
def test_an_answer_is_named_by_whole_words(
    items: list[Item], answer: str, text: str, named: int
) -> None:
    fields = items[0].model_dump() | {
        "id": "", "options": (answer, "another"), "answer": 0, "answer_text": answer,
        "extra": {"summary": text},
    }  # fmt: skip
    hinted, _ = hinted_items([Item.model_validate(fields)], ASKING, SETTINGS)
    results = compare_hints(hinted, answers(hinted, lambda *_: True))
    (summary,) = (result for result in results if result.variant == "summary")
    assert (summary.reveals.k, summary.reveals.n) == (named, 1)


def test_items_that_share_their_images_are_one_cluster(items: list[Item]) -> None:
    twins = [items[0], items[0].model_copy(update={"name": "twin", "question": "And?"})]
    twins = [Item.model_validate(item.model_dump() | {"id": ""}) for item in (*twins, items[1])]
    hinted, _ = hinted_items(twins, ASKING, SETTINGS)
    results = compare_hints(hinted, answers(hinted, lambda one, variant: variant != IMAGES_ONLY))
    assert {r.paired.n_independent for r in results if r.variant == "hints"} == {2}


def test_unanswered_and_unreadable_replies(hinted: list[HintedItem]) -> None:
    found = answers(hinted, lambda one, variant: True)
    lost, odd = hinted[0].probes["hints"].id, hinted[1].probes["hints"].id
    responses = {i: r for i, r in found.responses.items() if i != lost}
    responses[odd] = responses[odd].model_copy(update={"choice": -1})
    results = {r.variant: r for r in compare_hints(hinted, Answers("m", "f", responses))}
    hints = results["hints"].paired
    assert (hints.n, hints.b, hints.n_dropped) == (6, 1, 2)
    assert results["hints"].n_unparsed == 1, "unparsed counts as wrong, unanswered as missing"


def test_what_cannot_be_asked_is_counted_by_reason(items: list[Item]) -> None:
    one = items[0].model_copy(update={"options": (items[0].answer_text,), "answer": 0})
    free = items[1].model_copy(update={"options": None, "answer": None})
    blind = items[2].model_copy(update={"images": ()})
    yes = free.model_copy(update={"answer_text": "Yes"})
    hinted, left_out = hinted_items([one, free, blind, yes, items[3]], ASKING, SETTINGS)
    assert left_out == {"without an image": 1, "free-form": 1, "with one option": 1}
    assert [one.probes[IMAGES_ONLY].options for one in hinted] == [("Yes", "No"), items[3].options]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (" \n", ""),
        ("A mass.", "A mass."),
        (["A mass.", " ", "None."], "Image 1: A mass.\nImage 3: None."),
        ('["A mass.", "None."]', "Image 1: A mass.\nImage 2: None."),
        ("[sic] a mass", "[sic] a mass"),
        ([], ""),
    ],
)
def test_texts_of_several_forms(value: Any, text: str, items: list[Item]) -> None:
    assert given_text(with_texts(items[0], hints=value), "hints") == text


@pytest.mark.parametrize("value", [7, {"1": "x"}, ["x", 2], "[1, 2]"])
def test_texts_of_no_form_are_named(value: Any, items: list[Item]) -> None:
    with pytest.raises(DataError, match=r"cases 0000: extra\['hints'\] must be a text, or a list"):
        given_text(with_texts(items[0], hints=value), "hints")


def test_no_texts_and_none_of_their_own_is_an_error(store: ImageStore) -> None:
    with pytest.raises(DataError, match="no item has a text under 'hints' or 'summary'"):
        hinted_items(cases(store, 2), ASKING, HintSettings(own=False))


def test_a_model_that_cannot_write_is_asked_the_rest(hinted: list[HintedItem]) -> None:
    probes, lacking = probes_for_model(hinted, frozenset({"choose"}))
    assert lacking == {"own hints": "needs generate", "own summary": "needs generate"}
    assert {probe.variant for probe in probes} == set(VARIANTS[:4])
    assert probes_for_model(hinted, ALL)[1] == {}


def write_config(folder: Path, items: list[Item], store: ImageStore, **more: Any) -> Path:
    from flipbench.benchmarks.own_format import write_jsonl

    data = write_jsonl(items, store, folder / "data")
    config: Mapping[str, Any] = {
        "run": str(folder / "run"),
        "benchmark": {"format": "jsonl", "path": str(data)},
        "models": {"tiny": {"path": "shapes:llava"}},
        "evaluate": {"hints": {"max_new_tokens": 8}},
        **more,
    }
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_a_real_tiny_model_in_all_variants(
    flipbench: Flipbench, items: list[Item], store: ImageStore, tmp_path: Path
) -> None:
    config = write_config(tmp_path, items, store)
    plan = flipbench("reasoning", config, "--dry-run")
    assert plan.status == 0 and "tiny: 59 questions about 8 items" in plan.out
    result = flipbench("reasoning", config, "-q")
    assert result.status == 0, result.err
    with (tmp_path / "run" / "hints" / "hints.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["Images, and"] for row in rows][:4] == list(VARIANTS[:4])
    assert "images only" in result.out
    again = fb.reasoning(config, progress=False)
    assert again.page.read_text() in result.out + again.page.read_text()
    assert all(report.n_done == 0 for report in again.reports), "nothing is asked again"
    frame = again.to_frame()
    assert list(frame["variant"])[:2] == ["images only", "hints"]
    assert frame.loc[0, "n"] == 8 and frame.loc[1, "n"] == 7


def test_a_configuration_without_models_is_refused(
    items: list[Item], store: ImageStore, tmp_path: Path
) -> None:
    config = write_config(tmp_path, items[:2], store, models={})
    with pytest.raises(ConfigError, match="hints: name at least one model under 'models'"):
        fb.reasoning(config, progress=False)


def test_the_published_gain_from_summaries_fits_one_of_two_baselines() -> None:
    """MedGemma-27B: +30.8 points, 1.82 times; 37.55 % in the abstract, 42.02 % in the text."""
    fits = [round((base + 30.8) / base, 2) for base in (37.55, 42.02)]
    assert fits == [1.82, 1.73]


def test_probes_are_plain_records(hinted: list[HintedItem]) -> None:
    probes, _ = probes_for_model(hinted, ALL)
    assert all(isinstance(probe, Probe) and probe.id for probe in probes)
    assert len({probe.id for probe in probes}) == len(probes)
