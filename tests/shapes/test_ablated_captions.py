"""The captions of the benchmark of editing: what each ablation says and leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.editing.quality import CAPTIONS, Ablated
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.models.protocols import CaptionText
from flipbench.shapes.benchmark import family_of, scene_of
from flipbench.shapes.wording import describe, read_description
from tests.fixtures.flipped import flipped


def test_ablated_captions_say_what_their_names_say(shapes_items: list[Item]) -> None:
    for item in shapes_items[:5]:
        candidate = flipped(item)
        assert candidate.flip
        family, before = family_of(candidate), scene_of(candidate)
        wanted = describe(family.scenes[family.options.index(candidate.flip.new_text)])
        said = {}
        for what in CAPTIONS:
            (caption,) = Ablated(what)([candidate], ImageStore(Path("nowhere")))
            assert isinstance(caption, CaptionText)
            said[what] = caption.text
        assert said["original"] == describe(before)
        asked = read_description(said["shuffled"], before)
        assert describe(asked) == wanted != said["shuffled"]
        assert said["question and answer"].endswith(wanted)
        assert item.question in said["question and answer"]
        assert said["old answer too"].startswith(wanted)
        assert f"not {item.answer_text}." in said["old answer too"]
        n_changed = len(read_description(said["changes only"], before).things)
        assert 0 < n_changed < len(asked.things)
        with pytest.raises(ValueError, match="nothing to draw"):
            read_description(said["none"], before)
