from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.core.errors import DataError
from flipbench.core.records import ImageRef
from flipbench.filters.audit.corpus_overlap.flagged import (
    FLAGGED,
    FlaggedPair,
    read_flagged,
    write_flagged,
)


def flagged(letter: str, distance: float, **fields: object) -> FlaggedPair:
    def ref(text: str) -> ImageRef:
        return ImageRef(sha256=text * 64, format="png", width=8, height=8)

    return FlaggedPair(
        benchmark=ref(letter), corpus=ref("f"), corpus_key="x\u2028.png", distance=distance
    ).model_copy(update=fields)


def test_flagged_pairs_are_read_as_written(tmp_path: Path) -> None:
    pairs = [flagged("a", 0.0125, items=("b 1", "b 2"), category="CT"), flagged("b", 0.0)]
    assert write_flagged(tmp_path, pairs) == tmp_path / FLAGGED
    assert read_flagged(tmp_path) == pairs
    write_flagged(tmp_path, [])
    assert read_flagged(tmp_path) == []


def test_a_pair_that_two_encoders_flag_is_read_once(tmp_path: Path) -> None:
    pairs = [flagged("a", 0.01, encoder="siglip"), flagged("a", 0.2, encoder="phash")]
    write_flagged(tmp_path, pairs)
    assert read_flagged(tmp_path) == pairs[:1]


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run 'flipbench audit' with a corpus"):
        read_flagged(tmp_path)
    path = write_flagged(tmp_path, [flagged("a", 0.01), flagged("b", 0.01)])
    path.write_text(path.read_text().replace("0.01", "-1", 1))
    with pytest.raises(DataError, match=r"flagged.jsonl:1: .*distance"):
        read_flagged(tmp_path)
