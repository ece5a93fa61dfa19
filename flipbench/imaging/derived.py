"""Images made from a benchmark's images by a fixed recipe, each made and encoded once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef


class DerivedImages:
    """What a recipe makes of the images of a store; the results lie in the same store.

    An index beside the images (``derived-<recipe>.jsonl``) remembers what was made of what, so
    that an image keeps its hash even where another release of the PNG encoder would write other
    bytes, and nothing is encoded twice. A lost index or image is made anew.

    Parameters
    ----------
    images : ImageStore
        Where the sources lie and the results go.
    recipe : str
        Names the recipe with all its settings; letters, digits, dots and dashes.
    make : callable
        From a source and its RGB picture to another picture, or None where there is none to make.
    """

    def __init__(
        self,
        images: ImageStore,
        recipe: str,
        make: Callable[[ImageRef, Image.Image], Image.Image | None],
    ) -> None:
        if not re.fullmatch(r"[\w.-]+", recipe):
            raise ValueError(f"a recipe is named by letters, digits, dots and dashes: {recipe!r}")
        self.images, self.recipe, self.make = images, recipe, make
        self.index = images.folder / f"derived-{recipe}.jsonl"
        self._known = self._read()

    def of(self, source: ImageRef) -> ImageRef | None:
        """Return the image made of ``source``, or None where the recipe makes none.

        Raises
        ------
        DataError
            Where the source is gone or damaged, or the result cannot be written.
        """
        if source.sha256 in self._known:
            known = self._known[source.sha256]
            ref = None if known is None else ImageRef.model_validate(known)
            if ref is None or self.images.path(ref).exists():
                return ref
        made = self.make(source, self.images.open(source))
        ref = None
        if made is not None:
            ref = self.images.put_image(made, f"{self.recipe} of {source.sha256}")
        self._remember(source, ref)
        return ref

    def _read(self) -> dict[str, Any]:
        try:
            lines = self.index.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        known = {}
        for line in lines:
            try:
                row = json.loads(line)
                known[str(row["source"])] = row["image"]
            except (ValueError, KeyError, TypeError):
                continue  # a torn line is made anew
        return known

    def _remember(self, source: ImageRef, ref: ImageRef | None) -> None:
        image = None if ref is None else ref.model_dump(mode="json")
        self._known[source.sha256] = image
        line = json.dumps({"source": source.sha256, "image": image})
        try:
            # begins on a line of its own even after a torn one
            with self.index.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")
        except OSError as error:
            raise DataError(
                f"{self.index}: cannot remember a derived image ({error.strerror});"
                " make room and run the same command again"
            ) from error
