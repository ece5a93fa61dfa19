"""A run directory outlives torn lines, damaged lines and other writers."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flipbench.core.records import Caption, Edit, Failure, Flip, Response
from flipbench.core.run import Run, environment
from tests.fixtures.stored_run import DAMAGE

WORKER = [sys.executable, str(Path(__file__).with_name("worker.py"))]


def caption(name: str, text: str = "A star.") -> Caption:
    return Caption(flip_id=name, captioner="m", prompt="p/1", text=text)


def shards(run_path: Path, kind: str = "captions") -> list[Path]:
    return sorted((run_path / kind).glob("*.jsonl"))


def raw_lines(run_path: Path, kind: str = "captions") -> list[bytes]:
    """Return the lines of all shards, in order of their bytes."""
    return sorted(line for path in shards(run_path, kind) for line in path.open("rb"))


def read(run_path: Path) -> list[Caption]:
    with Run(run_path) as run:
        return list(run.read(Caption))


def test_appended_records_are_read_by_kind(tmp_path: Path) -> None:
    first, second = caption("a"), caption("b")
    flip = Flip(item_id="i", method="uniform", seed=0, new_answer=1, new_text="blue")
    with Run(tmp_path) as run:
        run.append([first, flip])
        run.append([second])
        run.append([])
        # on disk when append returns: another reader sees it before this writer closes
        assert read(tmp_path) == [first, second]
        assert run.ids(Caption) == {first.id, second.id}
        assert run.index(Flip) == {flip.id: flip}
        assert list(run.read(Failure)) == []
    assert len(raw_lines(tmp_path)) == 2


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    """Return a function for the number of a run's captions that are on disk."""
    sizes: dict[str, int] = {}
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        sizes[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    def n_flushed(run_path: Path) -> int:
        return sum(p.read_bytes()[: sizes.get(str(p), 0)].count(b"\n") for p in shards(run_path))

    monkeypatch.setattr(os, "fsync", watched)
    return n_flushed


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads Linux's /proc")
def test_a_batch_is_flushed_before_the_next(tmp_path: Path, flushed: Callable[[Path], int]) -> None:
    with Run(tmp_path) as run:
        for n, name in enumerate("abc", 1):
            run.append([caption(name)])
            assert flushed(tmp_path) == len(read(tmp_path)) == n


def test_the_same_record_twice_is_read_once(tmp_path: Path) -> None:
    with Run(tmp_path) as run, Run(tmp_path) as other:
        run.append([caption("a"), caption("b"), caption("a")])
        other.append([caption("b"), caption("c")])
        assert len(shards(tmp_path)) == 2
        assert sorted(c.flip_id for c in run.read(Caption)) == ["a", "b", "c"]
        assert len(run.ids(Caption)) == len(run.index(Caption)) == 3


def test_shards_are_read_in_the_order_in_which_their_writers_began(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    for name in ("zebra-host-7-abc123", "ant-host-8-abc123"):  # of earlier versions
        line = caption(name).model_dump_json() + "\n"
        (tmp_path / "captions" / f"{name}.jsonl").write_text(line)
    for name in "cab":
        with Run(tmp_path) as run:
            run.append([caption(name)])
    assert len(shards(tmp_path)) == 5
    names = ["ant-host-8-abc123", "zebra-host-7-abc123", "c", "a", "b"]
    assert [c.flip_id for c in read(tmp_path)] == names


def test_a_file_cut_anywhere_is_read_to_its_last_whole_line_and_the_rest_redone(
    tmp_path: Path,
) -> None:
    records = [caption("a"), caption("b", "two\nlines\u2028é"), caption("c")]
    with Run(tmp_path / "whole") as run:
        run.append(records)
    whole = shards(tmp_path / "whole")[0].read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole), 9), *ends, *(end - 1 for end in ends), 1}):
        path = tmp_path / str(cut)
        (path / "captions").mkdir(parents=True)
        (path / "captions" / "dead.jsonl").write_bytes(whole[:cut])
        n_whole = whole[:cut].count(b"\n")
        assert read(path) == records[:n_whole]
        with Run(path) as run:
            assert run.ids(Caption) == {record.id for record in records[:n_whole]}
            run.append(records[n_whole:])
        assert read(path) == records
        assert (path / "captions" / "dead.jsonl").read_bytes() == whole[:cut], "another's file"
        shutil.rmtree(path)


def test_a_line_that_grows_while_it_is_read_is_left_to_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = (caption("b").model_dump_json() + "\n").encode()
    with Run(tmp_path) as run:
        run.append([caption("a")])
    whole = shards(tmp_path)[0].read_bytes()

    class Growing:
        """A file whose last line is half there at the first look and whole at the next."""

        def __enter__(self) -> list[bytes]:
            return [whole, line[:20], line[20:]]

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(Path, "open", lambda *_: Growing())
    assert [c.flip_id for c in Run(tmp_path).read(Caption)] == ["a"]
    assert not caplog.records


def damage(line: bytes, how: str) -> bytes:
    return {
        "no JSON": b"{not json}\n",
        "no record": b'{"id": "x"}\n',
        "no object": b"17\n",
        "no text": b'{"id": "\xff\xfe"}\n',
        "empty": b"\n",
        "null bytes": b"\0" * 40 + b"\n",
        "changed under its id": line.replace(b'"flip_id":"b"', b'"flip_id":"z"'),
        "an unknown field": line.replace(b"{", b'{"colour":"red",', 1),
        "two lines in one": line.rstrip() + line,
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "no JSON",
        "no record",
        "no object",
        "no text",
        "empty",
        "null bytes",
        "changed under its id",
        "an unknown field",
        "two lines in one",
    ],
)
def test_a_damaged_line_is_reported_set_aside_and_redone(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [caption(name) for name in "abc"]
    with Run(tmp_path) as run:
        run.append(records)
    path = shards(tmp_path)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = damage(lines[1], how)
    path.write_bytes(b"".join(lines))

    with Run(tmp_path) as run, caplog.at_level(logging.WARNING):
        assert list(run.read(Caption)) == [records[0], records[2]]
        assert f"{path}:2 is set aside" in caplog.text
        assert len(caplog.records) == 1
        # what cannot be read does not count as done, so a stage makes it anew
        assert run.ids(Caption) == {records[0].id, records[2].id}
        run.append([records[1]])
        assert {c.flip_id for c in run.read(Caption)} == {"a", "b", "c"}


@pytest.mark.parametrize("lost", ["missing", *DAMAGE])
def test_an_edit_whose_image_is_lost_is_redone(
    lost: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made_of: dict[str, Any] = {
        "caption_id": "c",
        "caption_text": "A star.",
        "source_sha256": "0" * 64,
        "editor": "e",
        "settings": {},
        "seed": 0,
    }
    with Run(tmp_path) as run:
        old = Edit(**made_of, image=run.images.put_image(Image.new("RGB", (8, 8), "red"), "old"))
        run.append([old])
        assert run.ids(Edit) == {old.id}
        DAMAGE.get(lost, Path.unlink)(run.images.path(old.image))
        assert run.ids(Edit) == set()
        assert f"its image is {'damaged' if lost in DAMAGE else 'missing'}" in caplog.text
        # an editor need not draw the same twice: the picture that is there counts
        new = Edit(**made_of, image=run.images.put_image(Image.new("RGB", (8, 8), "blue"), "new"))
        assert new.id == old.id
        run.append([new])
        assert list(run.read(Edit)) == [new]


@pytest.mark.slow
def test_two_processes_on_one_run_directory_lose_and_damage_nothing(tmp_path: Path) -> None:
    run_path, go = tmp_path / "run", tmp_path / "go"
    writers = [
        subprocess.Popen(
            [*WORKER, "write", str(run_path), name, str(go), "--n", "200"], stdout=subprocess.PIPE
        )
        for name in ("left", "right")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    go.touch()
    for writer in writers:
        assert writer.wait(timeout=120) == 0
        writer.stdout.close()  # type: ignore[union-attr]

    written = [json.loads(line)["flip_id"] for line in raw_lines(run_path)]
    counts = Counter(written)
    assert set(counts.values()) == {1, 2}
    expected = {f"{who} {n}" for who in ("left", "right", "all") for n in range(200)}
    assert {name for name, n in counts.items() if n == 2} == {f"all {n}" for n in range(200)}
    assert sorted(c.flip_id for c in read(run_path)) == sorted(expected)


def test_a_forked_process_writes_to_its_own_shard(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.append([caption("parent")])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run.append([caption("child")])
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        run.append([caption("parent again")])
    assert len(shards(tmp_path)) == 2
    assert {c.flip_id for c in read(tmp_path)} == {"parent", "child", "parent again"}


def test_configuration_and_environment_are_kept_with_the_results(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.write_provenance("seed: 0\n")
        run.write_provenance("seed: 0\n")
        assert (tmp_path / "config.yaml").read_text() == "seed: 0\n"
        assert not (tmp_path / "config.1.yaml").exists()
        environment = json.loads((tmp_path / "environment.json").read_text())
        assert environment["python"] == sys.version.split()[0]
        assert environment["packages"]["numpy"]

        for seed in (1, 2):
            run.write_provenance(f"seed: {seed}\n")
        (tmp_path / "config.1.yaml").rename(tmp_path / "taken-away.yaml")
        run.write_provenance("seed: 3\n")
        run.write_provenance("seed: 4\n")
    kept = {path.name: path.read_text() for path in tmp_path.glob("config*.yaml")}
    assert kept == {
        "config.yaml": "seed: 4\n",
        "config.1.yaml": "seed: 2\n",  # the free name, and no older one is overwritten
        "config.2.yaml": "seed: 1\n",
        "config.3.yaml": "seed: 3\n",
    }
    assert (tmp_path / "taken-away.yaml").read_text() == "seed: 0\n"


def test_open_failures_are_those_not_done_since(tmp_path: Path) -> None:
    def failure(stage: str, record_id: str, message: str) -> Failure:
        return Failure(stage=stage, record_id=record_id, subject="q", error="E", message=message)

    with Run(tmp_path) as run:
        run.append([failure("edit", "x", "first"), failure("edit", "y", "never again")])
        run.append([failure("edit", "x", "second"), failure("caption", "z", "elsewhere")])
        assert [f.message for f in run.open_failures("edit", {"y"})] == ["second"]


def test_responses_are_stored_and_read_by_model(tmp_path: Path) -> None:
    mine, other = (
        [Response(probe_id=str(n), model_fingerprint=model, model=model) for n in range(3)]
        for model in ("aaa", "bbb")
    )
    with Run(tmp_path) as run:
        run.append([mine[0], other[0], mine[1], *other[1:], mine[2]])
    assert sorted(p.name for p in (tmp_path / "responses").iterdir()) == ["aaa", "bbb"]
    assert list(run.read(Response, "aaa")) == mine
    assert run.ids(Response, "bbb") == {r.id for r in other}
    assert run.ids(Response) == {r.id for r in (*mine, *other)} and run.count(Response) == 6
    assert list(run.read(Response, "ccc")) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_gpus_are_named_whether_torch_is_loaded_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    (device := tmp_path / "nvidiactl").touch()
    cuda = "is_available=lambda: True, device_count=lambda: 2, get_device_name='GPU {}'.format"
    code = f"from types import SimpleNamespace\ncuda = SimpleNamespace({cuda})\n"
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setattr("flipbench.core.run._GPU_DEVICES", (device,) if is_there else ())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert environment()["gpus"] == (["GPU 0", "GPU 1"] if is_there else [])
    assert ("torch" in sys.modules) == is_there
