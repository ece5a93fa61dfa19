"""Detectors on cases with several pictures, and models that take one picture only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipbench.api.detection import detect
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response
from flipbench.core.run import Run
from flipbench.evaluate.detectors.grounding.black_image import BlackImage
from flipbench.evaluate.detectors.grounding.image_masking import ImageMasking
from flipbench.evaluate.detectors.grounding.image_swap import ImageSwap
from flipbench.evaluate.detectors.perturbation.bgr_shuffling import BgrShuffling
from flipbench.evaluate.detectors.perturbation.old_answer_attraction import OldAnswerAttraction
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.cases import paired_cases

ASKING = PromptSettings()
DETECTORS = ["perturbation_gap", "image_masking", "image_swap", "black_image", "bgr_shuffling"]
DETECTORS += ["four_quadrants", "old_answer_attraction", "text_only_leakage", "circular_eval"]


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    with Run(tmp_path_factory.mktemp("cases")) as run:
        return paired_cases(run, 16)


def by_variant(detector: Any, benchmark: PairedBenchmark) -> dict[str, list[Probe]]:
    found: dict[str, list[Probe]] = {}
    for probe in detector.probes(benchmark, ASKING):
        found.setdefault(probe.variant, []).append(probe)
    return found


@pytest.mark.parametrize("detector", [ImageMasking(), BlackImage()], ids=["masking", "black"])
def test_every_picture_of_an_item_is_changed(detector: Any, benchmark: PairedBenchmark) -> None:
    own = {item.id: item.images for item in benchmark.originals}
    variants = by_variant(detector, benchmark)
    for variant in variants.keys() - {"original"}:
        assert len(variants[variant]) == 16
        for probe in variants[variant]:
            before = own[probe.item_id]
            assert len(probe.images) == len(before)
            assert all(a != b for a, b in zip(probe.images, before, strict=True))
    (black,) = [p for p in by_variant(BlackImage(), benchmark)["black"][:1]]
    assert all(not np.asarray(benchmark.images.open(ref)).any() for ref in black.images)


def test_colours_are_swapped_in_the_pictures_that_have_any(benchmark: PairedBenchmark) -> None:
    own = {item.id: item for item in benchmark.originals}
    probes = by_variant(BgrShuffling(), benchmark)["bgr"]
    for probe in probes:
        item = own[probe.item_id]
        differ = [i for i, ref in enumerate(probe.images) if ref != item.images[i]]
        assert differ == [item.extra["decides"]], "grey scans have no colours to swap"
    assert probes


def test_swapped_sets_have_as_many_pictures(benchmark: PairedBenchmark) -> None:
    own = {item.id: item.images for item in benchmark.originals}
    swapped: dict[str, list[Probe]] = {}
    for variant, probes in by_variant(ImageSwap(n_swaps=5), benchmark).items():
        for probe in probes if variant.startswith("swapped") else ():
            swapped.setdefault(probe.item_id, []).append(probe)
    for item_id, probes in swapped.items():
        assert len(probes) == 5 == len({probe.images for probe in probes})
        for probe in probes:
            assert len(probe.images) == len(own[item_id])
            assert set(probe.images).isdisjoint(own[item_id])
    left_out = [images for item_id, images in own.items() if item_id not in swapped]
    assert {len(images) for images in left_out} == {9, 10}, "no five others have as many pictures"


def test_the_changed_picture_says_whether_an_edit_changed_anything(
    benchmark: PairedBenchmark,
) -> None:
    asked = {p.item_id for p in OldAnswerAttraction().probes(benchmark, ASKING)}
    several = [p for p in benchmark.pairs if len(p.original.options or ()) > 2]
    assert asked == {pair.perturbed.id for pair in several}
    assert any(pair.changed != (0,) for pair in several)


@pytest.mark.slow
def test_a_trained_model_is_asked_about_up_to_ten_pictures(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    found = detect(
        "shapes:llava", benchmark, detectors=DETECTORS, run=tmp_path / "out", progress=False
    )
    rows = found.to_frame().set_index(["detector", "rule"])
    assert rows.loc[("perturbation_gap", "mcnemar"), "n"] == 16
    assert rows.loc[("four_quadrants", "paper"), "n"] == 16
    assert rows.loc[("image_swap", "label_swap"), "n"] == 12
    assert not (tmp_path / "out" / "failures").exists()


class OnePicture:
    """A model that takes one picture, and refuses more by name."""

    name, fingerprint, can = "one-picture", "one", frozenset({"choose", "text_only"})

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Refuse."""
        return [
            DataError(f"one-picture cannot answer it: it takes 1 image, not {len(p.images)}")
            if len(p.images) > 1
            else Response(probe_id=p.id, model_fingerprint="one", model=self.name, choice=0)
            for p in probes
        ]


def test_a_model_of_one_picture_gets_no_verdict_but_the_reason(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    found = detect(
        OnePicture(), benchmark, detectors=DETECTORS[:4], run=tmp_path / "out", progress=False
    )
    frame = found.to_frame()
    assert set(frame["verdict"]) == {"not_applicable", "inconclusive"}
    assert set(frame["n"]) == {0}
    failures = "".join(p.read_text() for p in (tmp_path / "out" / "failures").glob("*.jsonl"))
    assert "it takes 1 image, not 10" in failures
