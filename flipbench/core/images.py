"""A content-addressed image store: bytes are stored unchanged and read back as RGB."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import warnings
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from flipbench.core.confined import UnsafePathError, read_confined
from flipbench.core.errors import DataError, shorten
from flipbench.core.files import write_atomically
from flipbench.core.records import ImageRef

MAX_PIXELS = 64_000_000
MIN_EDGE = 2
_NAME = re.compile(r"\w+\.[a-z]+", re.ASCII)
_REMEDY = (
    "run the same command again to recreate it ('flipbench generate' first, for a command that"
    " makes no images)"
)
_SUFFIX = {
    "JPEG": "jpg",
    "MPO": "jpg",  # written by many cameras: a JPEG followed by a preview
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tiff",
}
IMAGE_FORMATS = tuple(fmt for fmt in _SUFFIX if fmt != "MPO")  # which opens as JPEG
"""What Pillow may open files as. It knows others that start programs (EPS: Ghostscript)."""

_MAX_EXIF = 16  # segments; one is allowed, cameras write a few
_MAX_SCANS = 100  # of a JPEG, each of which may take as long as a whole picture; usual are 1 to 12
_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_LARGE = 1_000_000  # pixels, from which on a picture's size has to be paid for by its data
_ADAM7 = ((8, 0, 8, 0), (8, 4, 8, 0), (4, 0, 8, 4), (4, 2, 4, 0), (2, 0, 4, 2), (2, 1, 2, 0))
"""Passes of an interlaced PNG: step and start of columns, then of rows; the last takes odd rows."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the colour type in a PNG's header


def png_bytes(image: Image.Image) -> bytes:
    """Return an image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


class ImageStore:
    """A folder of images named by the SHA-256 of their bytes.

    Nothing is read from it without a check of that name, so a file that was cut, altered or
    replaced counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._intact: dict[Path, tuple[int, int, int]] = {}  # the state of each file when hashed

    def put(self, data: bytes, origin: str) -> ImageRef:
        """Validate an image file's bytes and store them unchanged; a damaged file is replaced.

        Parameters
        ----------
        data : bytes
            The file's content.
        origin : str
            Its origin, for error messages ("row 7 of x.tsv").

        Raises
        ------
        DataError
            If the bytes are not an image, are truncated, exceed ``MAX_PIXELS`` pixels, have an
            edge shorter than ``MIN_EDGE`` pixels, or cannot be written.
        """
        fmt, width, height = check_image(data, origin)
        return self._store(data, _SUFFIX[fmt], width, height)

    def put_image(self, image: Image.Image, origin: str) -> ImageRef:
        """Store a generated image losslessly, as PNG; raises as `put`."""
        check_size(*image.size, origin)
        return self._store(png_bytes(image), "png", *image.size)

    def path(self, ref: ImageRef) -> Path:
        """Return the path of an image, which is always in the folder.

        Raises
        ------
        DataError
            If the record's hash and format are no file's name.
        """
        name = f"{ref.sha256}.{ref.format}"
        if not _NAME.fullmatch(name):
            raise DataError(f"{shorten(ascii(name))}: not the name of a stored image")
        return self.folder / name

    def open(self, ref: ImageRef) -> Image.Image:
        """Return an image as RGB, upright; raises as `read`."""
        return decode(self.read(ref), str(self.path(ref)))[1]

    def read(self, ref: ImageRef) -> bytes:
        """Return the bytes of an image.

        Raises
        ------
        DataError
            If the file is missing or unreadable, or its content is not what its name says.
        """
        path = self.path(ref)
        try:
            data = read_confined(path.name, self.folder)
        except FileNotFoundError as error:
            raise DataError(f"{path}: the image is missing; {_REMEDY}") from error
        except UnsafePathError as error:
            raise DataError(f"{path}: cannot be read: {error.problem}; {_REMEDY}") from error
        except OSError as error:
            raise DataError(
                f"{path}: the image cannot be read ({error.strerror}); {_REMEDY}"
            ) from error
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DataError(
                f"{path}: the image is damaged ({len(data):,} bytes, not those that its name is"
                f" the hash of); {_REMEDY}"
            )
        return data

    def has(self, ref: ImageRef) -> bool:
        """Return whether an image is there and undamaged.

        A file is hashed again only when its size, inode or time of modification has changed.
        """
        try:
            path = self.path(ref)
            about = path.stat()
            state = about.st_mtime_ns, about.st_size, about.st_ino
            if self._intact.get(path) != state:
                self.read(ref)
                self._intact[path] = state
        except (OSError, DataError):
            return False
        return True

    def _store(self, data: bytes, suffix: str, width: int, height: int) -> ImageRef:
        sha256 = hashlib.sha256(data).hexdigest()
        ref = ImageRef(sha256=sha256, format=suffix, width=width, height=height)
        if not self.has(ref):
            write_atomically(self.path(ref), data)
        return ref


def as_rgb(image: Image.Image) -> Image.Image:
    """Return the first frame, upright according to EXIF, with transparency on white."""
    image.load()
    # damaged EXIF data is ignored; what it raises depends on the damage
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


def check_image(data: bytes, origin: str) -> tuple[str, int, int]:
    """Return (format, width, height) of the upright image; raises as `ImageStore.put`."""
    fmt, image = decode(data, origin)
    return fmt, *image.size


def check_size(width: int, height: int, origin: str) -> None:
    """Raise a `DataError` if an image is too large or too small to be stored."""
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{origin}: the image has {width} x {height} pixels, over the limit of"
            f" {MAX_PIXELS:,}; make it smaller"
        )
    if min(width, height) < MIN_EDGE:
        raise DataError(f"{origin}: the image is only {width} x {height} pixels; replace the file")


def decode(data: bytes, origin: str, *, draft: int | None = None) -> tuple[str, Image.Image]:
    """Return the format and the image, as `as_rgb`.

    With ``draft``, a JPEG may be read at a fraction of its size, with edges of at least ``draft``
    pixels if it has them: several times faster for a photograph. Raises as `ImageStore.put`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large sizes and odd EXIF data are handled here
            _check_jpeg_segments(data, origin)
            with open_image(io.BytesIO(data)) as image:
                width, height, fmt = *image.size, str(image.format)
                check_size(width, height, origin)
                if fmt in ("JPEG", "MPO") and _is_too_short(data, width, height):
                    raise DataError(
                        f"{origin}: the image is damaged ({len(data):,} bytes cannot hold"
                        f" {width} x {height} pixels); replace the file"
                    )
                if image.mode == "F":
                    raise DataError(
                        f"{origin}: floating-point pixels have no defined white level; convert the"
                        " image to PNG"
                    )
                if draft:
                    image.draft("RGB", (draft, draft))
                rgb = as_rgb(image)
                if fmt == "PNG" and _lacks_rows(image, data):
                    raise DataError(
                        f"{origin}: the image is damaged (rows of its pixels are missing); replace"
                        " the file"
                    )
                return fmt, rgb
    except Image.DecompressionBombError as error:
        raise DataError(f"{origin}: the image is too large to open safely ({error})") from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{origin}: not an image ({len(data)} bytes); replace the file, or convert it to PNG"
        ) from error
    except (OSError, SyntaxError, ValueError, zlib.error) as error:
        raise DataError(f"{origin}: the image is damaged ({error}); replace the file") from error


def open_image(file: str | Path | IO[bytes]) -> Image.Image:
    """Open an image file as Pillow does, but of ``IMAGE_FORMATS`` only; its pixels wait."""
    return Image.open(file, formats=IMAGE_FORMATS)


def _check_jpeg_segments(data: bytes, origin: str) -> None:
    """Refuse a JPEG of many EXIF segments, each of which Pillow copies, or of many scans."""
    if not data.startswith(b"\xff\xd8"):
        return
    n_exif = n_scans = 0
    at = 2
    while marker := _JPEG_MARKER.search(data, at):
        code, at = marker[1][0], marker.end()
        if code == 0xD9:  # the end of the picture; previews may follow
            break
        if code == 0x01 or 0xD0 <= code <= 0xD8:  # without a length
            continue
        n_exif += code == 0xE1 and data[at + 2 : at + 6] == b"Exif"
        n_scans += code == 0xDA
        if n_exif > _MAX_EXIF:
            raise DataError(f"{origin}: the image is damaged (EXIF); replace the file")
        if n_scans > _MAX_SCANS:
            raise DataError(
                f"{origin}: a JPEG of more than {_MAX_SCANS} scans may take minutes to open;"
                " convert the image to PNG"
            )
        at += int.from_bytes(data[at : at + 2])


def _is_too_short(data: bytes, width: int, height: int) -> bool:
    """Return whether a large JPEG has less than one bit for each block of 8 x 8 pixels.

    Huffman codes have at least one bit. Pillow decodes what is missing as grey.
    """
    return width * height > _LARGE and len(data) * 8 < (width // 8) * (height // 8)


def _lacks_rows(image: Image.Image, data: bytes) -> bool:
    """Return whether a PNG's data ends before its last row; Pillow leaves such rows at 0.

    The data are counted only if one of the last two rows is all 0.
    """
    width, height = image.size
    if all(np.asarray(image.crop((0, y, width, y + 1))).any() for y in (height - 2, height - 1)):
        return False
    bits = data[24] * _CHANNELS[data[25]]
    passes = (*_ADAM7, (1, 0, 2, 1)) if data[28] else ((1, 0, 1, 0),)
    n_expected = 0
    for step_x, x, step_y, y in passes:
        columns, rows = -(-(width - x) // step_x), -(-(height - y) // step_y)
        n_expected += rows * (1 + (columns * bits + 7) // 8) if columns > 0 and rows > 0 else 0
    stream, n, at = zlib.decompressobj(), 0, 8
    while at + 8 <= len(data) and n < n_expected:
        size = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            n += len(stream.decompress(data[at + 8 : at + 8 + size], n_expected))
        at += 12 + size
    return n < n_expected
