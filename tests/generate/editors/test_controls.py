"""Control images: Canny by OpenCV, the rest by controlnet-aux where it can be had."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from pydantic import ValidationError

from flipbench.core.errors import PrerequisiteError
from flipbench.generate.editors.controls import DETECTORS, KINDS, Control

cv2 = pytest.importorskip("cv2")


def square(size: tuple[int, int] = (64, 48)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((16, 12, 40, 30), fill="black")
    return image


@pytest.mark.parametrize("thresholds", [(100, 200), (10, 20)])
def test_canny_equals_opencv_s(thresholds: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (47, 65, 3), dtype=np.uint8)
    low, high = thresholds
    control = Control(kind="canny", detect="run size", low=low, high=high)(Image.fromarray(noise))
    assert control.mode == "RGB"
    assert control.size == (65, 47)
    expected = cv2.Canny(noise, low, high)
    assert 0 < np.count_nonzero(expected) < expected.size
    for channel in np.moveaxis(np.asarray(control), -1, 0):
        assert np.array_equal(channel, expected)


def test_the_reference_detects_edges_at_a_larger_size() -> None:
    """Of a square picture at a multiple of 64 both ways are one."""
    even = square((64, 64))
    here, there = Control(detect="run size"), Control(detect="x-flux")
    assert np.array_equal(np.asarray(here(even)), np.asarray(there(even)))
    wide = there(square((64, 48)))
    assert wide.size == (64, 48)
    larger = cv2.resize(np.asarray(square()), (85, 64), interpolation=cv2.INTER_AREA)
    padded = np.pad(larger, ((0, 0), (0, 43), (0, 0)), mode="edge")
    expected = cv2.resize(cv2.Canny(padded, 100, 200)[:, :85], (64, 48))
    assert np.array_equal(np.asarray(wide)[..., 0], expected)


@pytest.mark.parametrize("size", [(65, 47), (300, 7), (2, 2)])
@pytest.mark.parametrize("detect", ["run size", "x-flux"])
def test_a_control_image_has_the_source_s_size(size: tuple[int, int], detect: str) -> None:
    assert Control(detect=detect)(Image.new("RGB", size, "red")).size == size


def test_other_modes_are_read_as_rgb() -> None:
    palette = square().convert("P")
    assert np.array_equal(np.asarray(Control()(palette)), np.asarray(Control()(square())))
    assert np.asarray(Control(kind="none")(palette)).tolist() == np.asarray(square()).tolist()


class FakeDetector:
    """Takes what controlnet-aux takes; rounds to 64 and returns an inverted picture."""

    calls: list[dict[str, Any]] = []
    weights: list[str] = []

    @classmethod
    def from_pretrained(cls, where: str) -> FakeDetector:
        if "gone" in where:
            raise OSError("no such file")
        cls.weights.append(where)
        return cls()

    def __call__(self, image: Image.Image, **arguments: Any) -> Image.Image:
        self.calls.append(arguments)
        return image.resize((128, 64)).point(lambda level: 255 - level)


@pytest.fixture
def fake_controlnet_aux(monkeypatch: pytest.MonkeyPatch) -> type[FakeDetector]:
    module = types.ModuleType("controlnet_aux")
    for name, _, _ in DETECTORS.values():
        setattr(module, name, FakeDetector)
    monkeypatch.setitem(sys.modules, "controlnet_aux", module)
    FakeDetector.calls, FakeDetector.weights = [], []
    return FakeDetector


@pytest.mark.parametrize("kind", sorted(DETECTORS))
def test_detectors_are_loaded_once_and_keep_the_image_size(
    kind: str, fake_controlnet_aux: type[FakeDetector]
) -> None:
    control = Control(kind=kind, arguments={"safe": True}, weights="folder")
    for _ in range(2):
        drawn = control(square((100, 70)))
        assert drawn.size == (100, 70)
        assert drawn.mode == "RGB"
    loads = DETECTORS[kind][1]
    assert fake_controlnet_aux.weights == (["folder"] if loads else [])
    for arguments in fake_controlnet_aux.calls:
        assert arguments["detect_resolution"] == arguments["image_resolution"] == 70
        assert arguments["safe"] is True
        assert DETECTORS[kind][2].items() <= arguments.items()


def test_missing_weights_are_named(fake_controlnet_aux: type[FakeDetector]) -> None:
    with pytest.raises(PrerequisiteError, match="no weights for HEDdetector in /gone"):
        Control(kind="hed", weights="/gone")(square())


def test_without_controlnet_aux_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "controlnet_aux", None)
    with pytest.raises(PrerequisiteError, match=r"pip install 'flipbench\[control\]'"):
        Control(kind="depth")(square())
    Control(kind="canny")(square())


def test_an_incompatible_torchvision_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str, extra: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("flipbench.generate.editors.controls.need", broken)
    with pytest.raises(PrerequisiteError, match="a torchvision that matches your torch"):
        Control(kind="mlsd")(square())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "cany"}, "did you mean 'canny'"),
        ({"detect": "512"}, "'x-flux' or 'run size'"),
        ({"low": 300}, "0 <= 300 <= 200"),
    ],
)
def test_contradictory_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Control(**wrong)


def test_each_kind_of_control_has_its_own_settings() -> None:
    made = [Control(kind=kind).settings for kind in KINDS]
    assert len({str(settings) for settings in made}) == len(KINDS)
    assert Control(low=1).settings != Control().settings != Control(detect="run size").settings


@pytest.mark.slow
def test_our_canny_equals_controlnet_aux_s() -> None:
    """Where both apply: the sides are multiples of 64. `make test` installs theirs beside ours."""
    theirs = Path(sys.prefix) / "controlnet-aux"
    if not theirs.is_dir():
        pytest.skip("controlnet-aux is not beside the environment; 'make test' puts it there")
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [sys.executable, Path(__file__).with_name("canny_worker.py")],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{theirs}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    lines = [line.split() for line in found.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["True", "0"]] * 3
    assert all(int(n_edges) > 100 for _, _, n_edges in lines)
