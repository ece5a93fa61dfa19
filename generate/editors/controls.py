"""Control images: the input of a ControlNet that preserves the original's composition."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from flipbench.core.errors import DataError, PrerequisiteError, nearest, need
from flipbench.core.records import JsonDict, Value

# kind: (controlnet-aux class, whether it loads weights, call arguments)
DETECTORS: dict[str, tuple[str, bool, JsonDict]] = {
    "hed": ("HEDdetector", True, {}),
    "scribble": ("HEDdetector", True, {"scribble": True}),
    "pidinet": ("PidiNetDetector", True, {}),
    "lineart": ("LineartDetector", True, {}),
    "lineart_coarse": ("LineartDetector", True, {"coarse": True}),
    "lineart_anime": ("LineartAnimeDetector", True, {}),
    "lineart_standard": ("LineartStandardDetector", False, {}),
    "depth": ("MidasDetector", True, {}),
    "depth_zoe": ("ZoeDetector", True, {}),
    "normal": ("NormalBaeDetector", True, {}),
    "mlsd": ("MLSDdetector", True, {}),
    "pose": ("OpenposeDetector", True, {}),
}
KINDS = ("canny", "none", *DETECTORS)
WEIGHTS = "lllyasviel/Annotators"
_MAX_DETECTED = 2**28


class Control(Value):
    """Makes control images of one kind.

    ``canny`` needs only OpenCV; the others need the package ``controlnet-aux`` and, for most of
    them, its weights. ``none`` is the image itself, for ControlNets such as tile and blur.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    detect : {'run size', 'x-flux'}
        Canny only. ``run size`` detects edges at the size at which the image is edited.
        ``x-flux`` follows the reference: it scales the image so that its *short* edge has the
        length of the long one, pads to multiples of 64, detects edges and scales them back.
    low, high : int
        Canny thresholds, in grey levels per pixel.
    arguments : mapping, optional
        Further call arguments of the edge, depth or pose detector.
    weights : str
        Folder or hub id of the detector's weights.

    References
    ----------
    Park et al., arXiv 2511.03774, section 4, and the released script: Canny, 100 and 200.
    """

    kind: str = "canny"
    detect: Literal["x-flux", "run size"] = "x-flux"
    low: int = 100
    high: int = 200
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: str = WEIGHTS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is none of {KINDS}{nearest(self.kind, list(KINDS))}")
        if not 0 <= self.low <= self.high:
            raise ValueError(f"thresholds must satisfy 0 <= {self.low} <= {self.high}")
        return self

    @property
    def settings(self) -> JsonDict:
        """All settings the control image depends on."""
        if self.kind == "canny":
            return {"kind": "canny", "detect": self.detect, "low": self.low, "high": self.high}
        if self.kind == "none":
            return {"kind": "none"}
        return {"kind": self.kind, "arguments": self.arguments, "weights": self.weights}

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the control image (RGB) of ``image``, of the same size."""
        image = image.convert("RGB")
        if self.kind == "none":
            return image
        if self.kind == "canny":
            pixels = np.asarray(image)
            detect = _canny_x_flux if self.detect == "x-flux" else _canny
            return Image.fromarray(detect(pixels, self.low, self.high)).convert("RGB")
        return self._run_detector(image)

    def _run_detector(self, image: Image.Image) -> Image.Image:
        """Detect near the image's size (rounded to multiples of 64), then resize to it."""
        edge = max(64, min(image.size))
        sizes = {"detect_resolution": edge, "image_resolution": edge, "output_type": "pil"}
        output = self._detector(image, **(sizes | DETECTORS[self.kind][2] | self.arguments))
        result: Image.Image = output[0] if isinstance(output, tuple) else output
        return result.convert("RGB").resize(image.size, Image.Resampling.BILINEAR)

    @cached_property
    def _detector(self) -> Any:
        name, has_weights, _ = DETECTORS[self.kind]
        try:
            detectors = need("controlnet_aux", "control")
        except PrerequisiteError:
            raise
        except Exception as error:  # an incompatible torchvision fails in many ways
            raise PrerequisiteError(
                f"control {self.kind!r}: controlnet-aux cannot be imported ({error});"
                " pip install 'flipbench[control]' with a torchvision that matches your torch"
            ) from error
        detector = getattr(detectors, name)
        if not has_weights:
            return detector()
        try:
            return detector.from_pretrained(self.weights)
        except (OSError, ValueError) as error:
            raise PrerequisiteError(
                f"control {self.kind!r}: no weights for {name} in {self.weights}"
                f" ({str(error).splitlines()[0][:200]}); give a folder or hub id that has them"
            ) from error


def _canny(pixels: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return edges, shape (height, width), 0 or 255."""
    edges: np.ndarray = need("cv2", "diffusion").Canny(pixels, low, high)
    return edges


def _canny_x_flux(pixels: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return edges detected at the reference's resolution, shape (height, width), 0 to 255."""
    cv2 = need("cv2", "diffusion")
    height, width = pixels.shape[:2]
    scale = max(height, width) / min(height, width)
    tall, wide = round(height * scale), round(width * scale)
    if tall * wide > _MAX_DETECTED:
        raise DataError(
            f"an image of {width} x {height} pixels is too long for detect 'x-flux', which would"
            f" find its edges at {wide:,} x {tall:,}; set detect to 'run size'"
        )
    larger = cv2.resize(pixels, (wide, tall), interpolation=cv2.INTER_AREA)
    padded = np.pad(larger, ((0, -tall % 64), (0, -wide % 64), (0, 0)), mode="edge")
    edges: np.ndarray = cv2.resize(_canny(padded, low, high)[:tall, :wide], (width, height))
    return edges
