"""A model's stored responses: read when needed, and the columnar copy of their choices."""

from __future__ import annotations

import gc
import stat
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.files import PRIVATE
from flipbench.core.records import Response
from flipbench.core.run import Run
from flipbench.models import stored
from flipbench.models.stored import COPY, StoredResponses

MODEL = "0123456789abcdef"
N = 40


def response(n: int, choice: int | None = None) -> Response:
    picked = n % 5 - 1 if choice is None else choice
    return Response(probe_id=f"p{n}", model_fingerprint=MODEL, model="m", choice=picked)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(stored, "WORTH_COPYING", N)
    run = Run(tmp_path / "run")
    run.append([response(n) for n in range(N)])
    run.close()
    return run


def choices(run: Run) -> dict[str, int]:
    return dict(StoredResponses(run, MODEL).choices)


def copy(run: Run) -> Path:
    return run.path / Response.kind / MODEL / COPY


def shard(run: Run) -> Path:
    (path,) = run.shards(Response, MODEL)
    return path


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_reading_as_before(
    run: Run, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    def unreadable(*_: Any) -> None:
        raise OSError

    (gc.enable if enabled else gc.disable)()
    try:
        assert len(StoredResponses(run, MODEL)) == N and gc.isenabled() == enabled
        monkeypatch.setattr(Run, "read", unreadable)
        with pytest.raises(OSError):
            len(StoredResponses(run, MODEL))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


EXPECTED = {f"p{n}": n % 5 - 1 for n in range(N)}


def test_choices_come_from_the_copy_without_reading_a_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choices(run) == EXPECTED and copy(run).exists()
    assert stat.S_IMODE(copy(run).stat().st_mode) == PRIVATE

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("a line was read")

    monkeypatch.setattr(Run, "read", read)
    assert choices(run) == EXPECTED
    with pytest.raises(AssertionError, match="a line was read"):
        StoredResponses(run, MODEL)["p0"]


def test_responses_are_read_in_full_where_one_is_looked_up(run: Run) -> None:
    responses = StoredResponses(run, MODEL)
    assert responses["p3"] == response(3) and len(responses) == N and list(responses)[0] == "p0"
    assert dict(responses.choices) == EXPECTED
    assert "p99" not in responses and not copy(run).exists()


def test_few_responses_are_not_copied(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "WORTH_COPYING", N + 1)
    assert choices(run) == EXPECTED and not copy(run).exists()


def test_later_responses_are_seen(run: Run) -> None:
    choices(run)
    run.append([response(N, 2)])
    run.close()
    assert choices(run) == EXPECTED | {f"p{N}": 2}
    with Run(run.path) as one, Run(run.path) as other:
        one.append([response(N + 1, 0)])
        other.append([response(N + 2, 1)])
        for _ in range(2):
            assert choices(run) == EXPECTED | {f"p{N}": 2, f"p{N + 1}": 0, f"p{N + 2}": 1}


def test_what_is_written_meanwhile_is_not_left_out_of_a_copy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Run.read

    def slow(self: Run, *args: Any) -> Any:
        yield from read(self, *args)
        with Run(run.path) as other:
            other.append([response(N, 2)])

    with monkeypatch.context() as patch:
        patch.setattr(Run, "read", slow)
        assert choices(run) == EXPECTED and not copy(run).exists()
    assert choices(run) == EXPECTED | {f"p{N}": 2} and copy(run).exists()


def test_an_altered_line_is_noticed_each_time(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    choices(run)
    before = shard(run).read_bytes()
    shard(run).write_bytes(before.replace(b'"p7"', b'"p8"', 1))  # as many bytes as before
    for n in (1, 2):
        assert choices(run) == {p: c for p, c in EXPECTED.items() if p != "p7"}
        assert caplog.text.count("set aside") == n
    shard(run).write_bytes(before)
    assert choices(run) == EXPECTED


@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "text"])
def test_a_damaged_copy_is_replaced(run: Run, damage: str) -> None:
    choices(run)
    data = copy(run).read_bytes()
    changed = {
        "cut": data[: len(data) // 2],
        "byte": data[:100] + bytes([data[100] ^ 1]) + data[101:],
        "empty": b"",
        "text": b"no parquet",
    }[damage]
    copy(run).write_bytes(changed)
    assert choices(run) == EXPECTED
    assert copy(run).read_bytes() == data


def test_a_copy_that_cannot_be_written_is_done_without(run: Run) -> None:
    copy(run).mkdir()
    (copy(run) / "in the way").touch()
    assert choices(run) == EXPECTED


def test_no_responses(run: Run) -> None:
    none = StoredResponses(run, "another model")
    assert not none and not none.choices
