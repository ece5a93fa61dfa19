"""Cases with several pictures: judges see all in order, rules and people the one that changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from flipbench.config.audit import AuditSettings
from flipbench.config.chat import ChatSpec
from flipbench.config.policy import Policy
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef, Item, Probe
from flipbench.core.run import Run
from flipbench.filters.agreement.ratings import ratings_of
from flipbench.filters.audit.duplicates import duplicates, image_groups
from flipbench.filters.judges.api import APIJudge
from flipbench.filters.judges.rules import build_rules
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.filters.judges.vlm import VLMJudge
from flipbench.filters.pipeline import keep_valid
from flipbench.filters.review.exchange import export_tasks, label_config
from flipbench.filters.review.ledger import Ledger
from flipbench.filters.review.tasks import REVIEW, edited_pairs
from flipbench.models.chat.api import ChatAPI
from tests.fixtures.cases import cases, edited_cases, scan
from tests.fixtures.openai_server import OpenAIServer
from tests.fixtures.options import QUIET


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("cases"))
    edited_cases(run)
    run.close()
    return run


@pytest.fixture(scope="module")
def candidates(run: Run) -> list[Candidate]:
    return edited_cases(run)


def expected(candidate: Candidate) -> tuple[ImageRef, ...]:
    assert candidate.edit
    at, images = candidate.item.extra["decides"], candidate.item.images
    return (*images[:at], candidate.edit.image, *images[at + 1 :])


def test_a_judge_sees_all_pictures_in_order(
    server: OpenAIServer, candidates: list[Candidate], run: Run
) -> None:
    server.reply = lambda _: "Answer: KEEP"
    chat = ChatAPI(ChatSpec(base_url=server.base_url, model="o3", max_retries=0, timeout=5))
    decisions = APIJudge(chat, structured=False)(candidates[:3], run.images)
    assert [getattr(d, "decision", d) for d in decisions] == ["keep"] * 3
    sent = [
        [part for part in body["messages"][1]["content"] if part["type"] == "image_url"]
        for body in server.chats()
    ]
    assert sorted(map(len, sent)) == [3, 4, 10]
    requests = [APIJudge(chat)._request(candidate) for candidate in candidates]
    assert [request.images for request in requests] == [expected(c) for c in candidates]


def test_a_model_that_only_answers_sees_them_too(candidates: list[Candidate], run: Run) -> None:
    asked: list[Probe] = []

    class Model:
        name, fingerprint, can = "m", "f", frozenset({"choose"})

        def ask(self, probes: list[Probe], images: ImageStore) -> list[Exception]:
            asked.extend(probes)
            return [RuntimeError("tired")] * len(probes)

    VLMJudge(Model())(candidates, run.images)  # type: ignore[arg-type]
    assert [probe.images for probe in asked] == [expected(c) for c in candidates]


def test_rules_compare_the_edit_with_its_own_source(candidates: list[Candidate], run: Run) -> None:
    rules = build_rules(("wrong-size", "duplicate", "unchanged", "unrelated"), candidates)
    for rule in rules:
        decisions = [getattr(d, "decision", d) for d in rule(candidates, run.images)]
        assert decisions == ["keep"] * len(candidates), rule.slug
    same = [
        replace(c, edit=c.edit.model_copy(update={"image": c.source, "extra": {}}))
        for c in candidates
        if c.edit
    ]
    (unchanged,) = build_rules(("unchanged",), same)
    assert {getattr(d, "decision", d) for d in unchanged(same, run.images)} == {"reject"}
    assert sum(c.source != c.item.images[0] for c in candidates) >= 5


def test_the_filter_keeps_the_cases_with_their_other_pictures(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        edited = edited_cases(run)
        benchmark, _ = keep_valid("cases", edited, [SceneJudge()], run, QUIET)
        ratings = ratings_of(edited, {}, Policy())
    assert list(ratings.originals.values()) == [c.source.sha256 for c in edited]
    assert len(benchmark.pairs) == 8
    assert [pair.perturbed.images for pair in benchmark.pairs] == [expected(c) for c in edited]


def test_the_review_page_shows_the_redrawn_picture_and_numbers_the_others(run: Run) -> None:
    pairs = {pair.key[0]: pair for pair in edited_pairs(run)}
    for candidate in edited_cases(run):
        assert candidate.edit
        pair, images = pairs[candidate.edit.id], candidate.item.images
        at, shown = candidate.picture, pairs[candidate.edit.id].shown()
        assert pair.pictures == (images[at], *images[:at], *images[at + 1 :], candidate.edit.image)
        assert pair.revealed()["left"]["src"].endswith(images[at].sha256)
        assert shown["right"]["src"].endswith(candidate.edit.image.sha256)
        numbers = [n for n in range(1, len(images) + 1) if n != at + 1]
        assert [more["number"] for more in shown["more"]] == numbers
        assert shown["more"][0]["src"].endswith(images[numbers[0] - 1].sha256)
        assert shown["place"] == REVIEW.facts(pair)["redrawn"] == f"image {at + 1} of {len(images)}"


def test_one_picture_has_no_place(run: Run) -> None:
    pair = edited_pairs(run)[0]
    one = replace(pair, others=(), place="")
    assert one.shown()["more"] == [] and "redrawn" not in REVIEW.facts(one)


def test_label_studio_shows_the_other_pictures(run: Run, tmp_path: Path) -> None:
    ledger = Ledger(run, edited_pairs(run))
    for task, pair in zip(json.loads(export_tasks(ledger)), ledger.pairs, strict=True):
        data = task["data"]
        assert len(data["others"]) == len(pair.pictures) - 2
        assert pair.pictures[0].sha256 in data["original"]
        assert pair.pictures[-1].sha256 in data["edited"]
    values = [n.get("valueList") for n in ElementTree.fromstring(label_config(several=True)).iter()]
    assert "$others" in values
    assert "others" not in label_config()


def test_copies_among_several_pictures_are_shown_and_numbered(store: ImageStore) -> None:
    items = cases(store, 3)
    near = store.open(items[0].images[2]).resize((112, 112))
    images = (*items[2].images[:3], store.put_image(near, "copy"))
    blank = store.put_image(Image.new("RGB", (64, 64), (9, 9, 9)), "blank")
    changed = [
        items[0],
        with_images(items[1], (*items[1].images[:5], blank)),
        with_images(items[2], images),
    ]
    groups = image_groups(changed, store, AuditSettings(), progress=False)
    found = {flagged.name: flagged for flagged in duplicates(changed, groups).items}
    assert found["0002"].why.startswith("its image 4 of 4 is nearly that of 0000")
    assert found["0002"].pictures == (images[3], items[0].images[2])
    assert found["0001"].why.startswith("its image 6 of 6 is blank")
    assert found["0001"].pictures == (blank,)
    lost = scan(store, 9_999)
    store.path(lost).unlink()
    broken = with_images(items[1], (*items[1].images[:2], lost))
    groups = image_groups([items[0], broken], store, AuditSettings(), progress=False)
    (flagged,) = duplicates([items[0], broken], groups).items
    assert flagged.why.startswith("its image 3 of 3 cannot be opened")


def with_images(item: Item, images: tuple[ImageRef, ...]) -> Item:
    return Item.model_validate(item.model_dump() | {"id": "", "images": images})
