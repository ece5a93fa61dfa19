"""Compare our Canny with controlnet-aux's, in a process of its own.

controlnet-aux needs torchvision, of which there is no build for a CPU-only torch: its operators
are declared first, and the test that runs this puts both packages on the path.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image

library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def main() -> None:
    """Print how many pixels differ and how many are edges, for pictures of several sizes."""
    from controlnet_aux import CannyDetector

    from flipbench.generate.editors.controls import Control

    for size in ((128, 64), (64, 192), (256, 256)):
        rng = np.random.default_rng(size[0])
        shape = (size[1] // 8, size[0] // 8, 3)
        coarse = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
        image = coarse.resize(size, Image.Resampling.BICUBIC)
        side = min(size)
        theirs = CannyDetector()(image, detect_resolution=side, image_resolution=side)
        ours = Control(detect="run size")(image)
        a, b = np.asarray(ours), np.asarray(theirs)
        print(a.shape == b.shape, int((a != b).sum()), int((a > 0).sum()), file=sys.stdout)


if __name__ == "__main__":
    main()
