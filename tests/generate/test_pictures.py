"""Which of several pictures is redrawn: by rule, by the captioner, by a model; the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.generation import generate, plan_generation
from flipbench.config.chat import ChatSpec
from flipbench.config.experiment import load_config
from flipbench.config.policy import Policy
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, PictureChoice
from flipbench.core.records import Caption, Flip, Item, content_id
from flipbench.core.run import Run
from flipbench.distributed.workers import Workers
from flipbench.filters.decide import Raters
from flipbench.filters.funnel import rule_on
from flipbench.generate.captioners.api import APICaptioner
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.generate.pictures import (
    ByChat,
    ByModel,
    ByPosition,
    ChoosePictureStage,
    Chooser,
    ImageChoice,
    Largest,
    named_picture,
)
from flipbench.generate.pipeline import Generator
from flipbench.models.chat.api import ChatAPI
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from tests.fixtures.cases import COUNTS, Known, cases, edited_cases, scan
from tests.fixtures.openai_server import CAPTION, OpenAIServer
from tests.fixtures.options import QUIET


def chat(server: OpenAIServer) -> ChatAPI:
    model = "gpt-4o-2024-08-06"
    return ChatAPI(ChatSpec(base_url=server.base_url, model=model, max_retries=0, timeout=5))


def flipped(items: list[Item]) -> list[Candidate]:
    found = []
    for item in items:
        assert item.options and item.answer is not None
        new = (item.answer + 1) % len(item.options)
        text = item.options[new]
        flip = Flip(item_id=item.id, method="m", seed=0, new_answer=new, new_text=text)
        found.append(Candidate(item, flip))
    return found


def indexes(chooser: Chooser, candidates: list[Candidate], images: ImageStore) -> list[int | str]:
    return [
        str(chosen) if isinstance(chosen, Exception) else chosen.index
        for chosen in chooser(candidates, images)
    ]


def test_the_cases_have_six_and_a_half_pictures_on_average(store: ImageStore) -> None:
    counts = [len(item.images) for item in cases(store)]
    assert counts == list(COUNTS) and sum(counts) / len(counts) == 6.5


def test_rules_choose_by_position_and_by_size(store: ImageStore) -> None:
    candidates = flipped(cases(store, 4))
    assert indexes(ByPosition(3), candidates, store) == [2, 2, 2, 2]
    assert indexes(ByPosition(-1), candidates, store) == [2, 9, 3, 8]
    few, *_, many = indexes(ByPosition(-9), candidates, store)
    assert "there are 3 images, so none is at position -9" in str(few) and many == 0
    images = (*candidates[0].item.images, scan(store, 7, 256), scan(store, 8, 256))
    large = replace(candidates[0], item=candidates[0].item.model_copy(update={"images": images}))
    assert indexes(Largest(), [large, *candidates[1:]], store)[0] == 3


def test_the_edit_replaces_one_picture_and_keeps_the_others_in_order(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        candidates = edited_cases(run)
    for candidate in candidates:
        at, pair = candidate.item.extra["decides"], candidate.pair()
        assert candidate.choice and candidate.edit
        assert candidate.picture == at and pair.changed == (at,)
        assert candidate.edit.source_sha256 == candidate.item.images[at].sha256
        before, after = list(pair.original.images), list(pair.perturbed.images)
        assert after[at] == candidate.edit.image
        assert before[:at] + before[at + 1 :] == after[:at] + after[at + 1 :]
    stored = {choice.flip_id: choice.index for choice in Run(tmp_path).read(PictureChoice)}
    assert stored == {c.flip.id: c.picture for c in candidates if c.flip}


def test_of_two_equal_pictures_only_the_chosen_one_is_replaced(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        (candidate,) = edited_cases(run, 1)
    twice = (*candidate.item.images, candidate.source)
    item = candidate.item.model_copy(update={"images": twice})
    assert candidate.caption
    caption = candidate.caption.model_copy(update={"picture": 3})
    assert replace(candidate, item=item, caption=caption).pair().changed == (3,)


def test_ids_of_captions_of_the_first_picture_are_as_they_were() -> None:
    made_of = {"flip_id": "f", "captioner": "c", "prompt": "p", "settings": {"a": 1}}
    first = Caption(**made_of, text="t")
    assert first.id == content_id("captions", *made_of.values())
    assert Caption(**made_of, picture=0, text="t").id == first.id
    assert Caption(**made_of, picture=2, text="t").id != first.id


def test_a_picture_that_is_not_there_is_refused(store: ImageStore) -> None:
    (candidate,) = flipped(cases(store, 1))
    caption = Caption(flip_id="f", captioner="c", prompt="p", picture=5, text="t")
    with pytest.raises(DataError, match="image 6 was chosen to be redrawn, but it has only 3"):
        _ = replace(candidate, caption=caption).source
    with pytest.raises(DataError, match="there is no image"):
        _ = Candidate(candidate.item.model_copy(update={"images": ()})).source
    with pytest.raises(DataError, match="no edited image"):
        _ = candidate.perturbed_images


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("Picture: 3", 3),
        ("The first 2 are normal.\n\n**Picture: 3**\n", 3),
        ("Bild: 2", 2),
        ("图片：4", 4),
        ("Image 5 of 6 shows the lesion.", 5),
        ("Pictures 2 and 3 both show it.", None),
        ("Any of them.", None),
        ("", None),
    ],
)
def test_replies_that_name_a_picture_in_other_words(reply: str, number: int | None) -> None:
    assert named_picture(reply) == number


def test_the_captioner_sees_all_pictures_names_one_and_describes_it(
    server: OpenAIServer, tmp_path: Path
) -> None:
    def reply(body: dict[str, Any]) -> str:
        return (
            "Looks so.\nPicture: 3" if "Picture: 2" in body["messages"][0]["content"] else CAPTION
        )

    server.reply = reply
    with Run(tmp_path) as run:
        (item,) = cases(run.images, 1)
        captioner = APICaptioner(chat(server))
        choosing = ChoosePictureStage(ByChat(captioner.chat), run.images)
        generator = Generator(captioner, SceneEditor(), run, choosing=choosing)
        flips, _ = generator.flip([item], QUIET)
        chosen, _ = generator.choose(flips, QUIET)
        (captioned,), reports = generator.caption(chosen, QUIET)
        assert captioned.choice and captioned.choice.reply.endswith("Picture: 3")
        assert captioned.picture == 2 and captioned.caption and captioned.caption.picture == 2
        assert captioned.choice.usage and not reports[0].n_failed
        contents = [body["messages"][1]["content"] for body in server.chats()]
        assert [sum(part["type"] == "image_url" for part in c) for c in contents] == [3, 3]
        assert contents[0][:-1] == contents[1][:-1], "the same pictures in the same order"
        assert "the one to describe and change is number 3." in contents[1][-1]["text"]
        assert generator.progress([item]) == [captioned], "known without asking"
        again, (report,) = generator.choose(flips, QUIET)
        assert report.n_skipped == 1 and again == chosen and len(server.chats()) == 2
        reading = replace(generator, asks=False)
        assert reading.choose(flips, QUIET) == (chosen, [])


def test_a_reply_without_a_picture_is_a_failure_that_the_funnel_names_and_is_retried(
    server: OpenAIServer, tmp_path: Path
) -> None:
    server.reply = lambda _: "Picture: 11"
    with Run(tmp_path) as run:
        items = cases(run.images, 2)
        choosing = ChoosePictureStage(ByChat(chat(server)), run.images)
        generator = Generator(SceneCaptioner(), SceneEditor(), run, choosing=choosing)
        flips, _ = generator.flip(items, QUIET)
        chosen, (report,) = generator.choose(flips, QUIET)
        assert [f.stage for f in report.failures] == ["choose picture"] * 2
        assert "names picture 11, but there are 3" in report.failures[0].message
        captioned, (captions,) = generator.caption(chosen, QUIET)
        assert not captions.n_done and not captions.n_failed, "not captioned without a choice"
        rulings = rule_on(captioned, {}, report.failures, Policy(), Raters()).rulings
        assert [ruling.missed_step for ruling in rulings] == ["captioned"] * 2
        assert "names picture 11" in rulings[0].reason
        server.reply = lambda _: "Picture: 1"
        chosen, (report,) = generator.choose(flips, QUIET)
        assert report.n_done == 2 and [c.picture for c in chosen] == [0, 0]
        for text, why in (("I'm sorry, no.", "declined"), ("Either.", "names no one picture")):
            server.reply = lambda _, text=text: text
            (error,) = ByChat(chat(server))(flips[:1], run.images)
            assert isinstance(error, ServiceError) and why in str(error)


def test_an_item_with_one_picture_needs_no_choice(
    shapes_items: list[Item], shapes_store: ImageStore, tmp_path: Path
) -> None:
    stage = ChoosePictureStage(Known(), shapes_store)
    assert not any(stage.needs(candidate) for candidate in flipped(shapes_items[:3]))


@pytest.mark.slow
def test_the_picture_that_alone_shows_the_answer_decides(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    candidates = flipped(cases(store, 16))
    chosen = ByModel(HuggingFaceVLM("shapes:llava"))(candidates, store)
    right = [
        isinstance(c, ImageChoice) and c.index == candidate.item.extra["decides"]
        for c, candidate in zip(chosen, candidates, strict=True)
    ]
    assert sum(right) >= 12, "the trained tiny model finds most of them among 6.5 on average"
    first = chosen[0]
    assert isinstance(first, ImageChoice) and len(first.shares) == 3
    assert all(0 <= share <= 1 for share in first.shares)
    assert max(first.shares) == first.shares[first.index]


def test_what_a_model_cannot_choose_is_named(
    tiny_vlm: Callable[[str], HuggingFaceVLM], store: ImageStore
) -> None:
    candidate, other = flipped(cases(store, 2))
    free = candidate.item.model_copy(update={"options": None, "answer": None})
    error, chosen = ByModel(tiny_vlm("llava"))([replace(candidate, item=free), other], store)
    assert isinstance(error, DataError) and "free-form" in str(error)
    assert isinstance(chosen, ServiceError) and "letter first" in str(chosen), "it is untrained"

    class Writer:
        name, fingerprint, can = "writer", "w", frozenset({"generate"})

    with pytest.raises(PrerequisiteError, match="writer returns no option probabilities"):
        ByModel(Writer())([other], store)  # type: ignore[arg-type]


def experiment(tmp_path: Path, picture: dict[str, Any], **more: Any) -> Assembly:
    config = load_config(
        {
            "run": str(tmp_path / "run"),
            "benchmark": {"format": "shapes", "n_items": 4},
            "generate": {"picture": picture},
            **more,
        }
    )
    assembly = Assembly.open(config, progress=False)
    vars(assembly)["items"] = cases(assembly.run.images, 4)
    return assembly


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        ({}, [0, 0, 0, 0]),
        ({"position": -1}, [2, 9, 3, 8]),
        ({"by": "largest"}, [1, 4, 3, 1]),
        ({"by": "model", "model": "tiny"}, None),
    ],
)
def test_the_configuration_decides_which_picture_is_redrawn(
    picture: dict[str, Any], expected: list[int] | None, tmp_path: Path
) -> None:
    models = {"tiny": {"path": "shapes:llava"}} if "model" in picture else {}
    assembly = experiment(tmp_path, picture, models=models)
    candidates, reports = generate(assembly)
    assert [r.stage for r in reports].count("choose picture") == (picture != {})
    found = [candidate.picture for candidate in candidates]
    assert found == expected or (expected is None and len(set(found)) > 1)
    assert all(c.edit and c.pair().changed == (c.picture,) for c in candidates)
    (line,) = [text for text in plan_generation(assembly) if "several images" in text]
    assert "4 of them have several images; redrawn: " in line


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ({"position": 0}, "0 is no position"),
        ({"by": "model"}, "give 'model' with 'by: model'"),
        ({"model": "x"}, "give 'model' with 'by: model'"),
        ({"by": "model", "model": "tiney"}, "'tiney' is not under 'models'"),
        ({"by": "captioner"}, "needs a captioner of kind api or local"),
    ],
)
def test_impossible_choices_are_refused(
    picture: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = experiment(tmp_path, picture).generator


def test_asking_the_captioner_is_part_of_the_cost(server: OpenAIServer, tmp_path: Path) -> None:
    captioner = {"kind": "api", "chat": {"model": "gpt-4o", "base_url": server.base_url}}
    assembly = experiment(tmp_path, {"by": "captioner"})
    config = load_config(
        {
            "run": str(tmp_path / "run"),
            "benchmark": {"format": "shapes", "n_items": 4},
            "generate": {"captioner": captioner, "picture": {"by": "captioner"}},
        }
    )
    priced = Assembly(config, assembly.run, Workers(assembly.run, 1, None, None, False))
    vars(priced)["items"] = assembly.items
    lines = [text.partition(":")[0] for text in plan_generation(priced)]
    assert "images to redraw" in lines and "captions" in lines
