"""Draw images in batches of one size; halve the batch when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from flipbench.core.errors import DataError, ServiceError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict
from flipbench.models.protocols import Drawing

from .sizes import Fit, restore

log = logging.getLogger(__name__)
Size = tuple[int, int]
Drawn = Image.Image | Exception


@dataclass(frozen=True)
class Task:
    """What a pipeline draws an image from: the image is the source or its control image."""

    prompt: str
    image: Image.Image
    seed: int
    mask: Image.Image | None = None
    control: Image.Image | None = None


@dataclass(frozen=True)
class Prepared:
    """An image that is ready to be drawn.

    Attributes
    ----------
    plan : Fit
        Its sizes.
    task : Task
        The editor's input.
    extra : dict
        Stored in the edit's ``extra``.
    finish : callable, optional
        Post-processes the result at the source's size.
    """

    plan: Fit
    task: Task
    extra: JsonDict = field(default_factory=dict)
    finish: Callable[[Image.Image], Image.Image] | None = None


def draw_all(
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    images: ImageStore,
    prepare: Callable[[Candidate, int, ImageStore], Prepared],
    draw: Callable[[Size, Sequence[Task]], Sequence[Drawn]],
    batches: Batches,
    *,
    before_drawing: Callable[[Sequence[Task]], None] | None = None,
) -> list[Drawing | Exception]:
    """Prepare, draw and restore to the source's size; return drawings or errors, in order.

    A `DataError` in ``prepare`` fails only its candidate; any other error is raised.
    ``before_drawing`` is called once, with all tasks that will be drawn.
    """
    pairs = zip(candidates, seeds, strict=True)
    prepared = [result_or_error(prepare, candidate, seed, images) for candidate, seed in pairs]
    ready = [item for item in prepared if isinstance(item, Prepared)]
    if before_drawing is not None:
        before_drawing([item.task for item in ready])
    drawings = batches.run([(item.plan.run_size, item.task) for item in ready], draw)
    finished = iter([_finish(*pair) for pair in zip(ready, drawings, strict=True)])
    return [item if isinstance(item, DataError) else next(finished) for item in prepared]


def drawn_images(result: Any) -> list[Drawn]:
    """Return a pipeline's images; one blanked by its safety checker becomes an error."""
    flags = getattr(result, "nsfw_content_detected", None) or [False] * len(result.images)
    return [
        ServiceError("the pipeline's safety checker rejected the image; try another seed")
        if flag
        else image
        for image, flag in zip(result.images, flags, strict=True)
    ]


class Batches:
    """Splits work into batches that fit into memory.

    Parameters
    ----------
    batch_size : int
        Largest batch to try.

    Attributes
    ----------
    max_pixels : float
        Limit on the pixels of a batch: half of what last ran out of memory.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.max_pixels = float("inf")

    def run(
        self,
        tasks: Sequence[tuple[Size, Task]],
        draw: Callable[[Size, Sequence[Task]], Sequence[Drawn]],
    ) -> list[Drawn]:
        """Draw all tasks, grouped by size, and return the results in order.

        If a single image does not fit, only that image fails, with a `DataError`. ``draw`` is
        called again for the same tasks after running out of memory, so it must be stateless.
        """
        results: dict[int, Drawn] = {}
        by_size: dict[Size, list[int]] = {}
        for place, (size, _) in enumerate(tasks):
            by_size.setdefault(size, []).append(place)
        for size, places in by_size.items():
            while places:
                batch = places[: self._fitting(size)]
                drawings = self._draw(size, [tasks[place][1] for place in batch], draw)
                if drawings is None:
                    continue
                results.update(zip(batch, drawings, strict=True))
                places = places[len(batch) :]
        return [results[place] for place in range(len(tasks))]

    def _fitting(self, size: Size) -> int:
        pixels = size[0] * size[1]
        return int(max(1, min(self.batch_size, self.max_pixels // pixels)))

    def _draw(
        self,
        size: Size,
        batch: Sequence[Task],
        draw: Callable[[Size, Sequence[Task]], Sequence[Drawn]],
    ) -> Sequence[Drawn] | None:
        """Return the results, or None if a smaller batch should be tried."""
        import torch

        try:
            return draw(size, batch)
        except torch.cuda.OutOfMemoryError:
            pass  # the traceback holds the tensors until the handler exits
        torch.cuda.empty_cache()
        if len(batch) == 1:
            return [
                DataError(
                    f"a single image of {size[0]} x {size[1]} pixels does not fit into memory;"
                    " set offload to 'model', or lower max_pixels"
                )
            ]
        half = len(batch) // 2
        self.max_pixels = half * size[0] * size[1]
        log.warning(
            "out of memory with %d images of %d x %d pixels; continuing with %d at a time",
            len(batch),
            *size,
            half,
        )
        return None


def _finish(prepared: Prepared, drawing: Drawn) -> Drawing | Exception:
    if isinstance(drawing, Exception):
        return drawing
    image = result_or_error(restore, drawing, prepared.plan)
    if isinstance(image, DataError):
        return image
    if prepared.finish is not None:
        image = prepared.finish(image)
    return Drawing(image, prepared.extra | {"sizes": prepared.plan.to_json()})
