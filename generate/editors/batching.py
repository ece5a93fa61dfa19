"""Draw many pictures in batches of one size; where memory runs out, halve the batch and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from PIL import Image

from flipbench.core.errors import ConfigError, DataError, ServiceError
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict
from flipbench.models.protocols import Drawing

from .sizes import Fit, restore

log = logging.getLogger(__name__)
Task = TypeVar("Task")
Size = tuple[int, int]
Drawn = Image.Image | Exception


@dataclass(frozen=True)
class Prepared(Generic[Task]):
    """A picture that is ready to be drawn.

    Attributes
    ----------
    plan : Fit
        Its sizes.
    task : Task
        What the editor draws from.
    extra : dict
        What the edit remembers.
    finish : callable, optional
        Changes the drawn picture, already at the source's size.
    """

    plan: Fit
    task: Task
    extra: JsonDict = field(default_factory=dict)
    finish: Callable[[Image.Image], Image.Image] | None = None


def draw_all(
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    prepare: Callable[[Candidate, int], Prepared[Task]],
    draw: Callable[[Size, Sequence[Task]], Sequence[Drawn]],
    batches: Batches,
    *,
    before: Callable[[Sequence[Task]], None] | None = None,
) -> list[Drawing | Exception]:
    """Prepare, draw and bring back to the source's size; return drawings or errors, in order.

    A `DataError` of one candidate is its own failure; any other error is raised. ``before`` is
    called once, with all tasks that will be drawn.
    """
    out: list[Drawing | Exception | None] = []
    ready: list[Prepared[Task]] = []
    for candidate, seed in zip(candidates, seeds, strict=True):
        try:
            ready.append(prepare(candidate, seed))
        except DataError as error:
            out.append(error)
        else:
            out.append(None)
    if before is not None:
        before([one.task for one in ready])
    drawn = batches.run([(one.plan.run_size, one.task) for one in ready], draw)
    finished = iter([_finish(*pair) for pair in zip(ready, drawn, strict=True)])
    return [next(finished) if done is None else done for done in out]


def pictures(result: Any) -> list[Drawn]:
    """Return a pipeline's pictures; one that its safety checker blanked is an error."""
    flags = getattr(result, "nsfw_content_detected", None) or [False] * len(result.images)
    return [
        ServiceError("the pipeline's safety checker refused the picture; another seed may do")
        if flag
        else image
        for image, flag in zip(result.images, flags, strict=True)
    ]


class Batches:
    """Cuts work into batches that fit.

    Parameters
    ----------
    batch_size : int
        The largest batch that is tried.

    Attributes
    ----------
    max_pixels : float
        Pixels of one batch that are known to be too many, halved; larger batches are not tried
        again.
    """

    def __init__(self, batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        self.batch_size = batch_size
        self.max_pixels = float("inf")

    def run(
        self,
        tasks: Sequence[tuple[Size, Task]],
        draw: Callable[[Size, Sequence[Task]], Sequence[Drawn]],
    ) -> list[Drawn]:
        """Draw all tasks, those of one size together, and return the results in order.

        A single picture that does not fit is a `DataError` of that picture alone. ``draw`` is
        called again for the same tasks after memory ran out, so it must not keep any state.
        """
        results: dict[int, Drawn] = {}
        by_size: dict[Size, list[int]] = {}
        for place, (size, _) in enumerate(tasks):
            by_size.setdefault(size, []).append(place)
        for size, places in by_size.items():
            while places:
                batch = places[: self._fitting(size)]
                drawn = self._draw(size, [tasks[place][1] for place in batch], draw)
                if drawn is None:
                    continue
                results.update(zip(batch, drawn, strict=True))
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
        """Return the results, or None where a smaller batch is to be tried."""
        import torch

        try:
            return draw(size, batch)
        except torch.cuda.OutOfMemoryError:
            pass  # its traceback holds the tensors until the handler is left
        torch.cuda.empty_cache()
        if len(batch) == 1:
            return [
                DataError(
                    f"a single picture of {size[0]} x {size[1]} pixels does not fit into memory;"
                    " set offload to 'model', or lower max_pixels"
                )
            ]
        half = len(batch) // 2
        self.max_pixels = half * size[0] * size[1]
        log.warning(
            "out of memory with %d pictures of %d x %d pixels; going on with %d at a time",
            len(batch),
            *size,
            half,
        )
        return None


def _finish(prepared: Prepared[Task], drawn: Drawn) -> Drawing | Exception:
    if isinstance(drawn, Exception):
        return drawn
    try:
        image = restore(drawn, prepared.plan)
    except DataError as error:
        return error
    if prepared.finish is not None:
        image = prepared.finish(image)
    return Drawing(image, prepared.extra | {"sizes": prepared.plan.to_json()})
