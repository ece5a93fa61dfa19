"""A file or folder is there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flipbench.core.errors import DataError
from flipbench.core.files import atomic_file, replace_folder, write_atomically


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


def test_a_finished_folder_takes_its_name(tmp_path: Path) -> None:
    partial, final = tmp_path / ".epoch-1.partial", tmp_path / "epoch-1"
    (partial / "sub").mkdir(parents=True)
    (partial / "sub" / "weights").write_text("w")
    replace_folder(partial, final)
    assert (final / "sub" / "weights").read_text() == "w"
    assert not partial.exists()
