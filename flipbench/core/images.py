"""Images by content: bytes go in once, unchanged, and come out as RGB."""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.records import ImageRef

MAX_PIXELS = 64_000_000
MIN_EDGE = 2
_SUFFIX = {
    "JPEG": "jpg",
    "MPO": "jpg",  # what many cameras write: a JPEG with a preview behind it
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tiff",
}


class ImageStore:
    """A folder of images named by the SHA-256 of their bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, what: str) -> ImageRef:
        """Check and keep an image file's bytes as they are.

        Parameters
        ----------
        data : bytes
            The file's content.
        what : str
            Where it comes from, for the message ("row 7 of x.tsv").

        Raises
        ------
        DataError
            Where the bytes are no image, are truncated, exceed ``MAX_PIXELS`` pixels, have an
            edge under ``MIN_EDGE`` pixels, or cannot be written.
        """
        fmt, width, height = check_image(data, what)
        ref = ImageRef(
            sha256=hashlib.sha256(data).hexdigest(), format=_SUFFIX[fmt], width=width, height=height
        )
        path = self.path(ref)
        if not path.exists() or path.stat().st_size != len(data):
            write_atomically(path, data)
        return ref

    def put_image(self, image: Image.Image, what: str) -> ImageRef:
        """Keep a picture made here, losslessly (PNG)."""
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return self.put(buffer.getvalue(), what)

    def path(self, ref: ImageRef) -> Path:
        """Return where an image lies."""
        return self.folder / f"{ref.sha256}.{ref.format}"

    def open(self, ref: ImageRef) -> Image.Image:
        """Return an image as RGB, upright.

        Raises
        ------
        DataError
            Where the file is gone or damaged.
        """
        path = self.path(ref)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(
                f"{path}: the image is gone; run the same command again to make it anew"
            ) from error
        return _decode(data, str(path))[1]


def as_rgb(image: Image.Image) -> Image.Image:
    """Return the first frame, turned upright by its EXIF note, transparent parts on white."""
    image.load()
    # a damaged EXIF note turns nothing; what it raises depends on how it is damaged
    with contextlib.suppress(Exception):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        high_bytes = (np.asarray(image) // 256).clip(0, 255)
        image = Image.fromarray(high_bytes.astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, "white")
        canvas.alpha_composite(image)
        image = canvas
    return image.convert("RGB")


def check_image(data: bytes, what: str) -> tuple[str, int, int]:
    """Return (format, width, height) as seen upright; `ImageStore.put` says what is refused."""
    fmt, image = _decode(data, what)
    return fmt, *image.size


def _decode(data: bytes, what: str) -> tuple[str, Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large sizes and odd EXIF notes: both dealt with
            with Image.open(io.BytesIO(data)) as image:
                width, height, fmt = *image.size, str(image.format)
                if width * height > MAX_PIXELS:
                    raise DataError(
                        f"{what}: the image has {width} x {height} pixels, over the limit of"
                        f" {MAX_PIXELS:,}; make it smaller"
                    )
                if min(width, height) < MIN_EDGE:
                    raise DataError(
                        f"{what}: the image is {width} x {height} pixels, too small to see;"
                        " replace the file"
                    )
                if fmt not in _SUFFIX:
                    raise DataError(f"{what}: {fmt} images are not read; convert it to PNG")
                if image.mode == "F":
                    raise DataError(
                        f"{what}: its pixels are floating-point numbers, whose white is unknown;"
                        " convert it to PNG"
                    )
                return fmt, as_rgb(image)
    except Image.DecompressionBombError as error:
        raise DataError(f"{what}: the image is too large to open safely ({error})") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{what}: not an image ({len(data)} bytes); replace the file") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{what}: the image is damaged ({error}); replace the file") from error
