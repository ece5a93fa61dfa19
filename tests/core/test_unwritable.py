"""Where nothing can be written, flipbench says so, harms nothing, and continues when it can."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from flipbench.core.errors import DataError
from flipbench.core.records import Caption
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage
from flipbench.reporting import figures
from tests.core.worker import CountStage

WORKER = [sys.executable, str(Path(__file__).with_name("worker.py"))]


def caption(name: str) -> Caption:
    return Caption(flip_id=name, captioner="m", prompt="p/1", text="A star.")


def raw_lines(run_path: Path) -> list[bytes]:
    """Return the lines of all shards, in order of their bytes."""
    return sorted(line for p in (run_path / "captions").glob("*.jsonl") for line in p.open("rb"))


def read(run_path: Path) -> list[Caption]:
    with Run(run_path) as run:
        return list(run.read(Caption))


def test_a_path_below_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/sub: cannot be written \(Not a directory\); choose"):
        Run(tmp_path / "file" / "sub")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every folder")
def test_a_read_only_folder_is_no_run_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match=r"cannot be written \(Permission denied\)"):
            Run(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_of_records_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        (tmp_path / "captions").write_text("in the way")
        with pytest.raises(DataError, match=r"captions: cannot append \(File exists\)"):
            run.append([caption("a")])
        (tmp_path / "captions").unlink()
        run.append([caption("a")])
    assert len(read(tmp_path)) == 1


def undisturbed(tmp_path: Path) -> list[bytes]:
    subprocess.run([*WORKER, "stage", str(tmp_path / "undisturbed")], check=True, timeout=120)
    return raw_lines(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_file_size_limit_stops_with_a_message_and_the_same_command_continues(
    tmp_path: Path,
) -> None:
    run_path = tmp_path / "run"
    command = [*WORKER, "stage", str(run_path)]
    expected = undisturbed(tmp_path)
    limit = sum(map(len, expected)) // 2
    full = subprocess.run(
        [*command, "--file-limit", str(limit)], capture_output=True, text=True, timeout=120
    )
    assert full.returncode == 2, full.stderr
    assert f"DataError: {run_path}/captions: cannot append (File too large)" in full.stdout
    assert "free some disk space and run the same command again" in full.stdout

    kept = raw_lines(run_path)
    assert set(kept) < set(expected)
    assert 0 < len(kept) < len(expected)
    assert len(kept) % 5 == 0  # a batch is there as a whole or not at all

    subprocess.run(command, check=True, timeout=120)
    assert raw_lines(run_path) == expected


FILL_A_DISK = """
mount -t tmpfs -o size=256k none "$1" || exit 77
head -c 220000 /dev/zero > "$1/ballast" || exit 78
shift; "$@"; [ $? = 2 ] || exit 79
run="$4"; cp -r "$run" "$OUT/full"
rm "$(dirname "$run")/ballast"
"$@" || exit 80
cp -r "$run" "$OUT/done"
"""


@pytest.mark.slow
def test_a_full_disk_stops_with_a_message_and_the_same_command_continues(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # a mount in a namespace of its own is gone with the process
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    command = [*WORKER, "stage", str(disk / "run")]
    try:
        full = subprocess.run(
            [*unshare, "sh", "-c", FILL_A_DISK, "sh", str(disk), *command],
            env=os.environ | {"OUT": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    except FileNotFoundError:
        pytest.skip("the program 'unshare' is not there")
    if full.returncode in (1, 77):
        pytest.skip(f"a small disk cannot be mounted here: {full.stderr.strip()}")
    assert full.returncode == 0, full.stdout + full.stderr
    assert f"cannot append ({os.strerror(errno.ENOSPC)})" in full.stdout

    expected, kept = undisturbed(tmp_path), raw_lines(tmp_path / "full")
    assert 0 < len(kept) < len(expected)
    assert set(kept) < set(expected)
    assert raw_lines(tmp_path / "done") == expected


def test_a_disk_that_fails_in_the_middle_leaves_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path) as run:
        run.append([caption("a")])
        with monkeypatch.context() as failing:
            failing.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
            with pytest.raises(DataError, match="I/O error"):
                run.append([caption("b"), caption("c")])
        assert [c.flip_id for c in read(tmp_path)] == ["a"]
        run.append([caption("d")])
    assert [c.flip_id for c in read(tmp_path)] == ["a", "d"]


def test_a_disk_that_fails_in_a_stage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path) as run:
        run.append([caption("a")])
        failing = lambda _: (_ for _ in ()).throw(OSError(5, "I/O error"))  # noqa: E731
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(DataError, match=r"captions: cannot append \(I/O error\)"):
            run_stage(CountStage(0), range(7), run, StageOptions(batch_size=3, progress=False))
    assert [c.flip_id for c in read(tmp_path)] == ["a"]


def test_a_configuration_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Run(tmp_path) as run:
        run.write_provenance("seed: 0\n")
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(DataError, match=r"config\.1\.yaml: cannot be written \(No space left"):
            run.write_provenance("seed: 1\n")
    assert (tmp_path / "config.yaml").read_text() == "seed: 0\n"


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_figure_that_cannot_be_written_is_named(tmp_path: Path, form: str) -> None:
    (tmp_path / f"gap.{form}").mkdir()
    with pytest.raises(DataError, match=rf"gap\.{form}: cannot be written \(Is a directory\)"):
        figures.save(Figure(figsize=(1, 1)), tmp_path / "gap")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
