"""A file or folder is there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flipbench.core import files
from flipbench.core.errors import DataError
from flipbench.core.files import atomic_file, remove_partials, replace_folder, write_atomically


def test_text_and_bytes_are_written_as_they_are_and_folders_made(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "new" / "a.txt", "é\r\nb\n")
    assert path.read_bytes() == "é\r\nb\n".encode()
    assert write_atomically(path, b"\x00").read_bytes() == b"\x00"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write_bytes", "replace", "fsync"])
def test_what_was_there_stays_where_a_step_fails(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "a.txt", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, full)
    with pytest.raises(
        DataError, match=r"a.txt: cannot be written \(No space left.*free some disk"
    ):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), atomic_file(tmp_path / "a.txt") as partial:
        partial.write_text("half")
        raise KeyError("row 3")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "parent").write_text("parent's")
    (tmp_path / "link").symlink_to(tmp_path / "parent")
    write_atomically(tmp_path / "link", "own")
    assert (tmp_path / "parent").read_text() == "parent's"
    assert not (tmp_path / "link").is_symlink()


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names that are flushed to disk from now on, in order."""
    names: list[str] = []
    flush = files._flush

    def note(path: Path) -> None:
        names.append(path.name)
        flush(path)

    monkeypatch.setattr(files, "_flush", note)
    return names


def test_content_is_on_disk_before_the_name_and_the_folders_after_it(
    tmp_path: Path, flushed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def note(partial: Path, path: Path) -> Path:
        flushed.append("renamed")
        return replace(partial, path)

    monkeypatch.setattr(Path, "replace", note)
    write_atomically(tmp_path / "runs" / "new" / "a.txt", "a")
    *folders, content, renamed, folder = flushed
    assert folders == [tmp_path.name, "runs"]
    assert content.startswith(".a.txt.") and (renamed, folder) == ("renamed", "new")


def test_a_finished_folder_is_on_disk_with_all_it_holds(tmp_path: Path, flushed: list[str]) -> None:
    partial = tmp_path / ".partial"
    (partial / "sub").mkdir(parents=True)
    (partial / "sub" / "weights").write_text("w")
    replace_folder(partial, tmp_path / "epoch-1")
    assert flushed == [".partial", "sub", "weights", tmp_path.name]


def test_a_finished_folder_takes_its_name(tmp_path: Path) -> None:
    partial, final = tmp_path / ".epoch-1.partial", tmp_path / "epoch-1"
    (partial / "sub").mkdir(parents=True)
    (partial / "sub" / "weights").write_text("w")
    replace_folder(partial, final)
    assert (final / "sub" / "weights").read_text() == "w"
    assert not partial.exists()


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    others = {".test.parquet.mine", ".test.parquet.0123456789", ".other.0123abcd", "test.parquet"}
    for name in (".test.parquet.0123abcd", *others):
        (tmp_path / name).write_text("half")
    remove_partials(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == others
