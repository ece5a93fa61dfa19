"""Images go in as they are and come out as RGB; what is no image is refused with a reason."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from flipbench.core import images
from flipbench.core.errors import DataError
from flipbench.core.images import MAX_PIXELS, ImageStore, as_rgb, check_image, decode
from flipbench.core.records import ImageRef
from tests.fixtures.stored_run import DAMAGE

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, fmt: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, fmt, **settings)
    return buffer.getvalue()


def noise(width: int = 40, height: int = 30) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def left_red_right_blue() -> Image.Image:
    image = Image.new("RGB", (8, 4), RED)
    image.paste(BLUE, (4, 0, 8, 4))
    return image


def opened(folder: Path, data: bytes) -> Image.Image:
    store = ImageStore(folder)
    ref = store.put(data, "row 7 of made-up.tsv")
    image = store.open(ref)
    assert image.mode == "RGB"
    assert image.size == (ref.width, ref.height)
    return image


def pixel(folder: Path, data: bytes) -> tuple[int, ...]:
    """Return the upper left pixel of an image after its way through the store."""
    found = opened(folder, data).getpixel((0, 0))
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(
    ("fmt", "suffix"),
    [
        ("PNG", "png"),
        ("JPEG", "jpg"),
        ("MPO", "jpg"),
        ("WEBP", "webp"),
        ("GIF", "gif"),
        ("BMP", "bmp"),
        ("TIFF", "tiff"),
    ],
)
def test_image_bytes_are_stored_unchanged(fmt: str, suffix: str, tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    several = {"save_all": True, "append_images": [noise()]} if fmt == "MPO" else {}
    data = encoded(noise(), fmt, **several)
    ref = store.put(data, "made up")
    assert (ref.format, ref.width, ref.height) == (suffix, 40, 30)
    assert ref.sha256 == hashlib.sha256(data).hexdigest()
    assert store.path(ref) == tmp_path / "images" / f"{ref.sha256}.{suffix}"
    assert store.path(ref).read_bytes() == data


def test_a_picture_made_here_is_kept_losslessly(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put_image(noise(), "drawn")
    assert ref.format == "png"
    assert np.array_equal(np.asarray(store.open(ref)), np.asarray(noise()))


def test_a_picture_made_here_is_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, exif = ImageStore(tmp_path), Image.Exif()
    exif[0x0112] = 6  # lies on its side
    lying = Image.open(io.BytesIO(encoded(noise(), "JPEG", exif=exif)))
    with monkeypatch.context() as undecoded:
        undecoded.setattr(images, "decode", None)
        ref = store.put_image(lying, "drawn")
    assert store.open(ref).size == (ref.width, ref.height) == (40, 30)


@pytest.mark.parametrize("size", [(1, 9), (8001, 8000)])
def test_a_picture_of_no_usable_size_is_not_stored(size: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="{} x {} pixels".format(*size)):
        ImageStore(tmp_path).put_image(Image.new("L", size), "drawn")
    assert not list(tmp_path.iterdir())


def test_put_twice_writes_once(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "first")
    os.utime(store.path(ref), (1, 1))
    assert store.put(encoded(noise()), "second") == ref
    assert store.path(ref).stat().st_mtime == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_not_read_and_put_repairs_it(damage: str, tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "first")
    assert store.has(ref) and store.read(ref) == encoded(noise())
    DAMAGE[damage](store.path(ref))
    assert not store.has(ref)
    for use in (store.open, store.read):
        with pytest.raises(DataError, match=rf"{ref.sha256}\.png: the image is damaged .*again to"):
            use(ref)
    store.put(encoded(noise()), "again")
    assert store.has(ref) and store.open(ref).size == (40, 30)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "", "a\n"])
def test_a_record_names_no_file_outside_of_the_store(name: str, tmp_path: Path) -> None:
    """Records of a run may be somebody else's."""
    store = ImageStore(tmp_path)
    ref = ImageRef(sha256=name, format="png", width=2, height=2)
    assert not store.has(ref)
    with pytest.raises(DataError, match="not the name of a stored image"):
        store.read(ref)


def test_a_pipe_in_place_of_an_image_is_not_waited_for(tmp_path: Path) -> None:
    """Neither is a link to a device read."""
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "first")
    for replace in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        store.path(ref).unlink()
        replace(store.path(ref))
        assert not store.has(ref)


def test_a_folder_in_place_of_a_file_is_reported(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "first")
    store.path(ref).unlink()
    store.path(ref).mkdir()
    assert not store.has(ref)
    with pytest.raises(DataError, match=r"cannot be read: .* is a folder"):
        store.open(ref)


def test_a_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "first")
    assert store.has(ref)
    with monkeypatch.context() as unread:
        unread.setattr(ImageStore, "read", None)
        assert store.has(ref)
    os.utime(store.path(ref), (1, 1))
    assert store.has(ref)
    with monkeypatch.context() as unread, pytest.raises(TypeError):
        os.utime(store.path(ref), (2, 2))
        unread.setattr(ImageStore, "read", None)
        store.has(ref)


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_put_leaves_the_whole_file_or_none(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ImageStore(tmp_path)

    def full(path: Path, _: object) -> None:
        if step == "write_bytes":
            with path.open("wb") as file:
                file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(Path, step, full)
        with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
            store.put(encoded(noise()), "made up")
    assert list(tmp_path.iterdir()) == []
    store.put(encoded(noise()), "made up")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_image_put_twice_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, replace, waiting = ImageStore(tmp_path), Path.replace, ["rival"]

    def rival_first(partial: Path, target: Path) -> Path:
        if waiting:
            store.put(encoded(noise()), waiting.pop())
        return replace(partial, target)

    monkeypatch.setattr(Path, "replace", rival_first)
    ref = store.put(encoded(noise()), "made up")
    assert waiting == []
    assert store.open(ref).size == (40, 30)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_deleted_image_is_named(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "made up")
    store.path(ref).unlink()
    with pytest.raises(DataError, match=rf"{ref.sha256}\.png: the image is missing; run the same"):
        store.open(ref)


def assert_refused(tmp_path: Path, data: bytes, message: str) -> None:
    store = ImageStore(tmp_path / "images")
    with pytest.raises(DataError, match="row 7: .*" + message):
        store.put(data, "row 7")
    assert not store.folder.exists()


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_image_is_refused(fmt: str, share: float, tmp_path: Path) -> None:
    data = encoded(noise(), fmt)
    assert_refused(
        tmp_path, data[: int(len(data) * share)], "(damaged|not an image).*replace the file"
    )


@pytest.mark.parametrize(
    "data", [b"", b"no image", b"<svg/>", b"\x89PNG\r\n\x1a\n"], ids=["empty", "text", "svg", "png"]
)
def test_a_file_that_is_not_an_image_is_refused(data: bytes, tmp_path: Path) -> None:
    assert_refused(tmp_path, data, "(not an image|damaged).*replace the file")


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1)])
def test_an_image_too_small_to_see_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    assert_refused(
        tmp_path, encoded(Image.new("RGB", size)), f"{size[0]} x {size[1]} pixels; replace"
    )


def test_an_unusual_format_is_refused_unread(tmp_path: Path) -> None:
    assert_refused(tmp_path, encoded(noise(), "PPM"), "not an image.*convert it to PNG")


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF")
    assert_refused(tmp_path, data, "floating-point.*convert the image to PNG")


def png_of_claimed_size(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("width", "height"), [(8001, 8000), (10_000, 9_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)]
)
def test_a_header_that_claims_a_huge_picture_is_refused(
    width: int, height: int, tmp_path: Path
) -> None:
    assert_refused(tmp_path, png_of_claimed_size(width, height), "(over the limit|too large)")


def test_a_small_file_that_unpacks_to_a_huge_picture_is_refused_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = int(MAX_PIXELS**0.5) + 1
    data = encoded(Image.new("1", (edge, edge)))
    assert len(data) < MAX_PIXELS / 1000

    def unpack(_: object) -> None:
        raise AssertionError("the picture was unpacked")

    monkeypatch.setattr(ImageFile.ImageFile, "load", unpack)
    assert_refused(
        tmp_path, data, f"{edge} x {edge} pixels, over the limit of 64,000,000; make it smaller"
    )


def test_a_picture_at_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flipbench.core.images.MAX_PIXELS", 40 * 30)
    assert check_image(encoded(noise()), "x") == ("PNG", 40, 30)
    with pytest.raises(DataError, match="over the limit of 1,200"):
        check_image(encoded(noise(41)), "x")


def test_a_huge_image_placed_in_the_folder_is_not_opened(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    ref = store.put(encoded(noise()), "made up")
    store.path(ref).write_bytes(png_of_claimed_size(20_000, 20_000))
    with pytest.raises(DataError, match=ref.sha256):
        store.open(ref)


@pytest.mark.parametrize("fmt", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(fmt: str, tmp_path: Path) -> None:
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), fmt)
    red, green, blue = pixel(tmp_path, data)
    assert red > 200
    assert max(green, blue) < 50


@pytest.mark.parametrize("fmt", ["PNG", "GIF"])
@pytest.mark.parametrize("transparent", [True, False])
def test_a_transparent_palette_color_becomes_white(
    fmt: str, transparent: bool, tmp_path: Path
) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*GREEN, *RED])
    settings = {"transparency": 1} if transparent else {}
    assert pixel(tmp_path, encoded(image, fmt, **settings)) == (WHITE if transparent else RED)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("RGBA", (255, 0, 0, 0), WHITE),
        ("RGBA", (255, 0, 0, 255), RED),
        ("RGBA", (255, 0, 0, 128), (255, 127, 127)),
        ("LA", (0, 0), WHITE),
        ("L", 100, (100, 100, 100)),
        ("1", 1, WHITE),
    ],
)
def test_transparency_is_flattened_onto_white(
    mode: str, color: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert pixel(tmp_path, encoded(Image.new(mode, (4, 4), color))) == expected


@pytest.mark.parametrize("value", [0, 255, 40_000, 65_535])
@pytest.mark.parametrize(
    ("fmt", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2"), ("TIFF", "<i4")]
)
def test_sixteen_bits_keep_their_high_byte(
    fmt: str, dtype: str, value: int, tmp_path: Path
) -> None:
    data = encoded(Image.fromarray(np.full((4, 4), value, dtype)), fmt)
    assert pixel(tmp_path, data) == (value // 256,) * 3


@pytest.mark.parametrize(
    ("orientation", "size", "corner"),
    [
        (1, (8, 4), RED),
        (2, (8, 4), BLUE),  # mirrored
        (3, (8, 4), BLUE),  # half a turn
        (6, (4, 8), RED),  # a quarter turn: the left side is up
        (8, (4, 8), BLUE),  # the right side is up
    ],
)
def test_an_image_is_rotated_by_its_exif_orientation(
    orientation: int, size: tuple[int, int], corner: tuple[int, ...], tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(left_red_right_blue(), exif=exif)
    assert opened(tmp_path, data).size == size  # and so says the reference
    assert pixel(tmp_path, data) == corner


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "WEBP"])
def test_a_damaged_exif_orientation_is_ignored(fmt: str, tmp_path: Path) -> None:
    data = encoded(left_red_right_blue(), fmt, exif=b"Exif\0\0garbage")
    assert opened(tmp_path, data).size == (8, 4)


@pytest.mark.parametrize("fmt", ["GIF", "WEBP"])
def test_the_first_frame_of_an_animation_is_shown(fmt: str, tmp_path: Path) -> None:
    first, second = Image.new("RGB", (16, 16), RED), Image.new("RGB", (16, 16), BLUE)
    settings = {"lossless": True} if fmt == "WEBP" else {}
    data = encoded(first, fmt, save_all=True, append_images=[second], duration=100, **settings)
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames", 1) == 2
    assert pixel(tmp_path, data) == RED


def test_the_first_frame_is_shown_whatever_frame_the_caller_looked_at() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, BLUE)]
    with Image.open(
        io.BytesIO(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    ) as image:
        assert as_rgb(image).getpixel((0, 0)) == RED


@pytest.mark.parametrize(
    ("fmt", "draft", "size"),
    [
        ("JPEG", None, (1600, 1200)),
        ("JPEG", 256, (400, 300)),
        ("JPEG", 1000, (1600, 1200)),
        ("PNG", 256, (1600, 1200)),
    ],
)
def test_a_jpeg_may_be_read_at_a_fraction_of_its_size(
    fmt: str, draft: int | None, size: tuple[int, int]
) -> None:
    data = encoded(Image.linear_gradient("L").resize((1600, 1200)).convert("RGB"), fmt)
    name, image = decode(data, "gradient", draft=draft)
    whole = decode(data, "gradient")[1].resize((16, 16), Image.Resampling.BOX)
    small = image.resize((16, 16), Image.Resampling.BOX)
    assert (name, image.size, image.mode) == (fmt, size, "RGB")
    assert np.abs(np.asarray(small, int) - np.asarray(whole, int)).max() <= 2


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
