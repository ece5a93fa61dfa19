"""Pairs that people look at and judge outside the page: the picture of pairs, tables out and in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Drawing
from tests.fixtures.command_line import Flipbench


class MostlyIdle:
    """Turn the first ``n_turned`` pictures upside down, and give the others back unchanged."""

    name = "mostly idle"

    def __init__(self, n_turned: int) -> None:
        self.n_turned, self.settings = n_turned, {"version": 1}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Return a batch's pictures, in order."""
        pictures = [images.open(candidate.source).convert("RGB") for candidate in candidates]
        return [
            Drawing(picture.rotate(180) if at < self.n_turned else picture)
            for at, picture in enumerate(pictures)
        ]


def editor(n_turned: int) -> str:
    """Return the override that configures it."""
    target, arguments = "tests.commands.test_people:MostlyIdle", f"{{n_turned: {n_turned}}}"
    return f"generate.editor={{kind: python, target: {target}, arguments: {arguments}}}"


def test_an_edit_that_is_its_original_is_left_out_and_stops_nothing(
    flipbench: Flipbench, config: Path, tmp_path: Path
) -> None:
    given = [config, editor(3)]
    assert flipbench("generate", *given, "--limit", "4").status == 0
    shown = flipbench("show", config, tmp_path / "pairs.png")
    assert shown.status == 0 and (tmp_path / "pairs.png").exists()
    assert "not shown: 1 of 4 edited images" in shown.err
    policy = "filter.policy={rules: [], unjudged: keep}"
    filtered = flipbench("filter", *given, "filter.judges=[]", policy, "--limit", "4")
    assert filtered.status == 0 and "3 pairs of shapes-vqa that nobody has judged" in filtered.out
    assert "the original, byte for byte" in Path("runs/x/filter/reasons.csv").read_text()


def test_a_picture_of_edits_that_changed_nothing_is_refused(
    flipbench: Flipbench, config: Path, tmp_path: Path
) -> None:
    assert flipbench("generate", config, editor(0), "--limit", "2").status == 0
    shown = flipbench("show", config, tmp_path / "pairs.png")
    assert shown.status == 2 and "there are no pairs to show" in shown.err
    assert flipbench("show", config, tmp_path / "edits.png", "--edits").status == 0


def test_before_people_have_kept_a_pair_there_is_none_to_show(
    flipbench: Flipbench, config: Path, tmp_path: Path
) -> None:
    given = [config, "filter.judges=[]", "--limit", "2"]
    assert flipbench("filter", *given).status == 0
    shown = flipbench("show", config, tmp_path / "pairs.png")
    assert shown.status == 2 and "'flipbench show --edits'" in shown.err
