"""A well-formed PNG whose data end before its last row is damaged, though Pillow opens it."""

from __future__ import annotations

import struct
import zlib

import pytest

from flipbench.core.errors import DataError
from flipbench.core.images import check_image


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of_rows(rows: bytes, size: tuple[int, int], interlaced: bool = False) -> bytes:
    """Write a well-formed grey PNG with these rows, however few they are."""
    head = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, interlaced)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("grey", [0, 7])
@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("width", "height"), [(9, 12), (3, 2), (16, 7)])
def test_a_png_without_its_last_rows_is_refused(
    width: int, height: int, interlaced: bool, grey: int
) -> None:
    steps = (
        [(8, 0, 8, 0), (8, 4, 8, 0), (4, 0, 8, 4), (4, 2, 4, 0), (2, 0, 4, 2), (2, 1, 2, 0)]
        + [(1, 0, 2, 1)]
        if interlaced
        else [(1, 0, 1, 0)]
    )
    sizes = [(len(range(x, width, dx)), len(range(y, height, dy))) for dx, x, dy, y in steps]
    rows = b"".join((b"\0" + bytes([grey]) * w) * h for w, h in sizes if w)
    assert check_image(png_of_rows(rows, (width, height), interlaced), "x") == (
        "PNG",
        width,
        height,
    )
    for kept in (len(rows) // 2, len(rows) - width // 2 - 1):
        short = png_of_rows(rows[:kept], (width, height), interlaced)
        with pytest.raises(DataError, match="row 3: the image is damaged .*; replace the file"):
            check_image(short, "row 3")
