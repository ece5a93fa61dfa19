"""The stage runner: skip, batch, go on after failures, stop where it must, survive being killed."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.records import Caption, Failure, Flip, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage

WORKER = [sys.executable, str(Path(__file__).with_name("worker.py"))]
Answer = Callable[[str], Record | Exception]


def caption(name: str) -> Caption:
    return Caption(flip_id=name, captioner="m", prompt="p/1", text=f"text of {name}")


class Captions:
    """A stage that answers as it is told and keeps the batches it was given."""

    name = "caption"
    record: type[Record] = Caption

    def __init__(self, answer: Answer = caption, raises: dict[str, Exception] | None = None):
        self.answer, self.raises = answer, raises or {}
        self.batches: list[list[str]] = []

    def id_of(self, name: str) -> str:
        return caption(name).id

    def subject(self, name: str) -> str:
        return f"item {name}"

    def __call__(self, names: Sequence[str]) -> Sequence[Record | Exception]:
        self.batches.append(list(names))
        for name in names:
            if name in self.raises:
                raise self.raises[name]
        return [self.answer(name) for name in names]


def go(run: Run, stage: Captions, names: str) -> StageReport:
    return run_stage(stage, names, run, StageOptions(batch_size=3, progress=False))


def done(run: Run) -> list[str]:
    return [record.flip_id for record in run.read(Caption)]


def test_inputs_are_batched_in_order_and_recorded(tmp_path: Path) -> None:
    stage = Captions()
    with Run(tmp_path) as run:
        report = go(run, stage, "abcdefg")
        assert stage.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
        assert list(run.read(Caption)) == [caption(name) for name in "abcdefg"]
    assert (report.n_done, report.n_skipped, report.n_failed) == (7, 0, 0)
    assert str(report) == "caption: 7 done, 0 already there, 0 failed"


def test_what_is_done_is_skipped(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        go(run, Captions(), "bd")
    with Run(tmp_path) as run:
        stage = Captions()
        report = go(run, stage, "abcde")
        assert stage.batches == [["a", "c", "e"]]
        assert (report.n_done, report.n_skipped) == (3, 2)
        stage = Captions()
        assert go(run, stage, "abcde").n_skipped == 5
        assert stage.batches == []


def test_repeated_inputs_are_done_once(tmp_path: Path) -> None:
    stage = Captions()
    with Run(tmp_path) as run:
        assert go(run, stage, "abaabc").n_done == 3
        assert stage.batches == [["a", "b", "c"]]


def test_each_batch_is_kept_before_the_next_begins(tmp_path: Path) -> None:
    seen: list[int] = []
    with Run(tmp_path) as run:

        def look(name: str) -> Record:
            seen.append(len(run.ids(Caption)))
            return caption(name)

        go(run, Captions(look), "abcdef")
    assert seen == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize("size", [0, -3])
def test_a_non_positive_size_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_size must be at least 1, not {size}"):
        StageOptions(batch_size=size)


def test_a_batch_that_raises_is_retried_one_by_one(tmp_path: Path) -> None:
    stage = Captions(raises={"b": RuntimeError("out of memory")})
    with Run(tmp_path) as run:
        report = go(run, stage, "abcdef")
        assert stage.batches == [["a", "b", "c"], ["a"], ["b"], ["c"], ["d", "e", "f"]]
        assert done(run) == ["a", "c", "d", "e", "f"]
        (failure,) = run.read(Failure)
    assert (report.n_done, report.n_failed) == (5, 1)
    assert failure == report.failures[0]
    assert failure.stage == "caption"
    assert failure.record_id == caption("b").id
    assert failure.subject == "item b"
    assert failure.error == "RuntimeError"
    assert failure.message == "RuntimeError: out of memory"


def test_a_returned_exception_fails_only_its_item(tmp_path: Path) -> None:
    def refuse_b(name: str) -> Record | Exception:
        return ServiceError("the server refused") if name == "b" else caption(name)

    stage = Captions(refuse_b)
    with Run(tmp_path) as run:
        report = go(run, stage, "abc")
        assert stage.batches == [["a", "b", "c"]]
        assert done(run) == ["a", "c"]
    assert str(report) == (
        "caption: 2 done, 0 already there, 1 failed\n  item b: the server refused"
    )


def test_an_error_with_half_a_surrogate_pair_is_recorded(tmp_path: Path) -> None:
    """Servers cut their messages in the middle of a character."""
    stage = Captions(lambda name: ServiceError("status 400: a\ud800b"))
    with Run(tmp_path) as run:
        go(run, stage, "a")
        assert [failure.message for failure in run.read(Failure)] == ["status 400: a\\ud800b"]


def test_failures_are_retried_and_closed_on_success(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        go(run, Captions(raises={"b": DataError("no"), "c": DataError("no")}), "abc")
        stage = Captions(raises={"c": DataError("still not")})
        report = go(run, stage, "abc")
        assert stage.batches[0] == ["b", "c"]
        assert (report.n_done, report.n_skipped, report.n_failed) == (1, 1, 1)
        (left,) = run.open_failures("caption", run.ids(Caption))
        assert left.message == "still not"
        assert go(run, Captions(), "abc").n_failed == 0
        assert run.open_failures("caption", run.ids(Caption)) == []


def test_a_report_names_three_failures_and_counts_the_rest(tmp_path: Path) -> None:
    stage = Captions(lambda name: ServiceError(f"no {name}"))
    with Run(tmp_path) as run:
        lines = str(go(run, stage, "abcde")).splitlines()
    assert lines[0] == "caption: 0 done, 0 already there, 5 failed"
    assert lines[1:4] == [f"  item {name}: no {name}" for name in "abc"]
    assert lines[4] == "  ... and 2 more (see failures/ in the run directory)"


def test_a_missing_prerequisite_that_is_raised_stops_the_stage(tmp_path: Path) -> None:
    stage = Captions(raises={"e": PrerequisiteError("no key: set OPENAI_API_KEY")})
    with Run(tmp_path) as run:
        with pytest.raises(PrerequisiteError, match="no key"):
            go(run, stage, "abcdefghi")
        assert stage.batches == [["a", "b", "c"], ["d", "e", "f"]]
        assert done(run) == ["a", "b", "c"]
        assert list(run.read(Failure)) == []


def test_a_missing_prerequisite_that_is_returned_stops_after_keeping_the_batch(
    tmp_path: Path,
) -> None:
    def refuse_e(name: str) -> Record | Exception:
        return PrerequisiteError("no key") if name == "e" else caption(name)

    stage = Captions(refuse_e)
    with Run(tmp_path) as run:
        with pytest.raises(PrerequisiteError, match="no key"):
            go(run, stage, "abcdefghi")
        assert len(stage.batches) == 2
        assert done(run) == ["a", "b", "c", "d", "f"]
        assert list(run.read(Failure)) == []


def test_an_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    def interrupt_e(name: str) -> Record:
        if name == "e":
            raise KeyboardInterrupt
        return caption(name)

    with Run(tmp_path) as run, pytest.raises(KeyboardInterrupt):
        go(run, Captions(interrupt_e), "abcdef")
    with Run(tmp_path) as run:
        assert done(run) == ["a", "b", "c"]


def test_an_unwritable_run_stops_the_stage(tmp_path: Path) -> None:
    stage = Captions()
    (tmp_path / "captions").write_text("in the way")
    with Run(tmp_path) as run, pytest.raises(DataError, match="cannot append"):
        go(run, stage, "abcdef")
    assert len(stage.batches) == 1


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Captions(lambda name: caption(name + "!")), "returned captions .*fix its id_of"),
        (
            Captions(lambda n: Flip(item_id=n, method="m", seed=0, new_answer=0, new_text="")),
            "returned flips",
        ),
    ],
)
def test_a_stage_whose_record_has_another_id_is_refused(
    stage: Captions, message: str, tmp_path: Path
) -> None:
    with Run(tmp_path) as run:
        with pytest.raises(ValueError, match=message):
            go(run, stage, "abc")
        assert done(run) == []


def test_a_stage_that_loses_a_result_is_refused(tmp_path: Path) -> None:
    class Losing(Captions):
        def __call__(self, names: Sequence[str]) -> Sequence[Record | Exception]:
            return super().__call__(names)[:-1]

    with Run(tmp_path) as run:
        with pytest.raises(ValueError, match="shorter"):
            go(run, Losing(), "abc")
        assert done(run) == []


def test_progress_shows_counts_rate_time_left_and_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def slow(name: str) -> Record | Exception:
        time.sleep(0.06)
        return ServiceError("no") if name == "c" else caption(name)

    with Run(tmp_path) as run:
        go(run, Captions(), "ab")
        run_stage(Captions(slow), "abcdefghij", run, StageOptions(batch_size=2))
        shown = capsys.readouterr().err.split("\r")
        run_stage(Captions(slow), "abdefghij", run)
        assert capsys.readouterr().err == ""  # nothing to do, nothing to show
    middle = [text for text in shown if re.search(r"caption: +\d+%.* [468]/10 ", text)]
    assert middle
    assert all(re.search(r"\[\d\d:\d\d<\d\d:\d\d, .*(rec/s|s/rec)", text) for text in middle)
    assert " 10/10 " in shown[-1]
    assert "failed=1" in shown[-1]


def test_a_file_or_pipe_gets_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path) as run:
        run_stage(Captions(), "ab", run, StageOptions(batch_size=2))
    assert capsys.readouterr().err == ""


class Server:
    """Starts the stage in processes of their own, one at a time."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.process = subprocess.Popen(
            [*WORKER, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, run_path: Path) -> int:
        """Start one and return its process id."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(["stage", str(run_path), *self.options]) + "\n")
        self.process.stdin.flush()
        return int(self.read("pid"))

    def read(self, word: str) -> str:
        """Return what follows the next line that begins with ``word``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the server ended before it said {word!r}")

    def finish(self, run_path: Path) -> None:
        """Start one and let it end."""
        self.start(run_path)
        assert self.read("exit") == "0"

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


N_KILLS, N_ITEMS = 24, 300


@pytest.mark.slow
def test_killed_at_any_moment_and_continued_leaves_every_record_once(tmp_path: Path) -> None:
    """Kill a process at drawn moments, up to six times a run, and let the last one finish."""

    def raw_lines(run_path: Path) -> list[bytes]:
        """Return the lines without those that a kill cut: they are passed over, and stay."""
        lines = (line for path in run_path.glob("captions/*") for line in path.open("rb"))
        return sorted(line for line in lines if line.endswith(b"\n"))

    server = Server("--n", str(N_ITEMS), "--batch-size", "7", "--pause", "0.004")
    server.start(tmp_path / "undisturbed")
    began = time.monotonic()
    server.read("ready")
    ready = time.monotonic()
    assert server.read("exit") == "0"
    to_start, to_work = ready - began, time.monotonic() - ready
    expected = raw_lines(tmp_path / "undisturbed")
    assert len(expected) == N_ITEMS

    draw = random.Random(20_240_607)
    n_kills, n_midway = 0, 0
    for number in range(3 * N_KILLS):
        run_path = tmp_path / f"run-{number}"
        for _ in range(6):
            pid = server.start(run_path)
            if draw.random() < 0.15:  # at its start, mostly before the first batch
                time.sleep(draw.uniform(0, 1.5) * to_start)
            else:
                server.read("ready" if len(raw_lines(run_path)) < N_ITEMS else "count")
                time.sleep(draw.uniform(0, 0.4) * to_work)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed = server.read("exit") == str(-signal.SIGKILL)
            n_there = len(raw_lines(run_path))
            n_kills += killed
            n_midway += killed and 0 < n_there < N_ITEMS
            if not killed:
                break
        server.finish(run_path)
        assert raw_lines(run_path) == expected
        if n_kills >= N_KILLS:
            break
    server.close()
    assert n_kills >= N_KILLS
    assert n_midway >= N_KILLS // 2


def test_messages_and_warnings_stand_above_the_progress_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    handler = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    answer = Captions.__call__

    def noisy(self: Captions, names: Sequence[str]) -> Sequence[Record | Exception]:
        logging.getLogger("library").warning("a message")
        warnings.warn("one\nof several lines", UserWarning, stacklevel=1)
        return answer(self, names)

    show = warnings.showwarning
    monkeypatch.setattr(Captions, "__call__", noisy)
    with Run(tmp_path) as run:
        run_stage(Captions(), ["a"], run, StageOptions(progress=True))
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert "a message" in lines
    assert "UserWarning: one of several lines" in lines
    assert warnings.showwarning is show
