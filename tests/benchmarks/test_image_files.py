from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from flipbench.benchmarks import Benchmark, TsvSpec, load_benchmark
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore

MakePng = Callable[..., bytes]


@pytest.fixture
def load(tmp_path: Path, store: ImageStore) -> Callable[..., Benchmark]:
    """Load a TSV whose rows are the given image paths, with ``tmp_path/root`` as the root."""

    def make(*paths: str, root: Path | None = tmp_path / "root") -> Benchmark:
        lines = ["index\tquestion\tanswer\tA\tB\timage_path"]
        lines += [f"{i}\tq?\tA\tx\ty\t{path}" for i, path in enumerate(paths)]
        (tmp_path / "x.tsv").write_text("\n".join(lines))
        return load_benchmark(TsvSpec(path=tmp_path / "x.tsv", image_root=root), store)

    return make


Load = Callable[..., Benchmark]


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that promises a size and holds next to nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.fixture
def root(tmp_path: Path, png: MakePng) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "ok.png").write_bytes(png(1))
    (tmp_path / "secret.png").write_bytes(png(2))
    return folder


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not an image"),
        (b"<html>404</html>", "not an image"),
        (png_header(1, 1), "only 1 x 1 pixels"),
        (png_header(60_000, 60_000), "limit|too large"),
        (png_header(9_000, 9_000), "limit"),
        (png_header(40, 40), "damaged"),
    ],
    ids=["empty", "text", "1x1", "bomb", "large", "short"],
)
def test_bad_images_are_refused(load: Load, root: Path, data: bytes, says: str) -> None:
    (root / "bad.png").write_bytes(data)
    benchmark = load("bad.png", "ok.png")
    assert [item.name for item in benchmark.items] == ["1"]
    (problem,) = benchmark.refused
    assert (problem.row, problem.kind) == (0, "image")
    assert problem.remedy
    assert any(word in problem.what for word in says.split("|"))


def test_a_truncated_image_is_refused(load: Load, root: Path, png: MakePng) -> None:
    whole = png(5, (64, 64))
    (root / "cut.png").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in load("cut.png").refused[0].what


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.png", "leads out of"),
        ("sub/../../secret.png", "leads out of"),
        ("..\\secret.png", "leads out of"),
        ("/a/b/../ok.png", "leads out of"),
        ("{outside}", "is outside"),
        ("link.png", "leads out of"),
        ("linked/secret.png", "leads out of"),
        ("{root}/link.png", "leads out of"),
        ("missing.png", "is not in"),
        ("/gone/missing.png", "has no 'missing.png'"),
        ("loop", "cannot be read|leads out of|is not"),
        ("n" * 5000, "cannot be read"),
        ("", "no image"),
        ("sub", "is a folder"),
    ],
)
def test_bad_paths_are_refused(
    load: Load, root: Path, tmp_path: Path, path: str, says: str
) -> None:
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "linked").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    (root / "sub").mkdir()
    given = path.replace("{outside}", str(tmp_path / "secret.png")).replace("{root}", str(root))
    benchmark = load(given)
    (problem,) = benchmark.refused
    assert any(word in problem.what for word in says.split("|")), problem.what
    assert benchmark.items == []


def test_good_paths_are_read(load: Load, root: Path, store: ImageStore, png: MakePng) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "in.png").write_bytes(png(9))
    (root / "inner.png").symlink_to(root / "ok.png")
    given = ["ok.png", f"{root}/ok.png", "sub/in.png", "inner.png", "/else/in.png", "C:\\x\\in.png"]
    items = load(*given).items
    read = [store.path(item.images[0]).read_bytes() for item in items]
    assert read == [png(1), png(1), png(9), png(1), png(9), png(9)]


def test_files_of_the_same_name_are_distinguished_by_folder(
    load: Load, root: Path, store: ImageStore, png: MakePng
) -> None:
    for shade, folder in ((3, "orig"), (4, "edited")):
        (root / folder).mkdir()
        (root / folder / "7.png").write_bytes(png(shade))
    benchmark = load("/their/edited/7.png", "/their/orig/7.png", "/their/other/7.png")
    read = [store.path(item.images[0]).read_bytes() for item in benchmark.items]
    assert read == [png(4), png(3)]
    assert [p.row for p in benchmark.refused] == [2]
    assert "could be" in benchmark.refused[0].what


def test_images_moved_from_many_folders_are_one_problem(
    load: Load, root: Path, png: MakePng
) -> None:
    (root / "other.png").write_bytes(png(8))
    benchmark = load("/x/a/ok.png", "/x/b/other.png")
    assert [p.kind for p in benchmark.problems] == ["moved_images"]


def test_an_image_file_over_the_limit_is_not_read(
    load: Load, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIPBENCH_MAX_FILE_BYTES", "400")
    (root / "ok.png").write_bytes(b"x" * 401)
    assert "larger than 400 bytes" in load("ok.png").refused[0].what


def test_a_missing_image_root_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image_root is not a folder"):
        load("ok.png", root=tmp_path / "nowhere")
