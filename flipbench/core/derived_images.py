"""Images derived from a benchmark's images by a fixed recipe, each made and encoded once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef


class DerivedImages:
    """The images that a recipe derives from those of a store, and adds to the same store.

    An index next to the images (``derived-<recipe>.jsonl``) maps sources to results, so that
    nothing is encoded twice, and a result keeps its hash even if another release of the PNG encoder
    would write other bytes. A lost index or image is made again.

    Parameters
    ----------
    images : ImageStore
        Contains the sources, and gets the results.
    recipe : str
        The recipe's name, including all its settings; letters, digits, dots and dashes.
    make : callable
        Maps a source and its RGB image to the derived image, or None if there is none.
    """

    def __init__(
        self,
        images: ImageStore,
        recipe: str,
        make: Callable[[ImageRef, Image.Image], Image.Image | None],
    ) -> None:
        if not re.fullmatch(r"[\w.-]+", recipe):
            raise ValueError(f"a recipe's name has letters, digits, dots and dashes: {recipe!r}")
        self.images, self.recipe, self.make = images, recipe, make
        self.index = images.folder / f"derived-{recipe}.jsonl"
        self._known = self._read()

    def of(self, source: ImageRef) -> ImageRef | None:
        """Return the image derived from ``source``, or None if the recipe derives none.

        Raises
        ------
        DataError
            If the source is missing or damaged, or the result cannot be written.
        """
        if source.sha256 in self._known:
            result = self._known[source.sha256]
            if result is None or self.images.has(result):
                return result
        image = self.make(source, self.images.open(source))
        ref = None
        if image is not None:
            ref = self.images.put_image(image, f"{self.recipe} of {source.sha256}")
        self._remember(source, ref)
        return ref

    def _read(self) -> dict[str, ImageRef | None]:
        try:
            lines = self.index.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        results: dict[str, ImageRef | None] = {}
        for line in lines:
            try:
                row = json.loads(line)
                image = row["image"]
                results[str(row["source"])] = None if image is None else ImageRef(**image)
            except (ValueError, KeyError, TypeError):
                continue  # a torn or damaged line: the image is made again
        return results

    def _remember(self, source: ImageRef, ref: ImageRef | None) -> None:
        image = None if ref is None else ref.model_dump(mode="json")
        self._known[source.sha256] = ref
        line = json.dumps({"source": source.sha256, "image": image})
        try:
            # starts a new line even after a torn one
            with self.index.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")
        except OSError as error:
            raise DataError(
                f"{self.index}: cannot record a derived image ({error.strerror});"
                " free some disk space and run the same command again"
            ) from error
