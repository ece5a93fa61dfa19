"""Paths that data name: inside their folder, regular, bounded."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from flipbench.config.loading import read_mapping
from flipbench.core.confined import UnsafePathError, confined_path, open_confined, read_confined
from flipbench.core.errors import FlipbenchError
from flipbench.core.limits import FILE_BYTES
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Flip
from flipbench.core.run import Run
from flipbench.export.recipe import compare_with_recipe


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with each kind of entry, and a secret beside it."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "a").write_bytes(b"sibling")
    (root / "a").write_bytes(b"content")
    (root / "link-in").symlink_to("a")
    (root / "link-out").symlink_to("../secret")
    (root / "link-abs").symlink_to(tmp_path / "secret")
    (root / "folder-out").symlink_to("..")
    (root / "link-zero").symlink_to("/dev/zero")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    with open(root / "sparse", "wb") as file:
        file.truncate(8 << 30)
    return root


@pytest.mark.parametrize("name", ["a", "sub/../a", "link-in", "./a"])
def test_files_inside_are_read(root: Path, name: str) -> None:
    """Relative, through links that stay inside, or absolute."""
    for path in (name, root / name):
        assert read_confined(path, root) == b"content"
        with open_confined(path, root) as file:
            assert file.read() == b"content"


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "sub/../../secret",
        "/etc/passwd",
        "/dev/zero",
        "link-out",
        "link-abs",
        "link-zero",
        "folder-out/secret",
        "../root-2/a",
        "a\0b",
        "fifo",
        "sub",
        "sparse",
        "",
    ],
)
def test_other_paths_are_refused(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the problem and a remedy, and whether the path exists or not."""
    monkeypatch.setenv(FILE_BYTES.variable, str(1 << 20))
    with pytest.raises(UnsafePathError, match=".+; .+") as error:
        read_confined(name, root)
    assert error.value.problem and error.value.remedy


def test_the_secret_by_its_absolute_path_names_the_setting(root: Path) -> None:
    """The message says what the user can set; an outer root includes the file."""
    secret = root.parent / "secret"
    with pytest.raises(UnsafePathError, match="image_root"):
        confined_path(secret, root, setting="image_root")
    assert read_confined(secret, root.parent) == b"secret"
    assert read_confined(secret, None) == b"secret"


@pytest.mark.parametrize("name", ["fifo", "link-zero", "sub", "sparse"])
def test_kind_and_size_are_checked_without_a_root(root: Path, name: str) -> None:
    """A path that the user named may lie anywhere, but a read of it has to end."""
    with pytest.raises(UnsafePathError):
        open_confined(root / name, None)


def test_sockets_and_files_without_a_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket is named as such; a file that tells size 0 is still read only up to the limit."""
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(UnsafePathError, match="a socket"):
            open_confined("socket", root)
    monkeypatch.setenv(FILE_BYTES.variable, "3")
    with pytest.raises(UnsafePathError, match="larger than 3 bytes"):
        read_confined("/proc/self/status", None)


@pytest.mark.parametrize("name", ["missing", "loop", "a/b", "x" * 5000])
def test_missing_files_raise_what_open_raises(root: Path, name: str) -> None:
    """Callers say what is missing in their own words."""
    with pytest.raises((OSError, UnsafePathError)):
        open_confined(name, root)


def test_links_of_a_hub_snapshot_are_inside(tmp_path: Path) -> None:
    """They lead to the blobs of the same repository, not of another."""
    for repository in ("datasets--a--b", "datasets--c--d"):
        (tmp_path / repository / "blobs").mkdir(parents=True)
        (tmp_path / repository / "blobs" / "123").write_bytes(repository.encode())
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "f00"
    snapshot.mkdir(parents=True)
    (snapshot / "inside").symlink_to("../../blobs/123")
    (snapshot / "other").symlink_to(tmp_path / "datasets--c--d" / "blobs" / "123")
    assert read_confined("inside", snapshot) == b"datasets--a--b"
    with pytest.raises(UnsafePathError):
        read_confined("other", snapshot)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_files_of_a_run_are_regular(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe or an endless device in a downloaded run, recipe or benchmark ends no program."""
    readers: dict[str, Callable[[], object]] = {
        "config.yaml": lambda: read_mapping(tmp_path / "config.yaml"),
        "expected.jsonl": lambda: compare_with_recipe(tmp_path, []),
        "flips/a.jsonl": lambda: list(Run(tmp_path, read_only=True).read(Flip)),
        "pairs.jsonl": lambda: PairedBenchmark.load(tmp_path),
    }
    (tmp_path / "flips").mkdir()
    (tmp_path / "benchmark.json").write_text('{"name": "b"}')
    for name, read in readers.items():
        make(tmp_path / name)
        with pytest.raises(FlipbenchError, match="not a regular file") as error:
            read()
        assert Path(name).name in str(error.value)
