"""A custom editor: the caption on a banner across the image."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import ImageDraw

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Drawing


class BannerEditor:
    """Write the caption across the bottom of the image.

    An edited image must have its source's size. A random editor must draw from the candidate's seed
    only, so that a repeated or resumed run makes the same images.
    """

    name = "banner"

    def __init__(self, height: float = 0.3) -> None:
        self.height, self.settings = height, {"version": 1}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order; an exception fails only that candidate."""
        return [self._draw(candidate, images) for candidate in candidates]

    def _draw(self, candidate: Candidate, images: ImageStore) -> Drawing | Exception:
        if candidate.caption is None:
            return DataError(f"{candidate.subject}: no caption yet")
        image = images.open(candidate.source).convert("RGB")
        top = round(image.height * (1 - self.height))
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, top, *image.size), fill="black")
        draw.text((4, top + 4), candidate.caption.text, fill="white")
        return Drawing(image)
