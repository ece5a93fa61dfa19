"""An editor of your own: the caption on a banner across the picture."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import ImageDraw

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Drawing


class BannerEditor:
    """Write the caption across the bottom of the picture.

    An edited picture has exactly its source's size. What an editor draws at random, it draws from
    the candidate's seed, so that a run that is repeated or resumed makes the same pictures.
    """

    name = "banner"

    def __init__(self, height: float = 0.3) -> None:
        self.height, self.settings = height, {"version": 1}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order; an exception fails that candidate alone."""
        return [self._draw(candidate, images) for candidate in candidates]

    def _draw(self, candidate: Candidate, images: ImageStore) -> Drawing | Exception:
        if candidate.caption is None:
            return DataError(f"{candidate.subject}: no caption yet")
        picture = images.open(candidate.item.images[0]).convert("RGB")
        top = round(picture.height * (1 - self.height))
        pen = ImageDraw.Draw(picture)
        pen.rectangle((0, top, *picture.size), fill="black")
        pen.text((4, top + 4), candidate.caption.text, fill="white")
        return Drawing(picture)
