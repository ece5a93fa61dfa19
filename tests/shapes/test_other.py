"""The control's data: the same world, none of the benchmark's scenes, the benchmark's own words."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from flipbench.benchmarks import JsonlSpec, load_benchmark
from flipbench.config.training import CorpusConfig
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.core.images import ImageStore
from flipbench.prompting.prompts import LETTERS
from flipbench.shapes.benchmark import Edition, shapes_vqa_scenes
from flipbench.shapes.other import other_families, write_corpus


def test_no_member_of_any_family_is_in_the_benchmark() -> None:
    families = other_families(200)
    hashes = [scene.content_hash() for family, _ in families for scene in family.scenes]
    assert {scene.content_hash() for scene in shapes_vqa_scenes()}.isdisjoint(hashes)
    assert {family.question.kind for family, _ in families} == {
        "color",
        "shape",
        "number",
        "place",
        "relation",
    }
    assert [shown for _, shown in families] == [shown for _, shown in other_families(200)]


def test_no_member_is_in_the_edition_that_it_controls_for() -> None:
    edition = Edition(seed=3, level="hard")
    families = other_families(60, edition=edition)
    hashes = {scene.content_hash() for family, _ in families for scene in family.scenes}
    for known in (Edition(), edition):
        assert hashes.isdisjoint(scene.content_hash() for scene in shapes_vqa_scenes(known))
    assert {family.question.kind for family, _ in families} == {"number", "relation", "neighbor"}


def test_a_corpus_is_read_like_any_other(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "other", 10, copies=3)
    corpus = read_corpus(CorpusConfig(path=path), seed=0)
    assert corpus.ref["n_lines"] == 30 and corpus.ref["n_examples"] == 30
    for line, (family, shown) in zip(
        path.read_text().splitlines(), other_families(10), strict=False
    ):
        row = json.loads(line)
        asked, reply = (message["content"] for message in row["messages"])
        assert reply == "ABCD"[shown]
        assert f"{'ABCD'[shown]}. {family.options[shown]}" in asked
        assert Image.open(path.parent / row["images"][0]).size == (224, 224)
    before = path.stat().st_mtime_ns
    assert write_corpus(tmp_path / "other", 10, copies=3).stat().st_mtime_ns == before


def test_the_corpus_and_the_benchmark_hold_the_same_questions(tmp_path: Path) -> None:
    write_corpus(tmp_path, 6, copies=2)
    spec = JsonlSpec(format="jsonl", path=tmp_path / "benchmark.jsonl")
    found = load_benchmark(spec, ImageStore(tmp_path / "store"))
    asked = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert len(found.items) == 6 and len(asked) == 12
    wordings = [json.loads(line) for line in (tmp_path / "wordings.jsonl").read_text().splitlines()]
    assert [row["name"] for row in wordings] == [item.name for item in found.items]
    for row, item in zip(wordings, found.items, strict=True):
        assert len({item.question, *row["paraphrases"]}) == 1 + len(row["paraphrases"]) == 3
    for item, row in zip(found.items, asked, strict=False):
        question, reply = (message["content"] for message in row["messages"])
        assert item.question in question and LETTERS[item.answer or 0] == reply
